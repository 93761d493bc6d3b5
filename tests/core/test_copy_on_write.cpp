// Copy on write: one holder goes on in a shared block, the others copy it first.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/copy_on_write.h"

#include "cache_rig.h"

namespace {

struct Forked {
    Forked() {
        parent = rig.add();
        rig.step(parent, 16 + 5);
        child = rig.fork(parent);
        shared = parent->block(1);
    }
    CacheRig rig;
    lk::Sequence *parent;
    lk::Sequence *child;
    lk::CacheBlock *shared;
};

void the_first_to_write_goes_on(void **) {
    Forked forked;
    forked.rig.step(forked.child, 2);
    assert_ptr_equal(forked.child->block(1), forked.shared);
    assert_int_equal(forked.shared->n_written, 7);
    assert_int_equal(forked.rig.counts().pages_copied, 0);
    forked.rig.step(forked.parent, 1);
    assert_ptr_not_equal(forked.parent->block(1), forked.shared);
    assert_int_equal(forked.rig.counts().pages_copied, 4);
    assert_int_equal(forked.shared->n_holders, 1);
}

// In one step only one of the holders may write.
void one_writer_a_step(void **) {
    Forked forked;
    assert_int_equal(forked.rig.begin({{forked.parent, 1}, {forked.child, 1}}), LK_OK);
    assert_ptr_equal(forked.parent->block(1), forked.shared);
    assert_ptr_not_equal(forked.child->block(1), forked.shared);
    assert_ptr_equal(forked.rig.cache->step.sequences[1].borrowed_block, forked.shared);
    assert_int_equal(lk_step_discard(forked.rig.cache), LK_OK);
    assert_ptr_equal(forked.child->block(1), forked.shared);
    assert_int_equal(forked.shared->n_holders, 2);
}

void a_failed_copy_changes_nothing(void **) {
    Forked forked;
    forked.rig.device().dequantizes = kDeviceFails;
    const uint64_t slots = forked.rig.cache->slots.slot_bytes();
    assert_int_equal(lk::copy_shared_block(forked.rig.cache, forked.child, 1, 5), LK_E_DEVICE);
    assert_ptr_equal(forked.child->block(1), forked.shared);
    assert_int_equal(forked.shared->n_holders, 2);
    assert_int_equal(forked.rig.cache->slots.slot_bytes(), slots);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_first_to_write_goes_on),
        cmocka_unit_test(one_writer_a_step),
        cmocka_unit_test(a_failed_copy_changes_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
