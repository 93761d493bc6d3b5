// Budgets of layers: what is counted, the rung that follows from it, and how pages come to it.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/layer_budgets.h"

#include <algorithm>
#include <set>

#include "cache_rig.h"
#include "core/pages/ladders.h"

namespace {

// Of K and V of a block of 32 tokens and 32 channels at 16 bits, without metadata.
constexpr uint64_t kRawBlock = 2 * 32 * 32 * 2;

void give_budgets(lk_plan *plan, uint64_t first, uint64_t second) {
    give_ladders(plan);
    assert_int_equal(lk_plan_set_layer_budget(plan, 0, first), LK_OK);
    assert_int_equal(lk_plan_set_layer_budget(plan, 1, second), LK_OK);
}
// Layer 0 has a budget of a few blocks at 16 bits, layer 1 of three times as many.
void give_two_budgets(lk_plan *plan) { give_budgets(plan, 6 * kRawBlock, 18 * kRawBlock); }

// The slots of a layer in all blocks, as they are.
uint64_t slots_of(const CacheRig &rig, uint32_t layer) {
    lk_cache *cache = rig.cache;
    uint64_t bytes = 0;
    cache->sequences.for_each_block([&](lk::CacheBlock *block) {
        const lk::PageEntry &entry = block->entries[layer];
        for (const uint64_t slot :
             {entry.key_payload, entry.key_metadata, entry.value_payload, entry.value_metadata})
            bytes += slot ? cache->slots.bytes_at(slot) : 0;
    });
    return bytes;
}

const lk::LayerBudget &budget_of(const CacheRig &rig, uint32_t layer) {
    for (const lk::LayerBudget &budget : rig.cache->layer_budgets.layers)
        if (budget.layer == layer)
            return budget;
    fail_msg("layer %u has no budget", layer);
    return rig.cache->layer_budgets.layers[0];
}

// What the counts give for a layer at its present rung.
uint64_t counted(const CacheRig &rig, uint32_t layer) {
    const lk::LayerBudget &budget = budget_of(rig, layer);
    return lk::tally_bytes(budget.block_bytes.at[rig.cache->formats.layers[layer].rung],
                           lk::layer_blocks(rig.cache->layer_budgets, budget, {}));
}

bool is_settled(const CacheRig &rig, uint32_t layer) {
    return !rig.cache->formats.layers[layer].search.is_unsettled;
}

uint64_t n_counted(const CacheRig &rig) {
    uint64_t n = 0;
    for (const uint64_t of_state : rig.cache->layer_budgets.tally.n)
        n += of_state;
    return n;
}

// Of every layer that is settled: the counts are the slots, within the budget or at the last rung.
void check_layers(const CacheRig &rig) {
    uint64_t n_blocks = 0;
    rig.cache->sequences.for_each_block([&](lk::CacheBlock *) { ++n_blocks; });
    assert_int_equal(n_counted(rig), n_blocks);
    for (uint32_t l = 0; l < CacheRig::kLayers; ++l) {
        if (!is_settled(rig, l))
            continue;
        assert_int_equal(counted(rig, l), slots_of(rig, l));
        if (lk::rung_bits(rig.cache, l) > 2)
            assert_true(slots_of(rig, l) <= rig.plan().layers[l].budget_bytes);
    }
}

// While pages of one sequence settle, the layer is beyond its budget by new blocks at most.
void layers_stay_within_their_budgets(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_two_budgets);
    lk::Sequence *sequence = rig.add();
    std::set<uint32_t> rungs[CacheRig::kLayers];
    for (uint32_t n = 0; n < 1400; n += 8) {
        rig.step(sequence, 8);
        check_layers(rig);
        for (uint32_t l = 0; l < CacheRig::kLayers; ++l) {
            rungs[l].insert(lk::rung_bits(rig.cache, l));
            const uint64_t budget_bytes = rig.plan().layers[l].budget_bytes;
            if (lk::rung_bits(rig.cache, l) > 2)
                assert_true(slots_of(rig, l) <= budget_bytes + kRawBlock);
        }
        assert_true(lk::rung_bits(rig.cache, 1) >= lk::rung_bits(rig.cache, 0));
    }
    assert_true((rungs[0] == std::set<uint32_t>{2, 4, 8, 16}));
    assert_true((rungs[1] == std::set<uint32_t>{4, 8, 16}));
    assert_true(is_settled(rig, 0) && is_settled(rig, 1));
}

// One long step goes to the rung at once: nothing is packed wider first.
void a_prefill_is_packed_at_its_rung(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_two_budgets);
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 500);
    assert_int_equal(lk::rung_bits(rig.cache, 0), 2);
    assert_int_equal(lk::rung_bits(rig.cache, 1), 16);
    assert_int_equal(sequence->block(5)->n_packed, sequence->block(5)->n_entries);
    assert_int_equal(rig.counts().pages_shrunk, 0);
    check_layers(rig);
}

void a_step_settles_a_few_blocks(void **) {
    CacheRig rig("pm-kvq", 16u << 20, [](lk_plan *plan) { give_budgets(plan, 90000, 1u << 30); });
    lk::Sequence *sequence = rig.add();
    while (lk::rung_bits(rig.cache, 0) == 16)
        rig.step(sequence, 1);
    uint64_t before = rig.counts().pages_shrunk;
    assert_int_equal(before, 2 * (4 + 2));  // with the block that the step added
    uint32_t n_steps = 0;
    for (; !is_settled(rig, 0); ++n_steps) {
        rig.step(sequence, 1);
        assert_true(rig.counts().pages_shrunk - before <= 2 * 4);
        before = rig.counts().pages_shrunk;
    }
    assert_in_range(n_steps, 2, 20);
    check_layers(rig);
    for (uint32_t i = 0; i < 20; ++i)
        rig.step(sequence, 1);
    assert_int_equal(rig.counts().pages_shrunk, before);
}

// The rungs follow from the blocks, whichever sequence has them and came first.
void the_order_of_sequences_does_not_matter(void **) {
    uint32_t rungs[2][CacheRig::kLayers];
    for (const bool is_long_first : {false, true}) {
        CacheRig rig("pm-kvq", 16u << 20, give_two_budgets);
        lk::Sequence *a = rig.add();
        lk::Sequence *b = rig.add();
        rig.grow(is_long_first ? a : b, is_long_first ? 640 : 160);
        rig.grow(is_long_first ? b : a, is_long_first ? 160 : 640);
        for (uint32_t i = 0; i < 30; ++i)
            rig.step({{a, 1}, {b, 1}});
        check_layers(rig);
        for (uint32_t l = 0; l < CacheRig::kLayers; ++l)
            rungs[is_long_first][l] = lk::rung_bits(rig.cache, l);
    }
    assert_memory_equal(rungs[0], rungs[1], sizeof rungs[0]);
    assert_true(rungs[0][0] < rungs[0][1]);
}

void forks_count_once(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_two_budgets);
    lk::Sequence *parent = rig.add();
    rig.grow(parent, 16 + 4 * 32 + 10);
    rig.step(parent, 1);  // so that the forks pack nothing
    const uint64_t before = n_counted(rig);
    lk::Sequence *forks[] = {rig.fork(parent), rig.fork(parent), rig.fork(parent, 40)};
    check_layers(rig);
    assert_int_equal(n_counted(rig), before);
    // It has a block of its own to write to.
    rig.step(forks[2], 1);
    assert_int_equal(n_counted(rig), before + 1);
    check_layers(rig);
    rig.grow(forks[0], 100);
    rig.grow(forks[2], 100);
    check_layers(rig);
    for (lk::Sequence *sequence : {forks[0], forks[1], forks[2], parent})
        assert_int_equal(lk_sequence_remove(rig.cache, sequence->id), LK_OK);
    const lk::BlockTally none = {};
    assert_memory_equal(&none, &rig.cache->layer_budgets.tally, sizeof none);
}

void truncation_does_not_widen(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_two_budgets);
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 900);
    const uint32_t rung = lk::rung_bits(rig.cache, 0);
    assert_true(rung < 8);
    assert_int_equal(lk_sequence_truncate(rig.cache, sequence->id, 100), LK_OK);
    assert_int_equal(lk::rung_bits(rig.cache, 0), rung);
    check_layers(rig);
    rig.grow(sequence, 100);
    assert_int_equal(lk::rung_bits(rig.cache, 0), rung);
    check_layers(rig);
}

// Discarded steps, and a discard after a copy on write.
void discarded_blocks_are_forgotten(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_two_budgets);
    lk::Sequence *parent = rig.add();
    rig.grow(parent, 100);
    lk::Sequence *fork = rig.fork(parent);
    const uint64_t before = n_counted(rig);
    assert_int_equal(rig.begin(fork, 70), LK_OK);
    assert_true(n_counted(rig) > before);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    // The discarded step has packed a block, whose source the parent still has.
    assert_in_range(n_counted(rig), before, before + 1);
    check_layers(rig);
}

void windows_give_bytes_back(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_two_budgets, [](lk_layer *layer) {
        layer->window_tokens = 64;
        layer->window_sink_tokens = 0;
    });
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 1000);
    check_layers(rig);
    assert_true(budget_of(rig, 0).absent.n[lk::kPackedBlock] > 20);
    assert_int_equal(lk::rung_bits(rig.cache, 0), 16);
    lk::Sequence *fork = rig.fork(sequence);
    rig.grow(fork, 100);
    check_layers(rig);
    assert_int_equal(lk_sequence_remove(rig.cache, sequence->id), LK_OK);
    check_layers(rig);
    assert_int_equal(lk_sequence_remove(rig.cache, fork->id), LK_OK);
    const lk::BlockTally none = {};
    assert_memory_equal(&none, &rig.cache->layer_budgets.tally, sizeof none);
    assert_memory_equal(&none, &budget_of(rig, 0).absent, sizeof none);
}

// The budget of the cache is short before those of the layers are.
void the_budget_of_the_cache_is_hard(void **) {
    constexpr uint64_t kBudget = 2u << 20;
    CacheRig rig("pm-kvq", kBudget, [](lk_plan *plan) { give_budgets(plan, 1u << 30, 3u << 17); });
    lk::Sequence *sequence = rig.add();
    uint32_t n = 0;
    while (rig.begin(sequence, 16) == LK_OK) {
        rig.run_layers();
        assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
        assert_true(rig.cache->ledger.used_bytes() <= kBudget);
        n += 16;
    }
    assert_true(n > 10000);
    for (uint32_t l = 0; l < CacheRig::kLayers; ++l)
        assert_int_equal(lk::rung_bits(rig.cache, l), 2);
    check_layers(rig);
}

// lk_plan_rung() before, the cache after.
void plans_know_the_rung_beforehand(void **) {
    for (const bool has_windows : {false, true})
        for (const uint32_t step : {1u, 7u, 16u, 33u, 100u, 250u}) {
            CacheRig rig("pm-kvq", 16u << 20, give_two_budgets,
                         [&](lk_layer *layer) { layer->window_tokens = has_windows ? 500 : 0; });
            lk::Sequence *sequence = rig.add();
            for (uint32_t n = step; n < 1100; n += step) {
                rig.step(sequence, step);
                for (uint32_t l = 0;
                     (n % 3 == 0 || step > 7) && n % 13 < 8 && l < CacheRig::kLayers; ++l) {
                    uint32_t rung = 0;
                    assert_int_equal(lk_plan_rung(rig.source, l, n, 1, step, &rung), LK_OK);
                    if (rung != lk::rung_bits(rig.cache, l))
                        fail_msg(
                            "layer %u is at %u with %u tokens in steps of %u, the plan says "
                            "%u",
                            l, lk::rung_bits(rig.cache, l), n, step, rung);
                }
            }
        }
}

struct Forecast {
    uint32_t n_sequences;
    uint32_t n_tokens;
    uint32_t step_tokens;
    uint64_t budgets[CacheRig::kLayers];
};

// Did all sequences get to their last token with every layer at the plan's rung after each step?
bool follows_the_plan(const Forecast &run, uint64_t budget_bytes, lk_cache_stats *settled) {
    CacheRig rig("pm-kvq", 64u << 20,
                 [&](lk_plan *plan) { give_budgets(plan, run.budgets[0], run.budgets[1]); });
    lk_cache_destroy(&rig.cache);
    rig.desc.budget_bytes = budget_bytes;
    rig.desc.max_sequences = run.n_sequences;
    rig.desc.max_step_tokens = run.n_sequences * run.step_tokens;
    if (rig.open())
        return false;
    std::vector<lk_sequence> ids;
    for (uint32_t s = 0; s < run.n_sequences; ++s)
        ids.push_back(rig.add()->id);
    for (uint32_t n = 0; n < run.n_tokens;) {
        const uint32_t n_new = std::min(run.n_tokens - n, run.step_tokens);
        const std::vector<uint32_t> counts(ids.size(), n_new);
        if (lk_step_begin(rig.cache, &rig.queue, run.n_sequences, ids.data(), counts.data(),
                          nullptr))
            return false;
        rig.run_layers();
        assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
        n += n_new;
        for (uint32_t l = 0; l < CacheRig::kLayers; ++l) {
            uint32_t rung = 0;
            if (n % 5 > 1 && n < run.n_tokens)
                continue;
            assert_int_equal(
                lk_plan_rung(rig.source, l, n, run.n_sequences, run.step_tokens, &rung), LK_OK);
            if (rung != lk::rung_bits(rig.cache, l))
                return false;
        }
    }
    for (uint32_t l = 0; l < CacheRig::kLayers; ++l)
        if (lk::rung_bits(rig.cache, l) < 16)
            assert_int_equal(lk_cache_shrink(rig.cache, l, lk::rung_bits(rig.cache, l)), LK_OK);
    *settled = rig.counts();
    return true;
}

// lk_plan_bytes() is the least budget under which budgets of layers alone change rungs, up to the
// pages that a step shrinks before there is need, and counts the pages of the end to the byte.
void forecasts_are_exact(void **) {
    constexpr uint64_t kAhead = 2 * LK_EXTENT_BYTES;
    const Forecast runs[] = {
        {1, 6000, 16, {100 * kRawBlock, 220 * kRawBlock}},
        {1, 6000, 16, {90000, 3000000}},
        {1, 5000, 100, {50 * kRawBlock, 50 * kRawBlock}},
        {3, 2500, 7, {400000, 600000}},
        {2, 4000, 250, {400000, 100000}},
        {1, 9000, 500, {700000, 1200000}},
        {2, 3000, 3, {1u << 30, 500000}},
    };
    for (const Forecast &run : runs) {
        CacheRig rig("pm-kvq", 16u << 20,
                     [&](lk_plan *plan) { give_budgets(plan, run.budgets[0], run.budgets[1]); });
        lk_plan_size size;
        assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
        assert_int_equal(
            lk_plan_bytes(rig.source, run.n_tokens, run.n_sequences, run.step_tokens, &size),
            LK_OK);
        lk_cache_stats settled{};
        if (!follows_the_plan(run, size.cache_bytes + kAhead, &settled))
            fail_msg("%u x %u tokens in steps of %u: %llu bytes are too few", run.n_sequences,
                     run.n_tokens, run.step_tokens, lk::ull{size.cache_bytes});
        assert_int_equal(settled.payload_bytes, size.payload_bytes);
        assert_int_equal(settled.metadata_bytes, size.metadata_bytes);
        assert_int_equal(settled.recent_bytes, size.recent_bytes);
        if (follows_the_plan(run, size.cache_bytes - 1, &settled))
            fail_msg("%u x %u tokens in steps of %u: one byte less than %llu is enough",
                     run.n_sequences, run.n_tokens, run.step_tokens, lk::ull{size.cache_bytes});
    }
}

void other_caches_count_nothing(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_ladders);
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 300);
    assert_true(rig.cache->layer_budgets.empty());
    for (uint64_t i = 0; i < sequence->block_table.size(); ++i)
        assert_int_equal(sequence->block(i)->counted_state, 0);
    const lk::BlockTally none = {};
    assert_memory_equal(&none, &rig.cache->layer_budgets.tally, sizeof none);
}

// The n-th allocation fails, and a step that fails leaves the counts as they were.
void without_memory_the_counts_hold(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_two_budgets);
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 300);
    const uint64_t before = n_counted(rig);
    uint64_t n_failed = 0;
    for (;; ++n_failed) {
        rig.memory.give(n_failed);
        const lk_status status = rig.begin(sequence, 400);
        rig.memory.give_all();
        if (!status)
            break;
        assert_int_equal(status, LK_E_NOMEM);
        assert_int_equal(n_counted(rig), before);
        check_layers(rig);
    }
    assert_true(n_failed > 10);
    rig.run_layers();
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
    check_layers(rig);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(layers_stay_within_their_budgets),
        cmocka_unit_test(a_prefill_is_packed_at_its_rung),
        cmocka_unit_test(a_step_settles_a_few_blocks),
        cmocka_unit_test(the_order_of_sequences_does_not_matter),
        cmocka_unit_test(forks_count_once),
        cmocka_unit_test(truncation_does_not_widen),
        cmocka_unit_test(discarded_blocks_are_forgotten),
        cmocka_unit_test(windows_give_bytes_back),
        cmocka_unit_test(the_budget_of_the_cache_is_hard),
        cmocka_unit_test(plans_know_the_rung_beforehand),
        cmocka_unit_test(forecasts_are_exact),
        cmocka_unit_test(other_caches_count_nothing),
        cmocka_unit_test(without_memory_the_counts_hold),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
