// Lists of pages for the device: handed over whole, empty afterwards whatever became of them.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/work_queues.h"

#include "cache_rig.h"

namespace {

void lists_are_handed_over_whole(void **) {
    CacheRig rig;
    lk::WorkQueues &work = rig.cache->work;
    uint32_t n_packs = 0;
    uint32_t n_dequantizes = 0;
    const auto count = [](uint32_t *n) {
        return [n](const auto *, uint32_t n_items) {
            *n = 100 * *n + n_items;
            return lk_status{LK_OK};
        };
    };
    rig.device().packs = count(&n_packs);
    rig.device().dequantizes = count(&n_dequantizes);
    for (uint32_t i = 0; i < 3; ++i) {
        assert_true(work.packs.push({}));
        assert_true(work.moves.push({}));
    }
    assert_true(work.dequantizes.push({}));
    assert_int_equal(lk::flush_packs(rig.cache), LK_OK);
    assert_int_equal(lk::flush_dequantizes(rig.cache), LK_OK);
    assert_int_equal(lk::flush_moves(rig.cache), LK_OK);
    // A second flush has nothing to hand over, and calls nothing.
    assert_int_equal(lk::flush_packs(rig.cache), LK_OK);
    assert_int_equal(lk::flush_dequantizes(rig.cache), LK_OK);
    assert_int_equal(lk::flush_moves(rig.cache), LK_OK);
    assert_int_equal(n_packs, 3);
    assert_int_equal(n_dequantizes, 1);
    assert_int_equal(rig.device().n_moves, 3);
}

void failures_empty_them_too(void **) {
    CacheRig rig;
    lk::WorkQueues &work = rig.cache->work;
    rig.device().packs = kDeviceFails;
    rig.device().dequantizes = kDeviceFails;
    rig.device().moves = kDeviceFails;
    assert_true(work.packs.push({}) && work.dequantizes.push({}) && work.moves.push({}));
    assert_int_equal(lk::flush_packs(rig.cache), LK_E_DEVICE);
    assert_int_equal(lk::flush_dequantizes(rig.cache), LK_E_DEVICE);
    assert_int_equal(lk::flush_moves(rig.cache), LK_E_DEVICE);
    assert_true(work.packs.empty() && work.dequantizes.empty() && work.moves.empty());
}

// Pages are ranked by sums that are queued: those go first, and without them no page is packed.
void sums_go_before_packing(void **) {
    CacheRig rig("kivi2", 16u << 20, rank_by_queries);
    std::vector<char> order;
    rig.device().adds_stats = [&](const lk::StatItem *, uint32_t) {
        order.push_back('s');
        return lk_status{LK_OK};
    };
    rig.device().packs = [&](const lk::PackItem *, uint32_t) {
        order.push_back('p');
        return lk_status{LK_OK};
    };
    const auto queue = [&] {
        assert_int_equal(rig.cache->stat_queue.add({64, 0, 1, 0, 1, 0}), LK_OK);
        assert_true(rig.cache->work.packs.push({}));
    };
    queue();
    assert_int_equal(lk::flush_packs(rig.cache), LK_OK);
    assert_true((order == std::vector<char>{'s', 'p'}));
    rig.device().adds_stats = kDeviceFails;
    queue();
    assert_int_equal(lk::flush_packs(rig.cache), LK_E_DEVICE);
    assert_int_equal(order.size(), 2);
    assert_true(rig.cache->work.packs.empty());
    rig.device().adds_stats = {};
}

void memory_is_reserved_once(void **) {
    for (const bool has_query_stats : {false, true}) {
        CountedMemory memory;
        const lk::Allocator hooks = memory.hooks();
        uint64_t n = 0;
        for (;; ++n) {
            lk::WorkQueues work(hooks);
            memory.give(n);
            if (work.reserve(has_query_stats))
                break;
        }
        assert_int_equal(n, has_query_stats ? 4 : 3);
        assert_int_equal(memory.n_live, 0);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_handed_over_whole),
        cmocka_unit_test(failures_empty_them_too),
        cmocka_unit_test(sums_go_before_packing),
        cmocka_unit_test(memory_is_reserved_once),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
