// Forks: what a child shares, what it gets for itself, and that a refused fork leaves no trace.
//
// SPDX-License-Identifier: Apache-2.0
#include "cache_rig.h"
#include "core/pages/pack.h"

namespace {

void a_child_shares_the_blocks_of_its_tokens(void **) {
    CacheRig rig;
    lk::Sequence *parent = rig.add();
    rig.grow(parent, 16 + 3 * 32 + 5);
    const uint64_t slots = rig.cache->slots.slot_bytes();
    const uint64_t tables = rig.cache->ledger.table_bytes;
    lk::Sequence *child = rig.fork(parent, 16 + 40);
    assert_int_equal(child->length, 16 + 40);
    assert_int_equal(child->block_table.size(), 3);
    for (uint64_t i = 0; i < 3; ++i) {
        assert_ptr_equal(child->block(i), parent->block(i));
        assert_int_equal(child->block(i)->n_holders, 2);
    }
    assert_int_equal(parent->block(3)->n_holders, 1);
    assert_int_equal(rig.cache->slots.slot_bytes(), slots);
    assert_int_equal(rig.cache->ledger.table_bytes,
                     tables + lk::table_capacity(3) * lk::kLinkBytes);
    // The parent wrote all of the last block, so the child copies it before it writes.
    assert_int_equal(child->block(2)->n_written, 32);
    assert_int_equal(rig.counts().n_tokens, parent->length + child->length);
    assert_true(child->first_open <= child->block_table.size());
}

void a_fork_of_a_fork_keeps_what_was_written(void **) {
    CacheRig rig;
    lk::Sequence *parent = rig.add();
    rig.step(parent, 16 + 20);
    lk::Sequence *child = rig.fork(parent, 16 + 4);
    assert_int_equal(parent->block(1)->n_written, 20);
    rig.fork(child);
    assert_int_equal(parent->block(1)->n_written, 20);
    assert_int_equal(parent->block(1)->n_holders, 3);
}

// The parent goes on packing its block in place, so the child has a copy at 16 bits.
void a_partly_packed_block_is_copied(void **) {
    CacheRig rig;
    lk::Sequence *parent = rig.add();
    rig.grow(parent, 16 + 32 + 32);
    lk::CacheBlock *block = parent->block(1);
    assert_int_equal(lk::pack_due_blocks(rig.cache, parent), LK_OK);
    block->n_packed = 1;  // as if the budget had ended
    parent->first_open = 1;
    rig.device().capturing = true;
    lk_sequence id = 0;
    assert_int_equal(lk_sequence_fork(rig.cache, parent->id, LK_ALL_TOKENS, &id), LK_E_STATE);
    rig.device().capturing = false;
    const Held before = rig.held();
    rig.device().dequantizes = kDeviceFails;
    assert_int_equal(lk_sequence_fork(rig.cache, parent->id, LK_ALL_TOKENS, &id), LK_E_DEVICE);
    assert_int_equal(id, 0);
    rig.assert_held(before);
    rig.device().dequantizes = {};
    lk::Sequence *child = rig.fork(parent);
    assert_ptr_not_equal(child->block(1), block);
    assert_true(lk::is_raw_block(rig.cache->formats, *child->block(1)));
    assert_int_equal(block->n_holders, 1);
    assert_ptr_equal(child->block(2), parent->block(2));
    assert_int_equal(rig.counts().pages_copied, 4);
    block->n_packed = block->n_entries;
}

void refusals_leave_no_trace(void **) {
    CacheRig rig;
    lk::Sequence *parent = rig.add();
    rig.step(parent, 16 + 40);
    const Held before = rig.held();
    lk_sequence id = 7;
    const auto refused = [&](lk_status expected, uint64_t n_tokens) {
        assert_int_equal(lk_sequence_fork(rig.cache, parent->id, n_tokens, &id), expected);
        assert_int_equal(id, 0);
        rig.assert_held(before);
        assert_int_equal(parent->block(0)->n_holders, 1);
    };
    assert_int_equal(lk_sequence_fork(rig.cache, 99, 1, &id), LK_E_NOT_FOUND);
    refused(LK_E_ARGUMENT, parent->length + 1);
    lk::Ledger &ledger = rig.cache->ledger;
    const uint64_t limit = ledger.limit_bytes;
    ledger.limit_bytes = ledger.used_bytes() + 3 * lk::kLinkBytes - 1;
    refused(LK_E_BUDGET, LK_ALL_TOKENS);
    ledger.limit_bytes = limit;
    rig.cache->desc.max_sequences = 1;
    refused(LK_E_BUDGET, LK_ALL_TOKENS);
    rig.cache->desc.max_sequences = 4;
    const uint64_t n_live = rig.memory.n_live;
    const uint64_t n_failed = rig.run_out_of_memory([&] {
        const lk_status status = lk_sequence_fork(rig.cache, parent->id, LK_ALL_TOKENS, &id);
        if (status)
            assert_int_equal(rig.memory.n_live, n_live);
        return status;
    });
    assert_true(n_failed >= 2);
    assert_int_equal(rig.begin(parent, 1), LK_OK);
    assert_int_equal(lk_sequence_fork(rig.cache, parent->id, 1, &id), LK_E_BUSY);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
}

void an_empty_fork_has_no_blocks(void **) {
    CacheRig rig("kivi2", 16u << 20, rank_by_queries);
    lk::Sequence *parent = rig.add();
    rig.step(parent, 16 + 40);
    lk::Sequence *child = rig.fork(parent, 0);
    assert_int_equal(child->block_table.size(), 0);
    assert_int_equal(child->first_open, 0);
    assert_int_equal(child->stats_blocks, 0);
    assert_ptr_equal(child->query_stats, parent->query_stats);
    rig.step(child, 3);
    assert_int_equal(child->query_stats->n_items(), 0);
    assert_int_equal(parent->query_stats->n_items(), 2);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_child_shares_the_blocks_of_its_tokens),
        cmocka_unit_test(a_fork_of_a_fork_keeps_what_was_written),
        cmocka_unit_test(a_partly_packed_block_is_copied),
        cmocka_unit_test(refusals_leave_no_trace),
        cmocka_unit_test(an_empty_fork_has_no_blocks),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
