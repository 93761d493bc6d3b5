// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/cut.h"

#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/chunks/lay_out.h"
#include "core/chunks/order.h"
#include "core/chunks/pending.h"
#include "core/chunks/retain.h"

namespace lk {

bool cuts_chunks(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens) {
    const Plan &plan = cache->plan.model;
    return sequence.chunks && plan.chunks.reorder && n_tokens > first_chunk_token(cache) &&
           count_chunks(cache, n_tokens) < sequence.chunks->size();
}

namespace {

// As before any were assigned.
void forget_chunks(lk_cache *cache, Sequence *sequence) {
    release_chunks(cache, sequence->chunks);
    sequence->chunks = nullptr;
}

}  // namespace

void trim_chunks(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    ChunkList *chunks = sequence->chunks;
    if (!chunks && !sequence->pending)
        return;
    const uint64_t n = count_chunks(cache, n_tokens);
    cut_pending(sequence, n);
    if (!chunks || n >= chunks->size())
        return;
    while (chunks->size() > n) {
        chunks->order.pop();
        chunks->assigned.pop();
    }
    cut_originals(cache, sequence, static_cast<uint32_t>(n));
    if (!n)
        forget_chunks(cache, sequence);
}

namespace {

// Chunks from n_left on go. Blocks that lose none of theirs stay; what is left of the others comes
// back to 16 bits.
void drop_chunks(const ChunkShape &shape, uint32_t n_left, ChunkOrder *layout) {
    const auto n = static_cast<uint32_t>(layout->order.size());
    for (uint32_t first = 0; first < n; first += shape.block_chunks) {
        const uint32_t end = first + shape.block_chunks < n ? first + shape.block_chunks : n;
        bool is_whole = true;
        for (uint32_t p = first; p < end; ++p)
            is_whole = is_whole && layout->order[p] < n_left;
        for (uint32_t p = first; p < end; ++p) {
            const uint32_t chunk = layout->order[p];
            layout->wanted[chunk] = chunk >= n_left ? 0
                                    : is_whole      ? layout->kept_at[chunk]
                                                    : kAt16Bits;
        }
    }
}

}  // namespace

lk_status cut_chunks(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    const Allocator &allocator = cache->context->allocator;
    const ChunkShape shape(cache->plan.model);
    const auto n_left = static_cast<uint32_t>(count_chunks(cache, n_tokens));
    ChunkOrder layout(allocator);
    Array<TokenRun> tail(allocator);
    LK_TRY(read_chunks(cache, *sequence, sequence->chunks->size(), &layout));
    uint32_t cut_index = 0;
    while (layout.order[cut_index] != n_left)
        ++cut_index;
    const uint64_t whole = first_chunk_token(cache) + uint64_t{n_left} * shape.chunk_tokens;
    LK_TRY(list_tail(cache, cut_index, n_tokens - whole, &tail));
    drop_chunks(shape, n_left, &layout);
    LK_TRY(layout.arrange(shape, true, nullptr, allocator));
    LK_TRY(
        lay_chunks(cache, sequence, {layout, tail, sequence->chunks->assigned.data(), n_tokens}));
    cut_originals(cache, sequence, n_left);
    if (!n_left)
        forget_chunks(cache, sequence);
    return LK_OK;
}

}  // namespace lk
