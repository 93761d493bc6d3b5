// What is wrong with descriptions of recurrent states, with calls, and with snapshots of them.
//
// SPDX-License-Identifier: Apache-2.0
#include "fuzz/restamp.h"
#include "snapshots.h"
#include "talk.h"

static void damage_is_refused(void **unused) {
    (void)unused;
    talk *t = talk_open(5, "kivi2");
    talk_add(t);
    for (uint32_t i = 0; i < 3; ++i)
        talk_step_one(t, 0, TALK_INTERVAL);
    lk_sequence fork;
    rig_is_ok(lk_sequence_fork(t->r.cache, t->chats[0].id, TALK_INTERVAL, &fork));
    const bytes saved = snapshot_save(&t->r, NULL);
    rig_is_ok(lk_sequence_remove(t->r.cache, fork));
    talk_remove(t, 0);
    const uint64_t before = talk_used(t);
    uint8_t *copy = malloc(saved.n);
    assert_non_null(copy);
    size_t at = RESTAMP_HEADER;
    uint32_t n_refused = 0;
    for (; at < saved.n; at = snapshot_next_chunk(saved.data, at, saved.n)) {
        const uint8_t *kind = saved.data + at;
        const int is_list = !memcmp(kind, "STSZ", 4) || !memcmp(kind, "VERS", 4);
        if (!is_list && memcmp(kind, "STAT", 4))
            continue;
        // All bytes of the lists, and the head of a version's bytes, which may be any.
        const size_t end =
            is_list ? snapshot_next_chunk(saved.data, at, saved.n) : at + RESTAMP_CHUNK + 16;
        for (size_t i = at + RESTAMP_CHUNK; i < end; ++i) {
            memcpy(copy, saved.data, saved.n);
            copy[i] ^= (uint8_t)(1u << i % 8);
            snapshot_restamp(copy, saved.n);
            lk_sequence ids[4];
            const lk_status status =
                lk_snapshot_load_memory(t->r.cache, NULL, copy, saved.n, 4, ids, NULL);
            assert_true(status == LK_E_CORRUPT || status == LK_E_MISMATCH);
            assert_int_equal(talk_used(t), before);
            ++n_refused;
        }
    }
    assert_true(n_refused > 100);
    for (uint32_t field = 72; field < 88; ++field) {
        memcpy(copy, saved.data, saved.n);
        copy[field] ^= 4;
        snapshot_seal_header(copy);
        lk_snapshot *snapshot = NULL;
        assert_int_equal(lk_snapshot_open_memory(copy, saved.n, &snapshot), LK_E_CORRUPT);
    }
    free(copy);
    free(saved.data);
    talk_close(t);
}

static void wrong_descriptions_are_refused(void **unused) {
    (void)unused;
    static const uint64_t sums[] = {1ull << 39, 1ull << 39, 16};
    static const uint64_t odd[] = {16, 24};
    static const uint64_t none[] = {0};
    talk *t = talk_model(1, "kivi2");
    lk_cache_desc desc;
    uint64_t n_bytes = 0;
    const struct {
        const uint64_t *bytes;
        uint32_t n, versions, interval, reserved;
        const char *text;
    } faults[] = {{NULL, 2, 0, 1, 0, "state_bytes is NULL for 2 states"},
                  {talk_bytes, 4097, 0, 1, 0, "n_states is 4097, at most 4096"},
                  {talk_bytes, 3, 4097, 1, 0, "state_versions is 4097, at most 4096"},
                  {talk_bytes, 3, 1, 0, 0, "state_interval_tokens is 0"},
                  {talk_bytes, 3, 1, 1, 9, "reserved is 9"},
                  {odd, 2, 1, 1, 0, "state_bytes[1] is 24, not a multiple of 16"},
                  {none, 1, 1, 1, 0, "state_bytes[0] is 0"},
                  {sums, 3, 1, 1, 0, "state_bytes[2] is 16"}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
        talk_describe(t, TALK_BUDGET, &desc);
        desc.state_bytes = faults[i].bytes;
        desc.n_states = faults[i].n;
        desc.state_versions = faults[i].versions;
        desc.state_interval_tokens = faults[i].interval;
        desc.reserved = faults[i].reserved;
        assert_int_equal(talk_make(t, &desc), LK_E_ARGUMENT);
        rig_sentence(faults[i].text);
        assert_int_equal(lk_state_bytes(&desc, 1, &n_bytes), LK_E_ARGUMENT);
        rig_sentence(faults[i].text);
    }
    talk_describe(t, TALK_BUDGET, &desc);
    assert_int_equal(lk_state_bytes(NULL, 1, &n_bytes), LK_E_ARGUMENT);
    assert_int_equal(lk_state_bytes(&desc, 1, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_state_bytes(&desc, 0, &n_bytes), LK_E_ARGUMENT);
    assert_int_equal(lk_state_bytes(&desc, 65537, &n_bytes), LK_E_ARGUMENT);
    desc.n_states = 0;
    rig_is_ok(lk_state_bytes(&desc, 8, &n_bytes));
    assert_int_equal(n_bytes, 0);
    talk_close(t);
}

static void wrong_calls_are_refused(void **unused) {
    (void)unused;
    talk *t = talk_open(1, "kivi2");
    lk_cache *cache = t->r.cache;
    chat *own = talk_add(t);
    talk_step_one(t, 0, 10);
    uint8_t host[4112];
    uint64_t n = 0;
    lk_state state;
    assert_int_equal(lk_state_init(NULL, sizeof state), LK_E_ARGUMENT);
    assert_int_equal(lk_state_init(&state, 8), LK_E_ARGUMENT);
    rig_is_ok(lk_state_init(&state, sizeof state));
    assert_int_equal(lk_step_state(cache, 0, 0, &state), LK_E_STATE);
    assert_int_equal(lk_step_read_state(cache, 0, 0, host, 16), LK_E_STATE);
    assert_int_equal(lk_step_write_state(cache, 0, 0, host, 16), LK_E_STATE);
    rig_sentence("no step is open");
    const uint32_t one = 1;
    rig_is_ok(rig_begin(&t->r, 1, &own->id, &one, NULL));
    assert_int_equal(lk_step_state(cache, 1, 0, &state), LK_E_ARGUMENT);
    rig_sentence("sequence is 1, the step has 1");
    assert_int_equal(lk_step_state(cache, 0, 3, &state), LK_E_ARGUMENT);
    rig_sentence("state is 3, the cache has 3");
    assert_int_equal(lk_step_state(cache, 0, 0, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_step_state(NULL, 0, 0, &state), LK_E_ARGUMENT);
    assert_int_equal(lk_step_read_state(cache, 0, 0, NULL, 16), LK_E_ARGUMENT);
    assert_int_equal(lk_step_write_state(cache, 0, 0, host, 32), LK_E_ARGUMENT);
    rig_sentence("bytes is 32, state 0 has 16");
    uint64_t found = 0;
    rig_is_ok(lk_sequence_find_state(cache, own->id, LK_ALL_TOKENS, &found));
    assert_int_equal(found, 10);
    assert_int_equal(lk_sequence_rollback(cache, own->id, 10, &n), LK_E_BUSY);
    rig_is_ok(lk_step_discard(cache));
    assert_int_equal(lk_sequence_find_state(cache, own->id, 11, &found), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_find_state(cache, own->id, 1, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_find_state(cache, 99, 1, &found), LK_E_NOT_FOUND);
    assert_int_equal(lk_sequence_rollback(cache, own->id, 11, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_rollback(cache, own->id, 1, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_rollback(cache, 99, 1, &n), LK_E_NOT_FOUND);
    assert_int_equal(lk_sequence_truncate(cache, own->id, 9), LK_E_UNSUPPORTED);
    rig_sentence(
        "no version of its recurrent states after 9 tokens; the newest one before is "
        "after 0");
    talk_close(t);
}

// Without states, the calls are those of a truncation.
static void a_cache_without_states_goes_anywhere(void **unused) {
    (void)unused;
    talk *t = talk_model(1, "kivi2");
    rig_is_ok(rig_cache(&t->r, 1, 64, TALK_BUDGET));
    lk_sequence id;
    uint64_t n = 0;
    rig_is_ok(lk_sequence_add(t->r.cache, &id));
    rig_is_ok(rig_append_step(&t->r, id, 0, 0, 40));
    rig_is_ok(lk_sequence_find_state(t->r.cache, id, 33, &n));
    assert_int_equal(n, 33);
    rig_is_ok(lk_sequence_rollback(t->r.cache, id, 17, &n));
    assert_int_equal(n, 17);
    rig_is_ok(lk_sequence_length(t->r.cache, id, &n));
    assert_int_equal(n, 17);
    assert_int_equal(rig_stats(&t->r).state_bytes, 0);
    talk_close(t);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_is_refused),
        cmocka_unit_test(wrong_descriptions_are_refused),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(a_cache_without_states_goes_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
