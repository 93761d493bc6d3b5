// Bytes, answers and texts are the same whatever floating-point mode the host has, and the host has
// it after each call: directions of rounding everywhere, flushed subnormal numbers on x86.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#include <fenv.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#define STEP 60
#define TOKENS (6 * STEP)
#define THREADS 3
#define LAYERS 2
#define HEADS 4
#define DIM 64

typedef struct mode {
    const char *name;
    int rounding;
    unsigned flushes;  // MXCSR bits
} mode;

static const mode kModes[] = {
    {"nearest", FE_TONEAREST, 0},       {"down", FE_DOWNWARD, 0},           {"up", FE_UPWARD, 0},
    {"towards zero", FE_TOWARDZERO, 0},
#if defined(__SSE2__)
    {"flushed", FE_TONEAREST, 0x8040},  {"up, flushed", FE_UPWARD, 0x8040},
#endif
};

static void enter(const mode *m) {
    assert_int_equal(fesetround(m->rounding), 0);
#if defined(__SSE2__)
    _mm_setcsr((_mm_getcsr() & ~0x8040u) | m->flushes);
#endif
}

static void expect_mode(const mode *m) {
    assert_int_equal(fegetround(), m->rounding);
#if defined(__SSE2__)
    assert_int_equal(_mm_getcsr() & 0x8040u, m->flushes);
#endif
}

typedef struct result {
    uint8_t *snapshot;
    uint64_t snapshot_bytes;
    float *out;
    size_t n_out;
    char *plan;
    size_t plan_bytes;
} result;

// The numbers of the plan are made in the usual mode.
static void set_rules(rig *r, const char *preset, const mode *m) {
    enter(&kModes[0]);
    rig_preset(r, preset);
    rig_recent(r, 32, 16, 32);
    float scales[DIM], centers[DIM];
    for (uint32_t c = 0; c < DIM; ++c) {
        scales[c] = 0.1f + (float)c / 37;
        centers[c] = (float)c / 29 - 1;
    }
    enter(m);
    assert_int_equal(lk_plan_set_key_scales(r->plan, 0, LK_ALL, scales), LK_OK);
    assert_int_equal(lk_plan_set_key_centers(r->plan, 1, LK_ALL, centers), LK_OK);
    assert_int_equal(lk_plan_set_key_rotation(r->plan, 1, LK_ROTATION_HADAMARD), LK_OK);
    assert_int_equal(lk_plan_set_metadata(r->plan, 1, LK_METADATA_F8), LK_OK);
}

// Values that are made in the usual mode, in memory of the device.
static void place(rig *r, uint32_t layer, uint32_t kind, const rig_token *tokens, uint32_t n,
                  lk_tensor *tensor) {
    const lk_layer *own = &r->layers[layer];
    const uint32_t n_heads = kind == RIG_Q ? own->n_query_heads : own->n_kv_heads;
    float *values = calloc((size_t)n * n_heads * own->head_dim, sizeof *values);
    assert_non_null(values);
    rig_values(r, layer, kind, tokens, n, values);
    rig_tensor(r, tensor,
               rig_place(r, values, (size_t)n * n_heads * own->head_dim * sizeof *values), n_heads,
               own->head_dim);
    free(values);
}

// A step of n tokens, every call of which is made in the mode. out [n][width] of a layer after the
// other.
static void step(rig *r, const mode *m, lk_sequence id, uint32_t at, uint32_t n, float *out) {
    rig_token tokens[STEP];
    for (uint32_t t = 0; t < n; ++t)
        tokens[t] = (rig_token){1, at + t};
    enter(m);
    assert_int_equal(rig_begin(r, 1, &id, &n, NULL), LK_OK);
    for (uint32_t l = 0; l < LAYERS; ++l) {
        enter(&kModes[0]);
        const uint32_t n_before = r->n_placed;
        lk_tensor k, v, q, o;
        place(r, l, RIG_K, tokens, n, &k);
        place(r, l, RIG_V, tokens, n, &v);
        place(r, l, RIG_Q, tokens, n, &q);
        place(r, l, RIG_Q, tokens, n, &o);
        enter(m);
        assert_int_equal(lk_append(r->cache, l, &k, &v), LK_OK);
        expect_mode(m);
        assert_int_equal(lk_attend(r->cache, l, &q, &o, NULL), LK_OK);
        expect_mode(m);
        r->device->get(out, rig_first(r, &o), (size_t)n * HEADS * DIM * sizeof *out);
        out += (size_t)n * HEADS * DIM;
        while (r->n_placed > n_before)
            r->device->release(r->placed[--r->n_placed]);
    }
    assert_int_equal(lk_step_commit(r->cache, NULL), LK_OK);
    expect_mode(m);
}

static result run(const char *preset, const mode *m) {
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, LAYERS, HEADS, 2, DIM);
    lk_context_desc desc;
    rig_context_desc(&r, &desc);
    desc.n_threads = THREADS;
    enter(m);
    // Threads start with the mode of the thread that makes them.
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &r.context), LK_OK);
    set_rules(&r, preset, m);
    assert_int_equal(rig_cache(&r, 1, 128, 64u << 20), LK_OK);
    result out = {0};
    out.n_out = (size_t)TOKENS * LAYERS * HEADS * DIM;
    out.out = calloc(out.n_out, sizeof *out.out);
    assert_non_null(out.out);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    for (uint32_t at = 0; at < TOKENS; at += STEP)
        step(&r, m, id, at, STEP, out.out + (size_t)at * LAYERS * HEADS * DIM);
    assert_int_equal(lk_snapshot_save_memory(r.cache, 1, &id, NULL, NULL, 0, &out.snapshot_bytes),
                     LK_OK);
    out.snapshot = malloc(out.snapshot_bytes);
    assert_non_null(out.snapshot);
    assert_int_equal(
        lk_snapshot_save_memory(r.cache, 1, &id, NULL, out.snapshot, out.snapshot_bytes, NULL),
        LK_OK);
    assert_int_equal(lk_plan_to_json(r.plan, NULL, 0, &out.plan_bytes), LK_OK);
    out.plan = malloc(out.plan_bytes);
    assert_non_null(out.plan);
    assert_int_equal(lk_plan_to_json(r.plan, out.plan, out.plan_bytes, &out.plan_bytes), LK_OK);
    lk_plan *again = NULL;
    assert_int_equal(lk_plan_from_json(out.plan, strlen(out.plan), &again), LK_OK);
    lk_plan_destroy(&again);
    expect_mode(m);
    rig_close(&r);
    expect_mode(m);
    enter(&kModes[0]);
    return out;
}

static void drop(result *r) {
    free(r->snapshot);
    free(r->out);
    free(r->plan);
}

static void modes_change_nothing(void **state) {
    (void)state;
    for (const char *const *preset =
             (const char *const[]){"kivi2", "kitty-pro", "kivi4", "int8", NULL};
         *preset; ++preset) {
        result expected = run(*preset, &kModes[0]);
        for (size_t i = 1; i < sizeof kModes / sizeof *kModes; ++i) {
            result found = run(*preset, &kModes[i]);
            const int same_bytes =
                found.snapshot_bytes == expected.snapshot_bytes &&
                !memcmp(found.snapshot, expected.snapshot, expected.snapshot_bytes);
            const int same_outputs =
                !memcmp(found.out, expected.out, expected.n_out * sizeof *expected.out);
            const int same_plan = found.plan_bytes == expected.plan_bytes &&
                                  !memcmp(found.plan, expected.plan, expected.plan_bytes);
            if (!same_bytes || !same_outputs || !same_plan)
                fail_msg("%s: under mode \"%s\" %s differ", *preset, kModes[i].name,
                         !same_bytes     ? "packed bytes"
                         : !same_outputs ? "outputs"
                                         : "plans as JSON");
            drop(&found);
        }
        drop(&expected);
    }
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
