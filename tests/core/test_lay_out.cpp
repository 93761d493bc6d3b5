// Laying out chunks: which blocks stay, how the tokens of new ones are collected, and that a
// failure changes nothing.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/lay_out.h"

#include "chunk_rig.h"

namespace {

const std::vector<lk_chunk_class> kAssigned = {LK_CHUNK_HIGH, LK_CHUNK_LOW, LK_CHUNK_LOW,
                                               LK_CHUNK_HIGH};

// The order that these classes give chunks, as lk_chunks_assign() makes it.
struct Wanted {
    Wanted(const ChunkRig &rig, const std::vector<lk_chunk_class> &classes)
        : order(lk::default_allocator()) {
        const auto n = static_cast<uint32_t>(classes.size());
        assert_int_equal(lk::read_chunks(rig.cache, *rig.sequence, n, &order), LK_OK);
        for (uint32_t c = 0; c < n; ++c)
            order.wanted[c] = assigned[c] = static_cast<uint8_t>(classes[c]);
        const lk::ChunkShape shape(rig.plan());
        assert_int_equal(order.arrange(shape, true, nullptr, lk::default_allocator()), LK_OK);
        layout_tokens = rig.sequence->length;
    }
    lk_status lay(const ChunkRig &rig) const {
        return lk::lay_chunks(rig.cache, rig.sequence, {order, tail, assigned, layout_tokens});
    }
    lk::ChunkOrder order;
    lk::Array<lk::TokenRun> tail;
    uint8_t assigned[8] = {};
    uint64_t layout_tokens;
};

void tails_are_cut_at_blocks(void **) {
    ChunkRig rig(1);
    lk::Array<lk::TokenRun> runs;
    assert_int_equal(lk::list_tail(rig.cache, 3, 0, &runs), LK_OK);
    assert_int_equal(runs.size(), 0);
    // Chunk 3 begins in the middle of the second block after the sinks.
    assert_int_equal(lk::list_tail(rig.cache, 3, 16 + 32 + 5, &runs), LK_OK);
    assert_int_equal(runs.size(), 3);
    const lk::TokenRun wanted[] = {{2, 16, 16, false}, {3, 0, 32, false}, {4, 0, 5, false}};
    for (uint32_t i = 0; i < 3; ++i) {
        assert_int_equal(runs[i].block, wanted[i].block);
        assert_int_equal(runs[i].first, wanted[i].first);
        assert_int_equal(runs[i].n_tokens, wanted[i].n_tokens);
        assert_false(runs[i].is_original);
    }
}

// Two low chunks of two blocks are collected in one, which is packed; the high ones share another.
void tokens_are_collected_by_class(void **) {
    ChunkRig rig(16 + 4 * 16);
    const Wanted wanted(rig, kAssigned);
    std::vector<lk::MoveItem> moved;
    std::vector<lk::PackItem> packed;
    rig.device().moves = [&](const lk::MoveItem *items, uint32_t n) {
        moved.insert(moved.end(), items, items + n);
        return LK_OK;
    };
    rig.device().packs = [&](const lk::PackItem *items, uint32_t n) {
        packed.insert(packed.end(), items, items + n);
        return LK_OK;
    };
    const lk::PageEntry old[] = {rig.sequence->block(1)->entries[0],
                                 rig.sequence->block(2)->entries[0]};
    assert_int_equal(wanted.lay(rig), LK_OK);
    assert_true((rig.order() == std::vector<uint32_t>{1, 2, 0, 3}));
    assert_true((rig.classes() == std::vector<lk_chunk_class>{LK_CHUNK_LOW, LK_CHUNK_HIGH}));
    assert_int_equal(moved.size(), 4 * 4);  // four pages of each chunk
    assert_int_equal(packed.size(), 4);
    // Chunk 1 comes first, from the end of the first block; chunk 2 after it.
    assert_int_equal(moved[0].source, old[0].key_payload);
    assert_int_equal(moved[0].first_source, 16);
    assert_int_equal(moved[0].first_target, 0);
    assert_int_equal(moved[0].mask, 0xffff);
    assert_int_equal(moved[4].source, old[1].key_payload);
    assert_int_equal(moved[4].first_source, 0);
    assert_int_equal(moved[4].first_target, 16);
    assert_int_equal(moved[0].target, packed[0].source);
    assert_int_equal(packed[0].payload, rig.sequence->block(1)->entries[0].key_payload);
    assert_int_equal(moved[8].target, rig.sequence->block(2)->entries[0].key_payload);
    assert_int_equal(rig.sequence->chunks->assigned[0], LK_CHUNK_HIGH);
}

// Chunks that are neighbours in their block already need no move; the block is packed from there.
void whole_blocks_are_packed_where_they_are(void **) {
    ChunkRig rig(16 + 4 * 16);
    const Wanted wanted(rig, {LK_CHUNK_LOW, LK_CHUNK_LOW, LK_CHUNK_HIGH, LK_CHUNK_HIGH});
    const lk::CacheBlock *high = rig.sequence->block(2);
    const uint64_t source = rig.sequence->block(1)->entries[1].value_payload;
    uint64_t packed = 0;
    rig.device().packs = [&](const lk::PackItem *items, uint32_t n) {
        packed = items[n - 1].source;
        return LK_OK;
    };
    assert_int_equal(wanted.lay(rig), LK_OK);
    assert_int_equal(packed, source);
    assert_int_equal(rig.device().n_moves, 0);
    assert_ptr_equal(rig.sequence->block(2), high);
    assert_int_equal(high->chunk_class, LK_CHUNK_HIGH);
    // Once more: all stays.
    const lk::CacheBlock *low = rig.sequence->block(1);
    assert_int_equal(wanted.lay(rig), LK_OK);
    assert_ptr_equal(rig.sequence->block(1), low);
    assert_ptr_equal(rig.sequence->block(2), high);
}

// A shared block of the wanted bytes at another index is copied as it is, not packed again.
void shared_packed_blocks_are_copied(void **) {
    ChunkRig rig(16 + 4 * 16);
    const std::vector<lk_chunk_class> low_last = {LK_CHUNK_MIDDLE, LK_CHUNK_MIDDLE, LK_CHUNK_LOW,
                                                  LK_CHUNK_LOW};
    assert_int_equal(rig.assign(low_last), LK_OK);
    assert_true((rig.order() == std::vector<uint32_t>{2, 3, 0, 1}));
    lk::CacheBlock *middle = rig.sequence->block(2);
    lk::hold_block(rig.cache, middle);
    std::vector<lk::ShrinkItem> copied;
    rig.device().shrinks = [&](const lk::ShrinkItem *items, uint32_t n) {
        copied.insert(copied.end(), items, items + n);
        return LK_OK;
    };
    Wanted wanted(rig, low_last);
    for (uint32_t i = 0; i < 4; ++i)
        wanted.order.order[i] = i;  // the middle block first
    wanted.order.block_classes[0] = LK_CHUNK_MIDDLE;
    wanted.order.block_classes[1] = LK_CHUNK_LOW;
    const uint64_t n_packed = rig.counts().pages_packed;
    assert_int_equal(wanted.lay(rig), LK_OK);
    assert_int_equal(rig.counts().pages_packed, n_packed);
    assert_int_equal(copied.size(), 2 * 4);  // payloads and metadata of four pages
    assert_int_equal(copied[0].source, middle->entries[0].key_payload);
    assert_int_equal(copied[0].target, rig.sequence->block(1)->entries[0].key_payload);
    assert_int_equal(copied[0].n_strips, 0);
    assert_ptr_not_equal(rig.sequence->block(1), middle);
    lk::release_block(rig.cache, middle);
}

void failures_change_nothing(void **) {
    ChunkRig rig(16 + 4 * 16);
    const Wanted wanted(rig, kAssigned);
    lk_cache *cache = rig.cache;
    const Held before = rig.held();
    const auto refused = [&](lk_status expected) {
        assert_int_equal(wanted.lay(rig), expected);
        rig.assert_held(before);
        assert_null(rig.sequence->chunks);
        assert_true(lk::is_raw_block(cache->formats, *rig.sequence->block(1)));
    };
    rig.device().moves = kDeviceFails;
    refused(LK_E_DEVICE);
    rig.device().moves = {};
    rig.device().packs = kDeviceFails;
    refused(LK_E_DEVICE);
    rig.device().packs = {};
    const uint64_t limit = cache->ledger.limit_bytes;
    cache->ledger.limit_bytes = cache->ledger.used_bytes() + lk::chunks_bytes(4);
    refused(LK_E_BUDGET);
    sentence_has("laying out chunks");
    cache->ledger.limit_bytes = limit;
    assert_true(rig.run_out_of_memory([&] { return wanted.lay(rig); }) > 5);
    assert_true((rig.order() == std::vector<uint32_t>{1, 2, 0, 3}));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(tails_are_cut_at_blocks),
        cmocka_unit_test(tokens_are_collected_by_class),
        cmocka_unit_test(whole_blocks_are_packed_where_they_are),
        cmocka_unit_test(shared_packed_blocks_are_copied),
        cmocka_unit_test(failures_change_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
