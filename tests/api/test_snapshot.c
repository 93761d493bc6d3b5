// What is saved comes back: the same bytes and the same answers on every backend, or a refusal that
// changes nothing.
//
// SPDX-License-Identifier: Apache-2.0
#define _XOPEN_SOURCE 700  // mkdtemp()
#include "fuzz/restamp.h"
#include "model.h"
#include "snapshots.h"

#include <stdio.h>
#include <unistd.h>

static const uint32_t kLengths[N_SEQUENCES] = {0, 37, 140};

static lk_snapshot_desc described(const char *fingerprint) {
    lk_snapshot_desc desc;
    assert_int_equal(lk_snapshot_desc_init(&desc, sizeof desc), LK_OK);
    desc.fingerprint = fingerprint;
    desc.fingerprint_bytes = (uint32_t)strlen(fingerprint);
    return desc;
}

static bytes save(rig *r) { return snapshot_save(r, NULL); }

static lk_status load(rig *r, bytes from, lk_sequence *ids) {
    return lk_snapshot_load_memory(r->cache, NULL, from.data, from.n, N_SEQUENCES, ids, NULL);
}

static void fill(rig *r, lk_sequence *ids) {
    for (uint32_t s = 0; s < N_SEQUENCES; ++s) {
        ids[s] = model_add(r);
        const uint32_t chunk = kLengths[s] > 100 ? 130 : 50;
        assert_int_equal(rig_fill(r, ids[s], s, 0, kLengths[s], chunk, NULL), LK_OK);
    }
    // A page within a sequence was packed, cut and is at 16 bits again.
    assert_int_equal(lk_sequence_truncate(r->cache, ids[2], 60), LK_OK);
    assert_int_equal(rig_fill(r, ids[2], 2, 60, 213, 7, NULL), LK_OK);
}

// A snapshot goes from the program's device to another one and back: its bytes never change, nor do
// later answers.
static void run_round_trip(const char *plan, const rig_device *from, const rig_device *to) {
    rig a, b;
    lk_sequence ids[N_SEQUENCES], loaded[N_SEQUENCES];
    model_open(&a, from, plan);
    fill(&a, ids);
    const bytes saved = save(&a);
    model_open(&b, to, plan);
    assert_int_equal(load(&b, saved, loaded), LK_OK);
    const bytes again = save(&b);
    snapshot_same(again, saved);
    const float tolerance = from == to ? 0 : rig_tolerance();
    assert_true(snapshot_distance(&a, ids, &b, loaded, N_SEQUENCES) <= tolerance);
    for (uint32_t s = 0; s < N_SEQUENCES; ++s) {
        uint64_t length = 0;
        assert_int_equal(lk_sequence_length(b.cache, loaded[s], &length), LK_OK);
        assert_int_equal(length, s == 2 ? 273 : kLengths[s]);
        assert_int_equal(rig_fill(&a, ids[s], s, 700, 90, 30, NULL), LK_OK);
        assert_int_equal(rig_fill(&b, loaded[s], s, 700, 90, 30, NULL), LK_OK);
        assert_int_equal(lk_sequence_truncate(a.cache, ids[s], length + 85), LK_OK);
        assert_int_equal(lk_sequence_truncate(b.cache, loaded[s], length + 85), LK_OK);
    }
    const bytes grown = save(&a);
    const bytes loaded_grown = save(&b);
    snapshot_same(loaded_grown, grown);
    free(saved.data);
    free(again.data);
    free(grown.data);
    free(loaded_grown.data);
    rig_close(&a);
    rig_close(&b);
}

// The work of a cache before its first step has no queue of the host's to wait for.
static void run_cut_before_a_step(const char *plan) {
    rig a, b;
    lk_sequence ids[N_SEQUENCES], loaded[N_SEQUENCES];
    model_open(&a, rig_default(), plan);
    fill(&a, ids);
    const bytes saved = save(&a);
    model_open(&b, rig_default(), plan);
    assert_int_equal(load(&b, saved, loaded), LK_OK);
    for (uint32_t s = 0; s < N_SEQUENCES; ++s) {
        uint64_t length = 0;
        assert_int_equal(lk_sequence_length(b.cache, loaded[s], &length), LK_OK);
        assert_int_equal(lk_sequence_truncate(a.cache, ids[s], length / 2), LK_OK);
        assert_int_equal(lk_sequence_truncate(b.cache, loaded[s], length / 2), LK_OK);
    }
    const bytes cut = save(&a);
    const bytes loaded_cut = save(&b);
    snapshot_same(loaded_cut, cut);
    assert_true(snapshot_distance(&a, ids, &b, loaded, N_SEQUENCES) == 0);
    free(saved.data);
    free(cut.data);
    free(loaded_cut.data);
    rig_close(&a);
    rig_close(&b);
}

static void test_cut_before_a_step(void **state) {
    (void)state;
    for (const char *const *plan = kModelPlans; *plan; ++plan)
        run_cut_before_a_step(*plan);
}

static void test_round_trip(void **state) {
    (void)state;
    for (const char *const *plan = kModelPlans; *plan; ++plan) {
        run_round_trip(*plan, rig_default(), rig_default());
        if (rig_default() != rig_host()) {
            run_round_trip(*plan, rig_host(), rig_default());
            run_round_trip(*plan, rig_default(), rig_host());
        }
    }
}

// Sums of |Q| are part of a sequence: what is packed later has the same ranks.
static void test_query_sums(void **state) {
    (void)state;
    rig r[2];
    lk_sequence id[2];
    for (int i = 0; i < 2; ++i) {
        memset(&r[i], 0, sizeof r[i]);
        rig_geometry(&r[i], 2, 2, 1, 32);
        rig_open(&r[i]);
        rig_preset(&r[i], "kitty");
        rig_recent(&r[i], 32, 16, 40);
        rig_query_ranking(&r[i]);
        assert_int_equal(rig_cache(&r[i], 4, 256, 64u << 20), LK_OK);
    }
    id[0] = model_add(&r[0]);
    assert_int_equal(rig_fill(&r[0], id[0], 0, 0, 230, 90, NULL), LK_OK);
    assert_int_equal(rig_fill(&r[0], id[0], 0, 230, 17, 3, NULL), LK_OK);
    const bytes saved = save(&r[0]);
    assert_int_equal(load(&r[1], saved, &id[1]), LK_OK);
    for (int i = 0; i < 2; ++i)
        assert_int_equal(rig_fill(&r[i], id[i], 0, 247, 120, 5, NULL), LK_OK);
    const bytes a = save(&r[0]);
    const bytes b = save(&r[1]);
    snapshot_same(b, a);
    free(saved.data);
    free(a.data);
    free(b.data);
    rig_close(&r[0]);
    rig_close(&r[1]);
}

// Rows that forks share are written once, and shared again by what is loaded.
static void run_forks(const char *plan, int ranks_by_queries) {
    rig a, b;
    lk_sequence ids[N_SEQUENCES], loaded[N_SEQUENCES];
    rig *rigs[] = {&a, &b};
    for (int i = 0; i < 2; ++i) {
        model_open(rigs[i], NULL, plan);
        if (!ranks_by_queries)
            continue;
        lk_cache_destroy(&rigs[i]->cache);
        rig_query_ranking(rigs[i]);
        assert_int_equal(rig_cache(rigs[i], 4, 512, 256u << 20), LK_OK);
    }
    ids[0] = model_add(&a);
    assert_int_equal(rig_fill(&a, ids[0], 0, 0, 400, 100, NULL), LK_OK);
    const bytes alone = save(&a);
    assert_int_equal(lk_sequence_fork(a.cache, ids[0], LK_ALL_TOKENS, &ids[1]), LK_OK);
    assert_int_equal(lk_sequence_fork(a.cache, ids[0], 365, &ids[2]), LK_OK);
    assert_int_equal(rig_fill(&a, ids[1], 1, 400, 30, 9, NULL), LK_OK);
    const bytes saved = save(&a);
    assert_true(saved.n < 2 * alone.n);
    assert_int_equal(load(&b, saved, loaded), LK_OK);
    const bytes again = save(&b);
    snapshot_same(again, saved);
    const lk_cache_stats before = rig_stats(&a);
    const lk_cache_stats after = rig_stats(&b);
    assert_true(before.n_tokens == after.n_tokens && after.shared_bytes > 0 &&
                after.payload_bytes < before.payload_bytes + before.payload_bytes / 2);
    assert_true(snapshot_distance(&a, ids, &b, loaded, N_SEQUENCES) == 0);
    assert_int_equal(lk_sequence_remove(a.cache, ids[0]), LK_OK);
    assert_int_equal(lk_sequence_remove(b.cache, loaded[0]), LK_OK);
    for (int s = 1; s < N_SEQUENCES; ++s) {
        assert_int_equal(rig_fill(&a, ids[s], 5, 700, 150, 11, NULL), LK_OK);
        assert_int_equal(rig_fill(&b, loaded[s], 5, 700, 150, 11, NULL), LK_OK);
    }
    // When a window's layers drop a page depends on who had it, so bytes may differ, answers not.
    assert_true(snapshot_distance(&a, &ids[1], &b, &loaded[1], 1) == 0);
    free(alone.data);
    free(saved.data);
    free(again.data);
    rig_close(&a);
    rig_close(&b);
}

static void test_forks(void **state) {
    (void)state;
    run_forks("mixed", 0);
    run_forks("kitty", 1);
}

typedef struct pipe_end {
    bytes to;
    uint64_t done;
    uint64_t n_calls;
    uint64_t stop_at;  // the call that refuses, counted from 1; 0 = none
    uint64_t last_done;
} pipe_end;

static int32_t put(void *user, const void *data, size_t n) {
    pipe_end *end = user;
    if (++end->n_calls == end->stop_at)
        return 7;
    assert_true(end->done + n <= end->to.n);
    memcpy(end->to.data + end->done, data, n);
    end->done += n;
    return 0;
}

static int64_t get(void *user, void *data, size_t n) {
    pipe_end *end = user;
    if (++end->n_calls == end->stop_at)
        return -1;
    const uint64_t left = end->to.n - end->done;
    size_t most = n > 1000 ? 1000 : n;  // in pieces
    most = most > left ? (size_t)left : most;
    memcpy(data, end->to.data + end->done, most);
    end->done += most;
    return (int64_t)most;
}

static int32_t tell(void *user, uint64_t done, uint64_t total) {
    pipe_end *end = user;
    assert_true(done > end->last_done && done <= total && total == end->to.n);
    end->last_done = done;
    return ++end->n_calls == end->stop_at ? 9 : 0;
}

static void test_callbacks(void **state) {
    (void)state;
    rig r;
    lk_sequence ids[2 * N_SEQUENCES];
    model_open(&r, NULL, "kitty");
    fill(&r, ids);
    assert_int_equal(lk_sequence_remove(r.cache, ids[0]), LK_OK);
    assert_int_equal(lk_sequence_remove(r.cache, ids[1]), LK_OK);
    const bytes saved = save(&r);
    bytes copy = {malloc(saved.n), saved.n};
    pipe_end end = {.to = copy};
    assert_int_equal(lk_snapshot_save(r.cache, 0, NULL, NULL, put, &end), LK_OK);
    assert_true(end.done == saved.n);
    snapshot_same(copy, saved);
    const uint64_t n_puts = end.n_calls;
    for (uint64_t stop = 1; stop <= n_puts; ++stop) {
        end = (pipe_end){.to = copy, .stop_at = stop};
        assert_int_equal(lk_snapshot_save(r.cache, 0, NULL, NULL, put, &end), LK_E_IO);
        rig_sentence("refused with 7");
    }
    end = (pipe_end){.to = copy};
    uint32_t n = 0;
    assert_int_equal(lk_snapshot_load(r.cache, NULL, get, &end, 1, ids, &n), LK_OK);
    assert_int_equal(n, 1);
    const uint64_t n_gets = end.n_calls;
    assert_int_equal(lk_sequence_remove(r.cache, ids[0]), LK_OK);
    const lk_cache_stats before = rig_stats(&r);
    for (uint64_t stop = 1; stop <= n_gets; stop += 1 + stop / 8) {
        end = (pipe_end){.to = copy, .stop_at = stop};
        assert_int_equal(lk_snapshot_load(r.cache, NULL, get, &end, 1, ids, &n), LK_E_IO);
        const lk_cache_stats after = rig_stats(&r);
        snapshot_same_stats(&after, &before);
    }
    lk_snapshot_desc desc = described("");
    desc.progress = tell;
    desc.progress_user = &end;
    end = (pipe_end){.to = copy};
    assert_int_equal(lk_snapshot_save_memory(r.cache, 0, NULL, &desc, copy.data, copy.n, NULL),
                     LK_OK);
    assert_true(end.last_done == saved.n);
    end = (pipe_end){.to = copy, .stop_at = 5};
    assert_int_equal(lk_snapshot_save_memory(r.cache, 0, NULL, &desc, copy.data, copy.n, NULL),
                     LK_E_IO);
    rig_sentence("progress callback ended it with 9");
    end = (pipe_end){.to = copy, .stop_at = 2};
    assert_int_equal(lk_snapshot_load_memory(r.cache, &desc, saved.data, saved.n, 1, ids, &n),
                     LK_E_IO);
    const lk_cache_stats after = rig_stats(&r);
    snapshot_same_stats(&after, &before);
    free(saved.data);
    free(copy.data);
    rig_close(&r);
}

static void test_files(void **state) {
    (void)state;
    rig r;
    lk_sequence ids[N_SEQUENCES];
    model_open(&r, NULL, "kivi2");
    fill(&r, ids);
    char folder[] = "snapshot-XXXXXX";
    char path[64], partial[80];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.lksnap", folder);
    snprintf(partial, sizeof partial, "%s.partial", path);
    const lk_sequence one = ids[1];
    assert_int_equal(lk_snapshot_save_file(r.cache, 1, &one, NULL, path), LK_OK);
    assert_int_equal(lk_snapshot_save_file(r.cache, 1, &ids[2], NULL, path), LK_OK);
    assert_int_not_equal(access(partial, F_OK), 0);
    lk_sequence loaded = 0;
    uint32_t n = 9;
    assert_int_equal(lk_snapshot_load_file(r.cache, NULL, path, 1, &loaded, &n), LK_OK);
    assert_int_equal(n, 1);
    uint64_t length = 0;
    assert_int_equal(lk_sequence_length(r.cache, loaded, &length), LK_OK);
    assert_int_equal(length, 273);
    lk_snapshot *snapshot = NULL;
    assert_int_equal(lk_snapshot_open_file(path, &snapshot), LK_OK);
    lk_snapshot_info info;
    assert_int_equal(lk_snapshot_info_init(&info, sizeof info), LK_OK);
    assert_int_equal(lk_snapshot_get_info(snapshot, &info), LK_OK);
    assert_int_equal(info.n_sequences, 1);
    assert_int_equal(info.n_tokens, 273);
    assert_int_equal(lk_plan_validate(lk_snapshot_plan(snapshot), &r.geometry), LK_OK);
    lk_snapshot_sequence sequence;
    assert_int_equal(lk_snapshot_sequence_init(&sequence, sizeof sequence), LK_OK);
    assert_int_equal(lk_snapshot_get_sequence(snapshot, 0, &sequence), LK_OK);
    assert_true(sequence.id == ids[2] && sequence.n_tokens == 273 && !sequence.n_shared_blocks);
    assert_int_equal(lk_snapshot_get_sequence(snapshot, 1, &sequence), LK_E_NOT_FOUND);
    uint64_t n_pages = 0, total = 0;
    for (uint32_t c = 0; c < info.n_formats; ++c) {
        lk_snapshot_format kind;
        assert_int_equal(lk_snapshot_format_init(&kind, sizeof kind), LK_OK);
        assert_int_equal(lk_snapshot_get_format(snapshot, c, &kind), LK_OK);
        n_pages += kind.n_pages;
        total += kind.payload_bytes + kind.metadata_bytes;
    }
    assert_true(n_pages == sequence.n_blocks * 2 * 5 && total < info.total_bytes);
    lk_snapshot_close(&snapshot);
    assert_null(snapshot);
    // What cannot be written leaves the old file.
    assert_int_equal(lk_snapshot_save_file(r.cache, 0, NULL, NULL, folder), LK_E_IO);
    const lk_sequence unknown = 99;
    assert_int_equal(lk_snapshot_save_file(r.cache, 1, &unknown, NULL, path), LK_E_NOT_FOUND);
    assert_int_not_equal(access(partial, F_OK), 0);
    assert_int_equal(lk_snapshot_open_file(path, &snapshot), LK_OK);
    lk_snapshot_close(&snapshot);
    assert_int_equal(lk_snapshot_load_file(r.cache, NULL, "/nonexistent/x", 1, &loaded, &n),
                     LK_E_IO);
    assert_int_equal(lk_snapshot_load_file(r.cache, NULL, folder, 1, &loaded, &n), LK_E_IO);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    rig_close(&r);
}

static void test_mismatches(void **state) {
    (void)state;
    rig r, other;
    lk_sequence ids[N_SEQUENCES];
    model_open(&r, NULL, "kitty");
    fill(&r, ids);
    const lk_snapshot_desc desc = described("model a");
    const lk_snapshot_desc wrong = described("model b");
    const bytes saved = snapshot_save(&r, &desc);
    model_open(&other, NULL, "kitty-pro");
    assert_int_equal(lk_snapshot_load_memory(other.cache, &desc, saved.data, saved.n, 3, ids, NULL),
                     LK_E_MISMATCH);
    rig_sentence("the snapshot is of plan kitty (");
    rig_sentence("the cache runs kitty-pro (");
    rig_drop_cache(&other);
    rig_preset(&other, "kitty-pro");
    rig_recent(&other, 64, 16, 40);
    assert_int_equal(lk_plan_set_key_rotation(other.plan, 0, LK_ROTATION_HADAMARD), LK_OK);
    assert_int_equal(rig_cache(&other, 4, 512, 64u << 20), LK_OK);
    const bytes rotated = snapshot_save(&other, &desc);
    assert_int_equal(lk_snapshot_load_memory(other.cache, &desc, saved.data, saved.n, 3, ids, NULL),
                     LK_E_MISMATCH);
    rig_sentence("keys of layer 0 are not rotated in the snapshot (plan kitty) and rotated in the");
    assert_int_equal(lk_snapshot_load_memory(r.cache, &desc, rotated.data, rotated.n, 3, ids, NULL),
                     LK_E_MISMATCH);
    rig_sentence("keys of layer 0 are rotated in the snapshot (plan kitty-pro) and not rotated in");
    free(rotated.data);
    rig_drop_cache(&other);
    other.layers[2].head_dim = 96;
    rig_preset(&other, "kitty");
    rig_recent(&other, 64, 16, 40);
    assert_int_equal(rig_cache(&other, 4, 512, 64u << 20), LK_OK);
    assert_int_equal(lk_snapshot_load_memory(other.cache, &desc, saved.data, saved.n, 3, ids, NULL),
                     LK_E_MISMATCH);
    rig_sentence("the snapshot is of geometry");
    rig_sentence("the model's layers differ");
    rig_close(&other);
    for (int i = 0; i < N_SEQUENCES; ++i)
        assert_int_equal(lk_sequence_remove(r.cache, ids[i]), LK_OK);
    assert_int_equal(load(&r, saved, ids), LK_E_MISMATCH);
    rig_sentence("fingerprint of 7 bytes");
    assert_int_equal(lk_snapshot_load_memory(r.cache, &wrong, saved.data, saved.n, 3, ids, NULL),
                     LK_E_MISMATCH);
    uint32_t n = 0;
    assert_int_equal(lk_snapshot_load_memory(r.cache, &desc, saved.data, saved.n, 2, ids, &n),
                     LK_E_ARGUMENT);
    assert_int_equal(n, 3);
    assert_int_equal(rig_stats(&r).n_sequences, 0);
    assert_int_equal(lk_snapshot_load_memory(r.cache, &desc, saved.data, saved.n, 3, ids, &n),
                     LK_OK);
    assert_int_equal(lk_snapshot_load_memory(r.cache, &desc, saved.data, saved.n, 3, ids, &n),
                     LK_E_BUDGET);
    free(saved.data);
    rig_close(&r);
}

static void test_arguments(void **state) {
    (void)state;
    rig r;
    lk_sequence ids[N_SEQUENCES];
    uint8_t byte = 0;
    model_open(&r, NULL, "fp16");
    fill(&r, ids);
    uint64_t n = 0;
    assert_int_equal(lk_snapshot_save_memory(NULL, 0, NULL, NULL, NULL, 0, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_snapshot_save_memory(r.cache, 0, ids, NULL, NULL, 0, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_snapshot_save_memory(r.cache, 1, NULL, NULL, NULL, 0, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_snapshot_save_memory(r.cache, 0, NULL, NULL, NULL, 9, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_snapshot_save_memory(r.cache, 0, NULL, NULL, &byte, 1, &n), LK_E_ARGUMENT);
    assert_true(n > 1 && !byte);
    const lk_sequence twice[] = {ids[1], ids[1]};
    assert_int_equal(lk_snapshot_save_memory(r.cache, 2, twice, NULL, NULL, 0, &n), LK_E_ARGUMENT);
    rig_sentence("named twice");
    lk_snapshot_desc desc = described("x");
    desc.fingerprint_bytes = LK_FINGERPRINT_BYTES + 1;
    assert_int_equal(lk_snapshot_save_memory(r.cache, 0, NULL, &desc, NULL, 0, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_snapshot_save(r.cache, 0, NULL, NULL, NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_snapshot_save_file(r.cache, 0, NULL, NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_snapshot_save_file(r.cache, 0, NULL, NULL, ""), LK_E_ARGUMENT);
    uint32_t count = 0;
    assert_int_equal(lk_snapshot_load_memory(r.cache, NULL, NULL, 9, 1, ids, &count),
                     LK_E_ARGUMENT);
    assert_int_equal(lk_snapshot_load(r.cache, NULL, NULL, NULL, 1, ids, &count), LK_E_ARGUMENT);
    const bytes saved = save(&r);
    const uint32_t n_tokens = 1;
    assert_int_equal(rig_begin(&r, 1, &ids[0], &n_tokens, NULL), LK_OK);
    assert_int_equal(lk_snapshot_save_memory(r.cache, 0, NULL, NULL, NULL, 0, &n), LK_E_BUSY);
    assert_int_equal(load(&r, saved, ids), LK_E_BUSY);
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    lk_snapshot *snapshot = NULL;
    assert_int_equal(lk_snapshot_open_memory(saved.data, saved.n - 1, &snapshot), LK_E_CORRUPT);
    assert_null(snapshot);
    assert_int_equal(lk_snapshot_open_memory(saved.data, saved.n, &snapshot), LK_OK);
    lk_snapshot_close(&snapshot);
    free(saved.data);
    rig_close(&r);
}

// A budget that holds all but a little.
static void test_budget(void **state) {
    (void)state;
    rig r;
    lk_sequence ids[N_SEQUENCES];
    model_open(&r, NULL, "kitty");
    fill(&r, ids);
    const uint64_t used = rig_stats(&r).reserved_bytes;
    const bytes saved = save(&r);
    rig_drop_cache(&r);
    rig_preset(&r, "kitty");
    rig_recent(&r, 64, 16, 40);
    int n_refused = 0;
    lk_status status = LK_E_BUDGET;
    for (uint64_t budget = used / 2; status; budget += used / 16) {
        lk_cache_destroy(&r.cache);
        if (rig_cache(&r, 4, 512, budget))
            continue;
        const lk_cache_stats before = rig_stats(&r);
        status = load(&r, saved, ids);
        if (!status)
            break;
        assert_int_equal(status, LK_E_BUDGET);
        const lk_cache_stats after = rig_stats(&r);
        snapshot_same_stats(&after, &before);
        ++n_refused;
        assert_true(budget < 2 * used);
    }
    assert_true(n_refused > 0);
    free(saved.data);
    rig_close(&r);
}

// Every allocation of a save and of a load fails once.
static void test_memory(void **state) {
    (void)state;
    rig r;
    lk_sequence ids[N_SEQUENCES];
    model_open(&r, NULL, "mixed");
    fill(&r, ids);
    const bytes saved = save(&r);
    bytes copy = {malloc(saved.n), saved.n};
    int n_failed = 0;
    lk_status status = LK_E_NOMEM;
    for (int64_t fail = 1; status; ++fail) {
        pipe_end end = {.to = copy};
        r.memory.fail_at = r.memory.n_calls + fail;
        status = lk_snapshot_save(r.cache, 0, NULL, NULL, put, &end);
        r.memory.fail_at = 0;
        assert_true(status == LK_OK || status == LK_E_NOMEM);
        n_failed += status != LK_OK;
    }
    assert_true(n_failed > 3);
    snapshot_same(copy, saved);
    for (int s = 0; s < N_SEQUENCES; ++s)
        assert_int_equal(lk_sequence_remove(r.cache, ids[s]), LK_OK);
    n_failed = 0;
    status = LK_E_NOMEM;
    for (int64_t fail = 1; status; ++fail) {
        const lk_cache_stats before = rig_stats(&r);
        r.memory.fail_at = r.memory.n_calls + fail;
        status = load(&r, saved, ids);
        r.memory.fail_at = 0;
        if (!status)
            break;
        assert_int_equal(status, LK_E_NOMEM);
        const lk_cache_stats after = rig_stats(&r);
        snapshot_same_stats(&after, &before);
        ++n_failed;
    }
    assert_true(n_failed > 3);
    const bytes again = save(&r);
    assert_true(again.n == saved.n);
    free(again.data);
    free(saved.data);
    free(copy.data);
    rig_close(&r);
}

// A cache of few bytes, and its snapshot.
static void small_open(rig *r, uint32_t n_threads) {
    snapshot_small_open(r, "kitty", n_threads);
    rig_recent(r, 32, 16, 16);
    rig_query_ranking(r);
    snapshot_small_make(r);
}

static bytes small_snapshot(rig *r) {
    lk_sequence ids[2];
    for (uint32_t s = 0; s < 2; ++s) {
        ids[s] = model_add(r);
        assert_int_equal(rig_fill(r, ids[s], s, 0, s ? 101 : 5, 40, NULL), LK_OK);
    }
    return snapshot_small_take(r, ids, 2);
}

static void test_truncated(void **state) {
    (void)state;
    if (rig_default() != rig_host())
        skip();
    rig r;
    small_open(&r, 1);
    const bytes saved = small_snapshot(&r);
    snapshot_cut_everywhere(&r, saved);
    free(saved.data);
    rig_close(&r);
}

static void test_flipped(void **state) {
    (void)state;
    if (rig_default() != rig_host())
        skip();
    rig r;
    small_open(&r, 1);
    const bytes saved = small_snapshot(&r);
    // Ids of the cache that saved it, sums and values may be anything.
    assert_true(snapshot_flip_frame(&r, saved) > 0);
    free(saved.data);
    rig_close(&r);
}

// What loading bytes into an empty cache says; what it accepts goes again.
static lk_status verdict(rig *r, bytes from, char *sentence, size_t capacity) {
    lk_sequence ids[N_SEQUENCES];
    uint32_t n = 0;
    const lk_status status =
        lk_snapshot_load_memory(r->cache, NULL, from.data, from.n, N_SEQUENCES, ids, &n);
    sentence[0] = 0;
    if (status)
        assert_int_equal(lk_last_error(sentence, capacity, NULL), LK_OK);
    for (uint32_t s = 0; !status && s < n; ++s)
        assert_int_equal(lk_sequence_remove(r->cache, ids[s]), LK_OK);
    return status;
}

// With several threads one checks the next part while others copy: what comes is the same, and so
// is what is said of damage to each part.
static void test_threads(void **state) {
    (void)state;
    if (rig_default() != rig_host())
        skip();
    rig one, several;
    small_open(&one, 1);
    small_open(&several, 3);
    const bytes saved = small_snapshot(&one);
    lk_sequence ids[N_SEQUENCES];
    assert_int_equal(load(&several, saved, ids), LK_OK);
    const bytes again = save(&several);
    snapshot_same(again, saved);
    assert_int_equal(lk_sequence_remove(several.cache, ids[0]), LK_OK);
    assert_int_equal(lk_sequence_remove(several.cache, ids[1]), LK_OK);
    const bytes copy = {malloc(saved.n), saved.n};
    assert_non_null(copy.data);
    int n_parts = 0;
    int n_contents = 0;
    size_t next = 0;
    for (size_t at = RESTAMP_HEADER; at < saved.n; at = next) {
        next = snapshot_next_chunk(saved.data, at, saved.n);
        if (memcmp(saved.data + at, "ROWS", 4) != 0)
            continue;
        ++n_parts;
        for (int fits_hash = 0; fits_hash < 2; ++fits_hash) {
            char said[256], said_by_several[256];
            memcpy(copy.data, saved.data, saved.n);
            memset(copy.data + next - 2, 0xff, 2);
            if (fits_hash)
                snapshot_restamp(copy.data, saved.n);
            const lk_status status = verdict(&one, copy, said, sizeof said);
            assert_int_equal(verdict(&several, copy, said_by_several, sizeof said_by_several),
                             status);
            assert_string_equal(said_by_several, said);
            assert_true(fits_hash || status == LK_E_CORRUPT);
            n_contents += fits_hash && status == LK_E_CORRUPT;
        }
    }
    assert_true(n_parts > 3 && n_contents > 0);
    free(copy.data);
    free(again.data);
    free(saved.data);
    rig_close(&one);
    rig_close(&several);
}

typedef struct limit {
    int64_t most;
    int64_t live;
} limit;
static void *limited_alloc(void *user, size_t n, size_t alignment) {
    limit *own = user;
    own->live += (int64_t)n;
    own->most = own->live > own->most ? own->live : own->most;
    return aligned_alloc(alignment, (n + alignment - 1) / alignment * alignment);
}
static void limited_free(void *user, void *pointer, size_t n, size_t alignment) {
    (void)alignment;
    ((limit *)user)->live -= (int64_t)n;
    free(pointer);
}

// A stream that states much and brings little takes little.
static void test_short_streams(void **state) {
    (void)state;
    if (rig_default() != rig_host())
        skip();
    rig r;
    small_open(&r, 1);
    const bytes saved = small_snapshot(&r);
    limit memory = {0, 0};
    lk_context_desc desc;
    assert_int_equal(lk_context_desc_init(&desc, sizeof desc), LK_OK);
    desc.n_threads = 1;
    desc.alloc = limited_alloc;
    desc.free = limited_free;
    desc.alloc_user = &memory;
    lk_context *context = NULL;
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &context), LK_OK);
    lk_cache_desc cache_desc;
    assert_int_equal(lk_cache_desc_init(&cache_desc, sizeof cache_desc), LK_OK);
    cache_desc.max_sequences = 65536;
    cache_desc.budget_bytes = (uint64_t)1 << 32;
    cache_desc.slab_bytes = 1u << 20;
    lk_cache *cache = NULL;
    assert_int_equal(lk_cache_create(context, &r.geometry, r.plan, &cache_desc, &cache), LK_OK);
    const int64_t before = memory.most = memory.live;
    // The sizes of every chunk, of the whole and the counts, as large as they can be stated.
    for (size_t at = RESTAMP_HEADER; at < saved.n;
         at = snapshot_next_chunk(saved.data, at, saved.n)) {
        uint8_t *copy = malloc(saved.n);
        assert_non_null(copy);
        memcpy(copy, saved.data, saved.n);
        const size_t n = snapshot_next_chunk(saved.data, at, saved.n);
        const uint64_t large = (uint64_t)1 << 60;
        snapshot_restamp(copy, saved.n);
        memcpy(copy + at + 16, &large, sizeof large);
        const uint64_t whole = (uint64_t)1 << 62;
        memcpy(copy + 8, &whole, sizeof whole);
        snapshot_seal_header(copy);
        pipe_end end = {.to = {copy, n}};
        lk_sequence ids[3];
        assert_int_equal(lk_snapshot_load(cache, NULL, get, &end, 3, ids, NULL), LK_E_CORRUPT);
        free(copy);
    }
    assert_true(memory.most - before < 8 << 20);
    lk_cache_destroy(&cache);
    assert_int_equal(lk_context_close(&context), LK_OK);
    free(saved.data);
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_cut_before_a_step),
        cmocka_unit_test(test_query_sums), cmocka_unit_test(test_forks),
        cmocka_unit_test(test_callbacks),  cmocka_unit_test(test_files),
        cmocka_unit_test(test_mismatches), cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_budget),     cmocka_unit_test(test_memory),
        cmocka_unit_test(test_truncated),  cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_threads),    cmocka_unit_test(test_short_streams),
    };
    return cmocka_run_group_tests_name("api snapshot", tests, NULL, NULL);
}
