// Whole steps on a device against the same steps on the CPU: long and chunked prefill, decode,
// drafts kept in part, truncation into packed pages and discarded steps. The last argument may be
// --sanitizer, which takes one plan, or --few, which leaves out presets whose widths, groups and
// boosted channels the other plans have too.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "model.h"

#define MAX_TOKENS 300

static int g_sanitizer, g_few;

// Both caches hold the same pages, bit for bit, so answers differ by the rounding of attention
// alone. Keys of channel i reach to 1 + i % 7 at most, so |minimum| + range is at most 3 times
// that, 13.4 in the square mean; queries have the square mean 0.58, values reach to 3 * 1. As
// bound.h in tests/kernels derives, with the scale 1 / sqrt(D) a logit's error has the deviation
// 2^-11 * 0.58 * 13.4 = 3.8e-3, and an output's sqrt((3.8e-3 * 0.5)^2 + (2^-11 * 3)^2) = 2.4e-3
// with the mean |value| of 0.5. A single output: expm1(2 * 8 * 3.8e-3) * 0.5 + 3 * 2^-11 * 3.
#define MOST_SQUARE_MEAN 2.4e-3
#define MOST 3.6e-2

typedef struct pair {
    rig host, other;
    lk_sequence id;  // the same in both
    float *x, *y;
    double squares;
    size_t n_values;
    const char *plan;
} pair;

static void compare(pair *p, const char *what, uint32_t n) {
    const size_t n_values = (size_t)n * rig_width(&p->host);
    for (size_t i = 0; i < n_values; ++i) {
        const double error = (double)p->y[i] - (double)p->x[i];
        if (!(fabs(error) <= MOST))
            fail_msg("%s, %s of %u tokens: output %zu is %g on the device and %g on the CPU",
                     p->plan, what, n, i, (double)p->y[i], (double)p->x[i]);
        p->squares += error * error;
    }
    p->n_values += n_values;
}

static void step(pair *p, uint32_t chain, uint32_t place, uint32_t n) {
    assert_int_equal(rig_step(&p->host, p->id, chain, place, n, p->x), LK_OK);
    assert_int_equal(rig_step(&p->other, p->id, chain, place, n, p->y), LK_OK);
    compare(p, "a step", n);
}

static void draft(pair *p, const rig_token *tokens, uint32_t n, const int32_t *parent,
                  const uint32_t *keep) {
    assert_int_equal(rig_begin(&p->host, 1, &p->id, &n, parent), LK_OK);
    assert_int_equal(rig_begin(&p->other, 1, &p->id, &n, parent), LK_OK);
    assert_int_equal(rig_layers(&p->host, tokens, n, p->x), LK_OK);
    assert_int_equal(rig_layers(&p->other, tokens, n, p->y), LK_OK);
    compare(p, "a draft", n);
    if (keep) {
        assert_int_equal(lk_step_commit(p->host.cache, keep), LK_OK);
        assert_int_equal(lk_step_commit(p->other.cache, keep), LK_OK);
    } else {
        assert_int_equal(lk_step_discard(p->host.cache), LK_OK);
        assert_int_equal(lk_step_discard(p->other.cache), LK_OK);
    }
}

static void truncate_both(pair *p, uint32_t n_tokens) {
    assert_int_equal(lk_sequence_truncate(p->host.cache, p->id, n_tokens), LK_OK);
    assert_int_equal(lk_sequence_truncate(p->other.cache, p->id, n_tokens), LK_OK);
}

// What both hold is counted alike; reserved are slabs of the same size.
static void compare_stats(const pair *p) {
    const lk_cache_stats a = rig_stats(&p->host);
    const lk_cache_stats b = rig_stats(&p->other);
    assert_int_equal(a.n_tokens, b.n_tokens);
    assert_int_equal(a.payload_bytes, b.payload_bytes);
    assert_int_equal(a.metadata_bytes, b.metadata_bytes);
    assert_int_equal(a.recent_bytes, b.recent_bytes);
    assert_int_equal(a.pages_packed, b.pages_packed);
    assert_int_equal(a.pages_dequantized, b.pages_dequantized);
    assert_int_equal(a.reserved_bytes, b.reserved_bytes);
}

typedef void (*opener)(rig *r, const rig_device *device, const char *plan);

static void run_plan(const char *plan, opener open) {
    static const int32_t tree[9] = {-1, 0, 1, 2, 2, 3, 0, -1, 7};
    pair p = {.plan = plan};
    open(&p.host, rig_host(), plan);
    open(&p.other, rig_default(), plan);
    p.id = model_add(&p.host);
    assert_int_equal(model_add(&p.other), p.id);
    const size_t bytes = (size_t)MAX_TOKENS * rig_width(&p.host) * sizeof(float);
    p.x = malloc(bytes);
    p.y = malloc(bytes);
    assert_non_null(p.x);
    assert_non_null(p.y);

    step(&p, 1, 0, 300);
    step(&p, 1, 300, 90);
    step(&p, 1, 390, 65);
    step(&p, 1, 455, 64);
    uint32_t length = 519;
    for (uint32_t i = 0; i < 40; ++i)
        step(&p, 1, length++, 1);
    rig_token tokens[MAX_TOKENS];
    for (uint32_t t = 0; t < MAX_TOKENS; ++t)
        tokens[t] = (rig_token){2, length + t};
    const uint32_t keep = 4;
    draft(&p, tokens, 9, tree, &keep);
    length += keep;
    for (uint32_t n = 1; n <= 64; n *= 4)
        draft(&p, tokens, n, NULL, NULL);
    draft(&p, tokens, 200, NULL, NULL);
    compare_stats(&p);
    for (uint32_t cut = 137; cut <= 200; cut += 63) {
        truncate_both(&p, cut);
        compare_stats(&p);
        step(&p, 3, cut, 20);
        step(&p, 3, cut + 20, 150);
        step(&p, 3, cut + 170, 1);
    }
    compare_stats(&p);
    const double square_mean = sqrt(p.squares / (double)p.n_values);
    print_message("%-9s square mean of the differences %.2e\n", plan, square_mean);
    assert_true(square_mean <= MOST_SQUARE_MEAN);
    free(p.x);
    free(p.y);
    rig_close(&p.host);
    rig_close(&p.other);
}

static int is_left_out(const char *plan) {
    static const char *const like_others[] = {"int8", "kivi4", "kivi2", "kitty"};
    if (g_sanitizer)
        return strcmp(plan, "mixed") != 0;
    for (size_t i = 0; g_few && i < sizeof like_others / sizeof *like_others; ++i)
        if (!strcmp(plan, like_others[i]))
            return 1;
    return 0;
}

static void steps_equal_the_cpus(void **state) {
    (void)state;
    for (const char *const *plan = kModelPlans; *plan; ++plan)
        if (!is_left_out(*plan))
            run_plan(*plan, model_open);
}

// Of 16 query heads for a KV head: CUDA reads a prompt's new tokens from the host's tensors.
static void open_wide(rig *r, const rig_device *device, const char *plan) {
    memset(r, 0, sizeof *r);
    r->device = device;
    rig_geometry(r, 2, 16, 1, 64);
    r->layers[1].head_dim = 128;
    rig_open(r);
    rig_preset(r, plan);
    rig_recent(r, 64, 16, 40);
    assert_int_equal(rig_cache(r, 4, 512, 64u << 20), LK_OK);
}

static void wide_groups_equal_the_cpus(void **state) {
    (void)state;
    run_plan("kivi4", open_wide);
    if (!g_sanitizer)
        run_plan("kitty-pro", open_wide);
}

// The same steps again give the same bits.
static void steps_repeat(void **state) {
    (void)state;
    enum { N = 60 };
    float *out[2];
    size_t n = 0;
    for (int run = 0; run < 2; ++run) {
        rig r;
        model_open(&r, rig_default(), "mixed");
        const lk_sequence id = model_add(&r);
        n = (size_t)(400 + N) * rig_width(&r);
        out[run] = malloc(n * sizeof(float));
        assert_non_null(out[run]);
        assert_int_equal(rig_fill(&r, id, 1, 0, 400, 170, out[run]), LK_OK);
        assert_int_equal(rig_fill(&r, id, 1, 400, N, 3, out[run] + (size_t)400 * rig_width(&r)),
                         LK_OK);
        rig_close(&r);
    }
    assert_memory_equal(out[0], out[1], n * sizeof(float));
    free(out[0]);
    free(out[1]);
}

int main(int argc, char **argv) {
    g_sanitizer = !strcmp(argv[argc - 1], "--sanitizer");
    g_few = !strcmp(argv[argc - 1], "--few");
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_the_cpus),
        cmocka_unit_test(wide_groups_equal_the_cpus),
        cmocka_unit_test(steps_repeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
