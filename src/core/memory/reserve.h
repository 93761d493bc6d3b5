// Reservation: do the blocks of a step fit in the budget?
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_RESERVE_H
#define LK_CORE_MEMORY_RESERVE_H

#include "core/sequence/block_table.h"

namespace lk {

struct StepSequence;

// Bytes beyond the budget as the slots lie, and were they moved together.
struct Shortfall {
    uint64_t bytes;
    uint64_t compacted_bytes;
};
// Of the slots in BlockSlots::needs and of table_bytes more.
Shortfall shortfall_of(lk_cache *cache, uint64_t table_bytes);

// The space that a step gives the block table of a sequence, and by how many bytes that is more
// than now: 0 where the table is long enough.
uint64_t blocks_in_table(const lk_cache &cache, const StepSequence &member);
uint64_t table_growth(const lk_cache &cache, const StepSequence &member);

// Make sure that the blocks of the step fit, with reclaim() where they do not. LK_E_BUDGET with
// nothing changed but what reclaim() changes.
lk_status reserve_step(lk_cache *cache);
// Add the slots of a block to BlockSlots::needs: one at 16 bits, or one of chunks.
void add_block_slots(lk_cache *cache, BlockKind kind);
// For the slots in BlockSlots::needs and table_bytes more, which `purpose` takes: nothing is
// reclaimed, slots are moved together at most. LK_E_BUDGET with nothing changed.
lk_status check_reserve(lk_cache *cache, uint64_t table_bytes, const char *purpose);
// The same as a question: whether they fit as slots and slabs lie.
bool has_room(lk_cache *cache, uint64_t table_bytes);
// What a cache's first sequence takes for its first token.
uint64_t first_token_bytes(lk_cache *cache);

}  // namespace lk

#endif
