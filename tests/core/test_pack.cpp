// Packing: what is due, what a failing device leaves, and the packed copies of shared blocks.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/pack.h"

#include "cache_rig.h"
#include "core/pages/packed_copy.h"

namespace {

constexpr uint32_t kDue = 16 + 32 + 32;  // sinks, one block, the recent tokens

void due_blocks_are_packed_at_the_next_step(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, kDue - 1);
    uint32_t n_items = 0;
    rig.device().packs = [&](const lk::PackItem *items, uint32_t n) {
        for (uint32_t i = 0; i < n; ++i) {
            assert_true(items[i].source_format->layout.is_raw());
            assert_false(items[i].target->layout.is_raw());
            assert_null(items[i].staged);
        }
        n_items += n;
        return LK_OK;
    };
    rig.step(sequence, 1);
    assert_int_equal(n_items, 0);
    const uint64_t recent = rig.counts().recent_bytes;
    assert_int_equal(rig.begin(sequence, 1), LK_OK);
    // The K pages and V pages of two layers.
    assert_int_equal(n_items, 4);
    assert_int_equal(rig.counts().pages_packed, 4);
    const lk::CacheBlock &block = *sequence->block(1);
    assert_int_equal(block.n_packed, block.n_entries);
    assert_int_equal(sequence->first_open, 2);
    assert_int_equal(sequence->block(2)->n_packed, 0);
    assert_int_equal(sequence->block(0)->n_packed, 0);
    assert_true(rig.counts().payload_bytes > 0);
    // A new block came for the token, and the packed one went from 16 bits.
    assert_int_equal(rig.counts().recent_bytes, recent);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
}

void a_failing_device_leaves_16_bits(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, kDue);
    const uint64_t slots = rig.cache->slots.slot_bytes();
    rig.device().packs = [](const lk::PackItem *, uint32_t) { return lk_status{LK_E_DEVICE}; };
    assert_int_equal(lk::pack_due_blocks(rig.cache, sequence), LK_E_DEVICE);
    assert_int_equal(sequence->block(1)->n_packed, 0);
    assert_true(lk::is_raw_block(rig.cache->formats, *sequence->block(1)));
    assert_int_equal(rig.cache->slots.slot_bytes(), slots);
    assert_int_equal(rig.counts().pages_packed, 0);
    rig.device().packs = {};
    assert_int_equal(lk::pack_due_blocks(rig.cache, sequence), LK_OK);
    assert_true(rig.cache->slots.slot_bytes() < slots);
}

void forks_share_one_packed_copy(void **) {
    CacheRig rig;
    lk::Sequence *parent = rig.add();
    rig.grow(parent, kDue);
    lk_sequence id = 0;
    assert_int_equal(lk_sequence_fork(rig.cache, parent->id, LK_ALL_TOKENS, &id), LK_OK);
    lk::Sequence *child = rig.cache->sequences.find(id);
    lk::CacheBlock *shared = parent->block(1);
    assert_ptr_equal(child->block(1), shared);
    assert_int_equal(lk::pack_due_blocks(rig.cache, parent), LK_OK);
    lk::CacheBlock *copy = parent->block(1);
    assert_ptr_not_equal(copy, shared);
    assert_ptr_equal(shared->packed_copy, copy);
    assert_ptr_equal(copy->packed_from, shared);
    assert_ptr_equal(child->block(1), shared);
    assert_int_equal(shared->n_packed, 0);
    assert_int_equal(rig.counts().pages_packed, 4);
    assert_int_equal(lk::pack_due_blocks(rig.cache, child), LK_OK);
    assert_ptr_equal(child->block(1), copy);
    assert_int_equal(copy->n_holders, 2);
    assert_null(copy->packed_from);
    assert_int_equal(rig.counts().pages_packed, 4);
}

// The copy went with its only holder, so the last holder of the block packs it in place.
void a_lost_copy_is_packed_again_in_place(void **) {
    CacheRig rig;
    lk::Sequence *parent = rig.add();
    rig.grow(parent, kDue);
    lk_sequence id = 0;
    assert_int_equal(lk_sequence_fork(rig.cache, parent->id, LK_ALL_TOKENS, &id), LK_OK);
    lk::CacheBlock *shared = parent->block(1);
    assert_int_equal(lk::pack_due_blocks(rig.cache, parent), LK_OK);
    assert_int_equal(lk_sequence_remove(rig.cache, parent->id), LK_OK);
    assert_null(shared->packed_copy);
    lk::Sequence *child = rig.cache->sequences.find(id);
    assert_int_equal(lk::pack_due_blocks(rig.cache, child), LK_OK);
    assert_ptr_equal(child->block(1), shared);
    assert_int_equal(shared->n_packed, shared->n_entries);
    assert_int_equal(rig.counts().pages_packed, 8);
}

void long_steps_pack_on_append(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    uint32_t n_staged = 0;
    rig.device().packs = [&](const lk::PackItem *items, uint32_t n) {
        for (uint32_t i = 0; i < n; ++i)
            n_staged += items[i].staged != nullptr;
        return LK_OK;
    };
    assert_int_equal(rig.begin(sequence, kDue + 32), LK_OK);
    assert_true(sequence->block(1)->is_packed_on_append);
    assert_true(sequence->block(2)->is_packed_on_append);
    assert_false(sequence->block(3)->is_packed_on_append);
    rig.append(0);
    assert_int_equal(n_staged, 2 * 2);
    rig.attend(0);
    rig.append(1);
    assert_int_equal(n_staged, 2 * 4);
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
    assert_false(sequence->block(1)->is_packed_on_append);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(due_blocks_are_packed_at_the_next_step),
        cmocka_unit_test(a_failing_device_leaves_16_bits),
        cmocka_unit_test(forks_share_one_packed_copy),
        cmocka_unit_test(a_lost_copy_is_packed_again_in_place),
        cmocka_unit_test(long_steps_pack_on_append),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
