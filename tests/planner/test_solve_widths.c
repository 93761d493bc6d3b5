/* Widths within a byte budget: against GLPK's integer programs, against every combination, and
 * in time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <time.h>

#include <glpk.h>

#include "plan/plan_test.h"

enum { MOST_ITEMS = 1024, MOST_CHOICES = 4 };

struct problem {
    uint32_t n_items, n_choices;
    double costs[MOST_ITEMS * MOST_CHOICES];
    uint64_t bytes[MOST_ITEMS * MOST_CHOICES];
    uint64_t budget;
};

static uint32_t state = 1;
static double uniform(void) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) / 16777216.0;
}

/* Costs fall as bytes grow, as sensitivities do. unlike: every item has its own sizes. */
static void make_problem(struct problem *p, uint32_t n_items, uint32_t n_choices, int unlike,
                         double fill) {
    uint64_t least = 0, most = 0;
    p->n_items = n_items;
    p->n_choices = n_choices;
    for (uint32_t i = 0; i < n_items; ++i) {
        const uint64_t unit = unlike ? 1000 + (uint64_t)(uniform() * 100000) : 4096;
        const double weight = exp(4 * uniform());
        for (uint32_t c = 0; c < n_choices; ++c) { /* 16, 8, 4, 2 bits */
            p->bytes[i * n_choices + c] = unit << (n_choices - 1 - c);
            p->costs[i * n_choices + c] = c ? weight * pow(5, c) * (0.5 + uniform()) : 0;
        }
        least += p->bytes[i * n_choices + n_choices - 1];
        most += p->bytes[i * n_choices];
    }
    p->budget = least + (uint64_t)(fill * (double)(most - least));
}

static double solve(const struct problem *p, uint32_t *choices) {
    double total = -1, sum = 0;
    uint64_t bytes = 0;
    const lk_status status =
        lk_solve_widths(p->n_items, p->n_choices, p->costs, p->bytes, p->budget, choices, &total);
    if (status != LK_OK)
        fail_msg("%s", sentence());
    for (uint32_t i = 0; i < p->n_items; ++i) {
        assert_true(choices[i] < p->n_choices);
        bytes += p->bytes[i * p->n_choices + choices[i]];
        sum += p->costs[i * p->n_choices + choices[i]];
    }
    assert_true(bytes <= p->budget);
    assert_true(sum == total);
    return total;
}

static double solve_by_glpk(const struct problem *p) {
    const int n = (int)p->n_items, m = (int)p->n_choices;
    glp_prob *lp = glp_create_prob();
    glp_term_out(GLP_OFF);
    glp_set_obj_dir(lp, GLP_MIN);
    glp_add_rows(lp, n + 1);
    glp_add_cols(lp, n * m);
    glp_set_row_bnds(lp, n + 1, GLP_UP, 0, (double)p->budget);
    for (int i = 0; i < n; ++i) {
        glp_set_row_bnds(lp, i + 1, GLP_FX, 1, 1);
        for (int c = 0; c < m; ++c) {
            const int column = i * m + c + 1;
            const int rows[] = {0, i + 1, n + 1};
            const double values[] = {0, 1, (double)p->bytes[i * m + c]};
            glp_set_col_kind(lp, column, GLP_BV);
            glp_set_obj_coef(lp, column, p->costs[i * m + c]);
            glp_set_mat_col(lp, column, 2, rows, values);
        }
    }
    glp_iocp options;
    glp_init_iocp(&options);
    options.presolve = GLP_ON;
    options.mip_gap = 0;
    assert_int_equal(glp_intopt(lp, &options), 0);
    assert_int_equal(glp_mip_status(lp), GLP_OPT);
    const double cost = glp_mip_obj_val(lp);
    glp_delete_prob(lp);
    return cost;
}

static void answers_are_those_of_an_integer_program(void **unused) {
    (void)unused;
    static struct problem p;
    uint32_t choices[MOST_ITEMS];
    for (uint32_t seed = 1; seed <= 60; ++seed) {
        state = seed * 2654435761u;
        const uint32_t n_items = 1 + (uint32_t)(uniform() * 24);
        make_problem(&p, n_items, 2 + seed % 3, seed % 2, uniform());
        const double got = solve(&p, choices), want = solve_by_glpk(&p);
        if (fabs(got - want) > 1e-6 * (1 + want))
            fail_msg("seed %u, %u items: %.12g, GLPK has %.12g", seed, n_items, got, want);
    }
    glp_free_env();
}

static void answers_are_the_least_of_all(void **unused) {
    (void)unused;
    static struct problem p;
    uint32_t choices[MOST_ITEMS];
    for (uint32_t seed = 1; seed <= 300; ++seed) {
        state = seed * 40503u;
        make_problem(&p, 1 + seed % 6, 1 + seed % 4, seed % 2, uniform());
        if (seed % 3 == 0) /* costs that do not fall with bytes, and ties */
            for (uint32_t i = 0; i < p.n_items * p.n_choices; ++i)
                p.costs[i] = floor(uniform() * 4);
        double least = INFINITY;
        uint32_t n_all = 1;
        for (uint32_t i = 0; i < p.n_items; ++i)
            n_all *= p.n_choices;
        for (uint32_t all = 0; all < n_all; ++all) {
            double cost = 0;
            uint64_t bytes = 0;
            for (uint32_t i = 0, rest = all; i < p.n_items; ++i, rest /= p.n_choices) {
                cost += p.costs[i * p.n_choices + rest % p.n_choices];
                bytes += p.bytes[i * p.n_choices + rest % p.n_choices];
            }
            if (bytes <= p.budget && cost < least)
                least = cost;
        }
        const double got = solve(&p, choices);
        if (fabs(got - least) > 1e-9 * (1 + least))
            fail_msg("seed %u: %.12g, the least of all is %.12g", seed, got, least);
    }
}

/* 128 layers of 8 heads at 4 widths each. The bound in time is for a build with optimisation on a
 * core of its own; a loaded machine or a sanitizer gets twenty times that. */
static void large_models_take_milliseconds(void **unused) {
    (void)unused;
    static struct problem p;
    uint32_t choices[MOST_ITEMS];
    double slowest = 0;
    for (uint32_t seed = 1; seed <= 10; ++seed) {
        state = seed;
        make_problem(&p, 1024, 4, seed % 2, 0.03 + 0.09 * seed);
        const clock_t begin = clock();
        (void)solve(&p, choices);
        const double taken = (double)(clock() - begin) / CLOCKS_PER_SEC;
        slowest = taken > slowest ? taken : slowest;
    }
    printf("slowest of 10 allocations of 1024 heads: %.1f ms\n", 1e3 * slowest);
    assert_true(slowest < 1);
}

static void bad_problems_are_refused(void **unused) {
    (void)unused;
    const double costs[4] = {0, 1, 0, 1};
    double bad[4] = {0, 1, 0, NAN};
    const uint64_t bytes[4] = {8, 4, 8, 4};
    const uint64_t huge[4] = {8, 4, UINT64_MAX, 4};
    uint32_t choices[2] = {7, 7};
    expect_failure(lk_solve_widths(2, 2, costs, bytes, 7, choices, NULL), LK_E_BUDGET,
                   "the smallest choices take 8");
    expect_failure(lk_solve_widths(2, 2, bad, bytes, 16, choices, NULL), LK_E_ARGUMENT,
                   "costs[1][1]");
    bad[3] = -1;
    expect_failure(lk_solve_widths(2, 2, bad, bytes, 16, choices, NULL), LK_E_ARGUMENT, "is -1");
    expect_failure(lk_solve_widths(2, 2, costs, huge, 16, choices, NULL), LK_E_ARGUMENT, "item 1");
    expect_failure(lk_solve_widths(0, 2, costs, bytes, 16, choices, NULL), LK_E_ARGUMENT,
                   "n_items is 0");
    expect_failure(lk_solve_widths(2, 0, costs, bytes, 16, choices, NULL), LK_E_ARGUMENT,
                   "n_choices 0");
    expect_failure(lk_solve_widths(2, 2, NULL, bytes, 16, choices, NULL), LK_E_ARGUMENT, "NULL");
    assert_int_equal(choices[0], 7);
    assert_int_equal(lk_solve_widths(2, 2, costs, bytes, 12, choices, NULL), LK_OK);
    assert_int_equal(choices[0] + choices[1], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_an_integer_program),
        cmocka_unit_test(answers_are_the_least_of_all),
        cmocka_unit_test(large_models_take_milliseconds),
        cmocka_unit_test(bad_problems_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
