/* Automatic plans: limits are kept, bytes go where errors matter, refusals.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "stats/stats_test.h"

enum { LAYERS = 2, QUERY_HEADS = 4, KV_HEADS = 2, D = 64, PERIOD = 20, TOKENS = 100 };

/* Layer 1, KV head 1 (query heads 2 and 3) retrieves: it looks for the token that followed the last
 * time. The others look at token 0. Of the channels of each head c % 16 == 5 ranges 8 times as far,
 * and queries multiply the upper half of the channels 4 times as much. */
static lk_calibrator *make_samples(int has_queries, int has_probe) {
    static float q[TOKENS][QUERY_HEADS][D], k[TOKENS][KV_HEADS][D];
    lk_calibrator *calibrator = make_calibrator(LAYERS, QUERY_HEADS, KV_HEADS, D);
    for (uint32_t l = 0; l < LAYERS; ++l) {
        float *noise = random_values(sizeof k / sizeof(float), l + 1);
        for (uint32_t t = 0; t < TOKENS; ++t) {
            for (uint32_t h = 0; h < KV_HEADS; ++h)
                for (uint32_t c = 0; c < D; ++c)
                    k[t][h][c] = 3 + noise[(t * KV_HEADS + h) * D + c] * (c % 16 == 5 ? 8 : 1);
            for (uint32_t h = 0; h < QUERY_HEADS; ++h)
                for (uint32_t c = 0; c < D; ++c)
                    q[t][h][c] = (t % 2 ? 0.5f : -0.5f) * (c < D / 2 ? 1 : 4);
        }
        free(noise);
        add_keys(calibrator, l, &k[0][0][0], TOKENS);
        if (has_queries)
            add_queries(calibrator, l, &q[0][0][0], TOKENS);
        if (!has_probe)
            continue;
        memset(q, 0, sizeof q);
        memset(k, 0, sizeof k);
        for (uint32_t t = 0; t < TOKENS; ++t) {
            for (uint32_t h = 0; h < KV_HEADS; ++h)
                k[t][h][t ? t % PERIOD : D - 1] = 20;
            for (uint32_t h = 0; h < QUERY_HEADS; ++h)
                q[t][h][l == 1 && h >= 2 ? (t + 1) % PERIOD : D - 1] = 20;
        }
        lk_probe probe;
        assert_int_equal(lk_probe_init(&probe, sizeof probe), LK_OK);
        probe.period_tokens = PERIOD;
        probe.local_tokens = PERIOD - 1;
        probe.sink_tokens = 4;
        const lk_tensor queries = host_tensor(LK_F32, q, QUERY_HEADS, D);
        const lk_tensor keys = host_tensor(LK_F32, k, KV_HEADS, D);
        assert_int_equal(lk_calibrator_add_probe(calibrator, l, &probe, &queries, &keys, TOKENS),
                         LK_OK);
    }
    return calibrator;
}

static lk_auto options_of(double bits, uint64_t budget_bytes) {
    lk_auto options;
    assert_int_equal(lk_auto_init(&options, sizeof options), LK_OK);
    assert_true(options.bits_per_value == 0 && options.budget_bytes == 0);
    options.bits_per_value = bits;
    options.budget_bytes = budget_bytes;
    return options;
}

static lk_plan *build(const lk_calibrator *calibrator, double bits, uint64_t budget_bytes) {
    const lk_auto options = options_of(bits, budget_bytes);
    lk_plan *plan = NULL;
    if (lk_calibrator_auto(calibrator, &options, &plan) != LK_OK)
        fail_msg("%s", sentence());
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
    return plan;
}

static lk_plan_size size_of(const lk_plan *plan) {
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(plan, 8192, 1, 512, &size), LK_OK);
    return size;
}

static uint32_t key_bits(const lk_plan *plan, uint32_t layer, uint32_t head, uint32_t channel) {
    uint32_t bits, boosted;
    assert_int_equal(
        lk_plan_width(plan, layer, head, 0, channel, 0, LK_CHUNK_NONE, &bits, &boosted), LK_OK);
    return bits;
}

static double mean_key_bits(const lk_plan *plan, uint32_t layer, uint32_t head) {
    double sum = 0;
    for (uint32_t c = 0; c < D; ++c)
        sum += key_bits(plan, layer, head, c);
    return sum / D;
}

static void the_limit_of_bits_is_kept_and_used(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_samples(1, 1);
    const double limits[] = {2.375, 2.5, 3, 4, 6, 8.25, 12, 16};
    double last = 0;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; ++i) {
        lk_plan *plan = build(calibrator, limits[i], 0);
        const double bits = size_of(plan).bits_per_value;
        /* A half that becomes raw takes up to a bit of all at once. */
        if (bits > limits[i] || bits < limits[i] - (limits[i] > 4 ? 1 : 0.26) || bits < last)
            fail_msg("%g bits of at most %g", bits, limits[i]);
        last = bits;
        lk_plan_destroy(&plan);
    }
    assert_true(last == 16);
    lk_calibrator_destroy(&calibrator);
}

static void a_byte_budget_is_kept_and_used(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_samples(1, 1);
    lk_plan *plan = build(calibrator, 3, 0);
    const uint64_t budget = size_of(plan).cache_bytes;
    lk_plan_destroy(&plan);
    plan = build(calibrator, 0, budget);
    const lk_plan_size size = size_of(plan);
    assert_true(size.cache_bytes <= budget);
    assert_true(size.bits_per_value > 2.5);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&calibrator);
}

/* A cache has whole extents for each size of slot: what a wider plan takes can be too little for
 * the narrowest one, and is enough all the same. */
static void what_a_plan_takes_is_a_budget(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_samples(1, 1);
    for (uint64_t tokens = 1024; tokens <= 32768; tokens *= 2)
        for (double bits = 2.25; bits <= 8; bits += 0.125) {
            lk_plan *plan = build(calibrator, bits, 0);
            lk_plan_size size;
            assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
            assert_int_equal(lk_plan_bytes(plan, tokens, 1, 512, &size), LK_OK);
            lk_plan_destroy(&plan);
            lk_auto options = options_of(0, size.cache_bytes);
            options.budget_tokens = tokens;
            if (lk_calibrator_auto(calibrator, &options, &plan) != LK_OK)
                fail_msg("%g bits, %u tokens: %s", bits, (uint32_t)tokens, sentence());
            lk_plan_destroy(&plan);
        }
    lk_calibrator_destroy(&calibrator);
}

/* The head that retrieves has the most bits, and in each head the channels that range and are
 * multiplied most. Keys have more than values. */
static void bits_go_where_errors_matter(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_samples(1, 1);
    lk_plan *plan = build(calibrator, 3, 0);
    const double best = mean_key_bits(plan, 1, 1);
    for (uint32_t l = 0; l < LAYERS; ++l)
        for (uint32_t h = 0; h < KV_HEADS; ++h) {
            if (l == 1 && h == 1)
                continue;
            assert_true(mean_key_bits(plan, l, h) < best);
        }
    /* Channel 37 is 32 + 5. */
    assert_true(key_bits(plan, 1, 1, 37) > key_bits(plan, 1, 1, 6));
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    assert_int_equal(lk_plan_get_value(plan, 1, 1, &value), LK_OK);
    assert_true(value.bits <= best);
    const float *centers = NULL;
    assert_int_equal(lk_plan_get_key_centers(plan, 0, 0, &centers), LK_OK);
    assert_non_null(centers);
    assert_true(fabsf(centers[0] - 3) < 0.5f);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&calibrator);
}

static char *json_of(const lk_plan *plan) {
    size_t n = 0;
    assert_int_equal(lk_plan_to_json(plan, NULL, 0, &n), LK_OK);
    char *text = malloc(n);
    assert_non_null(text);
    assert_int_equal(lk_plan_to_json(plan, text, n, &n), LK_OK);
    return text;
}

static void equal_statistics_give_equal_plans(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_samples(1, 1);
    const struct bytes bytes = write_bytes(calibrator);
    lk_calibrator *again = NULL;
    assert_int_equal(lk_calibrator_from_bytes(bytes.data, bytes.n, &again), LK_OK);
    lk_plan *a = build(calibrator, 2.7, 0);
    lk_plan *b = build(again, 2.7, 0);
    char *x = json_of(a);
    char *y = json_of(b);
    assert_string_equal(x, y);
    free(x);
    free(y);
    free(bytes.data);
    lk_plan_destroy(&a);
    lk_plan_destroy(&b);
    lk_calibrator_destroy(&calibrator);
    lk_calibrator_destroy(&again);
}

static void expect(const lk_calibrator *calibrator, const lk_auto *options, lk_status want,
                   const char *part) {
    lk_plan *plan = (lk_plan *)&plan;
    assert_int_equal(lk_calibrator_auto(calibrator, options, &plan), want);
    assert_null(plan);
    if (!strstr(sentence(), part))
        fail_msg("\"%s\" has no \"%s\"", sentence(), part);
}

static void what_is_missing_is_refused(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_samples(1, 1);
    lk_auto options = options_of(0, 0);
    expect(calibrator, &options, LK_E_ARGUMENT, "bits_per_value and budget_bytes are 0");
    expect(calibrator, NULL, LK_E_ARGUMENT, "options is NULL");
    options = options_of(17, 0);
    expect(calibrator, &options, LK_E_ARGUMENT, "options.bits_per_value is 17");
    options = options_of(NAN, 0);
    expect(calibrator, &options, LK_E_ARGUMENT, "options.bits_per_value is");
    options = options_of(1, 0);
    expect(calibrator, &options, LK_E_BUDGET, "bits_per_value is 1, must be at least 1.1");
    options = options_of(0, 1024);
    expect(calibrator, &options, LK_E_BUDGET, "budget_bytes is 1024");
    options = options_of(3, 0);
    options.centers = 2;
    expect(calibrator, &options, LK_E_ARGUMENT, "options.centers is 2");
    options = options_of(0, 1 << 20);
    options.budget_tokens = 0;
    expect(calibrator, &options, LK_E_ARGUMENT, "options.budget_bytes");
    lk_calibrator_destroy(&calibrator);
    options = options_of(3, 0);
    calibrator = make_samples(0, 1);
    expect(calibrator, &options, LK_E_STATE, "layer 0 has had no queries");
    lk_calibrator_destroy(&calibrator);
    calibrator = make_samples(1, 0);
    expect(calibrator, &options, LK_E_STATE, "layer 0 has had no probe");
    lk_calibrator_destroy(&calibrator);
}

/* A head that attention does not show gets the bits when it is said to cost most; costs are a
 * matter of ratios, and without those of all layers there are none. */
static void costs_say_where_bits_go(void **state) {
    (void)state;
    const double flat[2 * KV_HEADS] = {1, 0, 1, 0};
    const double first[2 * KV_HEADS] = {1000, 0, 1, 0};
    double seen[2 * KV_HEADS];
    lk_calibrator *calibrator = make_samples(1, 1);
    lk_plan *before = build(calibrator, 2.6, 0);
    assert_int_equal(lk_calibrator_get_costs(calibrator, 0, seen), LK_E_STATE);
    assert_int_equal(lk_calibrator_set_costs(calibrator, 0, first), LK_OK);
    lk_plan *half = build(calibrator, 2.6, 0);
    char *x = json_of(before);
    char *y = json_of(half);
    assert_string_equal(x, y);
    free(x);
    free(y);
    assert_int_equal(lk_calibrator_set_costs(calibrator, 1, flat), LK_OK);
    lk_plan *plan = build(calibrator, 2.6, 0);
    assert_true(mean_key_bits(plan, 0, 0) > mean_key_bits(before, 0, 0));
    for (uint32_t i = 1; i < LAYERS * KV_HEADS; ++i)
        assert_true(mean_key_bits(plan, i / KV_HEADS, i % KV_HEADS) < mean_key_bits(plan, 0, 0));
    const struct bytes bytes = write_bytes(calibrator);
    lk_calibrator *again = NULL;
    assert_int_equal(lk_calibrator_from_bytes(bytes.data, bytes.n, &again), LK_OK);
    assert_int_equal(lk_calibrator_get_costs(again, 0, seen), LK_OK);
    assert_memory_equal(seen, first, sizeof seen);
    for (uint32_t l = 0; l < LAYERS; ++l) {
        assert_int_equal(lk_calibrator_get_costs(again, l, seen), LK_OK);
        for (uint32_t i = 0; i < 2 * KV_HEADS; ++i)
            seen[i] *= 64;
        assert_int_equal(lk_calibrator_set_costs(again, l, seen), LK_OK);
    }
    lk_plan *scaled = build(again, 2.6, 0);
    x = json_of(plan);
    y = json_of(scaled);
    assert_string_equal(x, y);
    free(x);
    free(y);
    free(bytes.data);
    lk_plan_destroy(&before);
    lk_plan_destroy(&half);
    lk_plan_destroy(&plan);
    lk_plan_destroy(&scaled);
    lk_calibrator_destroy(&again);
    lk_calibrator_destroy(&calibrator);
}

/* Clips of keys and of values of a head as lk_calibrator_auto() chose them. */
static void expect_clips(const lk_plan *plan, uint32_t layer, uint32_t head, float key_clip,
                         float value_clip) {
    lk_key_rule key;
    lk_value_rule value;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    assert_int_equal(lk_plan_get_key(plan, layer, head, &key), LK_OK);
    assert_int_equal(lk_plan_get_value(plan, layer, head, &value), LK_OK);
    if (key.clip != key_clip || value.clip != value_clip)
        fail_msg("layer %u, KV head %u: clips %g and %g", layer, head, (double)key.clip,
                 (double)value.clip);
}

/* Each half gets the clip of the least cost, the whole range when none is less; without costs of
 * whole ranges, or clip costs of all layers, there are no clips. */
static void each_half_gets_the_clip_that_costs_least(void **state) {
    (void)state;
    const double whole[2 * KV_HEADS] = {1, 1, 1, 0};
    const double clipped[2 * KV_HEADS * LK_COST_CLIPS] = {0.5, 0.75, 2, 0.25, 1, 1, 0, 0};
    double seen[2 * KV_HEADS * LK_COST_CLIPS];
    lk_calibrator *calibrator = make_samples(1, 1);
    assert_int_equal(lk_calibrator_get_clip_costs(calibrator, 0, seen), LK_E_STATE);
    for (uint32_t l = 0; l < LAYERS; ++l)
        assert_int_equal(lk_calibrator_set_clip_costs(calibrator, l, clipped), LK_OK);
    lk_plan *plan = build(calibrator, 2.25, 0);
    expect_clips(plan, 0, 0, 1, 1);
    lk_plan_destroy(&plan);
    for (uint32_t l = 0; l < LAYERS; ++l)
        assert_int_equal(lk_calibrator_set_costs(calibrator, l, whole), LK_OK);
    const struct bytes bytes = write_bytes(calibrator);
    lk_calibrator *again = NULL;
    assert_int_equal(lk_calibrator_from_bytes(bytes.data, bytes.n, &again), LK_OK);
    assert_int_equal(lk_calibrator_get_clip_costs(again, 1, seen), LK_OK);
    assert_memory_equal(seen, clipped, sizeof seen);
    plan = build(again, 2.25, 0);
    for (uint32_t l = 0; l < LAYERS; ++l) {
        expect_clips(plan, l, 0, 0.85f, 0.7f);
        expect_clips(plan, l, 1, 1, 1);
    }
    free(bytes.data);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&again);
    lk_calibrator_destroy(&calibrator);
}

static uint32_t value_bits(const lk_plan *plan, uint32_t layer, uint32_t head) {
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    assert_int_equal(lk_plan_get_value(plan, layer, head, &value), LK_OK);
    return value.bits;
}

/* Decode reads no plane of 3 bits as it lies. */
static void widths_are_those_that_decode_reads(void **state) {
    (void)state;
    const double limits[] = {2.25, 2.75, 3.5, 5};
    lk_calibrator *calibrator = make_samples(1, 1);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; ++i) {
        lk_plan *plan = build(calibrator, limits[i], 0);
        for (uint32_t l = 0; l < LAYERS; ++l)
            for (uint32_t h = 0; h < KV_HEADS; ++h) {
                const uint32_t bits_of_values = value_bits(plan, l, h);
                uint32_t ones = 0, threes = 0;
                assert_true(bits_of_values != 1 && bits_of_values != 3);
                for (uint32_t c = 0; c < D; ++c) {
                    const uint32_t bits = key_bits(plan, l, h, c);
                    ones += bits == 1;
                    threes += bits == 3;
                }
                assert_int_equal(ones, threes);
            }
        lk_plan_destroy(&plan);
    }
    lk_calibrator_destroy(&calibrator);
}

/* Values of a head that is said to cost nothing have 1 bit, of one that costs much never; without
 * costs none do (above). */
static void values_that_cost_nothing_have_one_bit(void **state) {
    (void)state;
    const double costs[2 * KV_HEADS] = {1, 0, 1, 100};
    lk_calibrator *calibrator = make_samples(1, 1);
    for (uint32_t l = 0; l < LAYERS; ++l)
        assert_int_equal(lk_calibrator_set_costs(calibrator, l, costs), LK_OK);
    for (double bits = 2; bits < 2.6; bits += 0.25) {
        lk_plan *plan = build(calibrator, bits, 0);
        assert_true(size_of(plan).bits_per_value <= bits);
        for (uint32_t l = 0; l < LAYERS; ++l) {
            assert_int_equal(value_bits(plan, l, 0), 1);
            assert_true(value_bits(plan, l, 1) >= 2);
        }
        lk_plan_destroy(&plan);
    }
    lk_plan *plan = build(calibrator, 8, 0);
    for (uint32_t i = 0; i < LAYERS * KV_HEADS; ++i)
        assert_true(value_bits(plan, i / KV_HEADS, i % KV_HEADS) > 2);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&calibrator);
}

/* Channels of a head's keys at 1 bit that are not half of a pair with 3 bits. */
static uint32_t lone_ones(const lk_plan *plan, uint32_t layer, uint32_t head) {
    uint32_t ones = 0, threes = 0;
    for (uint32_t c = 0; c < D; ++c) {
        ones += key_bits(plan, layer, head, c) == 1;
        threes += key_bits(plan, layer, head, c) == 3;
    }
    return ones - threes;
}

/* A limit below 2 bits for all brings 1 bit for values without costs and for strips of keys; the
 * first do not need the second. */
static void a_limit_below_two_bits_brings_one_bit(void **state) {
    (void)state;
    const double costs[2 * KV_HEADS] = {1, 0.1, 100, 10};
    for (int has_costs = 0; has_costs <= 1; ++has_costs) {
        lk_calibrator *calibrator = make_samples(1, 1);
        for (uint32_t l = 0; has_costs && l < LAYERS; ++l)
            assert_int_equal(lk_calibrator_set_costs(calibrator, l, costs), LK_OK);
        double last = 0;
        uint32_t most = UINT32_MAX;
        for (double bits = 1.25; bits < 2.5; bits += 0.25) {
            lk_plan *plan = build(calibrator, bits, 0);
            const double own = size_of(plan).bits_per_value;
            assert_true(own <= bits && own > bits - 0.25 && own > last);
            last = own;
            uint32_t ones = 0;
            for (uint32_t i = 0; i < LAYERS * KV_HEADS; ++i) {
                const uint32_t n = lone_ones(plan, i / KV_HEADS, i % KV_HEADS);
                assert_int_equal(n % 16, 0);
                assert_true(bits < 2.1 || n == 0);
                ones += n;
            }
            assert_true(ones <= most && (bits > 1.3 || ones >= LAYERS * KV_HEADS * D / 2));
            most = ones;
            lk_plan_destroy(&plan);
        }
        lk_calibrator_destroy(&calibrator);
    }
}

static void costs_that_are_none_are_refused(void **state) {
    (void)state;
    lk_calibrator *calibrator = make_samples(1, 1);
    double costs[2 * KV_HEADS] = {1, 2, 3, 4};
    assert_int_equal(lk_calibrator_set_costs(NULL, 0, costs), LK_E_ARGUMENT);
    assert_int_equal(lk_calibrator_set_costs(calibrator, 0, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_calibrator_get_costs(calibrator, 0, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_calibrator_set_costs(calibrator, LAYERS, costs), LK_E_NOT_FOUND);
    assert_int_equal(lk_calibrator_get_costs(calibrator, LAYERS, costs), LK_E_NOT_FOUND);
    assert_int_equal(lk_calibrator_set_costs(calibrator, 0, costs), LK_OK);
    const double wrong[] = {-1, NAN, INFINITY, 2e15};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        double bad[2 * KV_HEADS] = {5, 5, 5, wrong[i]};
        assert_int_equal(lk_calibrator_set_costs(calibrator, 0, bad), LK_E_DATA);
        assert_non_null(strstr(sentence(), "layer 0, KV head 1: the cost of values"));
    }
    double seen[2 * KV_HEADS];
    assert_int_equal(lk_calibrator_get_costs(calibrator, 0, seen), LK_OK);
    assert_memory_equal(seen, costs, sizeof seen);
    double clipped[2 * KV_HEADS * LK_COST_CLIPS] = {0, 0, 0, 0, 0, 0, 0, -1};
    assert_int_equal(lk_calibrator_set_clip_costs(NULL, 0, clipped), LK_E_ARGUMENT);
    assert_int_equal(lk_calibrator_set_clip_costs(calibrator, 0, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_calibrator_set_clip_costs(calibrator, LAYERS, clipped), LK_E_NOT_FOUND);
    assert_int_equal(lk_calibrator_set_clip_costs(calibrator, 0, clipped), LK_E_DATA);
    assert_non_null(strstr(sentence(), "layer 0, KV head 1: the cost of values"));
    assert_int_equal(lk_calibrator_get_clip_costs(calibrator, 0, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_calibrator_get_clip_costs(calibrator, 0, clipped), LK_E_STATE);
    lk_calibrator_destroy(&calibrator);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_limit_of_bits_is_kept_and_used),
        cmocka_unit_test(a_byte_budget_is_kept_and_used),
        cmocka_unit_test(what_a_plan_takes_is_a_budget),
        cmocka_unit_test(bits_go_where_errors_matter),
        cmocka_unit_test(equal_statistics_give_equal_plans),
        cmocka_unit_test(what_is_missing_is_refused),
        cmocka_unit_test(costs_say_where_bits_go),
        cmocka_unit_test(each_half_gets_the_clip_that_costs_least),
        cmocka_unit_test(widths_are_those_that_decode_reads),
        cmocka_unit_test(values_that_cost_nothing_have_one_bit),
        cmocka_unit_test(a_limit_below_two_bits_brings_one_bit),
        cmocka_unit_test(costs_that_are_none_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
