// SPDX-License-Identifier: Apache-2.0
#include "core/memory/reserve.h"

#include <algorithm>

#include "core/cache.h"
#include "core/chunks/defer.h"
#include "core/memory/compact.h"
#include "core/memory/reclaim.h"
#include "core/memory/table_space.h"
#include "core/pages/ladders.h"
#include "core/pages/page_slots.h"

namespace lk {

namespace {

constexpr uint32_t kAheadPages = 128;  // shrunk by a step before there is need

// New blocks of a step.
struct BlockCounts {
    uint64_t sink = 0;
    uint64_t last_sink = 0;
    uint64_t recent = 0;
    uint64_t on_append = 0;

    uint64_t total() const { return sink + last_sink + recent + on_append; }
};

struct Need {
    BlockCounts blocks;
    uint64_t table_bytes = 0;
};

void count_blocks(const lk_cache *cache, const StepSequence &member, BlockCounts *counts) {
    const Plan &plan = cache->plan.model;
    const uint64_t length = member.sequence->length;
    const uint64_t first = member.n_blocks_before - member.copies_tail;
    for (uint64_t r = first; r < block_count(plan, length + member.n_new); ++r) {
        const BlockKind kind = block_kind(cache, *member.sequence, r, member.n_new);
        const bool is_short = block_capacity(plan, r) < plan.page_tokens;
        ++(kind == BlockKind::kPackedOnAppend ? counts->on_append
           : kind == BlockKind::kRecent       ? counts->recent
           : is_short                         ? counts->last_sink
                                              : counts->sink);
    }
}

BlockTally tally_of(const BlockCounts &blocks) {
    BlockTally tally = {};
    tally.n[kSinkBlock] = blocks.sink;
    tally.n[kLastSinkBlock] = blocks.last_sink;
    tally.n[kRecentBlock] = blocks.recent;
    tally.n[kPackedBlock] = blocks.on_append;
    return tally;
}

// Of the block tables that grow in a step: what they grow by, and the longest of the old ones,
// which is there next to its successor.
uint64_t growing_tables(const lk_cache &cache) {
    uint64_t growth = 0;
    uint64_t longest = 0;
    for (const StepSequence &member : cache.step.sequences) {
        const uint64_t own = table_growth(cache, member);
        growth += own;
        if (own)
            longest = std::max<uint64_t>(longest, member.sequence->block_table.capacity());
    }
    return growth + longest * kLinkBytes;
}

// The slots of the blocks, by size, in BlockSlots::needs.
void count_slots(lk_cache *cache, const BlockCounts &blocks) {
    BlockSlots &slots = cache->block_slots;
    for (uint32_t s = 0; s < cache->slots.n_sizes(); ++s) {
        const uint64_t size = cache->slots.size_of(s);
        slots.needs[s] = blocks.sink * slots_of_size(slots.sink, size) +
                         blocks.last_sink * slots_of_size(slots.last_sink, size) +
                         blocks.recent * slots_of_size(slots.recent, size) +
                         blocks.on_append * slots_of_size(slots.on_append, size);
    }
}

uint64_t tables_of(const lk_cache *cache, const Need &need) {
    return need.table_bytes + need.blocks.total() * block_bytes(cache->plan.model);
}

Shortfall shortfall_for(lk_cache *cache, const Need &need) {
    count_slots(cache, need.blocks);
    return shortfall_of(cache, tables_of(cache, need));
}

lk_status fail_shortfall(const lk_cache *cache, uint64_t shortfall_bytes) {
    const Ledger &ledger = cache->ledger;
    return fail(
        LK_E_BUDGET,
        "the budget of %llu bytes is short of %llu bytes: %llu are reserved and the step's %u "
        "tokens need %llu more",
        ull{ledger.limit_bytes}, ull{shortfall_bytes}, ull{ledger.used_bytes()},
        cache->step.n_tokens, ull{shortfall_bytes + ledger.left_bytes()});
}

uint64_t private_bytes(const lk_cache *cache, Sequence *sequence) {
    uint64_t bytes = 0;
    for (uint64_t r = 0; r < sequence->block_table.size(); ++r) {
        const CacheBlock &block = *sequence->block(r);
        if (block.n_holders == 1)
            bytes += block_bytes(cache->plan.model) + content_bytes(cache->formats, block);
    }
    return bytes + private_state_bytes(cache->states, *sequence);
}

lk_status check_private(lk_cache *cache, const StepSequence &member, const BlockCounts &blocks) {
    if (!cache->desc.sequence_limit_bytes || !blocks.total())
        return LK_OK;
    const BlockSlots &slots = cache->block_slots;
    const uint64_t fresh =
        blocks.total() * block_bytes(cache->plan.model) + blocks.sink * total_bytes(slots.sink) +
        blocks.last_sink * total_bytes(slots.last_sink) +
        blocks.recent * total_bytes(slots.recent) + blocks.on_append * total_bytes(slots.on_append);
    const uint64_t bytes = private_bytes(cache, member.sequence) + fresh;
    if (bytes <= cache->desc.sequence_limit_bytes)
        return LK_OK;
    return fail(LK_E_BUDGET,
                "sequence %llu would have %llu private bytes with its %u new tokens, the limit is "
                "%llu",
                ull{member.sequence->id}, ull{bytes}, member.n_new,
                ull{cache->desc.sequence_limit_bytes});
}

lk_status reclaim_for(lk_cache *cache, const Need &need) {
    for (;;) {
        Shortfall shortfall = shortfall_for(cache, need);
        if (shortfall.bytes && !shortfall.compacted_bytes && compact(cache))
            shortfall = shortfall_for(cache, need);
        // Extents that no page uses count nothing and may still be in slabs that are in use.
        if (!shortfall.bytes)
            shortfall.bytes =
                give_slabs_back(cache, tables_of(cache, need) +
                                           cache->slots.slabs_for(cache->block_slots.needs.data()));
        if (!shortfall.bytes)
            return LK_OK;
        const lk_status status = reclaim(cache, shortfall.bytes);
        if (status)
            return status == LK_E_BUDGET ? fail_shortfall(cache, shortfall.bytes) : status;
    }
}

// An extent for each size of slot that a block of chunks takes.
uint64_t packing_bytes(lk_cache *cache, BlockKind kind) {
    cache->block_slots.clear_needs();
    add_block_slots(cache, kind);
    uint64_t n_sizes = 0;
    for (const uint64_t n : cache->block_slots.needs)
        n_sizes += n != 0;
    return n_sizes * LK_EXTENT_BYTES;
}

// Packing takes bytes before it gives any, so deferred chunks are packed while there are some.
void pack_ahead(lk_cache *cache, Need need) {
    need.table_bytes += packing_bytes(cache, BlockKind::kMiddle);
    for (uint32_t n_done = 1; n_done;) {
        n_done = 0;
        if (shortfall_for(cache, need).compacted_bytes)
            (void)pack_deferred(cache, &n_done);
    }
}

// Pages go down a few at a time before a step would have to wait for all of them at once. What
// fails here is reported when there is need.
void shrink_ahead(lk_cache *cache, Need need) {
    if (!cache->ledger.spare_bytes)
        return;
    need.blocks.recent += cache->step.sequences.size();
    uint32_t n_done = 0;
    if (shortfall_for(cache, need).compacted_bytes)
        (void)shrink_pages(cache, kAheadPages, &n_done);
}

}  // namespace

Shortfall shortfall_of(lk_cache *cache, uint64_t table_bytes) {
    const Ledger &ledger = cache->ledger;
    const uint64_t *slots = cache->block_slots.needs.data();
    const uint64_t held = ledger.used_bytes() + ledger.spare_bytes + table_bytes;
    const uint64_t now = held + cache->slots.extents_for(slots) * LK_EXTENT_BYTES;
    const uint64_t compacted =
        held - ledger.extent_bytes + cache->slots.extents_of_all(slots) * LK_EXTENT_BYTES;
    const auto beyond = [&](uint64_t bytes) {
        return bytes > ledger.limit_bytes ? bytes - ledger.limit_bytes : 0;
    };
    return {beyond(now), beyond(compacted)};
}

void add_block_slots(lk_cache *cache, BlockKind kind) {
    for (const EntryInfo &info : cache->formats.entries)
        for (const bool is_value : {false, true}) {
            const PageNeed need =
                kind == BlockKind::kRecent
                    ? need_of(is_value ? info.value : info.key, false)
                    : packed_need(cache->formats, info, is_value, chunk_class_of(kind));
            for (const uint64_t bytes : {need.payload, need.metadata})
                if (bytes)
                    ++cache->block_slots.needs[cache->slots.size_index(bytes)];
        }
}

uint64_t blocks_in_table(const lk_cache &cache, const StepSequence &member) {
    return table_capacity(block_count(cache.plan.model, member.sequence->length + member.n_new));
}

uint64_t table_growth(const lk_cache &cache, const StepSequence &member) {
    const uint64_t before = member.sequence->block_table.capacity();
    const uint64_t n_blocks = block_count(cache.plan.model, member.sequence->length + member.n_new);
    return n_blocks > before ? (blocks_in_table(cache, member) - before) * kLinkBytes : 0;
}

lk_status reserve_step(lk_cache *cache) {
    Need need;
    uint64_t n_copied_stats = 0;
    for (const StepSequence &member : cache->step.sequences)
        count_blocks(cache, member, &need.blocks);
    keep_layer_budgets(cache, tally_of(need.blocks));
    for (const StepSequence &member : cache->step.sequences) {
        BlockCounts blocks;
        count_blocks(cache, member, &blocks);
        LK_TRY(check_private(cache, member, blocks));
        const QueryStats *stats = member.sequence->query_stats;
        n_copied_stats += stats && stats->n_holders > 1;
    }
    need.table_bytes = n_copied_stats * sequence_stat_bytes(cache->plan.model) +
                       growing_tables(*cache) + step_state_bytes(cache);
    if (cache->plan.model.chunks.tokens)
        pack_ahead(cache, need);
    shrink_ahead(cache, need);
    return reclaim_for(cache, need);
}

lk_status check_reserve(lk_cache *cache, uint64_t table_bytes, const char *purpose) {
    Shortfall shortfall = shortfall_of(cache, table_bytes);
    if (shortfall.bytes && !shortfall.compacted_bytes && compact(cache))
        shortfall = shortfall_of(cache, table_bytes);
    if (!shortfall.bytes)
        shortfall.bytes = give_slabs_back(
            cache, table_bytes + cache->slots.slabs_for(cache->block_slots.needs.data()));
    if (!shortfall.bytes)
        return LK_OK;
    const Ledger &ledger = cache->ledger;
    return fail(
        LK_E_BUDGET,
        "the budget of %llu bytes is short of %llu bytes: %llu are reserved and %s needs %llu more",
        ull{ledger.limit_bytes}, ull{shortfall.bytes}, ull{ledger.used_bytes()}, purpose,
        ull{shortfall.bytes + ledger.left_bytes()});
}

bool has_room(lk_cache *cache, uint64_t table_bytes) {
    const uint64_t slab_bytes = cache->slots.slabs_for(cache->block_slots.needs.data());
    return !shortfall_of(cache, table_bytes).bytes &&
           !cache->slots.excess_bytes(table_bytes + slab_bytes);
}

uint64_t first_token_bytes(lk_cache *cache) {
    const Plan &plan = cache->plan.model;
    const Array<SlotCount> &counts = !plan.sink_tokens ? cache->block_slots.recent
                                     : sink_blocks(plan) == 1 && plan.sink_tokens < plan.page_tokens
                                         ? cache->block_slots.last_sink
                                         : cache->block_slots.sink;
    for (uint32_t s = 0; s < cache->slots.n_sizes(); ++s)
        cache->block_slots.needs[s] = slots_of_size(counts, cache->slots.size_of(s));
    const uint64_t extents = cache->slots.extents_for(cache->block_slots.needs.data());
    return block_bytes(plan) + table_capacity(1) * kLinkBytes + sequence_stat_bytes(plan) +
           first_state_bytes(cache->states) + spare_bytes(plan) + extents * LK_EXTENT_BYTES;
}

}  // namespace lk
