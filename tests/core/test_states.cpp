// Recurrent states: which copies a step makes, what its failures leave, and what the budget counts.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/state/states.h"

#include "core/memory/reserve.h"
#include "snapshot_rig.h"

namespace {

constexpr uint64_t kBytes[] = {16, 272};
constexpr uint64_t kInterval = 8;

struct StateRig : CacheRig {
    explicit StateRig(uint32_t n_versions = 2) {
        lk_cache_destroy(&cache);
        desc.state_bytes = kBytes;
        desc.n_states = 2;
        desc.state_versions = n_versions;
        desc.state_interval_tokens = kInterval;
        assert_int_equal(open(), LK_OK);
    }
    lk::States &states() { return cache->states; }
    uint8_t *bytes_of(uint32_t place) {
        return reinterpret_cast<uint8_t *>(states().places[place].memory.address);
    }
    // A step that leaves a byte in the first state.
    void write(const lk::Sequence *sequence, uint32_t n, uint8_t byte) {
        assert_int_equal(begin(sequence, n), LK_OK);
        *bytes_of(0) = byte;
        run_layers();
        assert_int_equal(lk_step_commit(cache, nullptr), LK_OK);
    }
    uint8_t at_begin(const lk::Sequence *sequence) {
        assert_int_equal(begin(sequence, 1), LK_OK);
        const uint8_t byte = *bytes_of(0);
        assert_int_equal(lk_step_discard(cache), LK_OK);
        return byte;
    }
    uint32_t copies_of(const std::function<void()> &run) {
        const uint32_t before = device().n_copies;
        run();
        return device().n_copies - before;
    }
};

void states_of_a_version_do_not_touch(void **) {
    StateRig rig;
    assert_int_equal(rig.states().offsets[1], 256);
    assert_int_equal(rig.states().total_bytes, 256 + 512);
    assert_null(rig.cache->desc.state_bytes);
    assert_int_equal(lk::content_bytes(rig.states()), 16 + 272);
}

// In the same place, a step copies the version that a discard needs and nothing else.
void a_sequence_that_stays_is_saved_alone(void **) {
    StateRig rig;
    lk::Sequence *first = rig.add();
    lk::Sequence *second = rig.add();
    assert_int_equal(rig.copies_of([&] { rig.write(first, 1, 1); }), 1);  // zeros
    assert_int_equal(rig.copies_of([&] { rig.write(first, 1, 2); }), 1);
    assert_int_equal(rig.copies_of([&] { rig.write(second, 1, 3); }), 2);
    assert_int_equal(rig.copies_of([&] { assert_int_equal(rig.at_begin(first), 2); }), 2);
    assert_int_equal(rig.copies_of([&] { assert_int_equal(rig.at_begin(first), 2); }), 1);
    assert_int_equal(rig.copies_of([&] { assert_int_equal(rig.at_begin(second), 3); }), 1);
}

// A place that had a sequence before may not be taken for one that has it.
void a_place_does_not_keep_old_states(void **) {
    StateRig rig(0);
    lk::Sequence *first = rig.add();
    lk::Sequence *second = rig.add();
    const auto both = [&](lk::Sequence *a, lk::Sequence *b, uint8_t of_a, uint8_t of_b) {
        assert_int_equal(rig.begin({{a, 1}, {b, 1}}), LK_OK);
        *rig.bytes_of(0) = of_a;
        *rig.bytes_of(1) = of_b;
        rig.run_layers();
        assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
    };
    both(second, first, 10, 11);  // the first is in place 1,
    rig.write(first, 1, 12);      // then in place 0 alone
    rig.write(first, 1, 13);
    assert_int_equal(rig.begin({{second, 1}, {first, 1}}), LK_OK);
    assert_int_equal(*rig.bytes_of(0), 10);
    assert_int_equal(*rig.bytes_of(1), 13);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
}

void what_leaves_is_not_saved(void **) {
    StateRig rig;
    lk::Sequence *first = rig.add();
    rig.write(first, 1, 1);
    assert_true(rig.states().places[0].is_unsaved);
    lk::leave_sequence(rig.cache, first);
    assert_false(rig.states().places[0].is_unsaved);
    assert_null(rig.states().places[0].version);
    lk::Sequence *second = rig.add();
    assert_int_equal(rig.copies_of([&] { assert_int_equal(rig.at_begin(second), 0); }), 1);
}

void versions_come_and_go_by_the_interval(void **) {
    StateRig rig(2);
    lk::Sequence *sequence = rig.add();
    const auto tokens = [&] {
        std::vector<uint64_t> out;
        for (const lk::StateVersion *version : sequence->versions)
            out.push_back(version->n_tokens);
        return out;
    };
    for (uint8_t i = 0; i < 10; ++i)
        rig.write(sequence, 3, i);
    assert_true((tokens() == std::vector<uint64_t>{18, 27, 30}));
    rig.write(sequence, 3, 10);
    assert_true((tokens() == std::vector<uint64_t>{18, 27, 33}));
    uint64_t kept = 0;
    assert_int_equal(lk_sequence_rollback(rig.cache, sequence->id, 29, &kept), LK_OK);
    assert_int_equal(kept, 27);
    assert_true((tokens() == std::vector<uint64_t>{18, 27}));
    assert_int_equal(rig.at_begin(sequence), 8);
    assert_int_equal(lk_sequence_rollback(rig.cache, sequence->id, 20, &kept), LK_OK);
    assert_int_equal(rig.at_begin(sequence), 5);
    assert_int_equal(lk_sequence_rollback(rig.cache, sequence->id, 17, &kept), LK_OK);
    assert_int_equal(kept, 0);
    assert_int_equal(rig.at_begin(sequence), 0);
}

void a_fork_writes_to_a_version_of_its_own(void **) {
    StateRig rig;
    lk::Sequence *parent = rig.add();
    rig.write(parent, 1, 7);
    lk::Sequence *child = rig.fork(parent);
    assert_ptr_equal(child->versions[0], parent->versions[0]);
    assert_int_equal(parent->versions[0]->n_holders, 2);
    const uint64_t before = rig.states().used_bytes;
    rig.write(child, 1, 8);
    assert_ptr_not_equal(child->versions[0], parent->versions[0]);
    assert_int_equal(parent->versions[0]->n_holders, 1);
    assert_true(rig.states().used_bytes > before);
    assert_int_equal(rig.at_begin(parent), 7);
    assert_int_equal(rig.at_begin(child), 8);
}

void failures_leave_no_trace(void **) {
    StateRig rig;
    lk::Sequence *first = rig.add();
    rig.write(first, 9, 1);
    const Held before = rig.held();
    const uint64_t used = rig.states().used_bytes;
    rig.device().fails_copies = true;
    assert_int_equal(rig.begin(first, 1), LK_E_DEVICE);
    rig.device().fails_copies = false;
    rig.assert_held(before);
    assert_int_equal(rig.states().used_bytes, used);
    rig.device().fails_begin = true;
    assert_int_equal(rig.begin(first, 1), LK_E_DEVICE);
    rig.device().fails_begin = false;
    rig.assert_held(before);
    assert_true(rig.run_out_of_memory([&] { return rig.begin(first, 1); }) >= 1);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    assert_int_equal(rig.at_begin(first), 1);
    rig.run_out_of_memory([&] {
        lk_sequence id = 0;
        const lk_status status = lk_sequence_fork(rig.cache, first->id, LK_ALL_TOKENS, &id);
        return status ? status : lk_sequence_remove(rig.cache, id);
    });
    rig.run_out_of_memory([&] {
        lk_sequence id = 0;
        const lk_status status = lk_sequence_add(rig.cache, &id);
        return status ? status : lk_sequence_remove(rig.cache, id);
    });
}

void a_step_is_refused_by_its_states(void **) {
    StateRig rig;
    lk::Sequence *first = rig.add();
    rig.write(first, 9, 1);
    lk::Ledger &ledger = rig.cache->ledger;
    const uint64_t limit = ledger.limit_bytes;
    const uint64_t held = ledger.table_bytes + rig.cache->slots.slab_bytes();
    // The version after 9 tokens stays, so the step needs another one.
    ledger.limit_bytes = held + rig.states().total_bytes + 63;
    assert_int_equal(rig.begin(first, 1), LK_E_BUDGET);
    ledger.limit_bytes = held + rig.states().total_bytes + 64;
    assert_int_equal(rig.begin(first, 1), LK_OK);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    ledger.limit_bytes = limit;
}

void the_bytes_of_one_sequence_have_a_limit(void **) {
    StateRig rig;
    lk::Sequence *first = rig.add();
    const uint64_t version = rig.states().total_bytes + 64;
    assert_int_equal(lk::private_state_bytes(rig.states(), *first), version);
    rig.write(first, 9, 1);
    assert_int_equal(lk::private_state_bytes(rig.states(), *first), 2 * version);
    rig.fork(first);
    assert_int_equal(lk::private_state_bytes(rig.states(), *first), version);
}

void a_save_has_what_a_commit_left(void **) {
    StateRig rig;
    lk::Sequence *first = rig.add();
    rig.write(first, 9, 1);
    rig.write(first, 1, 2);
    rig.fork(first);
    const std::vector<uint8_t> saved = save_all(&rig);
    assert_false(rig.states().places[0].is_unsaved);
    rig.device().fails_copies = true;
    lk_sequence ids[2];
    const Held before = rig.held();
    assert_int_equal(load_all(&rig, saved, ids, 2), LK_E_DEVICE);
    rig.device().fails_copies = false;
    rig.assert_held(before);
    rig.run_out_of_memory([&] {
        const lk_status status = load_all(&rig, saved, ids, 2);
        return status
                   ? status
                   : lk_sequence_remove(rig.cache, ids[0]) + lk_sequence_remove(rig.cache, ids[1]);
    });
    assert_int_equal(load_all(&rig, saved, ids, 2), LK_OK);
    lk::Sequence *loaded = rig.cache->sequences.find(ids[0]);
    assert_ptr_equal(loaded->versions[1], rig.cache->sequences.find(ids[1])->versions[1]);
    assert_int_equal(loaded->versions[1]->n_holders, 2);
    assert_int_equal(rig.at_begin(loaded), 2);
    uint64_t kept = 0;
    assert_int_equal(lk_sequence_rollback(rig.cache, loaded->id, 9, &kept), LK_OK);
    assert_int_equal(rig.at_begin(loaded), 1);
}

void copies_are_of_the_queue(void **) {
    StateRig rig;
    lk::Sequence *first = rig.add();
    uint8_t host[16] = {};
    assert_int_equal(rig.begin(first, 1), LK_OK);
    rig.device().capturing = true;
    assert_int_equal(lk_step_read_state(rig.cache, 0, 0, host, 16), LK_E_STATE);
    sentence_has("captured");
    rig.device().capturing = false;
    rig.backend.own_traits.recorded_queue = LK_QUEUE_CUDA_STREAM;
    assert_int_equal(lk_step_write_state(rig.cache, 0, 0, host, 16), LK_E_UNSUPPORTED);
    sentence_has("recorded");
    rig.backend.own_traits.recorded_queue = 0;
    assert_int_equal(lk_step_write_state(rig.cache, 0, 0, host, 16), LK_OK);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(states_of_a_version_do_not_touch),
        cmocka_unit_test(a_sequence_that_stays_is_saved_alone),
        cmocka_unit_test(a_place_does_not_keep_old_states),
        cmocka_unit_test(what_leaves_is_not_saved),
        cmocka_unit_test(versions_come_and_go_by_the_interval),
        cmocka_unit_test(a_fork_writes_to_a_version_of_its_own),
        cmocka_unit_test(failures_leave_no_trace),
        cmocka_unit_test(a_step_is_refused_by_its_states),
        cmocka_unit_test(the_bytes_of_one_sequence_have_a_limit),
        cmocka_unit_test(a_save_has_what_a_commit_left),
        cmocka_unit_test(copies_are_of_the_queue),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
