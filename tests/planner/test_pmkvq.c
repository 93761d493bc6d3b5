/* From samples to a PM-KVQ plan: widths within a budget, ladders, what is refused.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "pass.h"

enum { LAYERS = 4, HEADS = 2 };

static const float kWeights[LAYERS] = {3, 0.5f, 8, 1};

/* Gradients of layer l are kWeights[l] times random ones, those of head 1 twice those of head 0. */
static lk_calibrator *with_gradients(void) {
    lk_calibrator *c = make_calibrator(LAYERS, HEADS, HEADS, D);
    for (uint32_t l = 0; l < LAYERS; ++l)
        for (uint32_t is_value = 0; is_value < 2; ++is_value) {
            float *x = random_values(T * HEADS * D, l * 2 + is_value);
            float *g = random_values(T * HEADS * D, l * 2 + is_value + 50);
            for (int i = 0; i < T * HEADS * D; ++i)
                g[i] *= kWeights[l] * (i / D % HEADS ? 2 : 1) * (is_value ? 0.3f : 1);
            const lk_tensor samples = host_tensor(LK_F32, x, HEADS, D);
            const lk_tensor gradients = host_tensor(LK_F32, g, HEADS, D);
            assert_int_equal(lk_calibrator_add_gradients(c, l, is_value, &samples, &gradients, T),
                             LK_OK);
            free(x);
            free(g);
        }
    return c;
}

static lk_pmkvq options_of(uint64_t budget_bytes) {
    lk_pmkvq options;
    assert_int_equal(lk_pmkvq_init(&options, sizeof options), LK_OK);
    options.budget_bytes = budget_bytes;
    options.budget_tokens = 20000;
    return options;
}

static double cost_of(const lk_calibrator *c, uint32_t layer, uint32_t head, uint32_t is_value,
                      uint32_t bits) {
    double cost;
    assert_int_equal(lk_calibrator_get_sensitivity(c, layer, head, is_value,
                                                   LK_SENSITIVITY_GRADIENT, bits, &cost),
                     LK_OK);
    return cost;
}

static uint32_t width_of(const lk_plan *plan, uint32_t layer, uint32_t head, uint32_t is_value) {
    uint32_t bits, boost;
    assert_int_equal(lk_plan_width(plan, layer, head, is_value, 0, 0, LK_CHUNK_NONE, &bits, &boost),
                     LK_OK);
    return bits;
}

/* The plan with every ladder at its last rung. */
static lk_plan *at_the_end(const lk_plan *plan) {
    lk_plan *end = NULL;
    assert_int_equal(lk_plan_copy(plan, &end), LK_OK);
    for (uint32_t l = 0; l < LAYERS; ++l) {
        uint8_t rungs[4];
        uint32_t n;
        assert_int_equal(lk_plan_get_ladder(plan, l, rungs, &n, NULL, NULL), LK_OK);
        if (n)
            assert_int_equal(lk_plan_set_ladder(end, l, rungs, n, rungs[n - 1]), LK_OK);
    }
    return end;
}

/* The bytes of the cache, those included that it keeps for pages that move while they shrink. */
static uint64_t bytes_of(const lk_plan *plan, const lk_pmkvq *options) {
    uint32_t n_ladders = 0, n;
    for (uint32_t l = 0; l < LAYERS; ++l) {
        assert_int_equal(lk_plan_get_ladder(plan, l, NULL, &n, NULL, NULL), LK_OK);
        n_ladders += n != 0;
    }
    return plan_size(plan, options->budget_tokens, options->budget_sequences,
                     options->budget_step_tokens)
               .cache_bytes +
           (n_ladders ? 256 << 10 : 0);
}

/* Every combination of widths, one for each layer, by lk_plan_bytes(). */
static double least_of_all(const lk_calibrator *c, const lk_pmkvq *options) {
    struct model m;
    make_model(&m, LAYERS, HEADS, 1, D);
    lk_plan *plan = make_plan("pm-kvq", &m);
    double least = INFINITY;
    uint32_t n_all = 1;
    for (int l = 0; l < LAYERS; ++l)
        n_all *= options->n_widths;
    for (uint32_t all = 0; all < n_all; ++all) {
        double cost = 0;
        for (uint32_t l = 0, rest = all; l < LAYERS; ++l, rest /= options->n_widths) {
            const uint32_t bits = options->widths[rest % options->n_widths];
            static const uint8_t kAll[4] = {16, 8, 4, 2};
            const uint32_t n_rungs = bits == 16 ? 0 : bits == 8 ? 2 : bits == 4 ? 3 : 4;
            assert_int_equal(lk_plan_set_ladder(plan, l, kAll, n_rungs, n_rungs ? bits : 0), LK_OK);
            for (uint32_t h = 0; h < HEADS; ++h)
                cost += cost_of(c, l, h, 0, bits) + cost_of(c, l, h, 1, bits);
        }
        if (bytes_of(plan, options) <= options->budget_bytes && cost < least)
            least = cost;
    }
    lk_plan_destroy(&plan);
    return least;
}

static void plans_cost_least_of_all_that_fit(void **unused) {
    (void)unused;
    lk_calibrator *c = with_gradients();
    static const uint32_t kSets[3][4] = {{4, 2}, {8, 4, 2}, {16, 8, 4, 2}};
    for (uint32_t set = 0; set < 3; ++set)
        for (uint64_t mib = 8; mib <= 32; mib += 3) {
            lk_pmkvq options = options_of(mib << 20);
            options.n_widths = set + 2;
            memcpy(options.widths, kSets[set], sizeof options.widths);
            lk_plan *plan = NULL;
            assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
            lk_plan *end = at_the_end(plan);
            assert_true(bytes_of(end, &options) <= options.budget_bytes);
            double cost = 0;
            for (uint32_t l = 0; l < LAYERS; ++l)
                for (uint32_t h = 0; h < HEADS; ++h)
                    for (uint32_t v = 0; v < 2; ++v) {
                        assert_int_equal(width_of(end, l, h, v), width_of(end, l, 0, 0));
                        assert_int_equal(width_of(plan, l, h, v), 16);
                        cost += cost_of(c, l, h, v, width_of(end, l, h, v));
                    }
            const double least = least_of_all(c, &options);
            if (fabs(cost - least) > 1e-9 * (1 + least))
                fail_msg("%u widths in %u MiB cost %.12g, the least of all is %.12g", set + 2,
                         (unsigned)mib, cost, least);
            lk_plan_destroy(&plan);
            lk_plan_destroy(&end);
        }
    lk_calibrator_destroy(&c);
}

/* Weights rank the layers; the one that matters least goes first. */
static void the_least_sensitive_layer_shrinks_first(void **unused) {
    (void)unused;
    static const uint32_t kOrder[LAYERS] = {2, 0, 3, 1};
    lk_calibrator *c = with_gradients();
    const lk_pmkvq options = options_of(8 << 20);
    lk_plan *plan = NULL;
    assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
    assert_string_equal(lk_plan_name(plan), "pm-kvq");
    for (uint32_t l = 0; l < LAYERS; ++l) {
        uint8_t rungs[4];
        uint32_t n, rung, order;
        assert_int_equal(lk_plan_get_ladder(plan, l, rungs, &n, &rung, &order), LK_OK);
        assert_int_equal(order, kOrder[l]);
        assert_int_equal(rung, 16);
        assert_int_equal(rungs[0], 16);
        assert_true(rungs[n - 1] == 4 || rungs[n - 1] == 2);
    }
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&c);
}

/* Heads, and keys and values, of their own widths cost no more than one for a layer, in as many
 * bytes. */
static void finer_parts_cost_less(void **unused) {
    (void)unused;
    lk_calibrator *c = with_gradients();
    double costs[2][2];
    uint32_t n_mixed = 0;
    for (uint32_t split = 0; split < 2; ++split)
        for (uint32_t by_head = 0; by_head < 2; ++by_head) {
            lk_pmkvq options = options_of(11 << 20);
            options.n_widths = 3;
            options.widths[0] = 8;
            options.widths[1] = 4;
            options.widths[2] = 2;
            options.separate_values = split;
            options.scope = by_head ? LK_SCOPE_HEAD : LK_SCOPE_LAYER;
            lk_plan *plan = NULL;
            assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
            lk_plan *end = at_the_end(plan);
            assert_true(bytes_of(end, &options) <= options.budget_bytes);
            double *cost = &costs[split][by_head];
            *cost = 0;
            for (uint32_t l = 0; l < LAYERS; ++l)
                for (uint32_t h = 0; h < HEADS; ++h)
                    for (uint32_t v = 0; v < 2; ++v) {
                        const uint32_t bits = width_of(end, l, h, v);
                        *cost += cost_of(c, l, h, v, bits);
                        n_mixed += bits != width_of(end, l, 0, 0);
                        if (!split)
                            assert_int_equal(bits, width_of(end, l, h, 0));
                        if (!by_head)
                            assert_int_equal(bits, width_of(end, l, 0, v));
                    }
            lk_plan_destroy(&plan);
            lk_plan_destroy(&end);
        }
    assert_true(n_mixed > 0);
    assert_true(costs[0][1] <= costs[0][0] && costs[1][0] <= costs[0][0]);
    assert_true(costs[1][1] <= costs[0][1] && costs[1][1] <= costs[1][0]);
    assert_true(costs[1][1] < costs[0][0]);
    lk_calibrator_destroy(&c);
}

/* One head at 16 bits: its layer has no ladder, the others of it their own widths. */
static void sixteen_bits_stay(void **unused) {
    (void)unused;
    lk_calibrator *c = with_gradients();
    uint32_t n_mixed = 0;
    for (uint64_t mib = 12; mib <= 36; mib += 4) {
        lk_pmkvq options = options_of(mib << 20);
        options.widths[0] = 16;
        options.widths[1] = 2;
        options.scope = LK_SCOPE_HEAD;
        lk_plan *plan = NULL;
        assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
        for (uint32_t l = 0; l < LAYERS; ++l) {
            uint32_t n;
            assert_int_equal(lk_plan_get_ladder(plan, l, NULL, &n, NULL, NULL), LK_OK);
            n_mixed += !n && width_of(plan, l, 0, 0) == 2 && width_of(plan, l, 1, 0) == 16;
        }
        lk_plan_destroy(&plan);
    }
    assert_true(n_mixed > 0);
    lk_calibrator_destroy(&c);
}

static void published_plans_have_scales(void **unused) {
    (void)unused;
    lk_calibrator *c = with_gradients();
    lk_pmkvq options = options_of(8 << 20);
    lk_plan *plan = NULL;
    options.key_axis = LK_AXIS_TOKEN;
    options.group = 128;
    options.key_scales = 1;
    options.sink_tokens = 16;
    options.recent_tokens = 0;
    expect_failure(lk_calibrator_pmkvq(c, &options, &plan), LK_E_STATE,
                   "layer 0 has had no search for key scales");
    assert_null(plan);
    for (uint32_t l = 0; l < LAYERS; ++l) {
        struct pass p = make_pass(HEADS, HEADS, T, 30, l + 20);
        add_keys(c, l, p.k, T);
        assert_int_equal(
            lk_calibrator_add_scale_search(c, l, NULL, &p.queries, &p.keys, &p.values, T), LK_OK);
        free_pass(&p);
    }
    assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    assert_int_equal(lk_plan_get_key(plan, 1, 1, &rule), LK_OK);
    assert_int_equal(rule.axis, LK_AXIS_TOKEN);
    float want[D];
    const float *scales = NULL;
    assert_int_equal(lk_calibrator_get_key_scales(c, 3, 1, want, NULL), LK_OK);
    assert_int_equal(lk_plan_get_key_scales(plan, 3, 1, &scales), LK_OK);
    assert_memory_equal(scales, want, sizeof want);
    lk_plan_destroy(&plan);
    options.key_scales = 0;
    assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
    assert_int_equal(lk_plan_get_key_scales(plan, 3, 1, &scales), LK_OK);
    assert_null(scales);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&c);
}

/* What the sentence of a refusal says would do, does, and a byte less does not. */
static void small_budgets_are_refused_with_the_number(void **unused) {
    (void)unused;
    lk_calibrator *c = with_gradients();
    lk_pmkvq options = options_of(1);
    lk_plan *plan = NULL;
    expect_failure(lk_calibrator_pmkvq(c, &options, &plan), LK_E_BUDGET, "at 2 bits");
    assert_null(plan);
    const char *at = strstr(sentence(), " need ");
    assert_non_null(at);
    options.budget_bytes = strtoull(at + 6, NULL, 10);
    assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
    lk_plan_destroy(&plan);
    --options.budget_bytes;
    expect_failure(lk_calibrator_pmkvq(c, &options, &plan), LK_E_BUDGET, "need");
    lk_calibrator_destroy(&c);
}

static void bad_options_are_refused(void **unused) {
    (void)unused;
    lk_calibrator *c = with_gradients(), *empty = make_calibrator(1, 1, 1, D);
    lk_plan *plan = NULL;
    const lk_pmkvq good = options_of(8 << 20);
    struct {
        size_t offset;
        uint32_t value;
        const char *part;
    } cases[] = {
        {offsetof(lk_pmkvq, n_widths), 0, "n_widths is 0"},
        {offsetof(lk_pmkvq, n_widths), 5, "n_widths is 5"},
        {offsetof(lk_pmkvq, widths), 3, "widths[0] is 3"},
        {offsetof(lk_pmkvq, widths), 2, "widths[1] is 2"},
        {offsetof(lk_pmkvq, sensitivity), 3, "sensitivity is 3"},
        {offsetof(lk_pmkvq, scope), 0, "scope is 0"},
        {offsetof(lk_pmkvq, separate_values), 2, "separate_values is 2"},
        {offsetof(lk_pmkvq, key_axis), 3, "key_axis is 3"},
        {offsetof(lk_pmkvq, group), 24, "group is 24"},
        {offsetof(lk_pmkvq, key_scales), 2, "key_scales is 2"},
        {offsetof(lk_pmkvq, layer_budgets), 2, "layer_budgets is 2"},
        {offsetof(lk_pmkvq, reserved), 1, "reserved is 1"},
        {offsetof(lk_pmkvq, sink_tokens), 8, "sink_tokens"},
        {offsetof(lk_pmkvq, budget_sequences), 0, "none may be 0"},
        {offsetof(lk_pmkvq, budget_step_tokens), 0, "none may be 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        lk_pmkvq bad = good;
        memcpy((char *)&bad + cases[i].offset, &cases[i].value, sizeof cases[i].value);
        expect_failure(lk_calibrator_pmkvq(c, &bad, &plan), LK_E_ARGUMENT, cases[i].part);
        assert_null(plan);
    }
    lk_pmkvq bad = good;
    bad.budget_bytes = 0;
    expect_failure(lk_calibrator_pmkvq(c, &bad, &plan), LK_E_ARGUMENT, "budget_bytes is 0");
    expect_failure(lk_calibrator_pmkvq(empty, &good, &plan), LK_E_STATE, "no attention");
    bad = good;
    bad.sensitivity = LK_SENSITIVITY_OUTPUT;
    expect_failure(lk_calibrator_pmkvq(c, &bad, &plan), LK_E_STATE, "layer 0 has had no attention");
    expect_failure(lk_calibrator_pmkvq(c, NULL, &plan), LK_E_ARGUMENT, "options");
    expect_failure(lk_calibrator_pmkvq(NULL, &good, &plan), LK_E_ARGUMENT, "calibrator is NULL");
    expect_failure(lk_calibrator_pmkvq(c, &good, NULL), LK_E_ARGUMENT, "out is NULL");
    lk_calibrator_destroy(&c);
    lk_calibrator_destroy(&empty);
}

/* Steps of one sequence to its last token; the budget holds at each. */
static void fill_cache(const lk_plan *plan, const lk_pmkvq *options) {
    struct model m;
    make_model(&m, LAYERS, HEADS, 1, D);
    lk_context *context = NULL;
    lk_context_desc how;
    assert_int_equal(lk_context_desc_init(&how, sizeof how), LK_OK);
    how.backend = LK_BACKEND_CPU;
    assert_int_equal(lk_context_open(&how, LK_ABI_VERSION, &context), LK_OK);
    lk_cache_desc desc;
    assert_int_equal(lk_cache_desc_init(&desc, sizeof desc), LK_OK);
    desc.max_sequences = 1;
    desc.max_step_tokens = options->budget_step_tokens;
    desc.budget_bytes = options->budget_bytes;
    lk_cache *cache = NULL;
    lk_sequence id;
    assert_int_equal(lk_cache_create(context, &m.geometry, plan, &desc, &cache), LK_OK);
    assert_int_equal(lk_sequence_add(cache, &id), LK_OK);
    float *rows = random_values(512 * HEADS * D, 1);
    const lk_tensor tensor = host_tensor(LK_F32, rows, HEADS, D);
    lk_cache_stats stats;
    assert_int_equal(lk_cache_stats_init(&stats, sizeof stats), LK_OK);
    for (uint64_t at = 0; at < options->budget_tokens;) {
        const uint64_t left = options->budget_tokens - at;
        const uint32_t n =
            left < options->budget_step_tokens ? (uint32_t)left : options->budget_step_tokens;
        if (lk_step_begin(cache, NULL, 1, &id, &n, NULL) != LK_OK)
            fail_msg("at %u tokens: %s", (unsigned)at, sentence());
        for (uint32_t l = 0; l < LAYERS; ++l)
            assert_int_equal(lk_append(cache, l, &tensor, &tensor), LK_OK);
        assert_int_equal(lk_step_commit(cache, NULL), LK_OK);
        at += n;
        assert_int_equal(lk_cache_get_stats(cache, &stats), LK_OK);
        assert_true(stats.reserved_bytes <= options->budget_bytes);
        if (at == 512)
            assert_int_equal(stats.payload_bytes, 0);
    }
    assert_true(stats.pages_shrunk > 0);
    lk_cache_destroy(&cache);
    lk_context_close(&context);
    free(rows);
}

/* A cache of the budget begins at 16 bits, shrinks on its way, and holds the tokens that the plan
 * was made for: at the least budget that is not refused, and at others. */
static void caches_get_to_their_last_token(void **unused) {
    (void)unused;
    lk_calibrator *c = with_gradients();
    for (uint32_t step = 16; step <= 512; step *= 32)
        for (uint32_t by_head = 0; by_head < 2; ++by_head) {
            lk_pmkvq options = options_of(1);
            lk_plan *plan = NULL;
            options.budget_tokens = 12000;
            options.budget_step_tokens = step;
            options.separate_values = by_head;
            options.scope = by_head ? LK_SCOPE_HEAD : LK_SCOPE_LAYER;
            options.n_widths = 3;
            memcpy(options.widths, (const uint32_t[]){8, 4, 2}, 3 * sizeof *options.widths);
            expect_failure(lk_calibrator_pmkvq(c, &options, &plan), LK_E_BUDGET, " need ");
            options.budget_bytes = strtoull(strstr(sentence(), " need ") + 6, NULL, 10);
            for (int i = 0; i < 3; ++i, options.budget_bytes += 1900000) {
                assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
                fill_cache(plan, &options);
                lk_plan_destroy(&plan);
                if (step == 16 || i == 1)
                    continue;
                options.layer_budgets = 1;
                assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
                fill_cache(plan, &options);
                lk_plan_destroy(&plan);
                options.layer_budgets = 0;
            }
        }
    lk_calibrator_destroy(&c);
}

static uint64_t layer_budget(const lk_plan *plan, uint32_t layer) {
    uint64_t bytes;
    assert_int_equal(lk_plan_get_layer_budget(plan, layer, &bytes), LK_OK);
    return bytes;
}

static uint32_t rung_at(const lk_plan *plan, const lk_pmkvq *options, uint32_t layer, uint64_t n) {
    uint32_t rung;
    assert_int_equal(
        lk_plan_rung(plan, layer, n, options->budget_sequences, options->budget_step_tokens, &rung),
        LK_OK);
    return rung;
}

/* Budgets of layers last to the last token and no page further, and a layer that ends wider is
 * wider all the way. */
static void layer_budgets_are_of_the_final_widths(void **unused) {
    (void)unused;
    lk_calibrator *c = with_gradients();
    lk_pmkvq options = options_of(1);
    options.budget_sequences = 2;
    options.budget_step_tokens = 100;
    lk_plan *without = NULL;
    lk_plan *plan = NULL;
    expect_failure(lk_calibrator_pmkvq(c, &options, &plan), LK_E_BUDGET, " need ");
    options.budget_bytes = strtoull(strstr(sentence(), " need ") + 6, NULL, 10) + (4u << 20);
    assert_int_equal(lk_calibrator_pmkvq(c, &options, &without), LK_OK);
    options.layer_budgets = 1;
    assert_int_equal(lk_calibrator_pmkvq(c, &options, &plan), LK_OK);
    uint32_t final[LAYERS];
    uint64_t total = 0;
    for (uint32_t l = 0; l < LAYERS; ++l) {
        uint8_t rungs[4];
        uint32_t n;
        assert_int_equal(layer_budget(without, l), 0);
        assert_int_equal(lk_plan_get_ladder(plan, l, rungs, &n, NULL, NULL), LK_OK);
        final[l] = rungs[n - 1];
        total += layer_budget(plan, l);
        assert_int_equal(rung_at(plan, &options, l, 500), 16);
        assert_int_equal(rung_at(plan, &options, l, options.budget_tokens), final[l]);
        for (uint32_t other = 0; other < l; ++other)
            for (uint64_t at = 100; final[other] != final[l] && at < 20000; at += 900) {
                const uint32_t wide = final[other] > final[l] ? other : l;
                const uint32_t narrow = wide == l ? other : l;
                assert_true(rung_at(plan, &options, wide, at) >=
                            rung_at(plan, &options, narrow, at));
            }
        /* One byte less, and the last rung is beyond it before the last token: no rung is left. */
        lk_plan *less = NULL;
        assert_int_equal(lk_plan_copy(plan, &less), LK_OK);
        const uint8_t longer[] = {16, 8, 4, 2};
        if (final[l] == 4) {
            assert_int_equal(lk_plan_set_ladder(less, l, longer, 4, 16), LK_OK);
            assert_int_equal(rung_at(less, &options, l, options.budget_tokens), 4);
            assert_int_equal(lk_plan_set_layer_budget(less, l, layer_budget(plan, l) - 1), LK_OK);
            assert_int_equal(rung_at(less, &options, l, options.budget_tokens), 2);
        }
        lk_plan_destroy(&less);
    }
    assert_int_not_equal(final[2], final[1]);
    assert_true(total <= options.budget_bytes);
    lk_plan_destroy(&plan);
    lk_plan_destroy(&without);
    lk_calibrator_destroy(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_budgets_are_of_the_final_widths),
        cmocka_unit_test(plans_cost_least_of_all_that_fit),
        cmocka_unit_test(the_least_sensitive_layer_shrinks_first),
        cmocka_unit_test(finer_parts_cost_less),
        cmocka_unit_test(sixteen_bits_stay),
        cmocka_unit_test(published_plans_have_scales),
        cmocka_unit_test(small_budgets_are_refused_with_the_number),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(caches_get_to_their_last_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
