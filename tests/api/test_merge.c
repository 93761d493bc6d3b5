// lk_merge() against sums in double precision, and what it refuses.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#include <math.h>

#define TOKENS 5
#define HEADS 3
#define DIM 40
#define ROWS (TOKENS * HEADS)
#define SPLITS 3
#define GUARD 7.25f
#define OUT_STRIDE (HEADS * DIM + 8)  // between tokens; the last 8 belong to nobody

// Parts of three element types and, of each row, its LSE; one row has a part that saw no key,
// another one has no other; one has an LSE of NaN, another one of infinity.
typedef struct merge_case {
    float values[SPLITS][ROWS][DIM];
    float lses[SPLITS][ROWS];
    lk_tensor outs[SPLITS];
    lk_tensor out_lses[SPLITS];
    const lk_tensor *out_pointers[SPLITS];
    const lk_tensor *lse_pointers[SPLITS];
    lk_tensor out;
    lk_tensor lse;
} merge_case;

static void make_values(merge_case *c) {
    uint32_t state = 12345;
    for (uint32_t p = 0; p < SPLITS; ++p)
        for (uint32_t row = 0; row < ROWS; ++row) {
            for (uint32_t i = 0; i < DIM; ++i) {
                state = state * 1664525u + 1013904223u;
                c->values[p][row][i] = (float)((int32_t)(state >> 25) - 64) / 16;
            }
            state = state * 1664525u + 1013904223u;
            c->lses[p][row] = (float)(state >> 24) / 16 - 8;
        }
    c->lses[1][4] = -HUGE_VALF;
    for (uint32_t i = 0; i < DIM; ++i)
        c->values[1][4][i] = nanf("");
    for (uint32_t p = 0; p < SPLITS; ++p)
        c->lses[p][7] = -HUGE_VALF;
    // Of queries beyond their layer's limit, as lk_attend() marks them.
    c->lses[0][9] = nanf("");
    c->lses[0][11] = HUGE_VALF;
    for (uint32_t i = 0; i < DIM; ++i)
        c->values[0][9][i] = nanf("");
}

static void open_case(rig *r, merge_case *c) {
    memset(r, 0, sizeof *r);
    memset(c, 0, sizeof *c);
    rig_open(r);
    make_values(c);
    for (uint32_t p = 0; p < SPLITS; ++p) {
        const lk_dtype dtype = LK_F16 + p;
        rig_tensor(r, &c->outs[p], rig_place_values(r, c->values[p][0], ROWS * DIM, dtype), HEADS,
                   DIM);
        c->outs[p].dtype = dtype;
        rig_tensor(r, &c->out_lses[p], rig_place(r, c->lses[p], sizeof c->lses[p]), HEADS, 1);
        c->out_pointers[p] = &c->outs[p];
        c->lse_pointers[p] = &c->out_lses[p];
    }
    float guards[TOKENS * OUT_STRIDE];
    for (uint32_t i = 0; i < TOKENS * OUT_STRIDE; ++i)
        guards[i] = GUARD;
    rig_tensor(r, &c->out, rig_place(r, guards, sizeof guards), HEADS, DIM);
    c->out.token_stride = OUT_STRIDE;
    rig_tensor(r, &c->lse, rig_place(r, guards, ROWS * sizeof(float)), HEADS, 1);
}

static lk_status merge(const rig *r, const merge_case *c, uint32_t n_splits) {
    return lk_merge(r->context, r->device->queue, TOKENS, HEADS, DIM, n_splits, c->out_pointers,
                    c->lse_pointers, &c->out, &c->lse);
}

static void check_row(const merge_case *c, uint32_t row, uint32_t n_splits, const float *out,
                      float lse) {
    if (row == 9 || row == 11) {
        for (uint32_t i = 0; i < DIM; ++i)
            assert_true(isnan(out[i]));
        assert_true(isnan(lse));
        return;
    }
    double top = -HUGE_VAL;
    for (uint32_t p = 0; p < n_splits; ++p)
        top = fmax(top, (double)c->lses[p][row]);
    double sum = 0;
    double values[DIM] = {0};
    for (uint32_t p = 0; p < n_splits; ++p) {
        if (isinf(c->lses[p][row]))
            continue;
        const double weight = exp((double)c->lses[p][row] - top);
        sum += weight;
        for (uint32_t i = 0; i < DIM; ++i)
            values[i] += weight * (double)c->values[p][row][i];
    }
    for (uint32_t i = 0; i < DIM; ++i)
        assert_true(fabs((double)out[i] - (sum > 0 ? values[i] / sum : 0)) < 1e-5);
    if (sum > 0)
        assert_true(fabs((double)lse - top - log(sum)) < 1e-5);
    else
        assert_true(isinf(lse) && lse < 0);
}

static void outputs_are_weighted(void **state) {
    (void)state;
    for (uint32_t n_splits = 1; n_splits <= SPLITS; ++n_splits) {
        rig r;
        merge_case c;
        open_case(&r, &c);
        assert_int_equal(merge(&r, &c, n_splits), LK_OK);
        float out[TOKENS * OUT_STRIDE];
        float lse[ROWS];
        r.device->get(out, rig_first(&r, &c.out), sizeof out);
        r.device->get(lse, rig_first(&r, &c.lse), sizeof lse);
        for (uint32_t token = 0; token < TOKENS; ++token) {
            for (uint32_t head = 0; head < HEADS; ++head)
                check_row(&c, token * HEADS + head, n_splits, out + token * OUT_STRIDE + head * DIM,
                          lse[token * HEADS + head]);
            for (uint32_t i = HEADS * DIM; i < OUT_STRIDE; ++i)
                assert_true(out[token * OUT_STRIDE + i] == GUARD);
        }
        rig_close(&r);
    }
}

static void lse_may_be_left_out(void **state) {
    (void)state;
    rig r;
    merge_case c;
    open_case(&r, &c);
    assert_int_equal(lk_merge(r.context, r.device->queue, TOKENS, HEADS, DIM, SPLITS,
                              c.out_pointers, c.lse_pointers, &c.out, NULL),
                     LK_OK);
    float lse[ROWS];
    r.device->get(lse, rig_first(&r, &c.lse), sizeof lse);
    assert_true(lse[0] == GUARD);
    rig_close(&r);
}

static void counts_are_checked(void **state) {
    (void)state;
    rig r;
    merge_case c;
    open_case(&r, &c);
    assert_int_equal(merge(&r, &c, 0), LK_E_ARGUMENT);
    assert_int_equal(merge(&r, &c, LK_MERGE_SPLITS + 1), LK_E_ARGUMENT);
    rig_sentence("n_splits is 17");
    assert_int_equal(lk_merge(r.context, r.device->queue, TOKENS, HEADS, 0, 1, c.out_pointers,
                              c.lse_pointers, &c.out, NULL),
                     LK_E_ARGUMENT);
    rig_sentence("head_dim is 0");
    assert_int_equal(lk_merge(r.context, r.device->queue, TOKENS, HEADS, DIM, 1, c.out_pointers,
                              NULL, &c.out, NULL),
                     LK_E_ARGUMENT);
    rig_sentence("lses is NULL");
    assert_int_equal(lk_merge(NULL, r.device->queue, TOKENS, HEADS, DIM, 1, c.out_pointers,
                              c.lse_pointers, &c.out, NULL),
                     LK_E_ARGUMENT);
    rig_close(&r);
}

static void queues_are_checked(void **state) {
    (void)state;
    rig r;
    merge_case c;
    open_case(&r, &c);
    lk_queue queue;
    assert_int_equal(lk_queue_init(&queue, sizeof queue), LK_OK);
    queue.kind = rig_other_queue();
    assert_int_equal(lk_merge(r.context, &queue, TOKENS, HEADS, DIM, SPLITS, c.out_pointers,
                              c.lse_pointers, &c.out, NULL),
                     LK_E_UNSUPPORTED);
    rig_close(&r);
}

static void tensors_are_checked(void **state) {
    (void)state;
    rig r;
    merge_case c;
    open_case(&r, &c);
    c.out_lses[2].dtype = LK_F16;
    assert_int_equal(merge(&r, &c, SPLITS), LK_E_ARGUMENT);
    rig_sentence("lses[2].dtype");
    c.out_lses[2].dtype = LK_F32;
    c.outs[1].memory = rig_other_memory();
    assert_int_equal(merge(&r, &c, SPLITS), LK_E_UNSUPPORTED);
    rig_sentence("outs[1].memory");
    c.outs[1].memory = c.out.memory;
    c.out_pointers[0] = NULL;
    assert_int_equal(merge(&r, &c, SPLITS), LK_E_ARGUMENT);
    rig_sentence("outs[0]");
    c.out_pointers[0] = &c.outs[0];
    c.out.token_stride = DIM;
    assert_int_equal(merge(&r, &c, SPLITS), LK_E_ARGUMENT);
    rig_sentence("elements that overlap");
    c.out.token_stride = HEADS * DIM;
    void *const own = rig_first(&r, &c.out);
    rig_point(&r, &c.out, rig_first(&r, &c.outs[2]));
    assert_int_equal(merge(&r, &c, SPLITS), LK_E_ARGUMENT);
    rig_sentence("out overlaps outs[2]");
    rig_point(&r, &c.out, own);
    rig_point(&r, &c.lse, own);
    assert_int_equal(merge(&r, &c, SPLITS), LK_E_ARGUMENT);
    rig_sentence("lse overlaps out");
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_weighted), cmocka_unit_test(lse_may_be_left_out),
        cmocka_unit_test(counts_are_checked), cmocka_unit_test(queues_are_checked),
        cmocka_unit_test(tensors_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
