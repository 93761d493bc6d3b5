// Packed copies of shared blocks: made once, taken by each holder in its time, lost with their
// last holder.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/packed_copy.h"

#include "cache_rig.h"
#include "core/pages/pack.h"

namespace {

constexpr uint32_t kDue = 16 + 32 + 32;  // sinks, one block, the recent tokens

// Two sequences that share a block which is due.
struct Forked {
    explicit Forked(const std::function<void(lk_plan *)> &change = {})
        : rig("kivi2", 16u << 20, change) {
        parent = rig.add();
        rig.grow(parent, kDue);
        child = rig.fork(parent);
        shared = parent->block(1);
        assert_ptr_equal(child->block(1), shared);
    }
    CacheRig rig;
    lk::Sequence *parent;
    lk::Sequence *child;
    lk::CacheBlock *shared;
};

void forks_share_one_packed_copy(void **) {
    Forked forked;
    bool is_done = false;
    assert_int_equal(lk::take_packed_copy(forked.rig.cache, forked.parent, 1, &is_done), LK_OK);
    assert_true(is_done);
    lk::CacheBlock *copy = forked.parent->block(1);
    assert_ptr_not_equal(copy, forked.shared);
    assert_ptr_equal(forked.shared->packed_copy, copy);
    assert_ptr_equal(copy->packed_from, forked.shared);
    assert_int_equal(copy->n_packed, copy->n_entries);
    assert_false(copy->is_packed_on_append);
    assert_ptr_equal(forked.child->block(1), forked.shared);
    assert_int_equal(forked.shared->n_packed, 0);
    assert_int_equal(forked.rig.counts().pages_packed, 4);
    assert_int_equal(lk::take_packed_copy(forked.rig.cache, forked.child, 1, &is_done), LK_OK);
    assert_true(is_done);
    assert_ptr_equal(forked.child->block(1), copy);
    assert_int_equal(copy->n_holders, 2);
    assert_null(copy->packed_from);
    assert_int_equal(forked.rig.counts().pages_packed, 4);
}

// The copy went with its only holder, so the last holder of the block packs it in place.
void a_lost_copy_is_packed_again_in_place(void **) {
    Forked forked;
    assert_int_equal(lk::pack_due_blocks(forked.rig.cache, forked.parent), LK_OK);
    assert_int_equal(lk_sequence_remove(forked.rig.cache, forked.parent->id), LK_OK);
    assert_null(forked.shared->packed_copy);
    bool is_done = true;
    assert_int_equal(lk::take_packed_copy(forked.rig.cache, forked.child, 1, &is_done), LK_OK);
    assert_false(is_done);
    assert_ptr_equal(forked.child->block(1), forked.shared);
    assert_int_equal(lk::pack_due_blocks(forked.rig.cache, forked.child), LK_OK);
    assert_ptr_equal(forked.child->block(1), forked.shared);
    assert_int_equal(forked.shared->n_packed, forked.shared->n_entries);
    assert_int_equal(forked.rig.counts().pages_packed, 8);
}

void a_failure_leaves_the_shared_block(void **) {
    Forked forked;
    lk_cache *cache = forked.rig.cache;
    const Held before = forked.rig.held();
    bool is_done = false;
    const auto refused = [&](lk_status expected) {
        assert_int_equal(lk::take_packed_copy(cache, forked.parent, 1, &is_done), expected);
        forked.rig.assert_held(before);
        assert_ptr_equal(forked.parent->block(1), forked.shared);
        assert_null(forked.shared->packed_copy);
        assert_int_equal(forked.shared->n_holders, 2);
        assert_int_equal(forked.rig.counts().pages_packed, 0);
    };
    forked.rig.device().packs = kDeviceFails;
    refused(LK_E_DEVICE);
    forked.rig.device().packs = {};
    forked.rig.memory.give(0);
    refused(LK_E_NOMEM);
    forked.rig.memory.give_all();
    const uint64_t limit = cache->ledger.limit_bytes;
    cache->ledger.limit_bytes = cache->ledger.used_bytes();
    refused(LK_E_BUDGET);
    cache->ledger.limit_bytes = limit;
}

// A copy that was ranked by other queries is no copy for this sequence.
void copies_are_for_equal_statistics(void **) {
    Forked forked(rank_by_queries);
    assert_int_equal(lk::pack_due_blocks(forked.rig.cache, forked.parent), LK_OK);
    lk::CacheBlock *copy = forked.parent->block(1);
    assert_ptr_equal(forked.shared->packed_copy, copy);
    ++copy->stats_digest;
    bool is_done = true;
    assert_int_equal(lk::take_packed_copy(forked.rig.cache, forked.child, 1, &is_done), LK_OK);
    assert_false(is_done);
    assert_null(forked.shared->packed_copy);
    assert_null(copy->packed_from);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(forks_share_one_packed_copy),
        cmocka_unit_test(a_lost_copy_is_packed_again_in_place),
        cmocka_unit_test(a_failure_leaves_the_shared_block),
        cmocka_unit_test(copies_are_for_equal_statistics),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
