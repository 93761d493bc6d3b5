// Queries that attention does not take: they give NaN in their own rows alone. Sinks and scales
// that it does not take are refused.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#include <math.h>

#define TOKENS 200
#define MOST_NEW 40
#define HEADS 4
#define DIM 64
#define MOST_ROWS (MOST_NEW * HEADS)

typedef struct answer {
    float out[MOST_ROWS][DIM];
    float lse[MOST_ROWS];
} answer;

// A step's attention with these queries, dropped again.
static void attend(rig *r, lk_sequence id, uint32_t n_new, float (*queries)[DIM], answer *found) {
    rig_token tokens[MOST_NEW];
    for (uint32_t t = 0; t < n_new; ++t)
        tokens[t] = (rig_token){1, TOKENS + t};
    const size_t n_rows = n_new * HEADS;
    assert_int_equal(rig_begin(r, 1, &id, &n_new, NULL), LK_OK);
    assert_int_equal(rig_append(r, 0, tokens, n_new), LK_OK);
    lk_tensor q, out, lse;
    const uint32_t n_before = r->n_placed;
    rig_tensor(r, &q, rig_place(r, queries, n_rows * sizeof *queries), HEADS, DIM);
    rig_tensor(r, &out, rig_place(r, NULL, n_rows * sizeof *found->out), HEADS, DIM);
    rig_tensor(r, &lse, rig_place(r, NULL, n_rows * sizeof *found->lse), HEADS, 1);
    assert_int_equal(lk_attend(r->cache, 0, &q, &out, &lse), LK_OK);
    r->device->get(found->out, rig_first(r, &out), n_rows * sizeof *found->out);
    r->device->get(found->lse, rig_first(r, &lse), n_rows * sizeof *found->lse);
    assert_int_equal(lk_step_discard(r->cache), LK_OK);
    r->device->wait ? r->device->wait() : (void)0;
    while (r->n_placed > n_before)
        r->device->release(r->placed[--r->n_placed]);
}

static void start(rig *r, uint32_t cpu_mask, float soft_cap, float scale, lk_sequence *id) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 1, HEADS, 2, DIM);
    r->layers[0].soft_cap = soft_cap;
    r->layers[0].scale = scale;
    r->cpu_mask = cpu_mask;
    rig_open(r);
    rig_preset(r, "kitty-pro");
    rig_recent(r, 32, 16, 32);
    assert_int_equal(rig_cache(r, 1, 128, 16u << 20), LK_OK);
    assert_int_equal(lk_sequence_add(r->cache, id), LK_OK);
    for (uint32_t place = 0; place < TOKENS; place += 50)
        assert_int_equal(rig_append_step(r, *id, 1, place, 50), LK_OK);
}

static void expect_nan(const answer *found, uint32_t row) {
    for (uint32_t c = 0; c < DIM; ++c)
        assert_true(isnan(found->out[row][c]));
    assert_true(isnan(found->lse[row]));
}

// Every other row gets a number of its own, as far as there are rows, the first two of them numbers
// that are taken.
static void check_numbers(rig *r, lk_sequence id, uint32_t n_new, float limit) {
    static float queries[MOST_ROWS][DIM];
    static answer clean, found;
    const uint32_t n_rows = n_new * HEADS;
    for (uint32_t row = 0; row < n_rows; ++row)
        for (uint32_t c = 0; c < DIM; ++c)
            queries[row][c] = (float)((row * 31 + c * 17) % 64) / 32 - 1;
    attend(r, id, n_new, queries, &clean);
    const float numbers[] = {
        limit, -limit, nextafterf(limit, INFINITY), -2 * limit, NAN, INFINITY, -INFINITY, 3e38f};
    const uint32_t n_numbers = sizeof numbers / sizeof *numbers;
    for (uint32_t i = 0; i < n_numbers && 2 * i + 1 < n_rows; ++i)
        queries[2 * i + 1][i * 7 % DIM] = numbers[i];
    attend(r, id, n_new, queries, &found);
    for (uint32_t row = 0; row < n_rows; ++row) {
        const uint32_t i = row / 2;
        if (row % 2 && i >= 2 && i < n_numbers) {
            expect_nan(&found, row);
        } else if (row % 2 && i < 2) {
            for (uint32_t c = 0; c < DIM; ++c)
                if (!isfinite(found.out[row][c]))
                    fail_msg("%u new tokens, row %u, channel %u: %g", n_new, row, c,
                             found.out[row][c]);
            assert_true(isfinite(found.lse[row]));
        } else {
            const float most = rig_tolerance();
            assert_true(rig_distance(found.out[row], clean.out[row], DIM) <= most);
            assert_true(rig_distance(&found.lse[row], &clean.lse[row], 1) <= most);
        }
    }
}

// Numbers up to the limit have answers; others, and infinities and NaNs, have none. A step of one
// token, of a few and of many have kernels of their own on devices.
static void the_limit_is_what_the_header_says(void **state) {
    (void)state;
    const struct {
        float soft_cap;
        float scale;
        float limit;
    } kLayers[] = {{0, 0, 0x1p50f}, {30, 0, 0x1p50f}, {0.25f, 0, 0x1p48f}, {0, 8, 0x1p47f}};
    const uint32_t kNew[] = {1, 5, MOST_NEW};
    for (size_t l = 0; l < sizeof kLayers / sizeof *kLayers; ++l)
        for (uint32_t reference = 0; reference < 2; ++reference) {
            rig r;
            lk_sequence id;
            start(&r, reference ? LK_CPU_REFERENCE_ONLY : 0, kLayers[l].soft_cap, kLayers[l].scale,
                  &id);
            for (size_t n = 0; n < sizeof kNew / sizeof *kNew; ++n)
                check_numbers(&r, id, kNew[n], kLayers[l].limit);
            rig_close(&r);
        }
}

static lk_status create(rig *r) {
    const lk_status status = rig_cache(r, 1, 16, 16u << 20);
    if (!status)
        lk_cache_destroy(&r->cache);
    return status;
}

static void sinks_and_scales_are_checked(void **state) {
    (void)state;
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, 2, HEADS, 2, DIM);
    rig_open(&r);
    rig_preset(&r, "kivi4");
    float sinks[HEADS] = {0, -3e38f, 1, 2};
    r.layers[1].sink_logits = sinks;
    assert_int_equal(create(&r), LK_OK);
    const float wrong[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        sinks[2] = wrong[i];
        assert_int_equal(create(&r), LK_E_ARGUMENT);
        rig_sentence("geometry.layers[1].sink_logits[2] is not finite");
    }
    sinks[2] = 1e30f;
    assert_int_equal(create(&r), LK_E_UNSUPPORTED);
    rig_sentence("geometry.layers[1].sink_logits[2] is 1e+30");
    rig_close(&r);
    const struct {
        float scale;
        float soft_cap;
        const char *sentence;
    } kLayers[] = {{1e30f, 0, "geometry.layers[0].scale is 1e+30"},
                   {0, 1e-30f, "geometry.layers[0].soft_cap is 1e-30"},
                   {0, 1e30f, "geometry.layers[0].soft_cap is 1e+30"}};
    for (size_t i = 0; i < sizeof kLayers / sizeof *kLayers; ++i) {
        memset(&r, 0, sizeof r);
        rig_geometry(&r, 1, HEADS, 2, DIM);
        r.layers[0].scale = kLayers[i].scale;
        r.layers[0].soft_cap = kLayers[i].soft_cap;
        rig_open(&r);
        rig_preset(&r, "kivi4");
        assert_int_equal(create(&r), LK_E_UNSUPPORTED);
        rig_sentence(kLayers[i].sentence);
        rig_close(&r);
    }
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_limit_is_what_the_header_says),
        cmocka_unit_test(sinks_and_scales_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
