// Compaction: slots of sparsely used extents are moved together.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_COMPACT_H
#define LK_CORE_MEMORY_COMPACT_H

#include <lowkey/cache.h>

namespace lk {

// Move slots until no family of sizes holds an extent too many; true when any moved.
bool compact(lk_cache *cache);
// Move the slots of a slab to other slabs, so that it is empty. False when there is none that can
// be emptied; then nothing has moved.
bool vacate_slab(lk_cache *cache);

}  // namespace lk

#endif
