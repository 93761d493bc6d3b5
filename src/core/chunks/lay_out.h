// Laying out chunks in their order and at their classes, in new blocks.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_LAY_OUT_H
#define LK_CORE_CHUNKS_LAY_OUT_H

#include "core/chunks/chunks.h"

namespace lk {

// Tokens of a block that a sequence has.
struct TokenRun {
    uint64_t block;
    uint32_t first;
    uint32_t n_tokens;
    bool is_original;  // of the context as it came (retain.h), not as it lies
};

// The first n_tokens tokens from the chunk at an index on. LK_E_NOMEM.
lk_status list_tail(const lk_cache *cache, uint32_t index, uint64_t n_tokens, Array<TokenRun> *out);

// What a sequence's chunks shall become.
struct NewLayout {
    const ChunkOrder &order;
    const Array<TokenRun> &tail;  // tokens after the chunks
    const uint8_t *assigned;      // by chunk: the class that the host gave it
    uint64_t n_tokens;            // the sequence's length
};
// Lay a sequence's chunks out anew, the tail after them, and drop the blocks after n_tokens. New
// blocks are made next to the old ones, which go when all are there: on failure nothing has
// changed. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status lay_chunks(lk_cache *cache, Sequence *sequence, const NewLayout &layout);
// The same for all chunks of an order and the sequence's tokens after them; attention scores by
// indices of before end.
lk_status lay_context(lk_cache *cache, Sequence *sequence, const ChunkOrder &order,
                      const uint8_t *assigned);

}  // namespace lk

#endif
