// Space in the budget for tables next to the slabs, which hold more than the extents that are
// counted.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_TABLE_SPACE_H
#define LK_CORE_MEMORY_TABLE_SPACE_H

#include "core/memory/ledger.h"

#include <lowkey/cache.h>

namespace lk {

// Give slabs back until slabs and tables have space for so many bytes more: empty ones, then others
// whose slots are moved together. Returns the bytes that are still missing.
uint64_t give_slabs_back(lk_cache *cache, uint64_t bytes);

// Before tables of so many bytes are allocated and added to the ledger. LK_E_BUDGET names what they
// are for; of the cache nothing is changed but the places of pages.
lk_status make_table_space(lk_cache *cache, uint64_t bytes, const char *purpose);

}  // namespace lk

#endif
