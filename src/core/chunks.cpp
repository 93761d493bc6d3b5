// Chunks and their sequences: deferral, assignment, and what is left of them when a sequence is
// cut.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks.h"

#include "core/cache.h"
#include "core/retain.h"
#include "core/watch.h"

#include <cmath>

namespace lk {

namespace {

// What a row keeps its chunks at. A budget may have ended while the row was packed.
uint8_t width_of(const lk_cache *cache, const Row &row) {
    const bool has_class =
        row.chunk_class && (row.n_packed == row.n_entries || !is_raw_row(cache, row));
    return has_class ? static_cast<uint8_t>(row.chunk_class) : kAt16Bits;
}

uint64_t first_chunk_token(const lk_cache *cache) { return cache->plan.model.sink_tokens; }

// Whole chunks of the first n_tokens tokens.
uint64_t count_chunks(const lk_cache *cache, uint64_t n_tokens) {
    const uint64_t first = first_chunk_token(cache);
    return n_tokens > first ? (n_tokens - first) / cache->plan.model.chunks.tokens : 0;
}

lk_status no_chunk_memory(uint64_t n) {
    return fail(LK_E_NOMEM, "no memory for a list of %llu chunks", ull{n});
}

}  // namespace

uint64_t first_to_pack(const lk_cache *cache, const Sequence &sequence) {
    const Plan &plan = cache->plan.model;
    const uint64_t sinks = sink_blocks(plan);
    if (sequence.deferral != LK_DEFER_OFF || (sequence.chunks && plan.chunks.hold))
        return UINT64_MAX;
    if (!sequence.chunks)
        return sinks;
    const uint64_t n_tokens = uint64_t{sequence.chunks->size()} * plan.chunks.tokens;
    return sinks + ceil_div(n_tokens, plan.page_tokens);
}

lk_status make_chunks(lk_cache *cache, uint32_t n_chunks, Chunks **out) {
    const uint64_t bytes = chunks_bytes(n_chunks);
    if (cache->ledger.left_bytes() < bytes)
        return fail(LK_E_BUDGET, "the budget of %llu bytes lacks %llu bytes for a list of chunks",
                    ull{cache->ledger.limit_bytes}, ull{bytes - cache->ledger.left_bytes()});
    const Allocator &allocator = cache->context->allocator;
    Chunks *chunks = create<Chunks>(allocator, allocator);
    if (!chunks || !chunks->order.resize(n_chunks) || !chunks->assigned.resize(n_chunks)) {
        destroy(allocator, chunks);
        return no_chunk_memory(n_chunks);
    }
    chunks->counted_bytes = bytes;
    cache->ledger.table_bytes += bytes;
    *out = chunks;
    return LK_OK;
}

void release_chunks(lk_cache *cache, Chunks *chunks) {
    if (!chunks)
        return;
    cache->ledger.table_bytes -= chunks->counted_bytes;
    destroy(cache->context->allocator, chunks);
}

lk_status copy_chunks(lk_cache *cache, const Sequence &from, Sequence *to) {
    to->deferral = from.deferral;
    share_originals(from, to);
    if (!from.chunks)
        return LK_OK;
    const uint32_t n = from.chunks->size();
    const lk_status status = make_chunks(cache, n, &to->chunks);
    if (status || !n)
        return status;
    std::memcpy(to->chunks->order.data(), from.chunks->order.data(), n * sizeof(uint32_t));
    std::memcpy(to->chunks->assigned.data(), from.chunks->assigned.data(), n);
    return LK_OK;
}

lk_status read_chunks(const lk_cache *cache, const Sequence &sequence, uint32_t n_chunks,
                      ChunkLayout *layout) {
    if (!layout->open(n_chunks))
        return no_chunk_memory(n_chunks);
    const ChunkShape shape(cache->plan.model);
    const Chunks *chunks = sequence.chunks;
    for (uint32_t p = 0; p < n_chunks; ++p) {
        const uint32_t chunk = chunks && p < chunks->size() ? chunks->order[p] : p;
        const uint64_t row = sink_blocks(cache->plan.model) + shape.row_of_place(p);
        layout->order[p] = chunk;
        layout->kept_at[chunk] = width_of(cache, *static_cast<const Row *>(sequence.rows[row]));
    }
    return LK_OK;
}

namespace {

// May the rows be packed now, which are a row of chunks or a chunk of rows?
bool may_pack(const lk_cache *cache, Sequence *sequence, uint64_t first, uint32_t n_rows) {
    for (uint64_t r = first; r < first + n_rows; ++r) {
        const Row &row = *sequence->row(r);
        const bool is_open = row.n_packed < row.n_entries || is_raw_row(cache, row);
        if (!is_open || !may_remake(row))
            return false;
    }
    return true;
}

}  // namespace

lk_status pack_deferred(lk_cache *cache, uint32_t *n_done) {
    const SpareScope spare(&cache->ledger);
    const Plan &plan = cache->plan.model;
    for (Sequence *sequence : cache->sequences) {
        if (sequence->deferral != LK_DEFER_PACK)
            continue;
        const uint32_t n_rows = ChunkShape(plan).chunk_rows;
        uint64_t first = sink_blocks(plan);
        while (is_due(plan, first + n_rows - 1, sequence->length) &&
               !may_pack(cache, sequence, first, n_rows))
            first += n_rows;
        if (!is_due(plan, first + n_rows - 1, sequence->length))
            continue;
        for (uint64_t r = first; r < first + n_rows; ++r) {
            const lk_status status = pack_row_as(cache, sequence, r, LK_CHUNK_MIDDLE);
            if (status)
                return status;
            *n_done += 2 * sequence->row(r)->n_entries;
        }
        return LK_OK;
    }
    return LK_OK;
}

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
    Chunks *chunks = sequence->chunks;
    if (!chunks)
        return;
    const uint64_t n = count_chunks(cache, n_tokens);
    if (n >= chunks->size())
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

// Chunks from n_left on go. Rows that lose none of theirs stay; what is left of the others comes
// back to 16 bits.
void drop_chunks(const ChunkShape &shape, uint32_t n_left, ChunkLayout *layout) {
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

// The first n_tokens tokens of what lies at a place.
lk_status list_tail(const lk_cache *cache, uint32_t place, uint64_t n_tokens,
                    Array<TokenRun> *out) {
    const ChunkShape shape(cache->plan.model);
    uint64_t row = sink_blocks(cache->plan.model) + shape.row_of_place(place);
    uint32_t first = shape.token_of_place(place);
    while (n_tokens) {
        const uint32_t left = shape.row_tokens - first;
        const uint32_t n = n_tokens < left ? static_cast<uint32_t>(n_tokens) : left;
        if (!out->push({row, first, n, false}))
            return no_chunk_memory(out->size() + 1);
        n_tokens -= n;
        first = 0;
        ++row;
    }
    return LK_OK;
}

// Lay chunks out anew; the new list has what was assigned to those that are left.
lk_status lay(lk_cache *cache, Sequence *sequence, const ChunkLayout &layout,
              const Array<TokenRun> &tail, const uint8_t *assigned, uint64_t n_tokens) {
    Chunks *chunks;
    lk_status status = leave_recording(cache);
    if (!status)
        status = make_chunks(cache, static_cast<uint32_t>(layout.order.size()), &chunks);
    if (status)
        return status;
    if (chunks->size())
        std::memcpy(chunks->assigned.data(), assigned, chunks->size());
    status = lay_chunks(cache, sequence, layout, tail, chunks, n_tokens);
    if (status)
        release_chunks(cache, chunks);
    return status;
}

}  // namespace

lk_status cut_chunks(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    const Allocator &allocator = cache->context->allocator;
    const ChunkShape shape(cache->plan.model);
    const auto n_left = static_cast<uint32_t>(count_chunks(cache, n_tokens));
    ChunkLayout layout(allocator);
    Array<TokenRun> tail(allocator);
    lk_status status = read_chunks(cache, *sequence, sequence->chunks->size(), &layout);
    if (status)
        return status;
    uint32_t cut_place = 0;
    while (layout.order[cut_place] != n_left)
        ++cut_place;
    const uint64_t whole = first_chunk_token(cache) + uint64_t{n_left} * shape.chunk_tokens;
    status = list_tail(cache, cut_place, n_tokens - whole, &tail);
    drop_chunks(shape, n_left, &layout);
    if (!status)
        status = layout.arrange(shape, true, nullptr, allocator);
    if (!status)
        status = lay(cache, sequence, layout, tail, sequence->chunks->assigned.data(), n_tokens);
    if (status)
        return status;
    cut_originals(cache, sequence, n_left);
    if (!n_left)
        forget_chunks(cache, sequence);
    return LK_OK;
}

namespace {

lk_status check_deferral(const lk_cache *cache) {
    if (cache->plan.model.chunks.tokens)
        return LK_OK;
    return fail(LK_E_UNSUPPORTED, "plan %s has no chunks: see lk_plan_set_chunks()",
                cache->plan.model.name);
}

lk_status find(const lk_cache *cache, lk_sequence id, Sequence **out) {
    *out = find_sequence(cache, id);
    return *out ? check_deferral(cache)
                : fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
}

lk_status defer(lk_cache *cache, lk_sequence id, lk_defer mode) {
    if (mode > LK_DEFER_PACK)
        return fail(LK_E_ARGUMENT, "mode is %u, not an lk_defer", mode);
    Sequence *sequence;
    const lk_status status = find(cache, id, &sequence);
    if (status)
        return status;
    if (cache->step.is_open)
        return fail(LK_E_BUSY,
                    "a step is open: commit or discard it before sequence %llu is deferred",
                    ull{id});
    sequence->deferral = mode;
    return LK_OK;
}

lk_status retain(lk_cache *cache, lk_sequence id, uint64_t budget_bytes) {
    Sequence *sequence;
    const lk_status status = find(cache, id, &sequence);
    if (status)
        return status;
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it first");
    const uint64_t held = sequence->originals ? sequence->originals->bytes.size() : 0;
    if (budget_bytes && budget_bytes < held)
        return fail(LK_E_BUDGET, "budget_bytes is %llu, sequence %llu has originals of %llu",
                    ull{budget_bytes}, ull{id}, ull{held});
    sequence->retain_bytes = budget_bytes;
    if (!budget_bytes)
        drop_originals(cache, sequence);
    return LK_OK;
}

struct Assignment {
    uint64_t n_context_tokens;
    uint32_t n_chunks;
    const lk_chunk_class *classes;
    const float *scores;
};

lk_status check_classes(const Assignment &asked) {
    if (asked.n_chunks && !asked.classes)
        return fail(LK_E_ARGUMENT, "classes is NULL for %u chunks", asked.n_chunks);
    for (uint32_t c = 0; c < asked.n_chunks; ++c) {
        if (asked.classes[c] < LK_CHUNK_LOW || asked.classes[c] > LK_CHUNK_HIGH)
            return fail(LK_E_ARGUMENT, "the class of chunk %u is %u, not low, middle or high", c,
                        asked.classes[c]);
        if (asked.scores && std::isnan(asked.scores[c]))
            return fail(LK_E_DATA, "the score of chunk %u is a NaN", c);
    }
    return LK_OK;
}

lk_status check_context(const lk_cache *cache, const Sequence &sequence, const Assignment &asked) {
    if (asked.n_context_tokens > sequence.length)
        return fail(LK_E_ARGUMENT, "n_context_tokens is %llu, sequence %llu has %llu",
                    ull{asked.n_context_tokens}, ull{sequence.id}, ull{sequence.length});
    const uint64_t n_chunks = count_chunks(cache, asked.n_context_tokens);
    if (asked.n_chunks != n_chunks)
        return fail(LK_E_ARGUMENT,
                    "n_chunks is %u, %llu tokens behind %llu sinks are %llu chunks of %u",
                    asked.n_chunks, ull{asked.n_context_tokens}, ull{first_chunk_token(cache)},
                    ull{n_chunks}, cache->plan.model.chunks.tokens);
    if (sequence.chunks && n_chunks < sequence.chunks->size())
        return fail(LK_E_ARGUMENT, "n_chunks is %u, sequence %llu has classes for %u",
                    asked.n_chunks, ull{sequence.id}, sequence.chunks->size());
    const uint64_t sinks = sink_blocks(cache->plan.model);
    const uint64_t end = ChunkShape(cache->plan.model).row_of_place(n_chunks);
    for (uint64_t r = sinks; r < sinks + end; ++r) {
        const Row &row = *static_cast<const Row *>(sequence.rows[r]);
        if (!row.chunk_class && !is_raw_row(cache, row))
            return fail(LK_E_STATE,
                        "tokens %llu to %llu of sequence %llu were packed without a class: defer a "
                        "sequence before its context comes",
                        ull{row.first_token}, ull{row.first_token + row.capacity_tokens},
                        ull{sequence.id});
    }
    return LK_OK;
}

// What chunks shall be kept at: never wider than what is left of them or of their originals, and as
// they are where windows have taken a part of their pages.
void choose_widths(const lk_cache *cache, Sequence *sequence, const Assignment &asked,
                   ChunkLayout *layout) {
    const ChunkShape shape(cache->plan.model);
    for (uint32_t p = 0; p < asked.n_chunks; ++p) {
        const uint32_t chunk = layout->order[p];
        const auto wanted = static_cast<uint8_t>(asked.classes[chunk]);
        const uint8_t now = layout->kept_at[chunk];
        const uint64_t row = sink_blocks(cache->plan.model) + shape.row_of_place(p);
        const bool is_lost = wanted > now && !has_original(cache, *sequence, chunk);
        layout->wanted[chunk] = is_lost || lacks_pages(*sequence->row(row)) ? now : wanted;
    }
}

lk_status assign(lk_cache *cache, lk_sequence id, const Assignment &asked) {
    Sequence *sequence;
    lk_status status = find(cache, id, &sequence);
    if (status)
        return status;
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it before classes are assigned");
    if (cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: assign classes after");
    status = check_classes(asked);
    if (!status)
        status = check_context(cache, *sequence, asked);
    const Allocator &allocator = cache->context->allocator;
    const ChunkShape shape(cache->plan.model);
    ChunkLayout layout(allocator);
    Array<TokenRun> tail(allocator);
    Array<uint8_t> assigned(allocator);
    if (!status)
        status = read_chunks(cache, *sequence, asked.n_chunks, &layout);
    if (!status && !assigned.resize(asked.n_chunks))
        status = no_chunk_memory(asked.n_chunks);
    if (status)
        return status;
    for (uint32_t c = 0; c < asked.n_chunks; ++c)
        assigned[c] = static_cast<uint8_t>(asked.classes[c]);
    choose_widths(cache, sequence, asked, &layout);
    status = layout.arrange(shape, cache->plan.model.chunks.reorder, asked.scores, allocator);
    // What shares the last row with chunks goes with them.
    const uint64_t end = first_chunk_token(cache) + uint64_t{asked.n_chunks} * shape.chunk_tokens;
    const uint32_t filled = shape.token_of_place(asked.n_chunks);
    const uint64_t behind = sequence->length > end ? sequence->length - end : 0;
    if (!status && filled)
        status = list_tail(cache, asked.n_chunks,
                           behind < shape.row_tokens - filled ? behind : shape.row_tokens - filled,
                           &tail);
    Originals *originals = nullptr;
    if (!status)
        status = keep_originals(cache, sequence, asked.n_chunks, &originals);
    if (status)
        return status;
    status = lay(cache, sequence, layout, tail, assigned.data(), sequence->length);
    if (status) {
        destroy(allocator, originals);
        return status;
    }
    if (originals) {
        drop_originals(cache, sequence);
        sequence->originals = originals;
        sequence->n_retained = asked.n_chunks;
    }
    sequence->deferral = LK_DEFER_OFF;
    if (sequence->watch && sequence->watch->n_scored)  // of the places before
        drop_watch(cache, sequence);
    return LK_OK;
}

// The class that a row keeps its chunks at, as hosts know it.
lk_chunk_class stored_class(const lk_cache *cache, const Row &row) {
    const uint8_t width = width_of(cache, row);
    if (width != kAt16Bits)
        return width;
    const ChunkRule &chunks = cache->plan.model.chunks;
    return is_raw_row(cache, row) && chunks.cap(LK_CHUNK_HIGH) == 16 ? LK_CHUNK_HIGH
                                                                     : LK_CHUNK_NONE;
}

struct ChunkLists {
    uint32_t capacity;
    lk_chunk_class *assigned;
    lk_chunk_class *stored;
    uint32_t *order;
};

void count_chunk(lk_chunk_class assigned, lk_chunk_class stored, lk_chunks_info *info) {
    const auto rank = [](lk_chunk_class c) { return c ? c : lk_chunk_class{kAt16Bits}; };
    info->n_low += stored == LK_CHUNK_LOW;
    info->n_middle += stored == LK_CHUNK_MIDDLE;
    info->n_high += stored == LK_CHUNK_HIGH;
    info->n_wider += assigned && rank(stored) > assigned;
    info->n_narrower += assigned && rank(stored) < assigned;
}

lk_status describe(const lk_cache *cache, lk_sequence id, lk_chunks_info *info,
                   const ChunkLists &lists) {
    Sequence *sequence;
    const lk_status status = find(cache, id, &sequence);
    if (status)
        return status;
    const Chunks *chunks = sequence->chunks;
    const ChunkShape shape(cache->plan.model);
    const uint64_t n_chunks = chunks ? chunks->size() : count_chunks(cache, sequence->length);
    lk_chunks_info found{};
    found.n_chunks = static_cast<uint32_t>(n_chunks);
    found.chunk_tokens = shape.chunk_tokens;
    found.deferral = sequence->deferral;
    found.is_assigned = chunks != nullptr;
    found.first_token = first_chunk_token(cache);
    found.retained_bytes = sequence->originals ? sequence->originals->bytes.size() : 0;
    const bool has_lists = lists.assigned || lists.stored || lists.order;
    const bool fits = !has_lists || lists.capacity >= n_chunks;
    for (uint32_t p = 0; p < n_chunks; ++p) {
        const uint32_t chunk = chunks ? chunks->order[p] : p;
        const lk_chunk_class assigned =
            chunks ? chunks->assigned[chunk] : lk_chunk_class{LK_CHUNK_NONE};
        const uint64_t row = sink_blocks(cache->plan.model) + shape.row_of_place(p);
        const lk_chunk_class stored = stored_class(cache, *sequence->row(row));
        count_chunk(assigned, stored, &found);
        if (fits && lists.assigned)
            lists.assigned[chunk] = assigned;
        if (fits && lists.stored)
            lists.stored[chunk] = stored;
        if (fits && lists.order)
            lists.order[p] = chunk;
    }
    if (info) {
        const lk_status exported =
            export_struct(info, &found, sizeof found, sizeof found, "chunks_info");
        if (exported)
            return exported;
    }
    return fits ? LK_OK
                : fail(LK_E_ARGUMENT, "sequence %llu has %llu chunks, the lists have room for %u",
                       ull{id}, ull{n_chunks}, lists.capacity);
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_sequence_defer(lk_cache *cache, lk_sequence id, lk_defer mode) {
    return lk::on_cache(cache, [&] { return lk::defer(cache, id, mode); });
}

extern "C" lk_status lk_chunks_assign(lk_cache *cache, lk_sequence id, uint64_t n_context_tokens,
                                      uint32_t n_chunks, const lk_chunk_class *classes,
                                      const float *scores) {
    return lk::on_cache(cache, [&] {
        return lk::assign(cache, id, {n_context_tokens, n_chunks, classes, scores});
    });
}

extern "C" lk_status lk_chunks_retain(lk_cache *cache, lk_sequence id, uint64_t budget_bytes) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    return lk::logged(cache->context, lk::retain(cache, id, budget_bytes));
}

extern "C" lk_status lk_chunks_info_init(lk_chunks_info *info, size_t struct_bytes) {
    return lk::init_struct(info, struct_bytes, sizeof(lk_chunks_info), "chunks_info");
}

extern "C" lk_status lk_chunks_get(const lk_cache *cache, lk_sequence id, lk_chunks_info *info,
                                   uint32_t capacity, lk_chunk_class *assigned,
                                   lk_chunk_class *stored, uint32_t *order) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    return lk::describe(cache, id, info, {capacity, assigned, stored, order});
}
