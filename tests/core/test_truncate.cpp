// Truncation: which blocks go, which one comes back to 16 bits, and which shared one stays.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/truncate.h"

#include "cache_rig.h"
#include "core/pages/pack.h"

namespace {

// Sinks, two packed blocks, and three at 16 bits, of which the last has 5 tokens.
struct Long {
    static constexpr uint32_t kTokens = 16 + 4 * 32 + 5;
    Long() {
        sequence = rig.add();
        rig.grow(sequence, 16 + 3 * 32);
        assert_int_equal(lk::pack_due_blocks(rig.cache, sequence), LK_OK);
        rig.grow(sequence, 32 + 5);
        assert_int_equal(sequence->first_open, 3);
        assert_int_equal(sequence->block_table.size(), 6);
    }
    CacheRig rig;
    lk::Sequence *sequence;
};

void whole_blocks_go(void **) {
    Long made;
    const uint32_t n_changes = made.rig.device().n_changes;
    assert_int_equal(lk::cut_sequence(made.rig.cache, made.sequence, 16 + 3 * 32), LK_OK);
    assert_int_equal(made.sequence->block_table.size(), 4);
    assert_int_equal(made.sequence->length, 16 + 3 * 32);
    assert_int_equal(made.rig.counts().n_tokens, 16 + 3 * 32);
    assert_int_equal(made.rig.device().blocks.size(), 4);
    assert_int_equal(made.sequence->first_open, 3);
    assert_int_equal(made.rig.device().n_changes, n_changes);
    assert_int_equal(lk::cut_sequence(made.rig.cache, made.sequence, 0), LK_OK);
    assert_int_equal(made.sequence->block_table.size(), 0);
    assert_int_equal(made.sequence->first_open, 0);
    assert_int_equal(made.rig.cache->slots.slot_bytes(), 0);
    made.rig.step(made.sequence, 20);
}

// A packed block that is cut within takes new tokens next, so it comes back to 16 bits.
void a_cut_packed_block_comes_back(void **) {
    Long made;
    uint32_t n_tokens = 0;
    made.rig.device().dequantizes = [&](const lk::DequantizeItem *items, uint32_t n) {
        assert_int_equal(n, 4);
        n_tokens = items[0].n_tokens;
        return LK_OK;
    };
    assert_int_equal(lk::cut_sequence(made.rig.cache, made.sequence, 16 + 32 + 7), LK_OK);
    assert_int_equal(n_tokens, 7);
    assert_int_equal(made.sequence->block_table.size(), 3);
    assert_true(lk::is_raw_block(made.rig.cache->formats, *made.sequence->block(2)));
    assert_false(lk::is_raw_block(made.rig.cache->formats, *made.sequence->block(1)));
    assert_int_equal(made.sequence->first_open, 2);
    made.rig.step(made.sequence, 1);
    assert_int_equal(made.sequence->block_table.size(), 3);
}

// At the end of a packed block nothing of it is lost.
void a_whole_packed_block_stays(void **) {
    Long made;
    made.rig.device().dequantizes = kDeviceFails;
    assert_int_equal(lk::cut_sequence(made.rig.cache, made.sequence, 16 + 2 * 32), LK_OK);
    assert_false(lk::is_raw_block(made.rig.cache->formats, *made.sequence->block(2)));
    made.rig.device().dequantizes = {};
}

void a_shared_block_stays_as_it_is(void **) {
    Long made;
    lk::Sequence *child = made.rig.fork(made.sequence);
    lk::CacheBlock *shared = child->block(2);
    made.rig.device().dequantizes = kDeviceFails;
    assert_int_equal(lk::cut_sequence(made.rig.cache, child, 16 + 32 + 7), LK_OK);
    assert_ptr_equal(child->block(2), shared);
    assert_int_equal(shared->n_packed, shared->n_entries);
    assert_int_equal(made.sequence->length, Long::kTokens);
    // The next token goes into a copy.
    made.rig.device().dequantizes = {};
    made.rig.step(child, 1);
    assert_ptr_not_equal(child->block(2), shared);
    assert_ptr_equal(made.sequence->block(2), shared);
}

void a_failing_device_changes_nothing(void **) {
    Long made;
    const Held before = made.rig.held();
    made.rig.device().dequantizes = kDeviceFails;
    assert_int_equal(lk::cut_sequence(made.rig.cache, made.sequence, 16 + 32 + 7), LK_E_DEVICE);
    made.rig.assert_held(before);
    assert_int_equal(made.sequence->length, Long::kTokens);
    assert_int_equal(made.sequence->block_table.size(), 6);
    assert_int_equal(made.sequence->first_open, 3);
    made.rig.device().dequantizes = {};
}

// Without a byte left, the slots of the blocks that go are taken.
void no_budget_is_needed(void **) {
    Long made;
    lk_cache *cache = made.rig.cache;
    std::vector<uint64_t> taken;
    for (uint64_t address; cache->slots.take_existing(32 * 32 * 2, &address);)
        taken.push_back(address);
    const uint64_t limit = cache->ledger.limit_bytes;
    cache->ledger.limit_bytes = cache->ledger.used_bytes();
    assert_int_equal(lk::cut_sequence(cache, made.sequence, 16 + 32 + 7), LK_OK);
    cache->ledger.limit_bytes = limit;
    cache->slots.give(taken.data(), taken.size());
}

void sums_of_gone_blocks_go(void **) {
    CacheRig rig("kivi2", 16u << 20, rank_by_queries);
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 16 + 32 + 5);
    assert_int_equal(sequence->query_stats->n_items(), 2);
    assert_int_equal(lk::cut_sequence(rig.cache, sequence, 16 + 32), LK_OK);
    assert_int_equal(sequence->query_stats->n_items(), 1);
}

void calls_are_checked(void **) {
    Long made;
    lk_cache *cache = made.rig.cache;
    const lk_sequence id = made.sequence->id;
    assert_int_equal(lk_sequence_truncate(cache, id + 1, 0), LK_E_NOT_FOUND);
    assert_int_equal(lk_sequence_truncate(cache, id, Long::kTokens + 1), LK_E_ARGUMENT);
    made.rig.device().capturing = true;
    assert_int_equal(lk_sequence_truncate(cache, id, 1), LK_E_STATE);
    made.rig.device().capturing = false;
    assert_int_equal(made.rig.begin(made.sequence, 1), LK_OK);
    assert_int_equal(lk_sequence_truncate(cache, id, 1), LK_E_BUSY);
    assert_int_equal(lk_step_discard(cache), LK_OK);
    assert_int_equal(made.sequence->length, Long::kTokens);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(whole_blocks_go),
        cmocka_unit_test(a_cut_packed_block_comes_back),
        cmocka_unit_test(a_whole_packed_block_stays),
        cmocka_unit_test(a_shared_block_stays_as_it_is),
        cmocka_unit_test(a_failing_device_changes_nothing),
        cmocka_unit_test(no_budget_is_needed),
        cmocka_unit_test(sums_of_gone_blocks_go),
        cmocka_unit_test(calls_are_checked),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
