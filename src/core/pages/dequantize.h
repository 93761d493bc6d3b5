// Bringing pages back to 16 bits, and copies of pages at 16 bits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_PAGES_DEQUANTIZE_H
#define LK_CORE_PAGES_DEQUANTIZE_H

#include "core/sequence/block_table.h"

namespace lk {

// Bring a block's packed pages back to 16 bits, of its first n_tokens tokens; on failure nothing is
// changed. The donor is a 16-bit block that is dropped next and whose slots may be used; null
// without. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status dequantize_block(lk_cache *cache, CacheBlock *block, CacheBlock *donor,
                           uint32_t n_tokens);
// Copy the first n_tokens of all pages that the target block has at 16 bits.
lk_status copy_raw_pages(lk_cache *cache, const CacheBlock &from, const CacheBlock &to,
                         uint32_t n_tokens);

}  // namespace lk

#endif
