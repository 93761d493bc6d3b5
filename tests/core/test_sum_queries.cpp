// Where the sums of a step's queries lie: apart from each other, one for what may be dropped.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/step/sum_queries.h"

#include "cache_rig.h"

#include <set>

namespace {

constexpr uint64_t kStat = CacheRig::kLayers * CacheRig::kHeadDim * sizeof(uint64_t);

void drafts_have_a_sum_for_each_token(void **) {
    CacheRig rig("kivi2", 16u << 20, rank_by_queries);
    lk::Sequence *sequences[] = {rig.add(), rig.add()};
    assert_int_equal(rig.begin({{sequences[0], 3}, {sequences[1], 5}}), LK_OK);
    const lk::Step &step = rig.cache->step;
    assert_int_equal(step.sequences[0].stats, 0);
    assert_int_equal(step.sequences[0].n_stats, 3);
    assert_int_equal(step.sequences[1].stats, 3 * kStat);
    assert_int_equal(step.sequences[1].n_stats, 5);
    assert_int_equal(step.query_stat_bytes, 8 * kStat);
    assert_int_equal(rig.device().last_begin.query_stat_bytes, 8 * kStat);
    rig.run_layers();
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
    assert_int_equal(sequences[0]->query_stats->n_items(), 0);  // sinks go to the base
}

// The first of five blocks has tokens already, two are written packed, and two stay at 16 bits.
void long_steps_have_a_sum_for_each_block(void **) {
    CacheRig rig("kivi2", 16u << 20, rank_by_queries);
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 16 + 5);
    assert_int_equal(rig.begin(sequence, 3 * 32 + 32 + 1 - 5), LK_OK);
    const lk::StepSequence &member = rig.cache->step.sequences[0];
    // For sinks, for the block that is filled up, for all packed ones, then for each of the others.
    assert_int_equal(member.n_stats, 3 + 2);
    std::set<uint64_t> offsets;
    for (uint64_t block = 1; block < 6; ++block) {
        bool is_gap = false;
        const uint64_t offset = lk::block_stats(rig.cache, member, block, &is_gap);
        assert_int_equal(is_gap, block == 2 || block == 3);
        assert_true(offset + kStat <= member.block_stats);
        offsets.insert(offset);
    }
    assert_int_equal(offsets.size(), 1 + 1 + 2);
    // A layer at a time: the sum up to a block, and the own sums of five blocks.
    assert_int_equal(rig.cache->step.query_stat_bytes - member.block_stats,
                     (1 + 5) * CacheRig::kHeadDim * sizeof(uint64_t));
    rig.run_layers();
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
    const lk::QueryStats &stats = *sequence->query_stats;
    assert_int_equal(stats.n_items(), 4);
    assert_int_equal(stats.item_block(0), 1);
    assert_true(stats.item_is_gap(1));
    assert_int_equal(stats.item_block(2), 4);
    assert_int_equal(stats.item_block(3), 5);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(drafts_have_a_sum_for_each_token),
        cmocka_unit_test(long_steps_have_a_sum_for_each_block),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
