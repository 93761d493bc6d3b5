// Deferral: what the plan's own packing may take, and what gives way when the budget is short.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/defer.h"

#include "chunk_rig.h"

namespace {

constexpr uint32_t kPages = 2 * CacheRig::kLayers;  // of a block

void first_to_pack_follows_the_chunks(void **) {
    ChunkRig rig(16 + 3 * 32 + 32);
    lk::Sequence &sequence = *rig.sequence;
    assert_int_equal(lk::first_to_pack(rig.cache, sequence), UINT64_MAX);
    rig.defer(LK_DEFER_OFF);
    assert_int_equal(lk::first_to_pack(rig.cache, sequence), 1);
    rig.defer(LK_DEFER_REFUSE);
    assert_int_equal(rig.assign(std::vector<lk_chunk_class>(3, LK_CHUNK_LOW)), LK_OK);
    // The plan holds what comes after the chunks; one that does not packs from the first whole
    // block after them on.
    assert_int_equal(sequence.deferral, LK_DEFER_OFF);
    assert_int_equal(lk::first_to_pack(rig.cache, sequence), UINT64_MAX);
    rig.cache->plan.model.chunks.hold = false;
    assert_int_equal(lk::first_to_pack(rig.cache, sequence), 1 + 2);
    rig.cache->plan.model.chunks.hold = true;
}

void the_oldest_due_block_becomes_middle(void **) {
    ChunkRig rig(16 + 3 * 32);  // two blocks are due, the last one is recent
    uint32_t n_done = 0;
    assert_int_equal(lk::pack_deferred(rig.cache, &n_done), LK_OK);
    assert_int_equal(n_done, 0);
    rig.defer(LK_DEFER_PACK);
    for (uint32_t n_blocks = 1; n_blocks <= 2; ++n_blocks) {
        assert_int_equal(lk::pack_deferred(rig.cache, &n_done), LK_OK);
        assert_int_equal(n_done, n_blocks * kPages);
        const lk::CacheBlock &block = *rig.sequence->block(n_blocks);
        assert_int_equal(lk::width_of(rig.cache, block), LK_CHUNK_MIDDLE);
        assert_int_equal(block.n_packed, block.n_entries);
    }
    assert_int_equal(lk::pack_deferred(rig.cache, &n_done), LK_OK);
    assert_int_equal(n_done, 2 * kPages);
    assert_true(lk::is_raw_block(rig.cache->formats, *rig.sequence->block(3)));
}

void shared_blocks_do_not_give_way(void **) {
    ChunkRig rig(16 + 2 * 32);
    rig.defer(LK_DEFER_PACK);
    lk::CacheBlock *block = rig.sequence->block(1);
    lk::hold_block(rig.cache, block);
    uint32_t n_done = 0;
    assert_int_equal(lk::pack_deferred(rig.cache, &n_done), LK_OK);
    assert_int_equal(n_done, 0);
    lk::release_block(rig.cache, block);
    assert_int_equal(lk::pack_deferred(rig.cache, &n_done), LK_OK);
    assert_int_equal(n_done, kPages);
}

// Half a chunk has no class: the blocks of a longer chunk are packed together or not at all.
void long_chunks_are_packed_whole(void **) {
    ChunkRig rig(16 + 3 * 32 - 1, [](lk_plan *plan) { set_chunks(plan, 64); });
    rig.defer(LK_DEFER_PACK);
    uint32_t n_done = 0;
    assert_int_equal(lk::pack_deferred(rig.cache, &n_done), LK_OK);
    assert_int_equal(n_done, 0);
    rig.step(rig.sequence, 1);
    assert_int_equal(lk::pack_deferred(rig.cache, &n_done), LK_OK);
    assert_int_equal(n_done, 2 * kPages);
}

void a_failing_device_leaves_16_bits(void **) {
    ChunkRig rig(16 + 2 * 32);
    rig.defer(LK_DEFER_PACK);
    const Held before = rig.held();
    uint32_t n_done = 0;
    rig.device().packs = kDeviceFails;
    assert_int_equal(lk::pack_deferred(rig.cache, &n_done), LK_E_DEVICE);
    assert_int_equal(n_done, 0);
    rig.assert_held(before);
    assert_int_equal(lk::width_of(rig.cache, *rig.sequence->block(1)), lk::kAt16Bits);
}

void modes_are_checked(void **) {
    ChunkRig rig(1);
    const lk_sequence id = rig.sequence->id;
    assert_int_equal(lk_sequence_defer(rig.cache, id, LK_DEFER_PACK + 1), LK_E_ARGUMENT);
    assert_int_equal(rig.sequence->deferral, LK_DEFER_REFUSE);
    assert_int_equal(rig.begin(rig.sequence, 1), LK_OK);
    assert_int_equal(lk_sequence_defer(rig.cache, id, LK_DEFER_PACK), LK_E_BUSY);
    assert_int_equal(rig.sequence->deferral, LK_DEFER_REFUSE);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(first_to_pack_follows_the_chunks),
        cmocka_unit_test(the_oldest_due_block_becomes_middle),
        cmocka_unit_test(shared_blocks_do_not_give_way),
        cmocka_unit_test(long_chunks_are_packed_whole),
        cmocka_unit_test(a_failing_device_leaves_16_bits),
        cmocka_unit_test(modes_are_checked),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
