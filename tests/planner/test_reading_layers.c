/* Layers that read another layer's keys and values have no statistics, and planners give them
 * nothing of their own.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "pass.h"

enum { QUERY_HEADS = 4, KV_HEADS = 2, PERIOD = 6 };

/* Two layers, and a third one that reads layer 0 if `reads`. */
static void make_geometry(struct model *m, int reads) {
    make_model(m, reads ? 3 : 2, KV_HEADS, QUERY_HEADS / KV_HEADS, D);
    if (!reads)
        return;
    m->layers[2].kv_layer = 0;
    m->layers[2].n_query_heads = 8;
}

static lk_calibrator *make_samples(int reads) {
    struct model m;
    lk_calibrator *calibrator = NULL;
    make_geometry(&m, reads);
    assert_int_equal(lk_calibrator_create(&m.geometry, &calibrator), LK_OK);
    lk_probe probe;
    assert_int_equal(lk_probe_init(&probe, sizeof probe), LK_OK);
    probe.period_tokens = PERIOD;
    probe.local_tokens = PERIOD - 1;
    probe.sink_tokens = 2;
    for (uint32_t l = 0; l < 2; ++l) {
        struct pass p = make_pass(QUERY_HEADS, KV_HEADS, T, l ? 8 : 3, l + 1);
        assert_int_equal(lk_calibrator_add_keys(calibrator, l, &p.keys, T), LK_OK);
        assert_int_equal(lk_calibrator_add_queries(calibrator, l, &p.queries, T), LK_OK);
        assert_int_equal(lk_calibrator_add_probe(calibrator, l, &probe, &p.queries, &p.keys, T),
                         LK_OK);
        assert_int_equal(lk_calibrator_add_gradients(calibrator, l, 0, &p.keys, &p.values, T),
                         LK_OK);
        assert_int_equal(lk_calibrator_add_gradients(calibrator, l, 1, &p.values, &p.keys, T),
                         LK_OK);
        assert_int_equal(
            lk_calibrator_add_scale_search(calibrator, l, NULL, &p.queries, &p.keys, &p.values, T),
            LK_OK);
        free_pass(&p);
    }
    return calibrator;
}

static void statistics_are_of_kv_layers(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_samples(1);
    struct pass p = make_pass(8, KV_HEADS, T, 1, 9);
    const char *part =
        "layer is 2, which reads the keys and values of layer 0: statistics are of "
        "that layer";
    expect_failure(lk_calibrator_add_keys(calibrator, 2, &p.keys, T), LK_E_ARGUMENT, part);
    expect_failure(lk_calibrator_add_queries(calibrator, 2, &p.queries, T), LK_E_ARGUMENT, part);
    const double costs[2 * KV_HEADS] = {0};
    expect_failure(lk_calibrator_set_costs(calibrator, 2, costs), LK_E_ARGUMENT, part);
    float values[D];
    expect_failure(lk_calibrator_get_channels(calibrator, 2, 0, LK_STATISTIC_KEY_MIN, values),
                   LK_E_ARGUMENT, part);
    free_pass(&p);
    lk_calibrator_destroy(&calibrator);
}

static void files_have_kv_layers(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_samples(1), *again = NULL;
    struct bytes bytes = write_bytes(calibrator);
    assert_int_equal(lk_calibrator_from_bytes(bytes.data, bytes.n, &again), LK_OK);
    assert_int_equal(layer_of(again, 2).kv_layer, 0);
    assert_int_equal(layer_of(again, 1).kv_layer, LK_OWN_KV);
    struct bytes twice = write_bytes(again);
    assert_int_equal(twice.n, bytes.n);
    assert_memory_equal(twice.data, bytes.data, bytes.n);
    lk_calibrator_destroy(&again);
    static const struct {
        uint32_t layer;
        int64_t kv_layer;
        const char *part;
    } kWrong[] = {{2, 3, "layer 2: kv_layer is 3, must be an earlier layer"},
                  {2, UINT32_MAX, "layer 2: kv_layer is 1024, must be an earlier layer"},
                  {0, 1, "layer 0: kv_layer is 1, must be an earlier layer"},
                  {2, -1, "has -1 in layer 2"},
                  {1, 0, "layer 1 has statistics and reads the keys and values of layer 0"}};
    for (size_t i = 0; i < sizeof kWrong / sizeof *kWrong; ++i) {
        uint8_t *at = tensor_data(&twice, "kv_layer") + 8 * kWrong[i].layer;
        int64_t before;
        memcpy(&before, at, sizeof before);
        memcpy(at, &kWrong[i].kv_layer, sizeof before);
        expect_failure(lk_calibrator_from_bytes(twice.data, twice.n, &again), LK_E_CORRUPT,
                       kWrong[i].part);
        memcpy(at, &before, sizeof before);
    }
    free(bytes.data);
    free(twice.data);
    lk_calibrator_destroy(&calibrator);
}

/* A plan by a method: auto, chanmix, pm-kvq, and that with budgets of layers. */
static lk_plan *make(const lk_calibrator *calibrator, uint32_t method, uint64_t budget_bytes) {
    lk_plan *plan = NULL;
    lk_auto automatic;
    lk_chanmix chanmix;
    lk_pmkvq pmkvq;
    assert_int_equal(lk_auto_init(&automatic, sizeof automatic), LK_OK);
    assert_int_equal(lk_chanmix_init(&chanmix, sizeof chanmix), LK_OK);
    assert_int_equal(lk_pmkvq_init(&pmkvq, sizeof pmkvq), LK_OK);
    automatic.budget_bytes = chanmix.budget_bytes = pmkvq.budget_bytes = budget_bytes;
    pmkvq.budget_tokens = 8192;
    pmkvq.key_scales = 1;
    pmkvq.layer_budgets = method == 3;
    const lk_status status = method == 0   ? lk_calibrator_auto(calibrator, &automatic, &plan)
                             : method == 1 ? lk_calibrator_chanmix(calibrator, &chanmix, &plan)
                                           : lk_calibrator_pmkvq(calibrator, &pmkvq, &plan);
    if (status)
        fail_msg("method %u: %s", method, sentence());
    return plan;
}

static void plans_are_those_without_reading_layers(void **state) {
    (void)state;
    lk_calibrator *with = make_samples(1), *without = make_samples(0);
    for (uint32_t method = 0; method < 4; ++method) {
        lk_plan *without_plan = make(without, method, 4u << 20);
        lk_plan_size want, size;
        assert_int_equal(lk_plan_size_init(&want, sizeof want), LK_OK);
        assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
        assert_int_equal(lk_plan_bytes(without_plan, 8192, 1, 512, &want), LK_OK);
        /* A budget counts the staging area that stays for the reading layer. */
        const uint64_t staged = 512u * KV_HEADS * D * 4;
        lk_plan *plan = make(with, method, (4u << 20) + staged);
        assert_int_equal(lk_plan_bytes(plan, 8192, 1, 512, &size), LK_OK);
        assert_int_equal(size.cache_bytes, want.cache_bytes + staged);
        assert_int_equal(size.payload_bytes, want.payload_bytes);
        assert_int_equal(size.metadata_bytes, want.metadata_bytes);
        for (uint32_t l = 0; l < 3; ++l)
            for (uint32_t h = 0; h < KV_HEADS; ++h)
                for (uint32_t i = 0; i < 2 * D; ++i) {
                    uint32_t bits[2], boost[2];
                    assert_int_equal(lk_plan_width(plan, l, h, i / D, i % D, 0, LK_CHUNK_NONE,
                                                   &bits[0], &boost[0]),
                                     LK_OK);
                    assert_int_equal(lk_plan_width(without_plan, l % 2, h, i / D, i % D, 0,
                                                   LK_CHUNK_NONE, &bits[1], &boost[1]),
                                     LK_OK);
                    assert_int_equal(bits[0], bits[1]);
                }
        struct model m;
        make_geometry(&m, 1);
        assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);
        char *text = write_json(plan);
        lk_plan *read = NULL;
        assert_int_equal(lk_plan_from_json(text, strlen(text), &read), LK_OK);
        free(text);
        lk_plan_destroy(&read);
        lk_plan_destroy(&plan);
        lk_plan_destroy(&without_plan);
    }
    lk_calibrator_destroy(&with);
    lk_calibrator_destroy(&without);
}

/* Trials are of layers with keys and values, and their plans change the reading layers too. */
static void costs_are_of_kv_layers(void **state) {
    (void)state;
    uint32_t n_trials[2];
    for (int reads = 0; reads < 2; ++reads) {
        struct model m;
        lk_cost_run *run = NULL;
        make_geometry(&m, reads);
        assert_int_equal(lk_cost_run_create(&m.geometry, NULL, &run), LK_OK);
        n_trials[reads] = 0;
        uint32_t trials[64], n;
        for (;;) {
            assert_int_equal(lk_cost_run_next(run, 64, trials, &n), LK_OK);
            if (!n)
                break;
            n_trials[reads] += n;
            for (uint32_t i = 0; i < n; ++i) {
                lk_cost_trial trial;
                assert_int_equal(lk_cost_trial_init(&trial, sizeof trial), LK_OK);
                assert_int_equal(lk_cost_run_get_trial(run, trials[i], &trial), LK_OK);
                assert_true(trial.layer < 2);
                assert_int_equal(lk_cost_run_add(run, trials[i], 0.25 + trial.layer), LK_OK);
                if (!reads || trial.layer || trial.is_value)
                    continue;
                lk_plan *plan = NULL;
                lk_key_rule rule = key_rule(16);
                assert_int_equal(lk_cost_run_plan(run, trials[i], &plan), LK_OK);
                assert_int_equal(lk_plan_get_key(plan, 2, trial.kv_head, &rule), LK_OK);
                assert_int_equal(rule.bits, 2);
                lk_plan_destroy(&plan);
            }
        }
        lk_calibrator *calibrator = make_samples(reads);
        double costs[2 * KV_HEADS];
        assert_int_equal(lk_cost_run_finish(run, calibrator), LK_OK);
        assert_int_equal(lk_calibrator_get_costs(calibrator, 1, costs), LK_OK);
        assert_true(costs[0] > 0);
        lk_plan *plan = make(calibrator, 0, 4u << 20);
        lk_plan_destroy(&plan);
        lk_calibrator_destroy(&calibrator);
        lk_cost_run_destroy(&run);
    }
    assert_int_equal(n_trials[0], n_trials[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_are_of_kv_layers),
        cmocka_unit_test(files_have_kv_layers),
        cmocka_unit_test(plans_are_those_without_reading_layers),
        cmocka_unit_test(costs_are_of_kv_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
