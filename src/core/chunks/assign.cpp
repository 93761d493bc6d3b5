// Assigning classes to the chunks of a context.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/cache.h"
#include "core/chunks/attention_scores.h"
#include "core/chunks/chunks.h"
#include "core/chunks/lay_out.h"
#include "core/chunks/order.h"
#include "core/chunks/retain.h"

namespace lk {

namespace {

struct Assignment {
    uint64_t n_context_tokens;
    uint32_t n_chunks;
    const lk_chunk_class *classes;
    const float *scores;
};

lk_status check_classes(const Assignment &assignment) {
    if (assignment.n_chunks && !assignment.classes)
        return fail(LK_E_ARGUMENT, "classes is NULL for %u chunks", assignment.n_chunks);
    for (uint32_t c = 0; c < assignment.n_chunks; ++c) {
        if (assignment.classes[c] < LK_CHUNK_LOW || assignment.classes[c] > LK_CHUNK_HIGH)
            return fail(LK_E_ARGUMENT, "the class of chunk %u is %u, not low, middle or high", c,
                        assignment.classes[c]);
        if (assignment.scores && std::isnan(assignment.scores[c]))
            return fail(LK_E_DATA, "the score of chunk %u is a NaN", c);
    }
    return LK_OK;
}

lk_status check_context(const lk_cache *cache, const Sequence &sequence,
                        const Assignment &assignment) {
    if (assignment.n_context_tokens > sequence.length)
        return fail(LK_E_ARGUMENT, "n_context_tokens is %llu, sequence %llu has %llu",
                    ull{assignment.n_context_tokens}, ull{sequence.id}, ull{sequence.length});
    const uint64_t n_chunks = count_chunks(cache, assignment.n_context_tokens);
    if (assignment.n_chunks != n_chunks)
        return fail(LK_E_ARGUMENT,
                    "n_chunks is %u, %llu tokens after %llu sinks are %llu chunks of %u",
                    assignment.n_chunks, ull{assignment.n_context_tokens},
                    ull{first_chunk_token(cache)}, ull{n_chunks}, cache->plan.model.chunks.tokens);
    if (sequence.chunks && n_chunks < sequence.chunks->size())
        return fail(LK_E_ARGUMENT, "n_chunks is %u, sequence %llu has classes for %u",
                    assignment.n_chunks, ull{sequence.id}, sequence.chunks->size());
    const uint64_t sinks = sink_blocks(cache->plan.model);
    const uint64_t end = ChunkShape(cache->plan.model).block_of_index(n_chunks);
    for (uint64_t r = sinks; r < sinks + end; ++r) {
        const CacheBlock &block = *sequence.block(r);
        if (!block.chunk_class && !is_raw_block(cache->formats, block))
            return fail(LK_E_STATE,
                        "tokens %llu to %llu of sequence %llu were packed without a class: defer a "
                        "sequence before its context comes",
                        ull{block.first_token}, ull{block.first_token + block.capacity_tokens},
                        ull{sequence.id});
    }
    return LK_OK;
}

// What chunks shall be kept at: never wider than what is left of them or of their originals, and as
// they are where windows have taken a part of their pages.
void choose_widths(const lk_cache *cache, Sequence *sequence, const Assignment &assignment,
                   ChunkOrder *layout) {
    const ChunkShape shape(cache->plan.model);
    for (uint32_t p = 0; p < assignment.n_chunks; ++p) {
        const uint32_t chunk = layout->order[p];
        const auto wanted = static_cast<uint8_t>(assignment.classes[chunk]);
        const uint8_t now = layout->kept_at[chunk];
        const uint64_t block = sink_blocks(cache->plan.model) + shape.block_of_index(p);
        const bool is_lost = wanted > now && !has_original(cache, *sequence, chunk);
        layout->wanted[chunk] = is_lost || has_absent_pages(*sequence->block(block)) ? now : wanted;
    }
}

lk_status assign(lk_cache *cache, lk_sequence id, const Assignment &assignment) {
    Sequence *sequence;
    LK_TRY(find_chunked(cache, id, &sequence));
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it before classes are assigned");
    if (cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: assign classes after");
    LK_TRY(check_classes(assignment));
    LK_TRY(check_context(cache, *sequence, assignment));
    const Allocator &allocator = cache->context->allocator;
    const ChunkShape shape(cache->plan.model);
    ChunkOrder layout(allocator);
    Array<TokenRun> tail(allocator);
    Array<uint8_t> assigned(allocator);
    LK_TRY(read_chunks(cache, *sequence, assignment.n_chunks, &layout));
    if (!assigned.resize(assignment.n_chunks))
        return no_chunk_memory(assignment.n_chunks);
    for (uint32_t c = 0; c < assignment.n_chunks; ++c)
        assigned[c] = static_cast<uint8_t>(assignment.classes[c]);
    choose_widths(cache, sequence, assignment, &layout);
    LK_TRY(layout.arrange(shape, cache->plan.model.chunks.reorder, assignment.scores, allocator));
    // Tokens that share the last block with chunks go with them.
    const uint64_t end =
        first_chunk_token(cache) + uint64_t{assignment.n_chunks} * shape.chunk_tokens;
    const uint32_t filled = shape.token_of_index(assignment.n_chunks);
    const uint64_t n_after = sequence->length > end ? sequence->length - end : 0;
    if (filled)
        LK_TRY(list_tail(cache, assignment.n_chunks,
                         std::min<uint64_t>(n_after, shape.block_tokens - filled), &tail));
    Originals *originals = nullptr;
    LK_TRY(keep_originals(cache, sequence, assignment.n_chunks, &originals));
    const lk_status status =
        lay_chunks(cache, sequence, {layout, tail, assigned.data(), sequence->length});
    if (status) {
        destroy(allocator, originals);
        return status;
    }
    if (originals) {
        drop_originals(cache, sequence);
        sequence->originals = originals;
        sequence->n_retained = assignment.n_chunks;
    }
    sequence->deferral = LK_DEFER_OFF;
    if (sequence->attention_scores && sequence->attention_scores->n_scored)  // by indices of before
        drop_attention_scores(cache, sequence);
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_chunks_assign(lk_cache *cache, lk_sequence id, uint64_t n_context_tokens,
                                      uint32_t n_chunks, const lk_chunk_class *classes,
                                      const float *scores) {
    return lk::on_cache(cache, [&] {
        return lk::assign(cache, id, {n_context_tokens, n_chunks, classes, scores});
    });
}
