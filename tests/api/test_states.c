// Recurrent states: the host's layers compute a hash of the tokens, and whatever the cache does in
// between, a step begins with the hash of the tokens that its sequence has.
//
// SPDX-License-Identifier: Apache-2.0
#include "snapshots.h"
#include "talk.h"

// Chats in any order, so that they change their places in a step.
static void random_step(talk *t) {
    uint32_t indices[TALK_MAX_CHATS], counts[TALK_MAX_CHATS];
    uint32_t n = 0;
    const uint32_t first = talk_below(t, t->n_chats);
    const int is_long = !talk_below(t, 6);
    for (uint32_t i = 0; i < t->n_chats; ++i) {
        const uint32_t index = (first + i * (1 + (t->n_chats % 2 && first % 2))) % t->n_chats;
        int is_new = 1;
        for (uint32_t k = 0; k < n; ++k)
            is_new = is_new && indices[k] != index;
        if (!is_new || (n && !talk_below(t, 3)) || t->chats[index].n + 100 > TALK_MAX_TOKENS)
            continue;
        counts[n] = is_long && !n ? 65 + talk_below(t, 30) : 1 + talk_below(t, 12);
        indices[n++] = index;
    }
    if (n)
        talk_step(t, indices, n, counts,
                  talk_below(t, 4) ? TALK_COMMIT : 1 + (int)talk_below(t, 2));
}

static void random_cut(talk *t, chat *own) {
    const uint32_t n = talk_below(t, own->n + 1);
    uint64_t found = 0;
    rig_is_ok(lk_sequence_find_state(t->r.cache, own->id, n, &found));
    assert_int_equal(found, chat_newest(own, n));
    if (talk_below(t, 2)) {
        const lk_status status = lk_sequence_truncate(t->r.cache, own->id, n);
        assert_int_equal(status, found == n ? LK_OK : LK_E_UNSUPPORTED);
        if (!status)
            chat_cut(own, n);
        return;
    }
    uint64_t kept = 0;
    rig_is_ok(lk_sequence_rollback(t->r.cache, own->id, n, &kept));
    assert_int_equal(kept, found);
    chat_cut(own, (uint32_t)kept);
}

static void random_fork(talk *t, const chat *parent) {
    if (t->n_chats == TALK_MAX_CHATS)
        return;
    const uint32_t n = talk_below(t, 2) ? parent->n : talk_below(t, parent->n + 1);
    lk_sequence id = 0;
    const lk_status status = lk_sequence_fork(t->r.cache, parent->id, n, &id);
    assert_int_equal(status, chat_newest(parent, n) == n ? LK_OK : LK_E_UNSUPPORTED);
    if (status)
        return;
    chat *own = &t->chats[t->n_chats++];
    *own = *parent;
    own->id = id;
    chat_cut(own, n);
    own->n_versions = 0;
    for (uint32_t v = 0; v < parent->n_versions && parent->versions[v] < n; ++v)
        own->versions[own->n_versions++] = parent->versions[v];
}

// All sequences go and come back.
static void save_and_load(talk *t) {
    const bytes saved = snapshot_save(&t->r, NULL);
    lk_sequence ids[TALK_MAX_CHATS];
    uint32_t n = 0;
    uint32_t order[TALK_MAX_CHATS];  // the chats by their ids, which the snapshot goes by
    for (uint32_t i = 0; i < t->n_chats; ++i) {
        order[i] = 0;
        for (uint32_t k = 0; k < t->n_chats; ++k)
            order[i] += t->chats[k].id < t->chats[i].id;
    }
    for (uint32_t i = 0; i < t->n_chats; ++i)
        rig_is_ok(lk_sequence_remove(t->r.cache, t->chats[i].id));
    rig_is_ok(
        lk_snapshot_load_memory(t->r.cache, NULL, saved.data, saved.n, TALK_MAX_CHATS, ids, &n));
    assert_int_equal(n, t->n_chats);
    for (uint32_t i = 0; i < n; ++i)
        t->chats[i].id = ids[order[i]];
    const bytes again = snapshot_save(&t->r, NULL);
    assert_true(again.n == saved.n);
    free(saved.data);
    free(again.data);
}

static void states_follow_their_tokens(void **unused) {
    (void)unused;
    static const char *const presets[] = {"kivi2", "fp16", "kitty-pro"};
    for (uint64_t seed = 0; seed < 6; ++seed) {
        talk *t = talk_open(seed, presets[seed % 3]);
        talk_add(t);
        for (int i = 0; i < 120; ++i) {
            const uint32_t verb = talk_below(t, 20);
            const uint32_t index = talk_below(t, t->n_chats);
            if (verb == 0 && t->n_chats < TALK_MAX_CHATS)
                talk_add(t);
            else if (verb == 1 && t->n_chats > 1)
                talk_remove(t, index);
            else if (verb < 4)
                random_cut(t, &t->chats[index]);
            else if (verb < 7)
                random_fork(t, &t->chats[index]);
            else if (verb == 7)
                save_and_load(t);
            else
                random_step(t);
        }
        talk_close(t);
    }
}

static void places_stay(void **unused) {
    (void)unused;
    talk *t = talk_open(1, "kivi2");
    lk_state first[2], later;
    talk_add(t);
    talk_add(t);
    for (uint32_t i = 0; i < 3; ++i) {
        const lk_sequence ids[] = {t->chats[i % 2].id, t->chats[1 - i % 2].id};
        const uint32_t counts[] = {1, 1};
        rig_is_ok(rig_begin(&t->r, 2, ids, counts, NULL));
        for (uint32_t p = 0; p < 2; ++p) {
            rig_is_ok(lk_state_init(i ? &later : &first[p], sizeof later));
            rig_is_ok(lk_step_state(t->r.cache, p, 1, i ? &later : &first[p]));
            if (i)
                assert_memory_equal(&later, &first[p], sizeof later);
        }
        rig_is_ok(lk_step_discard(t->r.cache));
    }
    assert_true(first[0].bytes == talk_bytes[1] &&
                (first[0].data != first[1].data || first[0].buffer != first[1].buffer));
    if (first[0].data)
        assert_true((uintptr_t)first[0].data % 64 == 0 && !first[0].buffer);
    talk_close(t);
}

// A host that has the pointer writes the bytes that read_state() reads.
static void bytes_are_at_the_pointer(void **unused) {
    (void)unused;
    talk *t = talk_open(1, "kivi2");
    chat *own = talk_add(t);
    const uint32_t n = 1;
    lk_state state;
    uint8_t written[4112], got[4112];
    memset(written, 77, sizeof written);
    rig_is_ok(rig_begin(&t->r, 1, &own->id, &n, NULL));
    rig_is_ok(lk_state_init(&state, sizeof state));
    rig_is_ok(lk_step_state(t->r.cache, 0, 1, &state));
    if (state.data) {
        assert_int_equal(state.memory, t->r.device->memory);
        t->r.device->put(state.data, written, sizeof written);
        rig_is_ok(lk_step_read_state(t->r.cache, 0, 1, got, sizeof got));
        assert_memory_equal(written, got, sizeof got);
        memset(written, 78, sizeof written);
        rig_is_ok(lk_step_write_state(t->r.cache, 0, 1, written, sizeof written));
        t->r.device->get(got, state.data, sizeof got);
        assert_memory_equal(written, got, sizeof got);
    }
    rig_is_ok(lk_step_discard(t->r.cache));
    talk_close(t);
}

static void the_budget_counts_versions_once(void **unused) {
    (void)unused;
    talk *t = talk_open(1, "fp16");
    lk_cache_desc desc;
    talk_describe(t, TALK_BUDGET, &desc);
    uint64_t most = 0, of_two = 0;
    rig_is_ok(lk_state_bytes(&desc, 1, &most));
    rig_is_ok(lk_state_bytes(&desc, 2, &of_two));
    assert_true(of_two == 2 * most);
    assert_int_equal(talk_used(t), 0);
    talk_add(t);
    uint64_t last = talk_used(t);
    for (uint32_t i = 0; i < 12; ++i) {
        talk_step_one(t, 0, TALK_INTERVAL);
        const uint64_t now = talk_used(t);
        assert_true(i > TALK_KEPT ? now == last : now > last);
        assert_true(now <= most);
        last = now;
    }
    const lk_cache_stats stats = rig_stats(&t->r);
    assert_true(stats.reserved_bytes >= stats.state_bytes + stats.table_bytes);
    // A fork takes a list alone; its first step takes a version.
    const uint64_t list = (TALK_KEPT + 2) * sizeof(void *);
    lk_sequence fork;
    rig_is_ok(lk_sequence_fork(t->r.cache, t->chats[0].id, LK_ALL_TOKENS, &fork));
    assert_int_equal(talk_used(t), last + list);
    rig_is_ok(lk_sequence_remove(t->r.cache, fork));
    assert_int_equal(talk_used(t), last);
    talk_remove(t, 0);
    rig_drop_cache(&t->r);
    talk_close(t);
}

// Nothing changes where a step's states do not fit, and another sequence can make space.
static void a_step_beyond_the_budget_is_refused(void **unused) {
    (void)unused;
    static const uint64_t large[] = {3u << 20};
    for (int evicts = 0; evicts < 2; ++evicts) {
        talk *t = talk_model(1, "fp16");
        t->bytes = large;
        t->n_states = 1;
        lk_cache_desc desc;
        talk_describe(t, 14u << 20, &desc);
        desc.flags = evicts ? LK_CACHE_EVICT : 0;
        desc.state_versions = 0;
        rig_is_ok(talk_make(t, &desc));
        talk_add(t);
        talk_add(t);
        talk_add(t);
        for (uint32_t i = 0; i < 3; ++i)  // a place, and three versions
            if (i < 2 || evicts)
                talk_step_one(t, i, 4);
        if (evicts) {
            talk_step_one(t, 2, 4);
            chat *more = talk_add(t);
            const uint32_t n = 1;
            rig_is_ok(rig_begin(&t->r, 1, &more->id, &n, NULL));
            rig_is_ok(lk_step_discard(t->r.cache));
            assert_true(rig_stats(&t->r).sequences_evicted > 0);
        } else {
            const lk_sequence ids[] = {t->chats[1].id, t->chats[2].id};
            const uint32_t counts[] = {1, 1};
            const uint64_t before = talk_used(t);
            assert_int_equal(rig_begin(&t->r, 2, ids, counts, NULL), LK_E_BUDGET);
            rig_sentence("is short of");
            assert_int_equal(talk_used(t), before);
            talk_step_one(t, 1, 1);
        }
        talk_close(t);
    }
    talk *t = talk_model(1, "fp16");
    lk_cache_desc desc;
    t->bytes = large;
    t->n_states = 1;
    talk_describe(t, 6u << 20, &desc);
    assert_int_equal(talk_make(t, &desc), LK_E_BUDGET);
    rig_sentence("first token need");
    talk_close(t);
}

static void snapshots_fit_their_cache(void **unused) {
    (void)unused;
    static const uint64_t large[] = {16, 2200016};
    talk *t = talk_model(3, "kivi2");
    t->bytes = large;
    t->n_states = 2;
    lk_cache_desc desc;
    talk_describe(t, TALK_BUDGET, &desc);
    rig_is_ok(talk_make(t, &desc));
    talk_add(t);
    for (uint32_t i = 0; i < 4; ++i)
        talk_step_one(t, 0, TALK_INTERVAL + 1);
    random_fork(t, &t->chats[0]);
    talk_step_one(t, t->n_chats - 1, 3);
    save_and_load(t);
    const bytes saved = snapshot_save(&t->r, NULL);
    lk_snapshot *snapshot = NULL;
    lk_snapshot_info info;
    rig_is_ok(lk_snapshot_open_memory(saved.data, saved.n, &snapshot));
    rig_is_ok(lk_snapshot_info_init(&info, sizeof info));
    rig_is_ok(lk_snapshot_get_info(snapshot, &info));
    assert_true(info.version == 3 && info.n_states == 2 && info.version_bytes == 2200032 &&
                info.n_state_versions > TALK_KEPT);
    lk_snapshot_close(&snapshot);

    talk *other = talk_model(3, "kivi2");
    lk_sequence ids[TALK_MAX_CHATS];
    uint64_t sizes[] = {16, 2200032};
    const struct {
        uint32_t n_states;
        const char *text;
    } misfits[] = {{0, "has 2 recurrent states, the cache 0"},
                   {1, "has 2 recurrent states, the cache 1"},
                   {2, "recurrent state 1 has 2200016 bytes"}};
    for (uint32_t i = 0; i < 3; ++i) {
        desc.n_states = misfits[i].n_states;
        desc.state_bytes = sizes;
        rig_is_ok(talk_make(other, &desc));
        assert_int_equal(
            lk_snapshot_load_memory(other->r.cache, NULL, saved.data, saved.n, 5, ids, NULL),
            LK_E_MISMATCH);
        rig_sentence(misfits[i].text);
        lk_cache_destroy(&other->r.cache);
    }
    // A cache that keeps fewer versions has all of them until the next step.
    desc.n_states = 2;
    desc.state_bytes = large;
    desc.state_versions = 1;
    rig_is_ok(talk_make(other, &desc));
    rig_is_ok(lk_snapshot_load_memory(other->r.cache, NULL, saved.data, saved.n, 5, ids, NULL));
    uint64_t found = 0;
    rig_is_ok(lk_sequence_find_state(other->r.cache, ids[0], 60, &found));
    assert_int_equal(found, chat_newest(&t->chats[0], 60));
    rig_is_ok(rig_append_step(&other->r, ids[0], 0, t->chats[0].n, 1));
    rig_is_ok(lk_sequence_find_state(other->r.cache, ids[0], 60, &found));
    assert_int_equal(found, 0);
    free(saved.data);
    talk_close(other);
    talk_close(t);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_follow_their_tokens),
        cmocka_unit_test(places_stay),
        cmocka_unit_test(bytes_are_at_the_pointer),
        cmocka_unit_test(the_budget_counts_versions_once),
        cmocka_unit_test(a_step_beyond_the_budget_is_refused),
        cmocka_unit_test(snapshots_fit_their_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
