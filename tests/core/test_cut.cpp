// What is left of chunks when a sequence is cut.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/cut.h"

#include "chunk_rig.h"
#include "core/sequence/truncate.h"

namespace {

const std::vector<lk_chunk_class> kAssigned = {LK_CHUNK_HIGH, LK_CHUNK_LOW, LK_CHUNK_LOW,
                                               LK_CHUNK_HIGH};
const std::vector<lk_chunk_class> kAllLow(4, LK_CHUNK_LOW);

void cuts_within_reordered_chunks_lay_them_out(void **) {
    ChunkRig rig(16 + 4 * 16 + 3);
    const uint64_t whole = 16 + 4 * 16;
    assert_false(lk::cuts_chunks(rig.cache, *rig.sequence, whole - 1));
    assert_int_equal(rig.assign(kAssigned), LK_OK);
    assert_false(lk::cuts_chunks(rig.cache, *rig.sequence, whole));
    assert_true(lk::cuts_chunks(rig.cache, *rig.sequence, whole - 1));
    assert_true(lk::cuts_chunks(rig.cache, *rig.sequence, 17));
    assert_false(lk::cuts_chunks(rig.cache, *rig.sequence, 16));
    rig.cache->plan.model.chunks.reorder = false;
    assert_false(lk::cuts_chunks(rig.cache, *rig.sequence, whole - 1));
    rig.cache->plan.model.chunks.reorder = true;
}

// Chunks lie as 1, 2, 0, 3. Without the last one its block is at 16 bits, with chunk 0 alone.
void blocks_that_lose_a_chunk_come_back(void **) {
    ChunkRig rig(16 + 4 * 16);
    assert_int_equal(rig.assign(kAssigned), LK_OK);
    const lk::CacheBlock *low = rig.sequence->block(1);
    const uint64_t tables = rig.cache->ledger.table_bytes;
    const uint64_t shorter = 16 + 3 * 16;
    assert_int_equal(lk::cut_chunks(rig.cache, rig.sequence, shorter), LK_OK);
    assert_true((rig.order() == std::vector<uint32_t>{1, 2, 0}));
    assert_ptr_equal(rig.sequence->block(1), low);
    assert_true((rig.classes() == std::vector<lk_chunk_class>{LK_CHUNK_LOW, LK_CHUNK_NONE}));
    assert_int_equal(rig.cache->ledger.table_bytes,
                     tables - lk::chunks_bytes(4) + lk::chunks_bytes(3));
    rig.sequence->length = shorter;
    rig.cache->statistics.counts.n_tokens -= 16;
}

// What is left of blocks of two classes would fill one, but codes are not packed once more.
void rests_of_blocks_are_not_packed_together(void **) {
    ChunkRig rig(16 + 8 * 8, [](lk_plan *plan) { set_chunks(plan, 8); });
    constexpr lk_chunk_class kLow = LK_CHUNK_LOW;
    constexpr lk_chunk_class kMiddle = LK_CHUNK_MIDDLE;
    const lk_chunk_class classes[] = {kLow, kLow, kMiddle, kMiddle, kLow, kLow, kMiddle, kMiddle};
    assert_int_equal(lk_chunks_assign(rig.cache, rig.sequence->id, 16 + 64, 8, classes, nullptr),
                     LK_OK);
    assert_true((rig.classes() == std::vector<lk_chunk_class>{kLow, kMiddle}));
    assert_int_equal(lk::cut_sequence(rig.cache, rig.sequence, 16 + 32), LK_OK);
    assert_true((rig.order() == std::vector<uint32_t>{0, 1, 2, 3}));
    assert_true(lk::is_raw_block(rig.cache->formats, *rig.sequence->block(1)));
}

// Within the first chunk: nothing of the list is left, and its tokens are in order at 16 bits.
void no_whole_chunk_leaves_no_list(void **) {
    ChunkRig rig(16 + 4 * 16);
    assert_int_equal(rig.assign(kAllLow), LK_OK);
    std::vector<lk::MoveItem> moved;
    rig.device().moves = [&](const lk::MoveItem *items, uint32_t n) {
        moved.insert(moved.end(), items, items + n);
        return LK_OK;
    };
    assert_int_equal(lk::cut_chunks(rig.cache, rig.sequence, 16 + 7), LK_OK);
    rig.device().moves = {};
    assert_null(rig.sequence->chunks);
    assert_int_equal(rig.sequence->block_table.size(), 2);
    assert_true(lk::is_raw_block(rig.cache->formats, *rig.sequence->block(1)));
    assert_int_equal(moved.size(), 4);  // the pages of two layers, 7 tokens of each
    for (const lk::MoveItem &item : moved) {
        assert_int_equal(item.mask, 0x7f);
        assert_int_equal(item.first_source, 0);
        assert_int_equal(item.first_target, 0);
    }
    rig.sequence->length = 16 + 7;
    rig.cache->statistics.counts.n_tokens -= 4 * 16 - 7;
}

void a_failing_device_leaves_all_chunks(void **) {
    ChunkRig rig(16 + 4 * 16);
    assert_int_equal(rig.assign(kAllLow), LK_OK);
    const Held before = rig.held();
    rig.device().moves = kDeviceFails;
    assert_int_equal(lk::cut_chunks(rig.cache, rig.sequence, 16 + 3 * 16), LK_E_DEVICE);
    rig.assert_held(before);
    assert_int_equal(rig.sequence->chunks->size(), 4);
    assert_true((rig.classes() == std::vector<lk_chunk_class>{LK_CHUNK_LOW, LK_CHUNK_LOW}));
}

void lists_are_trimmed_in_order(void **) {
    ChunkRig rig(16 + 4 * 16, [](lk_plan *plan) { set_chunks(plan, 32, false); });
    const lk_chunk_class classes[] = {LK_CHUNK_LOW, LK_CHUNK_MIDDLE};
    assert_int_equal(lk_chunks_assign(rig.cache, rig.sequence->id, 16 + 64, 2, classes, nullptr),
                     LK_OK);
    lk::trim_chunks(rig.cache, rig.sequence, 16 + 64);
    assert_int_equal(rig.sequence->chunks->size(), 2);
    lk::trim_chunks(rig.cache, rig.sequence, 16 + 63);
    assert_true((rig.order() == std::vector<uint32_t>{0}));
    assert_int_equal(rig.sequence->chunks->assigned.size(), 1);
    lk::trim_chunks(rig.cache, rig.sequence, 16 + 31);
    assert_null(rig.sequence->chunks);
    lk::trim_chunks(rig.cache, rig.sequence, 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(cuts_within_reordered_chunks_lay_them_out),
        cmocka_unit_test(blocks_that_lose_a_chunk_come_back),
        cmocka_unit_test(rests_of_blocks_are_not_packed_together),
        cmocka_unit_test(no_whole_chunk_leaves_no_list),
        cmocka_unit_test(a_failing_device_leaves_all_chunks),
        cmocka_unit_test(lists_are_trimmed_in_order),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
