// Pending classes: those that lk_chunks_assign() got for chunks that have not come yet. As chunks
// come, each step lays out the blocks that are complete; the other chunks wait at 16 bits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_PENDING_H
#define LK_CORE_CHUNKS_PENDING_H

#include "core/sequence/sequence.h"

namespace lk {

class ChunkOrder;

// The layout that the whole context gets, known from its classes alone.
struct PendingChunks {
    explicit PendingChunks(const Allocator &allocator)
        : order(allocator), widths(allocator), assigned(allocator) {}

    uint32_t size() const { return static_cast<uint32_t>(order.size()); }

    Array<uint32_t> order;    // by index: the chunk; a permutation
    Array<uint8_t> widths;    // by chunk: the class that it is kept at, or kAt16Bits
    Array<uint8_t> assigned;  // by chunk: the class that the host gave it
    uint64_t n_context_tokens = 0;
    uint32_t n_laid = 0;  // of the first n_laid chunks every complete block has its class
    uint64_t counted_bytes = 0;
};

// Counted in the budget by pending_bytes(). LK_E_BUDGET, LK_E_NOMEM.
lk_status make_pending(lk_cache *cache, uint32_t n_chunks, PendingChunks **out);
void release_pending(lk_cache *cache, PendingChunks *pending);
// What a fork has. LK_E_BUDGET, LK_E_NOMEM.
lk_status copy_pending(lk_cache *cache, const Sequence &from, Sequence *to);
// A truncation keeps pending classes: what is laid out again is laid out as it comes again.
void cut_pending(Sequence *sequence, uint64_t n_chunks);

// Chunks that the sequence's next step begins with in its list of chunks.
uint32_t chunks_of_next_step(const lk_cache *cache, const Sequence &sequence);
// Lay out the blocks that are complete: between steps, before the next one reserves its blocks.
// LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE: what is left is laid out by the next call.
lk_status lay_pending(lk_cache *cache, Sequence *sequence);

}  // namespace lk

#endif
