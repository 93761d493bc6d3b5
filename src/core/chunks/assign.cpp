// Assigning classes to the chunks of a context, also to chunks that are still to come.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/chunks/lay_out.h"
#include "core/chunks/order.h"
#include "core/chunks/pending.h"
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
    const uint64_t end =
        std::min<uint64_t>(sinks + ChunkShape(cache->plan.model).block_of_index(n_chunks),
                           sequence.block_table.size());
    for (uint64_t r = sinks; r < end; ++r) {
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
    for (uint32_t p = 0; p < layout->order.size(); ++p) {
        const uint32_t chunk = layout->order[p];
        const auto wanted = static_cast<uint8_t>(assignment.classes[chunk]);
        const uint8_t now = layout->kept_at[chunk];
        const uint64_t block = sink_blocks(cache->plan.model) + shape.block_of_index(p);
        const bool is_lost = wanted > now && !has_original(cache, *sequence, chunk);
        layout->wanted[chunk] = is_lost || has_absent_pages(*sequence->block(block)) ? now : wanted;
    }
}

lk_status list_assigned(const Assignment &assignment, Array<uint8_t> *out) {
    if (!out->resize(assignment.n_chunks))
        return no_chunk_memory(assignment.n_chunks);
    for (uint32_t c = 0; c < assignment.n_chunks; ++c)
        (*out)[c] = static_cast<uint8_t>(assignment.classes[c]);
    return LK_OK;
}

void replace_originals(lk_cache *cache, Sequence *sequence, Originals *originals,
                       uint32_t n_retained) {
    if (!originals)
        return;
    drop_originals(cache, sequence);
    sequence->originals = originals;
    sequence->n_retained = n_retained;
}

void replace_pending(lk_cache *cache, Sequence *sequence, PendingChunks *pending) {
    release_pending(cache, sequence->pending);
    sequence->pending = pending;
    sequence->deferral = LK_DEFER_OFF;
}

// The context is there: its chunks get their classes now.
lk_status assign_present(lk_cache *cache, Sequence *sequence, const Assignment &assignment) {
    const Allocator &allocator = cache->context->allocator;
    ChunkOrder layout(allocator);
    Array<uint8_t> assigned(allocator);
    LK_TRY(read_chunks(cache, *sequence, assignment.n_chunks, &layout));
    LK_TRY(list_assigned(assignment, &assigned));
    choose_widths(cache, sequence, assignment, &layout);
    LK_TRY(layout.arrange(ChunkShape(cache->plan.model), cache->plan.model.chunks.reorder,
                          assignment.scores, allocator));
    Originals *originals = nullptr;
    LK_TRY(keep_originals(cache, sequence, assignment.n_chunks, &originals));
    const lk_status status = lay_context(cache, sequence, layout, assigned.data());
    if (status) {
        destroy(allocator, originals);
        return status;
    }
    replace_originals(cache, sequence, originals, assignment.n_chunks);
    replace_pending(cache, sequence, nullptr);
    return LK_OK;
}

// The chunks of now: those that have a class get the new one at once, as a chunk cannot wait at 16
// bits for others once it is packed. *changes: is there one whose class is another?
void choose_present(ChunkOrder *layout, Array<uint8_t> *wanted, bool *changes) {
    *changes = false;
    for (uint32_t c = 0; c < wanted->size(); ++c) {
        (*wanted)[c] = layout->wanted[c];
        if (layout->kept_at[c] == kAt16Bits)
            layout->wanted[c] = kAt16Bits;
        *changes = *changes || layout->wanted[c] != layout->kept_at[c];
    }
}

// The order and the widths of the whole context, from the chunks of now as they will lie.
lk_status order_all(const lk_cache *cache, const Assignment &assignment, const ChunkOrder &present,
                    const Array<uint8_t> &wanted, PendingChunks *out) {
    const Allocator &allocator = cache->context->allocator;
    ChunkOrder whole(allocator);
    if (!whole.open(assignment.n_chunks))
        return no_chunk_memory(assignment.n_chunks);
    for (uint32_t c = 0; c < assignment.n_chunks; ++c) {
        const bool is_present = c < wanted.size();
        whole.order[c] = is_present ? present.order[c] : c;
        whole.kept_at[c] = is_present ? present.wanted[c] : kAt16Bits;
        const bool is_packed = whole.kept_at[c] != kAt16Bits;
        whole.wanted[c] = is_packed    ? whole.kept_at[c]
                          : is_present ? wanted[c]
                                       : static_cast<uint8_t>(assignment.classes[c]);
        out->assigned[c] = static_cast<uint8_t>(assignment.classes[c]);
    }
    LK_TRY(whole.arrange(ChunkShape(cache->plan.model), cache->plan.model.chunks.reorder,
                         assignment.scores, allocator));
    for (uint32_t c = 0; c < assignment.n_chunks; ++c) {
        out->order[c] = whole.order[c];
        out->widths[c] = whole.wanted[c];
    }
    out->n_context_tokens = assignment.n_context_tokens;
    return LK_OK;
}

lk_status lay_present(lk_cache *cache, Sequence *sequence, const Assignment &assignment,
                      PendingChunks *pending) {
    const Allocator &allocator = cache->context->allocator;
    const auto n_present = static_cast<uint32_t>(
        std::min<uint64_t>(count_chunks(cache, sequence->length), assignment.n_chunks));
    ChunkOrder layout(allocator);
    Array<uint8_t> wanted(allocator);
    LK_TRY(read_chunks(cache, *sequence, n_present, &layout));
    if (!wanted.resize(n_present))
        return no_chunk_memory(n_present);
    choose_widths(cache, sequence, assignment, &layout);
    bool has_classes = sequence->chunks != nullptr;
    for (const uint8_t width : layout.kept_at)
        has_classes = has_classes || width != kAt16Bits;
    bool changes = false;
    choose_present(&layout, &wanted, &changes);
    if (changes)
        LK_TRY(layout.arrange(ChunkShape(cache->plan.model), cache->plan.model.chunks.reorder,
                              assignment.scores, allocator));
    LK_TRY(order_all(cache, assignment, layout, wanted, pending));
    Originals *originals = nullptr;
    if (!has_classes)
        LK_TRY(open_originals(cache, *sequence, assignment.n_chunks, &originals));
    const lk_status status =
        changes ? lay_context(cache, sequence, layout, pending->assigned.data()) : LK_OK;
    if (status)
        destroy(allocator, originals);
    else
        replace_originals(cache, sequence, originals, 0);
    return status;
}

// The context is still to come: its chunks get their classes as they come.
lk_status assign_ahead(lk_cache *cache, Sequence *sequence, const Assignment &assignment) {
    PendingChunks *pending = nullptr;
    LK_TRY(make_pending(cache, assignment.n_chunks, &pending));
    const lk_status status = lay_present(cache, sequence, assignment, pending);
    if (status)
        release_pending(cache, pending);
    else
        replace_pending(cache, sequence, pending);
    return status;
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
    return assignment.n_context_tokens > sequence->length
               ? assign_ahead(cache, sequence, assignment)
               : assign_present(cache, sequence, assignment);
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
