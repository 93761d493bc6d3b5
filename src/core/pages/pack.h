// Packing: blocks that have left the recent tokens, and blocks that a long step writes packed.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_PAGES_PACK_H
#define LK_CORE_PAGES_PACK_H

#include "core/sequence/sequence.h"

namespace lk {

// The address of the query statistics that rank an entry's channels; 0 where none do.
uint64_t ranking_stats(const Sequence &sequence, const EntryInfo &info);
// Queue the pages of an entry whose formats differ, to be packed from the old slots to the fresh.
void queue_entry(lk_cache *cache, const PageEntry &old, const PageEntry &fresh, uint64_t stats);

// Pack what is due of a sequence. LK_E_BUDGET, LK_E_DEVICE: the rest stays due.
lk_status pack_due_blocks(lk_cache *cache, Sequence *sequence);
// Pack a block that the sequence has for itself as one of a chunk class. What a budget leaves at 16
// bits the next call packs.
lk_status pack_block_as(lk_cache *cache, Sequence *sequence, uint64_t index,
                        lk_chunk_class chunk_class);
// Count a layer's pages in the blocks that the step packs on append.
void count_packed_on_append(lk_cache *cache, uint32_t layer);

}  // namespace lk

#endif
