// Room in the budget: what a step needs, and what gives way to it: pages go down their ladders,
// then the host is asked, then the sequence that was used least recently goes.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

namespace lk {

namespace {

constexpr uint32_t kPressureIds = 256;  // that a host may name at once
constexpr uint32_t kAheadHalves = 128;  // shrunk by a step before there is need

// New rows of a step.
struct RowCounts {
    uint64_t sink = 0;
    uint64_t last_sink = 0;
    uint64_t recent = 0;
    uint64_t direct = 0;

    uint64_t total() const { return sink + last_sink + recent + direct; }
};

struct Need {
    RowCounts rows;
    uint64_t table_bytes = 0;
};

void count_rows(const lk_cache *cache, const StepSequence &part, RowCounts *counts) {
    const Plan &plan = cache->plan.model;
    const uint64_t length = part.sequence->length;
    const uint64_t first = part.n_rows_before - part.copies_tail;
    for (uint64_t r = first; r < block_count(plan, length + part.n_new); ++r) {
        const RowKind kind = row_kind(cache, *part.sequence, r, part.n_new);
        const bool is_short = block_capacity(plan, r) < plan.page_tokens;
        ++(kind == RowKind::kDirect   ? counts->direct
           : kind == RowKind::kRecent ? counts->recent
           : is_short                 ? counts->last_sink
                                      : counts->sink);
    }
}

uint64_t slots_of(const Array<SlotCount> &counts, uint64_t bytes) {
    for (const SlotCount &count : counts)
        if (count.slot_bytes == bytes)
            return count.n;
    return 0;
}

// The slots of the rows, by size, in slot_needs.
void count_slots(lk_cache *cache, const RowCounts &rows) {
    for (uint32_t s = 0; s < cache->slots.n_sizes(); ++s) {
        const uint64_t size = cache->slots.size_of(s);
        cache->slot_needs[s] = rows.sink * slots_of(cache->sink_count, size) +
                               rows.last_sink * slots_of(cache->last_sink_count, size) +
                               rows.recent * slots_of(cache->recent_count, size) +
                               rows.direct * slots_of(cache->direct_count, size);
    }
}

uint64_t tables_of(const lk_cache *cache, const Need &need) {
    return need.table_bytes + need.rows.total() * block_bytes(cache->plan.model);
}

// Bytes that are lacking as the slots lie, and were they moved together.
struct Lack {
    uint64_t bytes;
    uint64_t compacted_bytes;
};
// Of the slots in slot_needs and of tables.
Lack lack_of(lk_cache *cache, uint64_t table_bytes) {
    const Ledger &ledger = cache->ledger;
    const uint64_t *slots = cache->slot_needs.data();
    const uint64_t held = ledger.used_bytes() + ledger.spare_bytes + table_bytes;
    const uint64_t now = held + cache->slots.extents_for(slots) * LK_EXTENT_BYTES;
    const uint64_t compacted =
        held - ledger.extent_bytes + cache->slots.extents_of_all(slots) * LK_EXTENT_BYTES;
    const auto beyond = [&](uint64_t bytes) {
        return bytes > ledger.limit_bytes ? bytes - ledger.limit_bytes : 0;
    };
    return {beyond(now), beyond(compacted)};
}

Lack lack_of(lk_cache *cache, const Need &need) {
    count_slots(cache, need.rows);
    return lack_of(cache, tables_of(cache, need));
}

lk_status fail_room(const lk_cache *cache, uint64_t lacking) {
    const Ledger &ledger = cache->ledger;
    return fail(LK_E_BUDGET,
                "the budget of %llu bytes lacks %llu bytes: %llu are reserved and the step's %u "
                "tokens need %llu more",
                ull{ledger.limit_bytes}, ull{lacking}, ull{ledger.used_bytes()},
                cache->step.n_tokens, ull{lacking + ledger.left_bytes()});
}

bool is_in_step(const lk_cache *cache, const Sequence &sequence) {
    return sequence.mark == cache->next_mark;
}

lk_status remove_named(lk_cache *cache, const lk_sequence *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
        const Sequence *sequence = find_sequence(cache, ids[i]);
        if (!sequence || is_in_step(cache, *sequence))
            return fail(LK_E_ARGUMENT, "the pressure callback names sequence %llu, which %s",
                        ull{ids[i]}, sequence ? "is in the step" : "is not there");
    }
    for (uint32_t i = 0; i < n; ++i)
        if (Sequence *sequence = find_sequence(cache, ids[i])) {
            leave_sequence(cache, sequence);
            ++cache->stats.sequences_evicted;
        }
    return LK_OK;
}

// What the host lets go of; LK_E_BUDGET when that is nothing.
lk_status ask_host(lk_cache *cache, uint64_t shortfall_bytes) {
    lk_sequence ids[kPressureIds] = {};
    lk_pressure pressure{};
    pressure.size = sizeof pressure;
    pressure.capacity = kPressureIds;
    pressure.shortfall_bytes = shortfall_bytes;
    pressure.budget_bytes = cache->ledger.limit_bytes;
    pressure.reserved_bytes = cache->ledger.used_bytes();
    pressure.ids = ids;
    const lk_pressure_action action = cache->desc.pressure(cache->desc.pressure_user, &pressure);
    if (action == LK_PRESSURE_REFUSE)
        return LK_E_BUDGET;
    if (action == LK_PRESSURE_BUDGET) {
        if (pressure.budget_bytes <= cache->ledger.limit_bytes ||
            pressure.budget_bytes > cache->desc.max_budget_bytes)
            return fail(LK_E_ARGUMENT,
                        "the pressure callback's budget is %llu bytes, not above %llu and at most "
                        "max_budget_bytes, %llu",
                        ull{pressure.budget_bytes}, ull{cache->ledger.limit_bytes},
                        ull{cache->desc.max_budget_bytes});
        cache->ledger.limit_bytes = pressure.budget_bytes;
        return LK_OK;
    }
    if (action != LK_PRESSURE_REMOVE)
        return fail(LK_E_ARGUMENT, "the pressure callback returned %u, not an lk_pressure_action",
                    action);
    if (!pressure.n_ids || pressure.n_ids > kPressureIds)
        return fail(LK_E_ARGUMENT, "the pressure callback's n_ids is %u, not 1 to %u",
                    pressure.n_ids, kPressureIds);
    return remove_named(cache, ids, pressure.n_ids);
}

bool evict(lk_cache *cache) {
    Sequence *oldest = nullptr;
    for (Sequence *sequence : cache->sequences)
        if (!is_in_step(cache, *sequence) && (!oldest || sequence->mark < oldest->mark))
            oldest = sequence;
    if (!oldest)
        return false;
    log_line(*cache->context, LK_LOG_INFO, "sequence %llu of %llu tokens is evicted",
             ull{oldest->id}, ull{oldest->length});
    leave_sequence(cache, oldest);
    ++cache->stats.sequences_evicted;
    return true;
}

uint64_t private_bytes(const lk_cache *cache, Sequence *sequence) {
    uint64_t bytes = 0;
    for (uint64_t r = 0; r < sequence->rows.size(); ++r) {
        const Row &row = *sequence->row(r);
        if (row.n_holders == 1)
            bytes += block_bytes(cache->plan.model) + content_bytes(cache, row);
    }
    return bytes;
}

uint64_t slot_sum(const Array<SlotCount> &counts) {
    uint64_t bytes = 0;
    for (const SlotCount &count : counts)
        bytes += count.n * count.slot_bytes;
    return bytes;
}

lk_status check_private(lk_cache *cache, const StepSequence &part, const RowCounts &rows) {
    if (!cache->desc.sequence_limit_bytes || !rows.total())
        return LK_OK;
    const uint64_t fresh =
        rows.total() * block_bytes(cache->plan.model) + rows.sink * slot_sum(cache->sink_count) +
        rows.last_sink * slot_sum(cache->last_sink_count) +
        rows.recent * slot_sum(cache->recent_count) + rows.direct * slot_sum(cache->direct_count);
    const uint64_t bytes = private_bytes(cache, part.sequence) + fresh;
    if (bytes <= cache->desc.sequence_limit_bytes)
        return LK_OK;
    return fail(LK_E_BUDGET,
                "sequence %llu would have %llu private bytes with its %u new tokens, the limit is "
                "%llu",
                ull{part.sequence->id}, ull{bytes}, part.n_new,
                ull{cache->desc.sequence_limit_bytes});
}

// Bytes from whoever gives them first; LK_E_BUDGET, without a sentence, when nobody does.
lk_status relieve(lk_cache *cache, uint64_t shortfall_bytes) {
    uint32_t n_done = 0;
    lk_status status = pack_deferred(cache, &n_done);
    if ((!status || status == LK_E_BUDGET) && !n_done)
        status = shrink_halves(cache, kShrinkBatch, &n_done);
    if (status && status != LK_E_BUDGET)
        return status;
    if (n_done)
        return LK_OK;
    if (cache->desc.pressure)
        return ask_host(cache, shortfall_bytes);
    return cache->desc.flags & LK_CACHE_EVICT && evict(cache) ? LK_OK : LK_E_BUDGET;
}

lk_status find_room(lk_cache *cache, const Need &need) {
    for (;;) {
        Lack lack = lack_of(cache, need);
        if (lack.bytes && !lack.compacted_bytes && compact(cache))
            lack = lack_of(cache, need);
        if (!lack.bytes)
            return LK_OK;
        const lk_status status = relieve(cache, lack.bytes);
        if (status)
            return status == LK_E_BUDGET ? fail_room(cache, lack.bytes) : status;
    }
}

// An extent for each size of slot that a row of chunks takes.
uint64_t packing_bytes(lk_cache *cache, RowKind kind) {
    for (uint64_t &n : cache->slot_needs)
        n = 0;
    add_row_slots(cache, kind);
    uint64_t n_sizes = 0;
    for (const uint64_t n : cache->slot_needs)
        n_sizes += n != 0;
    return n_sizes * LK_EXTENT_BYTES;
}

// Packing takes bytes before it gives any, so deferred chunks are packed while there are some.
void pack_ahead(lk_cache *cache, Need need) {
    need.table_bytes += packing_bytes(cache, RowKind::kMiddle);
    for (uint32_t n_done = 1; n_done;) {
        n_done = 0;
        if (lack_of(cache, need).compacted_bytes)
            (void)pack_deferred(cache, &n_done);
    }
}

// Pages go down a few at a time before a step would have to wait for all of them at once. What
// fails here is told when there is need.
void shrink_ahead(lk_cache *cache, Need need) {
    if (!cache->ledger.spare_bytes)
        return;
    need.rows.recent += cache->step.sequences.size();
    uint32_t n_done = 0;
    if (lack_of(cache, need).compacted_bytes)
        (void)shrink_halves(cache, kAheadHalves, &n_done);
}

}  // namespace

void add_row_slots(lk_cache *cache, RowKind kind) {
    for (const EntryInfo &info : cache->entries)
        for (const bool is_value : {false, true}) {
            const HalfNeed need = kind == RowKind::kRecent
                                      ? need_of(is_value ? info.value : info.key, false)
                                      : packed_need(cache, info, is_value, chunk_class_of(kind));
            for (const uint64_t bytes : {need.payload, need.metadata})
                if (bytes)
                    ++cache->slot_needs[cache->slots.size_index(bytes)];
        }
}

lk_status pack_with_room(lk_cache *cache, Sequence *sequence) {
    for (;;) {
        const lk_status status = pack_due_rows(cache, sequence);
        const lk_status relief = status == LK_E_BUDGET ? relieve(cache, LK_EXTENT_BYTES) : LK_OK;
        if (relief == LK_E_BUDGET)
            return pack_due_rows(cache, sequence);
        if (status != LK_E_BUDGET || relief)
            return relief ? relief : status;
    }
}

lk_status make_room(lk_cache *cache) {
    Need need;
    uint64_t n_scores = 0;
    for (const StepSequence &part : cache->step.sequences) {
        RowCounts rows;
        count_rows(cache, part, &rows);
        const lk_status status = check_private(cache, part, rows);
        if (status)
            return status;
        count_rows(cache, part, &need.rows);
        const Scores *scores = part.sequence->scores;
        n_scores += scores && scores->n_holders > 1;
    }
    need.table_bytes = n_scores * sequence_stat_bytes(cache->plan.model);
    if (cache->plan.model.chunks.tokens)
        pack_ahead(cache, need);
    shrink_ahead(cache, need);
    return find_room(cache, need);
}

lk_status check_room(lk_cache *cache, uint64_t table_bytes, const char *what) {
    Lack lack = lack_of(cache, table_bytes);
    if (lack.bytes && !lack.compacted_bytes && compact(cache))
        lack = lack_of(cache, table_bytes);
    if (!lack.bytes)
        return LK_OK;
    const Ledger &ledger = cache->ledger;
    return fail(
        LK_E_BUDGET,
        "the budget of %llu bytes lacks %llu bytes: %llu are reserved and %s needs %llu more",
        ull{ledger.limit_bytes}, ull{lack.bytes}, ull{ledger.used_bytes()}, what,
        ull{lack.bytes + ledger.left_bytes()});
}

uint64_t first_token_bytes(lk_cache *cache) {
    const Plan &plan = cache->plan.model;
    const Array<SlotCount> &counts = !plan.sink_tokens ? cache->recent_count
                                     : sink_blocks(plan) == 1 && plan.sink_tokens < plan.page_tokens
                                         ? cache->last_sink_count
                                         : cache->sink_count;
    for (uint32_t s = 0; s < cache->slots.n_sizes(); ++s)
        cache->slot_needs[s] = slots_of(counts, cache->slots.size_of(s));
    const uint64_t extents = cache->slots.extents_for(cache->slot_needs.data());
    return block_bytes(plan) + sequence_stat_bytes(plan) + spare_bytes(plan) +
           extents * LK_EXTENT_BYTES;
}

}  // namespace lk
