// The open step: its members and staging area, what a discard or a refusal drops, and the queue
// that work outside of a step leaves.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/step/step.h"

#include "cache_rig.h"

namespace {

void members_follow_each_other(void **) {
    CacheRig rig;
    lk::Sequence *first = rig.add();
    lk::Sequence *second = rig.add();
    rig.step(second, 20);
    assert_int_equal(rig.begin({{first, 70}, {second, 3}}), LK_OK);
    const lk::Step &step = rig.cache->step;
    assert_true(step.is_open);
    assert_int_equal(step.n_tokens, 73);
    assert_int_equal(step.sequences[1].first_new, 70);
    assert_int_equal(step.sequences[0].n_blocks_before, 0);
    assert_int_equal(step.sequences[1].n_blocks_before, 2);
    assert_false(step.sequences[0].is_draft());
    assert_true(step.sequences[1].is_draft());
    assert_int_equal(step.last_layer, lk::kNoLayer);
    const lk::BatchSequence &view = step.views[1];
    assert_int_equal(view.n_history, 20);
    assert_int_equal(view.first_new, 70);
    assert_true(view.new_in_blocks);
    assert_false(step.views[0].new_in_blocks);
    assert_int_equal(step.views[0].n_attended, 0);
    rig.append(0);
    assert_int_equal(step.layers[0], lk::kHasKeys);
    assert_int_equal(step.layers[1], lk::kNoKeys);
    rig.attend(0);
    assert_int_equal(step.layers[0], lk::kAttended);
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_E_STATE);
    sentence_has("layer 1 has no keys");
    assert_true(step.is_open);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    assert_int_equal(lk_step_discard(rig.cache), LK_E_STATE);
}

void the_staging_area_is_the_workspace(void **) {
    CacheRig rig;
    assert_int_equal(rig.begin(rig.add(), 70), LK_OK);
    const lk::Staging staging = lk::staging_of(rig.cache, 1);
    assert_int_equal(reinterpret_cast<uint64_t>(staging.k), rig.cache->step.workspace.address);
    assert_ptr_equal(staging.v, staging.k + 70 * 32);
    assert_int_equal(staging.n_tokens, 70);
    // The longest step fills it.
    assert_int_equal(rig.cache->step.workspace.bytes, 512 * 32 * 2 * 2);
    lk::drop_step(rig.cache);
}

void a_dropped_step_leaves_no_trace(void **) {
    CacheRig rig("kivi2", 16u << 20, rank_by_queries);
    lk::Sequence *parent = rig.add();
    rig.step(parent, 16 + 20);
    lk::Sequence *child = rig.fork(parent);
    const Held before = rig.held();
    const lk::CacheBlock *shared = parent->block(1);
    for (const uint32_t n : {1u, 40u, 200u}) {
        assert_int_equal(rig.begin({{parent, n}, {child, n}}), LK_OK);
        assert_true(rig.held().slot_bytes > before.slot_bytes);
        rig.append(0);
        lk::drop_step(rig.cache);
        assert_false(rig.cache->step.is_open);
        rig.assert_held(before);
        assert_ptr_equal(parent->block(1), shared);
        assert_ptr_equal(child->block(1), shared);
        assert_ptr_equal(child->query_stats, parent->query_stats);
    }
}

void one_member_may_be_dropped(void **) {
    CacheRig rig;
    lk::Sequence *first = rig.add();
    lk::Sequence *second = rig.add();
    assert_int_equal(rig.begin({{first, 40}, {second, 40}}), LK_OK);
    rig.run_layers();
    const uint32_t keep[] = {0, 5};
    assert_int_equal(lk_step_commit(rig.cache, keep), LK_OK);
    assert_int_equal(first->length, 0);
    assert_int_equal(first->block_table.size(), 0);
    assert_int_equal(second->length, 5);
    assert_int_equal(second->block_table.size(), 1);
    assert_int_equal(rig.device().blocks.size(), 1);
}

void a_refused_step_is_not_open(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 20);
    const Held before = rig.held();
    const auto refused = [&](lk_status expected, uint32_t n) {
        assert_int_equal(rig.begin(sequence, n), expected);
        assert_false(rig.cache->step.is_open);
        rig.assert_held(before);
        assert_int_equal(sequence->block_table.size(), 2);
    };
    refused(LK_E_ARGUMENT, 0);
    refused(LK_E_ARGUMENT, 513);
    assert_int_equal(rig.begin({{sequence, 1}, {sequence, 1}}), LK_E_ARGUMENT);
    sentence_has("named twice");
    rig.device().fails_begin = true;
    refused(LK_E_DEVICE, 100);
    rig.device().fails_begin = false;
    rig.device().max_blocks = 3;
    refused(LK_E_NOMEM, 100);
    rig.device().max_blocks = SIZE_MAX;
    assert_true(rig.run_out_of_memory([&] { return rig.begin(sequence, 150); }) >= 4);
    assert_int_equal(rig.begin(sequence, 1), LK_E_STATE);
    lk::drop_step(rig.cache);
    rig.assert_held(before);
}

// Work outside of a step is not recorded, and leaves the host's command buffer once.
void recorded_queues_are_left(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 1);
    const uint32_t n_queues = rig.device().n_queues;
    assert_int_equal(lk::leave_recording(rig.cache), LK_OK);
    assert_int_equal(rig.device().n_queues, n_queues);
    rig.backend.own_traits.recorded_queue = LK_QUEUE_CUDA_STREAM;
    rig.queue.handle = &rig;
    rig.step(sequence, 1);
    assert_ptr_equal(rig.device().handle, &rig);
    for (int again = 0; again < 2; ++again) {
        assert_int_equal(lk::leave_recording(rig.cache), LK_OK);
        assert_null(rig.device().handle);
        assert_int_equal(rig.device().n_queues, n_queues + 2);
    }
}

// The step's work goes on elsewhere, and leaves the last command buffer.
void a_step_changes_its_queue(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    lk_queue other = rig.queue;
    int handles[2];
    other.handle = &handles[1];
    assert_int_equal(lk_step_set_queue(nullptr, &other), LK_E_ARGUMENT);
    assert_int_equal(lk_step_set_queue(rig.cache, &other), LK_E_UNSUPPORTED);
    sentence_has("a step on a fake device keeps the queue that it began with");
    rig.backend.own_traits.changes_queues = true;
    assert_int_equal(lk_step_set_queue(rig.cache, &other), LK_E_STATE);
    rig.queue.handle = &handles[0];
    assert_int_equal(rig.begin(sequence, 1), LK_OK);
    rig.append(0);
    assert_int_equal(lk_step_set_queue(rig.cache, nullptr), LK_E_ARGUMENT);
    other.kind = 9;
    assert_int_equal(lk_step_set_queue(rig.cache, &other), LK_E_ARGUMENT);
    assert_ptr_equal(rig.device().handle, &handles[0]);
    rig.backend.own_traits.recorded_queue = other.kind = LK_QUEUE_VULKAN_RECORD;
    assert_int_equal(lk_step_set_queue(rig.cache, &other), LK_OK);
    assert_ptr_equal(rig.device().handle, &handles[1]);
    rig.attend(0);
    rig.append(1);
    rig.attend(1);
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
    assert_int_equal(lk::leave_recording(rig.cache), LK_OK);
    assert_null(rig.device().handle);
    assert_int_equal(rig.begin(sequence, 1), LK_OK);
    rig.cache->step.is_poisoned = true;
    assert_int_equal(lk_step_set_queue(rig.cache, &other), LK_E_DATA);
    lk::drop_step(rig.cache);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(members_follow_each_other),
        cmocka_unit_test(the_staging_area_is_the_workspace),
        cmocka_unit_test(a_dropped_step_leaves_no_trace),
        cmocka_unit_test(one_member_may_be_dropped),
        cmocka_unit_test(a_refused_step_is_not_open),
        cmocka_unit_test(recorded_queues_are_left),
        cmocka_unit_test(a_step_changes_its_queue),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
