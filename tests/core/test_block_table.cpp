// Blocks: their slots, their holders, and what is given back when one cannot be made.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/block_table.h"

#include "cache_rig.h"

namespace {

using lk::BlockKind;
using lk::CacheBlock;

void the_last_holder_frees(void **) {
    CacheRig rig;
    const Held before = rig.held();
    CacheBlock *block;
    assert_int_equal(lk::create_block(rig.cache, 1, BlockKind::kRecent, &block), LK_OK);
    assert_int_equal(block->first_token, 16);
    assert_int_equal(block->capacity_tokens, 32);
    assert_true(lk::is_raw_block(rig.cache->formats, *block));
    // A K page and a V page of two layers, of 32 tokens and 32 channels at 16 bits.
    assert_int_equal(lk::content_bytes(rig.cache->formats, *block), 2 * 2 * 32 * 32 * 2);
    const uint64_t tables = rig.cache->ledger.table_bytes;
    lk::hold_block(rig.cache, block);
    assert_int_equal(rig.cache->ledger.table_bytes, tables);  // the holder's table counts
    assert_int_equal(rig.counts().shared_bytes, 2 * 2 * 32 * 32 * 2);
    lk::release_block(rig.cache, block);
    assert_int_equal(rig.cache->ledger.table_bytes, tables);
    assert_int_equal(rig.counts().shared_bytes, 0);
    lk::release_block(rig.cache, block);
    rig.assert_held(before);
}

void kinds_have_their_formats(void **) {
    CacheRig rig;
    CacheBlock *sink;
    CacheBlock *packed;
    assert_int_equal(lk::create_block(rig.cache, 0, BlockKind::kSink, &sink), LK_OK);
    assert_int_equal(lk::create_block(rig.cache, 1, BlockKind::kPackedOnAppend, &packed), LK_OK);
    assert_int_equal(sink->capacity_tokens, 16);
    assert_int_equal(sink->n_packed, 0);
    assert_true(lk::is_raw_block(rig.cache->formats, *sink));
    assert_int_equal(packed->n_packed, packed->n_entries);
    assert_true(packed->is_packed_on_append);
    assert_false(lk::is_raw_block(rig.cache->formats, *packed));
    lk::release_block(rig.cache, sink);
    lk::release_block(rig.cache, packed);
}

void what_cannot_be_made_leaves_nothing(void **) {
    CacheRig rig;
    const Held before = rig.held();
    CacheBlock *block = nullptr;
    rig.device().max_blocks = 0;
    assert_int_equal(lk::create_block(rig.cache, 1, BlockKind::kRecent, &block), LK_E_NOMEM);
    rig.assert_held(before);
    rig.device().max_blocks = SIZE_MAX;
    lk::Ledger &ledger = rig.cache->ledger;
    const uint64_t limit = ledger.limit_bytes;
    ledger.limit_bytes = ledger.used_bytes() + lk::block_bytes(rig.plan()) - 1;
    assert_int_equal(lk::create_block(rig.cache, 1, BlockKind::kRecent, &block), LK_E_BUDGET);
    sentence_has("page table");
    rig.assert_held(before);
    ledger.limit_bytes = ledger.used_bytes() + lk::block_bytes(rig.plan());
    assert_int_equal(lk::create_block(rig.cache, 1, BlockKind::kRecent, &block), LK_E_BUDGET);
    rig.assert_held(before);
    ledger.limit_bytes = limit;
    assert_null(block);
}

void a_step_chooses_kinds(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    const auto kind = [&](uint64_t block, uint64_t n_new) {
        return lk::block_kind(rig.cache, *sequence, block, n_new);
    };
    assert_true(kind(0, 200) == BlockKind::kSink);
    assert_true(kind(1, LK_DRAFT_TOKENS) == BlockKind::kRecent);
    // 16 sinks and 32 recent tokens: of 112 tokens, those from 80 on stay at 16 bits.
    assert_true(kind(1, 112) == BlockKind::kPackedOnAppend);
    assert_true(kind(2, 112) == BlockKind::kPackedOnAppend);
    assert_true(kind(3, 112) == BlockKind::kRecent);
    assert_true(kind(2, 111) == BlockKind::kRecent);
}

void tables_drop_their_ends(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    const Held before = rig.held();
    assert_true(sequence->block_table.reserve(3));
    assert_int_equal(lk::add_block(rig.cache, sequence, BlockKind::kSink), LK_OK);
    const Held with_sink = rig.held();
    for (int i = 0; i < 2; ++i)
        assert_int_equal(lk::add_block(rig.cache, sequence, BlockKind::kRecent), LK_OK);
    assert_int_equal(sequence->block(2)->first_token, 48);
    lk::drop_blocks(rig.cache, sequence, 1);
    assert_int_equal(sequence->block_table.size(), 1);
    rig.assert_held(with_sink);
    lk::drop_blocks(rig.cache, sequence, 0);
    rig.assert_held(before);
}

void copies_are_unlinked_from_both_sides(void **) {
    CacheBlock source{};
    CacheBlock copy{};
    const auto link = [&] {
        source.packed_copy = &copy;
        copy.packed_from = &source;
    };
    for (CacheBlock *block : {&source, &copy}) {
        link();
        lk::unlink_packed_copy(block);
        assert_null(source.packed_copy);
        assert_null(copy.packed_from);
    }
}

void absent_pages_stay_as_they_are(void **) {
    lk::PageEntry entries[2] = {};
    CacheBlock block{};
    block.entries = entries;
    block.n_entries = 2;
    block.n_holders = 1;
    assert_false(lk::has_absent_pages(block));
    assert_true(lk::may_replace(block));
    block.n_holders = 2;
    assert_false(lk::may_replace(block));
    block.n_holders = 1;
    entries[1].is_absent = 1;
    assert_true(lk::has_absent_pages(block));
    assert_false(lk::may_replace(block));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_last_holder_frees),
        cmocka_unit_test(kinds_have_their_formats),
        cmocka_unit_test(what_cannot_be_made_leaves_nothing),
        cmocka_unit_test(a_step_chooses_kinds),
        cmocka_unit_test(tables_drop_their_ends),
        cmocka_unit_test(copies_are_unlinked_from_both_sides),
        cmocka_unit_test(absent_pages_stay_as_they_are),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
