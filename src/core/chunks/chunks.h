// The chunks of a sequence's context: their order and the classes that the host assigned.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_CHUNKS_H
#define LK_CORE_CHUNKS_CHUNKS_H

#include "core/chunks/order.h"
#include "core/sequence/sequence.h"

namespace lk {

struct ChunkList {
    explicit ChunkList(const Allocator &allocator) : order(allocator), assigned(allocator) {}

    uint32_t size() const { return static_cast<uint32_t>(order.size()); }

    Array<uint32_t> order;    // by index: the chunk; a permutation
    Array<uint8_t> assigned;  // by chunk: the class that the host gave it
    uint64_t counted_bytes = 0;
};

// LK_E_NOMEM with the sentence of a list of chunks.
lk_status no_chunk_memory(uint64_t n);
// The sequence of an id, in a cache whose plan has chunks. LK_E_NOT_FOUND, LK_E_UNSUPPORTED.
lk_status find_chunked(const lk_cache *cache, lk_sequence id, Sequence **out);
// The first token of the first chunk.
uint64_t first_chunk_token(const lk_cache *cache);
// Whole chunks of the first n_tokens tokens.
uint64_t count_chunks(const lk_cache *cache, uint64_t n_tokens);
// What a block keeps its chunks at: a class, or kAt16Bits.
uint8_t width_of(const lk_cache *cache, const CacheBlock &block);

// Counted in the budget by chunks_bytes(). LK_E_BUDGET, LK_E_NOMEM.
lk_status make_chunks(lk_cache *cache, uint32_t n_chunks, ChunkList **out);
void release_chunks(lk_cache *cache, ChunkList *chunks);
// What a fork has. LK_E_BUDGET, LK_E_NOMEM.
lk_status copy_chunks(lk_cache *cache, const Sequence &from, Sequence *to);
// Chunks as they lie, n_chunks of them: those after the sequence's own are in order and at 16
// bits. LK_E_NOMEM.
lk_status read_chunks(const lk_cache *cache, const Sequence &sequence, uint32_t n_chunks,
                      ChunkOrder *order);

}  // namespace lk

#endif
