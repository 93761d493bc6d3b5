/* ChanMix plans from statistics: which head and channel gets how many bits, bytes, refusals.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "stats/stats_test.h"

enum { LAYERS = 2, QUERY_HEADS = 8, KV_HEADS = 4, D = 128, PERIOD = 20, PROBE_TOKENS = 100 };

static lk_chanmix default_options(void) {
    lk_chanmix options;
    assert_int_equal(lk_chanmix_init(&options, sizeof options), LK_OK);
    return options;
}

static lk_plan *build(const lk_calibrator *calibrator, const lk_chanmix *options) {
    lk_plan *plan = NULL;
    const lk_status status = lk_calibrator_chanmix(calibrator, options, &plan);
    if (status != LK_OK)
        fail_msg("%s", sentence());
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
    return plan;
}

/* Two tokens that give channel c of every head the range ranges[c] and the mean 1. */
static void feed_ranges(lk_calibrator *calibrator, const float *ranges) {
    float keys[2][KV_HEADS][D];
    for (uint32_t h = 0; h < KV_HEADS; ++h)
        for (uint32_t c = 0; c < D; ++c) {
            keys[0][h][c] = 1 - ranges[c] / 2;
            keys[1][h][c] = 1 + ranges[c] / 2;
        }
    for (uint32_t l = 0; l < LAYERS; ++l)
        add_keys(calibrator, l, &keys[0][0][0], 2);
}

/* Ten outliers, 60 normal channels, 58 subnormal ones whose ranges grow with the channel. */
static void common_ranges(float *ranges) {
    for (uint32_t c = 0; c < D; ++c)
        ranges[c] = c % 13 == 5 ? 64 : c < 66 ? 12 : 1 + (float)c / 64;
}

/* Query head `head` looks for the token that followed the last time; the others look at token 0. */
static void feed_probe(lk_calibrator *calibrator, uint32_t layer, uint64_t retrieving) {
    static float q[PROBE_TOKENS][QUERY_HEADS][D], k[PROBE_TOKENS][KV_HEADS][D];
    memset(q, 0, sizeof q);
    memset(k, 0, sizeof k);
    for (uint32_t t = 0; t < PROBE_TOKENS; ++t) {
        for (uint32_t h = 0; h < KV_HEADS; ++h)
            k[t][h][t ? t % PERIOD : D - 1] = 20;
        for (uint32_t h = 0; h < QUERY_HEADS; ++h)
            q[t][h][retrieving >> h & 1 ? (t + 1) % PERIOD : D - 1] = 20;
    }
    lk_probe probe;
    assert_int_equal(lk_probe_init(&probe, sizeof probe), LK_OK);
    probe.period_tokens = PERIOD;
    probe.local_tokens = PERIOD - 1;
    probe.sink_tokens = 4;
    const lk_tensor queries = host_tensor(LK_F32, q, QUERY_HEADS, D);
    const lk_tensor keys = host_tensor(LK_F32, k, KV_HEADS, D);
    assert_int_equal(
        lk_calibrator_add_probe(calibrator, layer, &probe, &queries, &keys, PROBE_TOKENS), LK_OK);
}

/* Retrieval heads: layer 0, KV heads 1 (query head 3) and 2 (4 and 5); layer 1, KV head 3 (6). */
static lk_calibrator *common_calibrator(void) {
    float ranges[D];
    lk_calibrator *calibrator = make_calibrator(LAYERS, QUERY_HEADS, KV_HEADS, D);
    common_ranges(ranges);
    feed_ranges(calibrator, ranges);
    feed_probe(calibrator, 0, 1u << 3 | 1u << 4 | 1u << 5);
    feed_probe(calibrator, 1, 1u << 6);
    return calibrator;
}

static int is_retrieval(uint32_t layer, uint32_t head) {
    return layer ? head == 3 : head == 1 || head == 2;
}

static lk_key_rule key_of(const lk_plan *plan, uint32_t layer, uint32_t head) {
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    assert_int_equal(lk_plan_get_key(plan, layer, head, &rule), LK_OK);
    return rule;
}

static lk_value_rule value_of(const lk_plan *plan, uint32_t layer, uint32_t head) {
    lk_value_rule rule;
    assert_int_equal(lk_value_rule_init(&rule, sizeof rule), LK_OK);
    assert_int_equal(lk_plan_get_value(plan, layer, head, &rule), LK_OK);
    return rule;
}

static lk_plan_size size_of(const lk_plan *plan, uint64_t n_tokens) {
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(plan, n_tokens, 1, 512, &size), LK_OK);
    return size;
}

static void scores_find_the_heads_that_copy(void **state) {
    (void)state;
    lk_calibrator *calibrator = common_calibrator();
    for (uint32_t l = 0; l < LAYERS; ++l)
        for (uint32_t h = 0; h < KV_HEADS; ++h) {
            float score;
            assert_int_equal(lk_calibrator_get_retrieval(calibrator, l, h, &score), LK_OK);
            assert_true(is_retrieval(l, h) ? score > 0.9f : score < 0.01f);
        }
    lk_calibrator_destroy(&calibrator);
}

static void widths_follow_ranges_and_scores(void **state) {
    (void)state;
    lk_calibrator *calibrator = common_calibrator();
    lk_chanmix options = default_options();
    options.retrieval_share = 3.0 / (LAYERS * KV_HEADS);
    lk_plan *plan = build(calibrator, &options);
    uint8_t want[D];
    memset(want, 2, sizeof want);
    for (uint32_t c = 5; c < D; c += 13)
        want[c] = 3;
    for (uint32_t c = 66, n = 0; n < 10; ++c) /* the smallest ranges */
        if (want[c] == 2) {
            want[c] = 1;
            ++n;
        }
    for (uint32_t l = 0; l < LAYERS; ++l)
        for (uint32_t h = 0; h < KV_HEADS; ++h) {
            const lk_key_rule key = key_of(plan, l, h);
            const lk_value_rule value = value_of(plan, l, h);
            const float *centers = NULL;
            assert_int_equal(key.group, 32);
            assert_int_equal(key.one_bit, LK_ONE_BIT_DEVIATION);
            assert_int_equal(value.group, 32);
            assert_int_equal(value.bits, is_retrieval(l, h) ? 4 : 2);
            assert_int_equal(key.bits, is_retrieval(l, h) ? 4 : 2);
            if (is_retrieval(l, h))
                assert_null(key.channel_bits);
            else
                assert_memory_equal(key.channel_bits, want, D);
            assert_int_equal(lk_plan_get_key_centers(plan, l, h, &centers), LK_OK);
            for (uint32_t c = 0; c < D; ++c)
                assert_true(centers && centers[c] == 1);
        }
    uint32_t page, sinks, window;
    assert_int_equal(lk_plan_get_pages(plan, &page, &sinks, &window), LK_OK);
    assert_int_equal(page, 128);
    assert_int_equal(sinks, 32);
    assert_int_equal(window, 128);
    assert_string_equal(lk_plan_name(plan), "chanmix");
    char *json = write_json(plan);
    lk_plan *again = NULL;
    assert_int_equal(lk_plan_from_json(json, strlen(json), &again), LK_OK);
    char *twice = write_json(again);
    assert_string_equal(json, twice);
    free(json);
    free(twice);
    lk_plan_destroy(&again);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&calibrator);
}

/* K and V of a page take 5120 bytes each at 2 bits, whatever the outliers, and 9216 in a retrieval
 * head. */
static void pages_take_the_published_bytes(void **state) {
    (void)state;
    const uint64_t n_tokens = 8192;
    lk_calibrator *calibrator = common_calibrator();
    lk_chanmix options = default_options();
    for (uint32_t outliers = 0; outliers <= 1; ++outliers)
        for (uint32_t n = 0; n <= 3; ++n) {
            options.outliers = outliers;
            options.retrieval_share = n / (double)(LAYERS * KV_HEADS);
            lk_plan *plan = build(calibrator, &options);
            const lk_plan_size size = size_of(plan, n_tokens);
            assert_true(size.n_blocks > 50);
            assert_int_equal(size.payload_bytes + size.metadata_bytes,
                             size.n_blocks * 2 * ((LAYERS * KV_HEADS - n) * 5120 + n * 9216));
            lk_plan_destroy(&plan);
        }
    options.retrieval = LK_RETRIEVAL_KEY; /* values stay at 2 bits: half of what is added */
    lk_plan *plan = build(calibrator, &options);
    const lk_plan_size size = size_of(plan, n_tokens);
    assert_int_equal(size.payload_bytes + size.metadata_bytes,
                     size.n_blocks * (5 * 2 * 5120 + 3 * (9216 + 5120)));
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&calibrator);
}

/* 30 % of 8 heads are 2, 19 % of 4 heads without GQA is 1, and ties go to the first. */
static void shares_have_the_documented_defaults(void **state) {
    (void)state;
    lk_calibrator *calibrator = common_calibrator();
    lk_plan *plan = build(calibrator, NULL);
    uint32_t n = 0;
    for (uint32_t l = 0; l < LAYERS; ++l)
        for (uint32_t h = 0; h < KV_HEADS; ++h)
            n += key_of(plan, l, h).bits == 4;
    assert_int_equal(n, 2);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&calibrator);
    calibrator = make_calibrator(1, 4, 4, 32);
    float *values = random_values(40 * 4 * 32, 8);
    memset(values, 0, 40 * 4 * 32 * sizeof *values);
    add_keys(calibrator, 0, values, 40);
    lk_probe probe;
    assert_int_equal(lk_probe_init(&probe, sizeof probe), LK_OK);
    probe.period_tokens = 10;
    probe.local_tokens = 9;
    const lk_tensor tensor = host_tensor(LK_F32, values, 4, 32);
    assert_int_equal(lk_calibrator_add_probe(calibrator, 0, &probe, &tensor, &tensor, 40), LK_OK);
    plan = build(calibrator, NULL);
    assert_int_equal(key_of(plan, 0, 0).bits, 4);
    for (uint32_t h = 1; h < 4; ++h)
        assert_int_equal(key_of(plan, 0, h).bits, 2);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&calibrator);
    free(values);
}

static void a_head_of_few_channels_is_one_group(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_calibrator(2, 4, 2, 64);
    float *values = random_values(40 * 4 * 64, 3);
    const lk_tensor q = host_tensor(LK_F32, values, 4, 64), k = host_tensor(LK_F32, values, 2, 64);
    lk_probe probe;
    assert_int_equal(lk_probe_init(&probe, sizeof probe), LK_OK);
    probe.period_tokens = 10;
    probe.local_tokens = 9;
    for (uint32_t l = 0; l < 2; ++l) {
        add_keys(calibrator, l, values, 40);
        assert_int_equal(lk_calibrator_add_probe(calibrator, l, &probe, &q, &k, 40), LK_OK);
    }
    lk_chanmix options = default_options();
    options.retrieval_share = 0;
    for (uint32_t group = 64; group <= 128; group *= 2) {
        options.group = group;
        lk_plan *plan = build(calibrator, &options);
        assert_int_equal(key_of(plan, 1, 1).group, group);
        assert_int_equal(value_of(plan, 1, 1).group, group == 64 ? 64 : 0);
        lk_plan_destroy(&plan);
    }
    lk_calibrator_destroy(&calibrator);
    free(values);
}

static void equal_ranges_leave_two_bits(void **state) {
    (void)state;
    const float all[] = {0, 3};
    for (int i = 0; i < 2; ++i) {
        float ranges[D];
        uint8_t classes[D];
        float centroids[3];
        for (uint32_t c = 0; c < D; ++c)
            ranges[c] = all[i];
        lk_calibrator *calibrator = make_calibrator(LAYERS, QUERY_HEADS, KV_HEADS, D);
        feed_ranges(calibrator, ranges);
        assert_int_equal(
            lk_calibrator_get_classes(calibrator, 1, 2, LK_SCOPE_LAYER, classes, centroids), LK_OK);
        for (uint32_t c = 0; c < D; ++c)
            assert_int_equal(classes[c], LK_CHANNEL_NORMAL);
        assert_true(centroids[0] == all[i] && centroids[2] == all[i]);
        lk_chanmix options = default_options();
        options.retrieval = LK_RETRIEVAL_NONE;
        lk_plan *plan = build(calibrator, &options);
        assert_null(key_of(plan, 1, 2).channel_bits);
        assert_int_equal(key_of(plan, 1, 2).bits, 2);
        lk_plan_destroy(&plan);
        lk_calibrator_destroy(&calibrator);
    }
}

/* More outliers than subnormals: the largest of them get the bits that there are. */
static void pairs_are_as_many_as_the_rarer_class(void **state) {
    (void)state;
    float ranges[D];
    for (uint32_t c = 0; c < D; ++c)
        ranges[c] = c < 3 ? 1 : c < 64 ? 40 : 80 + (float)c / 8;
    lk_calibrator *calibrator = make_calibrator(LAYERS, QUERY_HEADS, KV_HEADS, D);
    feed_ranges(calibrator, ranges);
    uint8_t classes[D];
    assert_int_equal(lk_calibrator_get_classes(calibrator, 0, 0, LK_SCOPE_HEAD, classes, NULL),
                     LK_OK);
    assert_int_equal(classes[2], LK_CHANNEL_SUBNORMAL);
    assert_int_equal(classes[3], LK_CHANNEL_NORMAL);
    assert_int_equal(classes[64], LK_CHANNEL_OUTLIER);
    lk_chanmix options = default_options();
    options.retrieval = LK_RETRIEVAL_NONE;
    options.centers = 0;
    options.one_bit = LK_ONE_BIT_RANGE;
    lk_plan *plan = build(calibrator, &options);
    const lk_key_rule rule = key_of(plan, 0, 0);
    assert_int_equal(rule.one_bit, LK_ONE_BIT_RANGE);
    for (uint32_t c = 0; c < D; ++c)
        assert_int_equal(rule.channel_bits[c], c < 3 ? 1 : c < 125 ? 2 : 3);
    const float *centers = ranges;
    assert_int_equal(lk_plan_get_key_centers(plan, 0, 0, &centers), LK_OK);
    assert_null(centers);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&calibrator);
}

/* Clustered over a layer, a head whose ranges are all small has no outliers. */
static void scopes_differ(void **state) {
    (void)state;
    float keys[2][2][32] = {{{0}}};
    for (uint32_t c = 0; c < 32; ++c) {
        keys[1][0][c] = 1 + (float)c / 32;
        keys[1][1][c] = c < 16 ? 2 : 64;
    }
    lk_calibrator *calibrator = make_calibrator(1, 2, 2, 32);
    add_keys(calibrator, 0, &keys[0][0][0], 2);
    uint8_t classes[32];
    assert_int_equal(lk_calibrator_get_classes(calibrator, 0, 0, LK_SCOPE_HEAD, classes, NULL),
                     LK_OK);
    assert_int_equal(classes[31], LK_CHANNEL_OUTLIER);
    assert_int_equal(lk_calibrator_get_classes(calibrator, 0, 0, LK_SCOPE_LAYER, classes, NULL),
                     LK_OK);
    assert_true(classes[31] != LK_CHANNEL_OUTLIER);
    assert_int_equal(lk_calibrator_get_classes(calibrator, 0, 1, LK_SCOPE_LAYER, classes, NULL),
                     LK_OK);
    assert_int_equal(classes[31], LK_CHANNEL_OUTLIER);
    lk_calibrator_destroy(&calibrator);
}

static uint32_t retrieval_heads(const lk_plan *plan) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < LAYERS; ++l)
        for (uint32_t h = 0; h < KV_HEADS; ++h)
            n += key_of(plan, l, h).bits == 4;
    return n;
}

static void budgets_decide_the_number_of_heads(void **state) {
    (void)state;
    lk_calibrator *calibrator = common_calibrator();
    lk_chanmix options = default_options();
    options.budget_tokens = 65536;
    uint64_t bytes[LAYERS * KV_HEADS + 1];
    for (uint32_t n = 0; n <= LAYERS * KV_HEADS; ++n) {
        options.retrieval_share = n / (double)(LAYERS * KV_HEADS);
        lk_plan *plan = build(calibrator, &options);
        assert_int_equal(retrieval_heads(plan), n);
        bytes[n] = size_of(plan, options.budget_tokens).cache_bytes;
        lk_plan_destroy(&plan);
    }
    options.retrieval_share = -1;
    for (uint32_t n = 0; n <= LAYERS * KV_HEADS; ++n) {
        options.budget_bytes = bytes[n] + 100;
        lk_plan *plan = build(calibrator, &options);
        assert_int_equal(retrieval_heads(plan), n);
        lk_plan_destroy(&plan);
    }
    options.retrieval_share = 0.25; /* a budget that holds more does not add to a share */
    lk_plan *plan = build(calibrator, &options);
    assert_int_equal(retrieval_heads(plan), 2);
    lk_plan_destroy(&plan);
    options.budget_bytes = bytes[0] - 1;
    char number[32];
    snprintf(number, sizeof number, "need %llu", (unsigned long long)bytes[0]);
    plan = (lk_plan *)&options;
    expect_failure(lk_calibrator_chanmix(calibrator, &options, &plan), LK_E_BUDGET, number);
    assert_null(plan);
    lk_calibrator_destroy(&calibrator);
}

static void expect_bad_options(const lk_calibrator *calibrator, lk_chanmix options,
                               const char *part) {
    lk_plan *plan = (lk_plan *)&options;
    expect_failure(lk_calibrator_chanmix(calibrator, &options, &plan), LK_E_ARGUMENT, part);
    assert_null(plan);
}

static void what_has_no_meaning_is_refused(void **state) {
    (void)state;
    float ranges[D];
    lk_calibrator *calibrator = make_calibrator(LAYERS, QUERY_HEADS, KV_HEADS, D);
    lk_plan *plan = NULL;
    expect_failure(lk_calibrator_chanmix(calibrator, NULL, &plan), LK_E_STATE,
                   "layer 0 has had no keys");
    common_ranges(ranges);
    feed_ranges(calibrator, ranges);
    feed_probe(calibrator, 0, 1);
    expect_failure(lk_calibrator_chanmix(calibrator, NULL, &plan), LK_E_STATE,
                   "layer 1 has had no probe");
    expect_failure(lk_calibrator_chanmix(NULL, NULL, &plan), LK_E_ARGUMENT, "calibrator is NULL");
    expect_failure(lk_calibrator_chanmix(calibrator, NULL, NULL), LK_E_ARGUMENT, "out is NULL");
    const lk_chanmix good = default_options();
    lk_chanmix bad = good;
    bad.size = 4;
    expect_bad_options(calibrator, bad, "options.size is 4");
    bad = good;
    bad.retrieval = 4;
    expect_bad_options(calibrator, bad, "options.retrieval is 4");
    bad = good;
    bad.scope = 0;
    expect_bad_options(calibrator, bad, "options.scope is 0");
    bad = good;
    bad.outliers = 2;
    expect_bad_options(calibrator, bad, "options.outliers is 2");
    bad = good;
    bad.centers = 7;
    expect_bad_options(calibrator, bad, "options.centers is 7");
    bad = good;
    bad.metadata = 9;
    expect_bad_options(calibrator, bad, "options.metadata is 9");
    bad = good;
    bad.group = 48;
    expect_bad_options(calibrator, bad, "options.group is 48");
    bad = good;
    bad.one_bit = 3;
    expect_bad_options(calibrator, bad, "options.one_bit is 3");
    bad = good;
    bad.sink_tokens = 5;
    expect_bad_options(calibrator, bad, "options.sink_tokens is 5");
    bad = good;
    bad.retrieval_share = 1.5;
    expect_bad_options(calibrator, bad, "options.retrieval_share is 1.5");
    bad.retrieval_share = NAN;
    expect_bad_options(calibrator, bad, "options.retrieval_share is");
    bad = good;
    bad.budget_bytes = 1000;
    bad.budget_sequences = 0;
    expect_bad_options(calibrator, bad, "options.budget_bytes is 1000");
    lk_calibrator_destroy(&calibrator);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_find_the_heads_that_copy),
        cmocka_unit_test(widths_follow_ranges_and_scores),
        cmocka_unit_test(pages_take_the_published_bytes),
        cmocka_unit_test(shares_have_the_documented_defaults),
        cmocka_unit_test(a_head_of_few_channels_is_one_group),
        cmocka_unit_test(equal_ranges_leave_two_bits),
        cmocka_unit_test(pairs_are_as_many_as_the_rarer_class),
        cmocka_unit_test(scopes_differ),
        cmocka_unit_test(budgets_decide_the_number_of_heads),
        cmocka_unit_test(what_has_no_meaning_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
