// What slots a block of each kind takes, by size.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_BLOCK_SLOTS_H
#define LK_CORE_MEMORY_BLOCK_SLOTS_H

#include "base/memory.h"
#include "base/status.h"

#include <lowkey/cache.h>

namespace lk {

// Slots of one size.
struct SlotCount {
    uint64_t slot_bytes;
    uint64_t n;
};

uint64_t total_bytes(const Array<SlotCount> &counts);
// 0 for a size that is not among them.
uint64_t slots_of_size(const Array<SlotCount> &counts, uint64_t slot_bytes);

struct BlockSlots {
    explicit BlockSlots(const Allocator &allocator)
        : recent(allocator),
          on_append(allocator),
          sink(allocator),
          last_sink(allocator),
          needs(allocator) {}

    void clear_needs() {
        for (uint64_t &n : needs)
            n = 0;
    }

    Array<SlotCount> recent;
    Array<SlotCount> on_append;  // of a block that is packed on append
    Array<SlotCount> sink;
    Array<SlotCount> last_sink;  // of a sink block that is shorter than a page
    Array<uint64_t> needs;       // [slot sizes] scratch: slots that somebody is about to take
};

// Make all slot sizes of the cache's formats known and count what blocks take of them. LK_E_NOMEM.
lk_status count_block_slots(lk_cache *cache);
// Count again what a block that is packed on append takes, after a rung has changed.
void count_on_append(lk_cache *cache);

}  // namespace lk

#endif
