/* Rotary positions: turned, turned back, stretched, and what is refused.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "stats/stats_test.h"

enum { D = 64, T = 24 };

static lk_rope rope_of(lk_rope_pairing pairing, uint32_t channels) {
    lk_rope rope;
    assert_int_equal(lk_rope_init(&rope, sizeof rope), LK_OK);
    rope.pairing = pairing;
    rope.channels = channels;
    return rope;
}

/* One pair by hand: (1, 0) and (0, 1) at position p have the angle p * frequency. */
static void pairs_turn_by_their_frequency(void **unused) {
    (void)unused;
    float row[8] = {1, 0, 0, 0, 0, 1, 7, 9}, out[8];
    lk_tensor tensor = host_tensor(LK_F32, row, 1, 8);
    lk_rope rope = rope_of(LK_ROPE_HALVES, 6); /* pairs (0, 3), (1, 4), (2, 5) */
    rope.base = 1000;
    assert_int_equal(lk_rope_apply(&rope, &tensor, 1, 1, 8, 3, 4, out), LK_OK);
    const double want[8] = {cos(12), 0, -sin(12 * pow(1000, -4.0 / 6)),
                            sin(12), 0, cos(12 * pow(1000, -4.0 / 6)),
                            7,       9};
    for (int c = 0; c < 8; ++c)
        if (fabs((double)out[c] - want[c]) > 1e-7)
            fail_msg("channel %d is %.9g, by hand %.9g", c, (double)out[c], want[c]);
    const double frequencies[4] = {0.5, 0, 0.25, 0};
    rope = rope_of(LK_ROPE_INTERLEAVED, 0); /* pairs (0, 1), (2, 3), (4, 5), (6, 7) */
    rope.frequencies = frequencies;
    assert_int_equal(lk_rope_apply(&rope, &tensor, 1, 1, 8, 2, 1, out), LK_OK);
    const double mixed[8] = {cos(1.0), sin(1.0), 0, 0, -sin(0.5), cos(0.5), 7, 9};
    for (int c = 0; c < 8; ++c)
        if (fabs((double)out[c] - mixed[c]) > 1e-7)
            fail_msg("channel %d is %.9g, by hand %.9g", c, (double)out[c], mixed[c]);
}

/* Keys that were turned at the model's positions, turned back and stretched, are those that were
 * turned at the stretched ones at once. In place, in strides, in each type. */
static void keys_are_stretched(void **unused) {
    (void)unused;
    for (lk_rope_pairing pairing = LK_ROPE_HALVES; pairing <= LK_ROPE_INTERLEAVED; ++pairing) {
        float *plain = random_values(T * 2 * D, pairing);
        float native[T * 2 * D], back[T * 2 * D], want[T * 2 * D];
        const lk_tensor tensor = host_tensor(LK_F32, plain, 2, D);
        const lk_tensor own = host_tensor(LK_F32, native, 2, D);
        const lk_rope rope = rope_of(pairing, D / 2);
        assert_int_equal(lk_rope_apply(&rope, &tensor, T, 2, D, 1000, 1, native), LK_OK);
        assert_memory_not_equal(native, plain, sizeof native);
        assert_int_equal(lk_rope_invert(&rope, &own, T, 2, D, 1000, 1, back), LK_OK);
        for (int i = 0; i < T * 2 * D; ++i)
            assert_true(fabsf(back[i] - plain[i]) < 1e-6f);
        assert_int_equal(lk_rope_invert(&rope, &own, T, 2, D, 1000, 1, native), LK_OK);
        assert_int_equal(lk_rope_apply(&rope, &own, T, 2, D, 1000, LK_POSITION_SCALE, native),
                         LK_OK);
        assert_int_equal(lk_rope_apply(&rope, &tensor, T, 2, D, 1000, LK_POSITION_SCALE, want),
                         LK_OK);
        for (int i = 0; i < T * 2 * D; ++i)
            assert_true(fabsf(native[i] - want[i]) < 1e-6f);
        /* Token 5 of head 1 alone, at its position. */
        lk_tensor one = tensor;
        one.data = plain + (5 * 2 + 1) * D;
        assert_int_equal(lk_rope_apply(&rope, &one, 1, 1, D, 1005, LK_POSITION_SCALE, back), LK_OK);
        assert_memory_equal(back, want + (5 * 2 + 1) * D, D * sizeof *back);
        free(plain);
    }
}

static void bad_positions_are_refused(void **unused) {
    (void)unused;
    float row[D] = {0}, out[D];
    const double frequencies[D / 2] = {NAN};
    const lk_tensor t = host_tensor(LK_F32, row, 1, D);
    lk_rope rope = rope_of(3, 0);
    const lk_status bad = LK_E_ARGUMENT;
    expect_failure(lk_rope_apply(&rope, &t, 1, 1, D, 0, 1, out), bad, "rope.pairing is 3");
    rope = rope_of(LK_ROPE_HALVES, 31);
    expect_failure(lk_rope_apply(&rope, &t, 1, 1, D, 0, 1, out), bad, "rope.channels is 31");
    rope.channels = D + 2;
    expect_failure(lk_rope_invert(&rope, &t, 1, 1, D, 0, 1, out), bad, "at most head_dim, 64");
    rope = rope_of(LK_ROPE_HALVES, 0);
    rope.base = 1;
    expect_failure(lk_rope_apply(&rope, &t, 1, 1, D, 0, 1, out), bad, "rope.base is 1");
    rope = rope_of(LK_ROPE_HALVES, 0);
    rope.frequencies = frequencies;
    expect_failure(lk_rope_apply(&rope, &t, 1, 1, D, 0, 1, out), bad, "frequencies[0]");
    rope = rope_of(LK_ROPE_HALVES, 0);
    expect_failure(lk_rope_apply(&rope, &t, 1, 1, D, 0, 0, out), bad, "position_scale is 0");
    expect_failure(lk_rope_apply(&rope, &t, 1, 1, D, 0, NAN, out), bad, "position_scale is nan");
    expect_failure(lk_rope_apply(&rope, &t, 1, 1, D, UINT64_MAX, 1, out), bad, "2^53");
    expect_failure(lk_rope_apply(&rope, &t, 0, 1, D, 0, 1, out), bad, "n_tokens is 0");
    expect_failure(lk_rope_apply(&rope, &t, 1, 0, D, 0, 1, out), bad, "n_heads is 0");
    expect_failure(lk_rope_apply(&rope, &t, 1, 1, 528, 0, 1, out), bad, "head_dim 528");
    expect_failure(lk_rope_apply(&rope, NULL, 1, 1, D, 0, 1, out), bad, "samples");
    expect_failure(lk_rope_apply(&rope, &t, 1, 1, D, 0, 1, NULL), bad, "values is NULL");
    expect_failure(lk_rope_apply(NULL, &t, 1, 1, D, 0, 1, out), bad, "rope");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_turn_by_their_frequency),
        cmocka_unit_test(keys_are_stretched),
        cmocka_unit_test(bad_positions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
