// Query statistics that forks share until one of them has new tokens or packs.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/shared_query_stats.h"

#include "cache_rig.h"

namespace {

struct Ranked {
    Ranked() : rig("kivi2", 16u << 20, rank_by_queries) {
        parent = rig.add();
        rig.grow(parent, 16 + 32 + 5);
        shared = parent->query_stats;
        assert_int_equal(shared->n_items(), 2);  // of two blocks; sinks go to the base
    }
    CacheRig rig;
    lk::Sequence *parent;
    lk::QueryStats *shared;
};

void forks_share_statistics_until_a_step(void **) {
    Ranked ranked;
    CacheRig &rig = ranked.rig;
    lk::Sequence *child = rig.fork(ranked.parent);
    assert_ptr_equal(child->query_stats, ranked.shared);
    assert_int_equal(rig.begin(child, 1), LK_OK);
    assert_ptr_not_equal(child->query_stats, ranked.shared);
    assert_int_equal(child->query_stats->digest(2), ranked.shared->digest(2));
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    assert_ptr_equal(child->query_stats, ranked.shared);
    assert_int_equal(ranked.shared->n_holders, 2);
    rig.step(child, 1);
    assert_int_not_equal(child->query_stats->digest(2), ranked.shared->digest(2));
    assert_int_equal(ranked.shared->n_holders, 1);
}

void their_bytes_are_counted(void **) {
    Ranked ranked;
    lk_cache *cache = ranked.rig.cache;
    const Held before = ranked.rig.held();
    const uint64_t bytes = lk::sequence_stat_bytes(ranked.rig.plan());
    lk::QueryStats *stats = nullptr;
    const uint64_t limit = cache->ledger.limit_bytes;
    cache->ledger.limit_bytes = cache->ledger.used_bytes() + bytes - 1;
    assert_int_equal(lk::make_query_stats(cache, &stats), LK_E_BUDGET);
    assert_null(stats);
    ++cache->ledger.limit_bytes;
    assert_true(ranked.rig.run_out_of_memory([&] { return lk::make_query_stats(cache, &stats); }) >=
                2);
    assert_int_equal(cache->ledger.table_bytes, before.table_bytes + bytes);
    lk::release_query_stats(cache, stats);
    lk::release_query_stats(cache, nullptr);
    cache->ledger.limit_bytes = limit;
    ranked.rig.assert_held(before);
}

void the_borrowed_ones_stay_held(void **) {
    Ranked ranked;
    lk_cache *cache = ranked.rig.cache;
    lk::Sequence *child = ranked.rig.fork(ranked.parent);
    lk::QueryStats *borrowed = nullptr;
    assert_int_equal(lk::own_query_stats(cache, child, &borrowed), LK_OK);
    assert_ptr_equal(borrowed, ranked.shared);
    assert_int_equal(ranked.shared->n_holders, 2);
    lk::release_query_stats(cache, borrowed);
    // Statistics of one sequence are its own already.
    borrowed = nullptr;
    lk::QueryStats *own = child->query_stats;
    assert_int_equal(lk::own_query_stats(cache, child, &borrowed), LK_OK);
    assert_ptr_equal(child->query_stats, own);
    assert_null(borrowed);
    lk::Sequence *other = ranked.rig.fork(child);
    assert_int_equal(lk::own_query_stats(cache, other, nullptr), LK_OK);
    assert_int_equal(own->n_holders, 1);
    assert_ptr_not_equal(other->query_stats, own);
}

void a_refused_copy_leaves_them_shared(void **) {
    Ranked ranked;
    lk_cache *cache = ranked.rig.cache;
    lk::Sequence *child = ranked.rig.fork(ranked.parent);
    const Held before = ranked.rig.held();
    const uint64_t limit = cache->ledger.limit_bytes;
    cache->ledger.limit_bytes = cache->ledger.used_bytes();
    assert_int_equal(lk::own_query_stats(cache, child, nullptr), LK_E_BUDGET);
    cache->ledger.limit_bytes = limit;
    ranked.rig.assert_held(before);
    assert_ptr_equal(child->query_stats, ranked.shared);
    assert_int_equal(ranked.shared->n_holders, 2);
}

// Sums of blocks that are gone: cut at once, or once the sequence has statistics of its own.
void cuts_wait_for_statistics_of_ones_own(void **) {
    Ranked ranked;
    lk_cache *cache = ranked.rig.cache;
    lk::Sequence *child = ranked.rig.fork(ranked.parent);
    assert_int_equal(lk::cut_query_stats(cache, child, 2), LK_OK);
    assert_int_equal(child->stats_blocks, 2);
    assert_int_equal(lk::cut_query_stats(cache, child, 3), LK_OK);
    assert_int_equal(child->stats_blocks, 2);
    assert_int_equal(ranked.shared->n_items(), 2);
    assert_int_equal(lk::own_query_stats(cache, child, nullptr), LK_OK);
    assert_int_equal(child->stats_blocks, UINT64_MAX);
    assert_int_equal(child->query_stats->n_items(), 1);
    assert_int_equal(ranked.shared->n_items(), 2);
    assert_int_equal(lk::cut_query_stats(cache, child, 0), LK_OK);
    assert_int_equal(child->query_stats->n_items(), 0);
    assert_int_equal(child->stats_blocks, UINT64_MAX);
}

void plans_without_ranking_have_none(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    assert_null(sequence->query_stats);
    assert_int_equal(lk::cut_query_stats(rig.cache, sequence, 0), LK_OK);
    assert_int_equal(lk::own_query_stats(rig.cache, sequence, nullptr), LK_OK);
    assert_null(sequence->query_stats);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(forks_share_statistics_until_a_step),
        cmocka_unit_test(their_bytes_are_counted),
        cmocka_unit_test(the_borrowed_ones_stay_held),
        cmocka_unit_test(a_refused_copy_leaves_them_shared),
        cmocka_unit_test(cuts_wait_for_statistics_of_ones_own),
        cmocka_unit_test(plans_without_ranking_have_none),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
