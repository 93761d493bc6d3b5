/* Key scales: maxima of pairs, powers of them, and the search for the exponent of least error.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "pass.h"

static void maxima_are_those_of_pairs(void **unused) {
    (void)unused;
    lk_calibrator *c = make_calibrator(1, 2, 2, 32);
    float maxima[32];
    expect_failure(lk_calibrator_get_pair_maxima(c, 0, 0, LK_ROPE_HALVES, 0, maxima), LK_E_STATE,
                   "no keys");
    float keys[2 * 2 * 32] = {0};
    keys[32 + 3] = -5;      /* token 0, head 1 */
    keys[64 + 32 + 19] = 2; /* token 1, head 1: the other channel of pair 3 */
    keys[64 + 32 + 8] = 1;
    add_keys(c, 0, keys, 2);
    assert_int_equal(lk_calibrator_get_pair_maxima(c, 0, 1, LK_ROPE_HALVES, 0, maxima), LK_OK);
    for (int i = 0; i < 32; ++i)
        assert_true(maxima[i] == (i % 16 == 3 ? 5 : i % 16 == 8 ? 1 : 0));
    assert_int_equal(lk_calibrator_get_pair_maxima(c, 0, 1, LK_ROPE_INTERLEAVED, 8, maxima), LK_OK);
    for (int i = 0; i < 32; ++i) /* channels from 8 on do not turn */
        assert_true(maxima[i] == (i == 2 || i == 3 ? 5 : i == 19 ? 2 : i == 8 ? 1 : 0));
    expect_failure(lk_calibrator_get_pair_maxima(c, 0, 1, 0, 0, maxima), LK_E_ARGUMENT, "pairing");
    expect_failure(lk_calibrator_get_pair_maxima(c, 0, 2, 1, 0, maxima), LK_E_NOT_FOUND, "kv_head");
    lk_calibrator_destroy(&c);
}

static void scales_are_powers_of_maxima(void **unused) {
    (void)unused;
    const float maxima[6] = {4, 0, 1e-9f, 6e4f, 1, 0.25f};
    float scales[6];
    assert_int_equal(lk_key_scales(maxima, 6, 0.5, scales), LK_OK);
    assert_true(scales[0] == 2 && scales[1] == 1 && scales[2] == 1e-4f && scales[4] == 1 &&
                scales[5] == 0.5f);
    assert_int_equal(lk_key_scales(maxima, 6, 1, scales), LK_OK);
    assert_true(scales[3] == 1e4f && scales[5] == 0.25f);
    assert_int_equal(lk_key_scales(maxima, 6, 0, scales), LK_OK);
    for (int i = 0; i < 6; ++i)
        assert_true(scales[i] == 1);
    const float bad[2] = {1, -1};
    expect_failure(lk_key_scales(bad, 2, 0.5, scales), LK_E_ARGUMENT, "maxima[1] is -1");
    expect_failure(lk_key_scales(maxima, 6, 1.5, scales), LK_E_ARGUMENT, "exponent is 1.5");
    expect_failure(lk_key_scales(maxima, 6, NAN, scales), LK_E_ARGUMENT, "exponent is nan");
    expect_failure(lk_key_scales(NULL, 6, 1, scales), LK_E_ARGUMENT, "maxima is NULL");
}

static lk_scale_search search_of(uint32_t bits) {
    lk_scale_search search;
    assert_int_equal(lk_scale_search_init(&search, sizeof search), LK_OK);
    search.key_bits = search.value_bits = bits;
    return search;
}

static double least_error(const lk_calibrator *c, uint32_t layer, double *exponent) {
    double least = INFINITY;
    for (uint32_t i = 0; i < LK_SCALE_EXPONENTS; ++i) {
        double one, error;
        assert_int_equal(lk_calibrator_get_scale_error(c, layer, i, &one, &error), LK_OK);
        assert_true(fabs(one - (20.0 - i) / 20) < 1e-12);
        if (error <= least) {
            least = error;
            *exponent = one;
        }
    }
    return least;
}

/* With one large channel, keys per token lose the others; scales give them back. Without, there
 * is little to win. */
static void searches_find_outliers(void **unused) {
    (void)unused;
    lk_calibrator *c = make_calibrator(2, 4, 2, D);
    const lk_scale_search search = search_of(4);
    for (uint32_t layer = 0; layer < 2; ++layer) {
        struct pass p = make_pass(4, 2, T, layer ? 30.0f : 1.0f, layer + 1);
        expect_failure(
            lk_calibrator_add_scale_search(c, layer, &search, &p.queries, &p.keys, &p.values, T),
            LK_E_STATE, "no keys");
        add_keys(c, layer, p.k, T);
        expect_failure(lk_calibrator_get_key_scales(c, layer, 0, NULL, NULL), LK_E_STATE,
                       "no search");
        for (int i = 0; i < 2; ++i)
            assert_int_equal(lk_calibrator_add_scale_search(c, layer, &search, &p.queries, &p.keys,
                                                            &p.values, T),
                             LK_OK);
        free_pass(&p);
    }
    double exponent = -1, chosen = -1;
    assert_true(least_error(c, 0, &exponent) > 0.8);
    assert_true(least_error(c, 1, &exponent) < 0.2);
    float scales[D], maxima[D], want[D];
    assert_int_equal(lk_calibrator_get_key_scales(c, 1, 1, scales, &chosen), LK_OK);
    assert_true(chosen == exponent && chosen > 0.3);
    assert_int_equal(lk_calibrator_get_pair_maxima(c, 1, 1, LK_ROPE_HALVES, 0, maxima), LK_OK);
    assert_int_equal(lk_key_scales(maxima, D, chosen, want), LK_OK);
    assert_memory_equal(scales, want, sizeof want);
    assert_true(scales[5] == scales[5 + D / 2] && scales[5] > 3 * scales[6]);
    lk_calibrator_destroy(&c);
}

/* At 16 bits nothing is lost but FP16's rounding of k / lambda. */
static void searches_are_exact_at_16_bits(void **unused) {
    (void)unused;
    lk_calibrator *c = make_calibrator(1, 2, 1, D);
    const lk_scale_search search = search_of(16), coarse = search_of(2);
    struct pass p = make_pass(2, 1, T, 1, 9);
    add_keys(c, 0, p.k, T);
    assert_int_equal(
        lk_calibrator_add_scale_search(c, 0, &search, &p.queries, &p.keys, &p.values, T), LK_OK);
    double error = -1, exponent = -1;
    assert_int_equal(lk_calibrator_get_key_scales(c, 0, 0, NULL, &exponent), LK_OK);
    assert_true(exponent == 0);
    assert_int_equal(lk_calibrator_get_scale_error(c, 0, 20, NULL, &error), LK_OK);
    assert_true(error == 1);
    expect_failure(lk_calibrator_add_scale_search(c, 0, &coarse, &p.queries, &p.keys, &p.values, T),
                   LK_E_MISMATCH, "key_bits 16");
    free_pass(&p);
    lk_calibrator_destroy(&c);
}

static void searches_outlive_a_file(void **unused) {
    (void)unused;
    lk_calibrator *c = make_calibrator(3, 2, 1, D), *again = NULL, *bad = NULL;
    const lk_scale_search search = search_of(2);
    struct pass p = make_pass(2, 1, T, 10, 4);
    add_keys(c, 1, p.k, T);
    assert_int_equal(
        lk_calibrator_add_scale_search(c, 1, &search, &p.queries, &p.keys, &p.values, T), LK_OK);
    for (int i = 0; i < T * D; ++i)
        p.k[i] *= 2; /* later keys do not change the maxima of a search */
    add_keys(c, 1, p.k, T);
    float before[D], after[D];
    assert_int_equal(lk_calibrator_get_key_scales(c, 1, 0, before, NULL), LK_OK);
    struct bytes bytes = write_bytes(c);
    assert_int_equal(lk_calibrator_from_bytes(bytes.data, bytes.n, &again), LK_OK);
    assert_int_equal(lk_calibrator_get_key_scales(again, 1, 0, after, NULL), LK_OK);
    assert_memory_equal(before, after, sizeof before);
    struct bytes twice = write_bytes(again);
    assert_int_equal(bytes.n, twice.n);
    assert_memory_equal(bytes.data, twice.data, bytes.n);
    uint64_t *rows = (uint64_t *)(void *)tensor_data(&bytes, "scale_search");
    rows[5 + 3] = 5;
    expect_failure(lk_calibrator_from_bytes(bytes.data, bytes.n, &bad), LK_E_CORRUPT,
                   "which is no search");
    rows[5 + 3] = 2;
    uint16_t *maxima = (uint16_t *)(void *)tensor_data(&bytes, "layer.1.pair_max");
    maxima[3] = 0x7C00;
    expect_failure(lk_calibrator_from_bytes(bytes.data, bytes.n, &bad), LK_E_CORRUPT,
                   "layer.1.pair_max");
    free(bytes.data);
    free(twice.data);
    free_pass(&p);
    lk_calibrator_destroy(&c);
    lk_calibrator_destroy(&again);
}

static void bad_searches_are_refused(void **unused) {
    (void)unused;
    lk_calibrator *c = make_calibrator(1, 2, 1, D);
    struct pass p = make_pass(2, 1, T, 1, 9);
    add_keys(c, 0, p.k, T);
    struct bytes before = write_bytes(c);
    lk_scale_search search = search_of(3);
    expect_failure(lk_calibrator_add_scale_search(c, 0, &search, &p.queries, &p.keys, &p.values, T),
                   LK_E_ARGUMENT, "key_bits is 3");
    search = search_of(4);
    search.query_step = 0;
    expect_failure(lk_calibrator_add_scale_search(c, 0, &search, &p.queries, &p.keys, &p.values, T),
                   LK_E_ARGUMENT, "query_step is 0");
    p.v[7 * D + 3] = INFINITY;
    expect_failure(lk_calibrator_add_scale_search(c, 0, NULL, &p.queries, &p.keys, &p.values, T),
                   LK_E_DATA, "V of layer 0, head 0, channel 3, token 7");
    expect_failure(lk_calibrator_get_scale_error(c, 0, 21, NULL, NULL), LK_E_NOT_FOUND,
                   "index is 21");
    struct bytes after = write_bytes(c);
    assert_int_equal(before.n, after.n);
    assert_memory_equal(before.data, after.data, before.n);
    free(before.data);
    free(after.data);
    free_pass(&p);
    lk_calibrator_destroy(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maxima_are_those_of_pairs),
        cmocka_unit_test(scales_are_powers_of_maxima),
        cmocka_unit_test(searches_find_outliers),
        cmocka_unit_test(searches_are_exact_at_16_bits),
        cmocka_unit_test(searches_outlive_a_file),
        cmocka_unit_test(bad_searches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
