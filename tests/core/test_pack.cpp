// Packing: what is due, what a failing device leaves, and what a long step writes packed.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/pack.h"

#include "cache_rig.h"

namespace {

constexpr uint32_t kDue = 16 + 32 + 32;  // sinks, one block, the recent tokens

void due_blocks_are_packed_at_the_next_step(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, kDue - 1);
    uint32_t n_items = 0;
    rig.device().packs = [&](const lk::PackItem *items, uint32_t n) {
        for (uint32_t i = 0; i < n; ++i) {
            assert_non_null(items[i].source_format);
            assert_true(items[i].source_format->layout.is_raw());
            assert_false(items[i].target->layout.is_raw());
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
    rig.device().packs = kDeviceFails;
    assert_int_equal(lk::pack_due_blocks(rig.cache, sequence), LK_E_DEVICE);
    assert_int_equal(sequence->block(1)->n_packed, 0);
    assert_true(lk::is_raw_block(rig.cache->formats, *sequence->block(1)));
    assert_int_equal(rig.cache->slots.slot_bytes(), slots);
    assert_int_equal(rig.counts().pages_packed, 0);
    rig.device().packs = {};
    assert_int_equal(lk::pack_due_blocks(rig.cache, sequence), LK_OK);
    assert_true(rig.cache->slots.slot_bytes() < slots);
}

void long_steps_pack_on_append(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    const uint64_t &n_packed = rig.cache->statistics.counts.pages_packed;
    assert_int_equal(rig.begin(sequence, kDue + 32), LK_OK);
    assert_true(sequence->block(1)->is_packed_on_append);
    assert_true(sequence->block(2)->is_packed_on_append);
    assert_false(sequence->block(3)->is_packed_on_append);
    rig.append(0);
    assert_int_equal(n_packed, 2 * 2);
    rig.attend(0);
    rig.append(1);
    assert_int_equal(n_packed, 2 * 4);
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
    assert_false(sequence->block(1)->is_packed_on_append);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(due_blocks_are_packed_at_the_next_step),
        cmocka_unit_test(a_failing_device_leaves_16_bits),
        cmocka_unit_test(long_steps_pack_on_append),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
