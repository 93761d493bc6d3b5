// Sequences of a cache: ascending ids, what enters and what leaves with them.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/sequence.h"

#include "cache_rig.h"

namespace {

void ids_ascend_and_are_found(void **) {
    CacheRig rig;
    lk::Sequences &sequences = rig.cache->sequences;
    assert_null(sequences.find(1));
    lk::Sequence *first = rig.add();
    lk::Sequence *second = rig.add();
    lk::Sequence *third = rig.add();
    assert_int_equal(first->id, 1);
    const lk_sequence id = second->id;
    lk::leave_sequence(rig.cache, second);
    assert_null(sequences.find(id));
    assert_ptr_equal(sequences.find(first->id), first);
    assert_ptr_equal(sequences.find(third->id), third);
    assert_int_equal(rig.add()->id, third->id + 1);
    assert_null(sequences.find(0));
    assert_null(sequences.find(UINT64_MAX));
}

void a_cache_has_as_many_as_it_was_opened_for(void **) {
    CacheRig rig;
    for (uint32_t i = 0; i < rig.cache->desc.max_sequences; ++i)
        rig.add();
    const Held before = rig.held();
    lk_sequence id = 5;
    assert_int_equal(lk_sequence_add(rig.cache, &id), LK_E_BUDGET);
    assert_int_equal(id, 0);
    sentence_has("max_sequences of 4");
    rig.assert_held(before);
}

void without_memory_none_enters(void **) {
    CacheRig rig("kivi2", 16u << 20, rank_by_queries);
    lk_sequence id = 0;
    const uint64_t n_live = rig.memory.n_live;
    const uint64_t n_failed = rig.run_out_of_memory([&] {
        const lk_status status = lk_sequence_add(rig.cache, &id);
        if (status)
            assert_int_equal(rig.memory.n_live, n_live);
        return status;
    });
    assert_int_equal(n_failed, 4);  // itself, its sums and their two lists
    assert_int_equal(id, 1);
}

// All that a sequence has is counted while it lives.
void what_a_sequence_has_leaves_with_it(void **) {
    CacheRig rig("kivi2", 16u << 20, rank_by_queries);
    lk::Sequence *first = rig.add();
    rig.step(first, 40);
    const Held before = rig.held();
    lk::Sequence *second = rig.add();
    assert_int_equal(rig.cache->ledger.table_bytes,
                     before.table_bytes + lk::sequence_stat_bytes(rig.plan()));
    rig.step(second, 200);
    assert_int_equal(rig.counts().n_tokens, 240);
    lk::leave_sequence(rig.cache, second);
    rig.assert_held(before);
}

void shared_blocks_are_visited_once(void **) {
    CacheRig rig;
    lk::Sequence *parent = rig.add();
    rig.step(parent, 16 + 40);
    rig.fork(parent);
    lk::Sequence *other = rig.add();
    rig.step(other, 5);
    for (int again = 0; again < 2; ++again) {
        std::vector<lk::CacheBlock *> visited;
        rig.cache->sequences.for_each_block(
            [&](lk::CacheBlock *block) { visited.push_back(block); });
        assert_int_equal(visited.size(), 3 + 1);
        assert_ptr_equal(visited[0], parent->block(0));
        assert_ptr_equal(visited[3], other->block(0));
    }
}

void an_open_step_keeps_its_sequences(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    assert_int_equal(rig.begin(sequence, 1), LK_OK);
    lk_sequence id = 0;
    assert_int_equal(lk_sequence_remove(rig.cache, sequence->id), LK_E_BUSY);
    assert_int_equal(lk_sequence_add(rig.cache, &id), LK_E_BUSY);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    assert_int_equal(lk_sequence_remove(rig.cache, 9), LK_E_NOT_FOUND);
    assert_int_equal(lk_sequence_remove(rig.cache, sequence->id), LK_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(ids_ascend_and_are_found),
        cmocka_unit_test(a_cache_has_as_many_as_it_was_opened_for),
        cmocka_unit_test(without_memory_none_enters),
        cmocka_unit_test(what_a_sequence_has_leaves_with_it),
        cmocka_unit_test(shared_blocks_are_visited_once),
        cmocka_unit_test(an_open_step_keeps_its_sequences),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
