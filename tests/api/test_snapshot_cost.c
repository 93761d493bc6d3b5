// What reading a snapshot costs: at most 64 bytes of memory and 1 us for each of its bytes, and
// 1 MiB. Snapshots are written from docs/FORMAT.md, section 16.
//
// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "api/rig.h"
#include "cost/cost.h"
#include "fuzz/restamp.h"

enum { PAGE = 32, RECORD = 48 };

typedef struct bytes {
    uint8_t *data;
    size_t n, capacity;
    uint64_t n_chunks;
} bytes;

static void *more(bytes *b, size_t n) {
    if (b->n + n > b->capacity) {
        b->capacity = 2 * (b->n + n);
        b->data = realloc(b->data, b->capacity);
        assert_non_null(b->data);
    }
    memset(b->data + b->n, 0, n);
    b->n += n;
    return b->data + b->n - n;
}

static void store64(uint8_t *to, uint64_t value) { memcpy(to, &value, sizeof value); }
static void store32(uint8_t *to, uint32_t value) { memcpy(to, &value, sizeof value); }

// The body of a new chunk, zeros.
static uint8_t *add_chunk(bytes *b, const char *kind, size_t n_bytes) {
    uint8_t *header = more(b, RESTAMP_CHUNK + n_bytes);
    memcpy(header, kind, 4);
    store64(header + 8, b->n_chunks++);
    store64(header + 16, n_bytes);
    return header + RESTAMP_CHUNK;
}

// All blocks of all sequences are shared, and without pages.
static bytes make_snapshot(const char *plan, uint32_t n_entries, uint32_t n_sequences,
                           uint64_t n_blocks) {
    bytes b = {0};
    uint8_t *header = more(&b, RESTAMP_HEADER);
    memcpy(header, "LKSN\2\0\200\0", 8);
    const char *hash = strstr(plan, "\"hash\": \"");
    assert_non_null(hash);
    store64(header + 16, strtoull(hash + 9, NULL, 16));
    store64(header + 32, n_sequences * n_blocks * PAGE);
    store64(header + 40, n_sequences ? n_blocks : 0);
    store32(header + 48, n_sequences);
    store32(header + 56, n_entries);
    store32(header + 60, PAGE);
    add_chunk(&b, "MODL", 0);
    memcpy(add_chunk(&b, "PLAN", strlen(plan)), plan, strlen(plan));
    add_chunk(&b, "CLSS", 0);
    for (uint32_t s = 0; s < n_sequences; ++s) {
        uint8_t *sequence = add_chunk(&b, "SEQN", 40 + 16);
        store64(sequence, s + 1);
        store64(sequence + 8, n_blocks * PAGE);
        store32(sequence + 16, 1);
        store64(sequence + 48, n_blocks);
        for (uint64_t i = 0; !s && i < n_blocks; ++i) {
            uint8_t *block = add_chunk(&b, "ROWS", RECORD);
            store64(block, i);
            store64(block + 8, i * PAGE);
            store32(block + 16, PAGE);
            store32(block + 24, 1);
            store32(block + 28, 1);
            store32(block + 40, 0xffffffff);
        }
    }
    snapshot_restamp(b.data, b.n);
    return b;
}

static char *plan_text(uint32_t n_layers, uint32_t n_heads, uint32_t head_dim) {
    lk_layer *layers = calloc(n_layers, sizeof *layers);
    assert_non_null(layers);
    for (uint32_t l = 0; l < n_layers; ++l) {
        assert_int_equal(lk_layer_init(&layers[l], sizeof layers[l]), LK_OK);
        layers[l].n_query_heads = layers[l].n_kv_heads = n_heads;
        layers[l].head_dim = head_dim;
    }
    lk_geometry geometry;
    assert_int_equal(lk_geometry_init(&geometry, sizeof geometry), LK_OK);
    geometry.n_layers = n_layers;
    geometry.layers = layers;
    lk_plan *plan = NULL;
    assert_int_equal(lk_plan_preset("fp16", &geometry, &plan), LK_OK);
    assert_int_equal(lk_plan_set_pages(plan, PAGE), LK_OK);
    assert_int_equal(lk_plan_set_recent(plan, 0, 0), LK_OK);
    float numbers[256];
    uint8_t classes[256];
    for (uint32_t c = 0; c < 256; ++c) {
        numbers[c] = 1 + (float)c;
        classes[c] = 2;
    }
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.channel_bits = classes;
    assert_int_equal(lk_plan_set_key(plan, LK_ALL, LK_ALL, &key), LK_OK);
    assert_int_equal(lk_plan_set_key_centers(plan, LK_ALL, LK_ALL, numbers), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(plan, LK_ALL, LK_ALL, numbers), LK_OK);
    size_t needed = 0;
    assert_int_equal(lk_plan_to_json(plan, NULL, 0, &needed), LK_OK);
    char *text = malloc(needed);
    assert_non_null(text);
    assert_int_equal(lk_plan_to_json(plan, text, needed, NULL), LK_OK);
    lk_plan_destroy(&plan);
    free(layers);
    return text;
}

static void expect_cost(const char *what, const bytes *b, struct cost cost, uint64_t most_ns) {
    printf("%s of %zu bytes: %llu bytes of memory, %.1f ms\n", what, b->n,
           (unsigned long long)cost.bytes, (double)cost.ns / 1e6);
    assert_true(cost.bytes <= 64 * (uint64_t)b->n + (1 << 20));
    assert_true(cost.ns <= most_ns * cost_slowness());
}

static void shared_blocks_are_inspected_once(void **state) {
    (void)state;
    char *plan = plan_text(1, 1, 32);
    bytes b = make_snapshot(plan, 1, 65536, 150000);
    free(plan);
    lk_snapshot *snapshot = NULL;
    cost_begin();
    const lk_status status = lk_snapshot_open_memory(b.data, b.n, &snapshot);
    const struct cost cost = cost_end();
    if (status)
        rig_sentence("no failure");
    assert_int_equal(status, LK_OK);
    expect_cost("inspection", &b, cost, 1000000000);
    lk_snapshot_sequence last;
    assert_int_equal(lk_snapshot_sequence_init(&last, sizeof last), LK_OK);
    assert_int_equal(lk_snapshot_get_sequence(snapshot, 65535, &last), LK_OK);
    assert_int_equal(last.n_blocks, 150000);
    assert_int_equal(last.n_shared_blocks, 150000);
    lk_snapshot_close(&snapshot);
    free(b.data);
}

static void a_large_plan_in_a_snapshot_is_cheap(void **state) {
    (void)state;
    char *plan = plan_text(1024, 1024, 256);
    bytes b = make_snapshot(plan, 1024 * 1024, 0, 0);
    free(plan);
    lk_snapshot *snapshot = NULL;
    cost_begin();
    assert_int_equal(lk_snapshot_open_memory(b.data, b.n, &snapshot), LK_OK);
    expect_cost("inspection", &b, cost_end(), 10000000);
    lk_snapshot_close(&snapshot);
    rig r = {0};
    rig_geometry(&r, 1, 1, 1, 32);
    rig_open(&r);
    rig_preset(&r, "fp16");
    assert_int_equal(rig_cache(&r, 1, 16, 1 << 20), LK_OK);
    lk_sequence id;
    cost_begin();
    const lk_status status = lk_snapshot_load_memory(r.cache, NULL, b.data, b.n, 1, &id, NULL);
    expect_cost("load", &b, cost_end(), 10000000);
    assert_int_equal(status, LK_E_MISMATCH);
    rig_sentence("is of geometry");
    rig_close(&r);
    free(b.data);
}

typedef struct reading {
    const bytes *from;
    size_t at;
    uint64_t done, total;
    uint32_t n_calls, last_call;  // which ends it, 0 = none
} reading;

static int64_t read_more(void *user, void *data, size_t n_bytes) {
    reading *r = user;
    const size_t left = r->from->n - r->at;
    const size_t n = n_bytes < left ? n_bytes : left;
    memcpy(data, r->from->data + r->at, n);
    r->at += n;
    return (int64_t)n;
}

static int32_t on_progress(void *user, uint64_t done, uint64_t total) {
    reading *r = user;
    assert_true(done >= r->done && done <= total);
    r->done = done;
    r->total = total;
    return ++r->n_calls == r->last_call;
}

static lk_snapshot_desc described(reading *r) {
    lk_snapshot_desc desc;
    assert_int_equal(lk_snapshot_desc_init(&desc, sizeof desc), LK_OK);
    desc.progress = on_progress;
    desc.progress_user = r;
    return desc;
}

static void an_inspection_has_progress(void **state) {
    (void)state;
    char *plan = plan_text(1, 1, 32);
    bytes b = make_snapshot(plan, 1, 20, 30);
    free(plan);
    reading whole = {.from = &b};
    lk_snapshot_desc desc = described(&whole);
    lk_snapshot *snapshot = NULL;
    assert_int_equal(lk_snapshot_open(&desc, read_more, &whole, &snapshot), LK_OK);
    lk_snapshot_close(&snapshot);
    assert_true(whole.n_calls >= 20 + 30 && whole.done == b.n && whole.total == b.n);
    for (uint32_t last = 1; last <= whole.n_calls; ++last) {
        reading part = {.from = &b, .last_call = last};
        desc = described(&part);
        snapshot = (lk_snapshot *)&part;
        assert_int_equal(lk_snapshot_open(&desc, read_more, &part, &snapshot), LK_E_IO);
        rig_sentence("the progress callback ended it");
        assert_null(snapshot);
    }
    assert_int_equal(lk_snapshot_open(NULL, NULL, NULL, &snapshot), LK_E_ARGUMENT);
    assert_int_equal(lk_snapshot_open(NULL, read_more, &whole, NULL), LK_E_ARGUMENT);
    free(b.data);
}

// A load of forks reports progress for the blocks that it shares, too.
static void shared_blocks_are_loaded_with_progress(void **state) {
    (void)state;
    rig r = {0};
    rig_geometry(&r, 1, 1, 1, 32);
    rig_open(&r);
    rig_preset(&r, "kivi2");
    rig_recent(&r, PAGE, 0, PAGE);
    assert_int_equal(rig_cache(&r, 16, 320, 4 << 20), LK_OK);
    lk_sequence ids[8];
    assert_int_equal(lk_sequence_add(r.cache, &ids[0]), LK_OK);
    assert_int_equal(rig_fill(&r, ids[0], 0, 0, 10 * PAGE, 10 * PAGE, NULL), LK_OK);
    for (int i = 1; i < 8; ++i)
        assert_int_equal(lk_sequence_fork(r.cache, ids[0], LK_ALL_TOKENS, &ids[i]), LK_OK);
    bytes b = {0};
    uint64_t needed = 0;
    assert_int_equal(lk_snapshot_save_memory(r.cache, 0, NULL, NULL, NULL, 0, &needed), LK_OK);
    more(&b, needed);
    assert_int_equal(lk_snapshot_save_memory(r.cache, 0, NULL, NULL, b.data, needed, NULL), LK_OK);
    for (int i = 0; i < 8; ++i)
        assert_int_equal(lk_sequence_remove(r.cache, ids[i]), LK_OK);
    reading whole = {.from = &b};
    lk_snapshot_desc desc = described(&whole);
    assert_int_equal(lk_snapshot_load_memory(r.cache, &desc, b.data, b.n, 8, ids, NULL), LK_OK);
    assert_true(whole.n_calls >= 10 + 7);
    for (int i = 0; i < 8; ++i)
        assert_int_equal(lk_sequence_remove(r.cache, ids[i]), LK_OK);
    reading part = {.from = &b, .last_call = whole.n_calls};
    desc = described(&part);
    assert_int_equal(lk_snapshot_load_memory(r.cache, &desc, b.data, b.n, 8, ids, NULL), LK_E_IO);
    assert_int_equal(rig_stats(&r).n_sequences, 0);
    rig_close(&r);
    free(b.data);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_blocks_are_inspected_once),
        cmocka_unit_test(a_large_plan_in_a_snapshot_is_cheap),
        cmocka_unit_test(an_inspection_has_progress),
        cmocka_unit_test(shared_blocks_are_loaded_with_progress),
    };
    return cmocka_run_group_tests_name("api snapshot cost", tests, NULL, NULL);
}
