/* Rules, centers, key scales, rotations and ladders: what is read back, the widths that follow,
 * every documented error.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "plan_test.h"

static void rules_are_read_back(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 3, 4, 2, 64);
    lk_plan *plan = make_plan("fp16", &m);
    uint8_t classes[64];
    memset(classes, 2, sizeof classes);
    classes[5] = 3;
    classes[9] = 1;
    lk_key_rule rule = key_rule(2);
    rule.channel_bits = classes;
    rule.one_bit = LK_ONE_BIT_RANGE;
    assert_int_equal(lk_plan_set_key(plan, 1, 2, &rule), LK_OK);
    classes[5] = 2; /* copied */
    lk_key_rule boost = key_rule(2);
    boost.boost_channels = 10;
    boost.boost_bits = 8;
    boost.boost_ranking = LK_RANKING_QUERY_RANGE;
    boost.group = 32;
    boost.clip = 0.7f;
    assert_int_equal(lk_plan_set_key(plan, 2, LK_ALL, &boost), LK_OK);
    lk_value_rule value = value_rule(4);
    value.group = 48;
    value.one_bit = LK_ONE_BIT_RANGE;
    value.clip = 0.55f;
    assert_int_equal(lk_plan_set_value(plan, LK_ALL, 3, &value), LK_OK);

    lk_key_rule got = key_rule(16);
    assert_int_equal(lk_plan_get_key(plan, 1, 2, &got), LK_OK);
    assert_non_null(got.channel_bits);
    assert_int_equal(got.channel_bits[5], 3);
    assert_int_equal(got.channel_bits[9], 1);
    assert_int_equal(got.one_bit, LK_ONE_BIT_RANGE);
    /* The plan's own bytes may be given back to it. */
    assert_int_equal(lk_plan_set_key(plan, LK_ALL, LK_ALL, &got), LK_OK);
    assert_int_equal(lk_plan_get_key(plan, 0, 0, &got), LK_OK);
    assert_int_equal(got.channel_bits[5], 3);
    assert_int_equal(lk_plan_set_key(plan, 2, LK_ALL, &boost), LK_OK);
    assert_int_equal(lk_plan_get_key(plan, 2, 3, &got), LK_OK);
    assert_null(got.channel_bits);
    assert_int_equal(got.boost_channels, 10);
    assert_int_equal(got.boost_bits, 8);
    assert_int_equal(got.boost_ranking, LK_RANKING_QUERY_RANGE);
    assert_int_equal(got.group, 32);
    assert_int_equal(got.one_bit, LK_ONE_BIT_DEVIATION);
    assert_true(got.clip == 0.7f);
    lk_value_rule got_value = value_rule(16);
    assert_int_equal(lk_plan_get_value(plan, 0, 3, &got_value), LK_OK);
    assert_int_equal(got_value.bits, 4);
    assert_int_equal(got_value.group, 48);
    assert_int_equal(got_value.one_bit, LK_ONE_BIT_RANGE);
    assert_true(got_value.clip == 0.55f);
    assert_int_equal(lk_plan_get_value(plan, 0, 2, &got_value), LK_OK);
    assert_int_equal(got_value.bits, 16);
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);

    lk_plan *copy = NULL;
    assert_int_equal(lk_plan_copy(plan, &copy), LK_OK);
    char *a = write_json(plan);
    char *b = write_json(copy);
    assert_string_equal(a, b);
    free(a);
    free(b);
    lk_plan_destroy(&plan);
    assert_null(plan);
    lk_plan_destroy(&plan);
    lk_plan_destroy(NULL);
    lk_plan_destroy(&copy);
}

static void centers_are_kept_beside_rules(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 3, 4, 2, 64);
    m.layers[2].head_dim = 80;
    lk_plan *plan = make_plan("kivi2", &m);
    float centers[80];
    for (uint32_t c = 0; c < 80; ++c)
        centers[c] = (float)c - 40.5f;
    centers[3] = -0.0f;
    centers[4] = 0x1p-25f; /* below FP16 */
    centers[5] = -65504.0f;
    assert_int_equal(lk_plan_set_key_centers(plan, 1, LK_ALL, centers), LK_OK);
    const float *found = NULL;
    assert_int_equal(lk_plan_get_key_centers(plan, 1, 3, &found), LK_OK);
    assert_non_null(found);
    const float zero = 0;
    assert_memory_equal(&found[3], &zero, sizeof zero);
    assert_memory_equal(&found[4], &zero, sizeof zero);
    assert_true(found[5] == -65504.0f);
    assert_memory_equal(found + 6, centers + 6, 58 * sizeof *centers);
    assert_int_equal(lk_plan_set_key_centers(plan, 0, 0, found), LK_OK); /* the plan's own */
    lk_key_rule rule = key_rule(4);
    assert_int_equal(lk_plan_set_key(plan, LK_ALL, LK_ALL, &rule), LK_OK);
    assert_int_equal(lk_plan_get_key_centers(plan, 0, 0, &found), LK_OK);
    assert_true(found && found[7] == centers[7]);
    assert_int_equal(lk_plan_get_key_centers(plan, 0, 1, &found), LK_OK);
    assert_null(found);
    assert_int_equal(lk_plan_set_key_centers(plan, 1, 2, NULL), LK_OK);
    assert_int_equal(lk_plan_get_key_centers(plan, 1, 2, &found), LK_OK);
    assert_null(found);
    lk_plan *copy = NULL;
    assert_int_equal(lk_plan_copy(plan, &copy), LK_OK);
    assert_int_equal(lk_plan_get_key_centers(copy, 1, 3, &found), LK_OK);
    assert_true(found && found[7] == centers[7]);
    lk_plan_destroy(&copy);

    expect_failure(lk_plan_set_key_centers(plan, LK_ALL, 0, centers), LK_E_ARGUMENT,
                   "centers is set for layers of head_dim 64 and 80 at once");
    centers[63] = 65505.0f;
    expect_failure(lk_plan_set_key_centers(plan, 0, 0, centers), LK_E_ARGUMENT,
                   "centers[63] is 65505, must be from -65504 to 65504");
    centers[63] = NAN;
    expect_failure(lk_plan_set_key_centers(plan, 0, 0, centers), LK_E_ARGUMENT, "centers[63] is");
    assert_int_equal(lk_plan_get_key_centers(plan, 0, 0, &found), LK_OK);
    assert_true(found && found[63] == 22.5f);
    expect_failure(lk_plan_set_key_centers(plan, 3, 0, centers), LK_E_NOT_FOUND, "layer is 3");
    expect_failure(lk_plan_set_key_centers(plan, 0, 4, NULL), LK_E_NOT_FOUND, "kv_head is 4");
    expect_failure(lk_plan_get_key_centers(plan, 0, 4, &found), LK_E_NOT_FOUND, "kv_head is 4");
    expect_failure(lk_plan_get_key_centers(plan, 0, 0, NULL), LK_E_ARGUMENT, "centers is NULL");
    expect_failure(lk_plan_set_key_centers(NULL, 0, 0, centers), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_get_key_centers(NULL, 0, 0, &found), LK_E_ARGUMENT, "plan is NULL");
    lk_plan_destroy(&plan);
}

static void scales_are_kept_beside_centers(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 3, 4, 2, 64);
    m.layers[2].head_dim = 80;
    lk_plan *plan = make_plan("pm-kvq", &m);
    float centers[80], scales[80];
    for (uint32_t c = 0; c < 80; ++c) {
        centers[c] = (float)c;
        scales[c] = 0.25f * (float)(c + 1);
    }
    scales[4] = 1e-4f;
    scales[5] = 1e4f;
    assert_int_equal(lk_plan_set_key_centers(plan, 1, 3, centers), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(plan, 1, LK_ALL, scales), LK_OK);
    const float *found = NULL;
    assert_int_equal(lk_plan_get_key_scales(plan, 1, 3, &found), LK_OK);
    assert_non_null(found);
    assert_memory_equal(found, scales, 64 * sizeof *scales);
    assert_int_equal(lk_plan_get_key_centers(plan, 1, 3, &found), LK_OK);
    assert_memory_equal(found, centers, 64 * sizeof *centers);
    assert_int_equal(lk_plan_set_key_scales(plan, 0, 0, scales), LK_OK);
    lk_key_rule rule = key_rule(4);
    assert_int_equal(lk_plan_set_key(plan, LK_ALL, LK_ALL, &rule), LK_OK);
    lk_plan *copy = NULL;
    assert_int_equal(lk_plan_copy(plan, &copy), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(plan, 0, 0, NULL), LK_OK);
    assert_int_equal(lk_plan_get_key_scales(plan, 0, 0, &found), LK_OK);
    assert_null(found);
    assert_int_equal(lk_plan_get_key_scales(copy, 0, 0, &found), LK_OK);
    assert_true(found && found[7] == scales[7]);
    assert_int_equal(lk_plan_get_key_scales(copy, 0, 1, &found), LK_OK);
    assert_null(found);
    lk_plan_destroy(&copy);

    expect_failure(lk_plan_set_key_scales(plan, LK_ALL, 0, scales), LK_E_ARGUMENT,
                   "scales is set for layers of head_dim 64 and 80 at once");
    const float refused[] = {0.0f, -1.0f, 0.99e-4f, 1.01e4f, INFINITY, NAN};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        scales[63] = refused[i];
        expect_failure(lk_plan_set_key_scales(plan, 0, 0, scales), LK_E_ARGUMENT, "scales[63] is");
        expect_failure(lk_plan_set_key_scales(plan, 0, 0, scales), LK_E_ARGUMENT,
                       "must be from 0.0001 to 10000");
    }
    assert_int_equal(lk_plan_get_key_scales(plan, 1, 0, &found), LK_OK);
    assert_true(found && found[63] == 16.0f);
    expect_failure(lk_plan_set_key_scales(plan, 3, 0, scales), LK_E_NOT_FOUND, "layer is 3");
    expect_failure(lk_plan_set_key_scales(plan, 0, 4, NULL), LK_E_NOT_FOUND, "kv_head is 4");
    expect_failure(lk_plan_get_key_scales(plan, 0, 4, &found), LK_E_NOT_FOUND, "kv_head is 4");
    expect_failure(lk_plan_get_key_scales(plan, 0, 0, NULL), LK_E_ARGUMENT, "scales is NULL");
    expect_failure(lk_plan_set_key_scales(NULL, 0, 0, scales), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_get_key_scales(NULL, 0, 0, &found), LK_E_ARGUMENT, "plan is NULL");
    lk_plan_destroy(&plan);
}

static lk_rotation rotation_of(const lk_plan *plan, uint32_t layer) {
    lk_rotation rotation = 7;
    assert_int_equal(lk_plan_get_key_rotation(plan, layer, &rotation), LK_OK);
    return rotation;
}

static void rotations_are_a_layer_s(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 3, 4, 2, 64);
    m.layers[2].head_dim = 80;
    lk_plan *plan = make_plan("kivi2", &m);
    char *before = write_json(plan);
    assert_null(strstr(before, "rotation"));
    const lk_plan_size size = plan_size(plan, 5000, 2, 100);
    assert_int_equal(rotation_of(plan, 1), LK_ROTATION_NONE);
    assert_int_equal(lk_plan_set_key_rotation(plan, 1, LK_ROTATION_HADAMARD), LK_OK);
    assert_int_equal(rotation_of(plan, 0), LK_ROTATION_NONE);
    assert_int_equal(rotation_of(plan, 1), LK_ROTATION_HADAMARD);
    lk_key_rule rule = key_rule(2);
    rule.axis = LK_AXIS_TOKEN;
    assert_int_equal(lk_plan_set_key(plan, 1, LK_ALL, &rule), LK_OK);
    assert_int_equal(rotation_of(plan, 1), LK_ROTATION_HADAMARD);
    lk_plan *copy = NULL;
    assert_int_equal(lk_plan_copy(plan, &copy), LK_OK);
    assert_int_equal(lk_plan_set_key_rotation(plan, 1, LK_ROTATION_NONE), LK_OK);
    assert_int_equal(rotation_of(plan, 1), LK_ROTATION_NONE);
    assert_int_equal(rotation_of(copy, 1), LK_ROTATION_HADAMARD);
    assert_int_equal(lk_plan_validate(copy, &m.geometry), LK_OK);
    lk_plan_destroy(&copy);
    rule = key_rule(2);
    assert_int_equal(lk_plan_set_key(plan, 1, LK_ALL, &rule), LK_OK);
    /* Any head dims at once, keys that stay at 16 bits too; bytes are as before. */
    assert_int_equal(lk_plan_set_key_rotation(plan, LK_ALL, LK_ROTATION_HADAMARD), LK_OK);
    for (uint32_t l = 0; l < 3; ++l)
        assert_int_equal(rotation_of(plan, l), LK_ROTATION_HADAMARD);
    const lk_plan_size rotated = plan_size(plan, 5000, 2, 100);
    assert_memory_equal(&size, &rotated, sizeof size);
    rule.bits = 16;
    assert_int_equal(lk_plan_set_key(plan, 0, LK_ALL, &rule), LK_OK);
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);

    expect_failure(lk_plan_set_key_rotation(plan, 0, 2), LK_E_ARGUMENT,
                   "rotation is 2, must be 0 (none) or 1 (Hadamard)");
    expect_failure(lk_plan_set_key_rotation(plan, 3, 0), LK_E_NOT_FOUND, "layer is 3");
    expect_failure(lk_plan_set_key_rotation(NULL, 0, 0), LK_E_ARGUMENT, "plan is NULL");
    lk_rotation found;
    expect_failure(lk_plan_get_key_rotation(plan, 3, &found), LK_E_NOT_FOUND, "layer is 3");
    expect_failure(lk_plan_get_key_rotation(plan, LK_ALL, &found), LK_E_NOT_FOUND, "layer is");
    expect_failure(lk_plan_get_key_rotation(plan, 0, NULL), LK_E_ARGUMENT, "rotation is NULL");
    expect_failure(lk_plan_get_key_rotation(NULL, 0, &found), LK_E_ARGUMENT, "plan is NULL");
    assert_int_equal(rotation_of(plan, 0), LK_ROTATION_HADAMARD);
    free(before);
    lk_plan_destroy(&plan);
}

static void expect_bad_key(lk_plan *plan, lk_key_rule rule, const char *part) {
    expect_failure(lk_plan_set_key(plan, 0, 0, &rule), LK_E_ARGUMENT, part);
}

static void bad_rules_are_refused(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 2, 1, 64);
    lk_plan *plan = make_plan("kitty", &m);
    char *before = write_json(plan);
    expect_bad_key(plan, key_rule(5), "rule.bits is 5, must be one of 1, 2, 3, 4, 8, 16");
    expect_bad_key(plan, key_rule(258), "rule.bits is 258");
    lk_key_rule rule = key_rule(2);
    rule.axis = 3;
    expect_bad_key(plan, rule, "rule.axis is 3");
    const uint32_t groups[] = {8, 24, 48, 256, 65552};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; ++i) {
        rule = key_rule(2);
        rule.group = groups[i];
        expect_bad_key(plan, rule, "rule.group is");
    }
    rule.axis = LK_AXIS_TOKEN;
    rule.group = 40;
    expect_bad_key(plan, rule, "rule.group is 40");
    rule = key_rule(2);
    rule.boost_bits = 4;
    expect_bad_key(plan, rule, "rule.boost_bits is 4");
    rule.boost_bits = 0;
    rule.boost_ranking = 1;
    expect_bad_key(plan, rule, "rule.boost_ranking is 1");
    rule.boost_channels = 16;
    expect_bad_key(plan, rule, "rule.boost_bits is 0");
    rule.boost_bits = 2;
    expect_bad_key(plan, rule, "must be above the 2 bits");
    rule.boost_bits = 4;
    rule.boost_ranking = 3;
    expect_bad_key(plan, rule, "rule.boost_ranking is 3");
    rule.boost_ranking = 1;
    rule.boost_channels = 65552;
    expect_bad_key(plan, rule, "rule.boost_channels is 65552");
    rule.boost_channels = 16;
    uint8_t classes[64];
    memset(classes, 2, sizeof classes);
    rule.channel_bits = classes;
    expect_bad_key(plan, rule, "rule.boost_channels is 16");
    rule = key_rule(2);
    rule.channel_bits = classes;
    classes[63] = 6;
    expect_bad_key(plan, rule, "rule.channel_bits[63] is 6");
    rule = key_rule(1);
    rule.one_bit = 3;
    expect_bad_key(plan, rule, "rule.one_bit is 3, must be 1 (deviation) or 2 (range)");
    lk_value_rule one_bit_value = value_rule(1);
    one_bit_value.one_bit = 0;
    expect_failure(lk_plan_set_value(plan, 0, 0, &one_bit_value), LK_E_ARGUMENT,
                   "rule.one_bit is 0");
    rule.one_bit = LK_ONE_BIT_DEVIATION;
    const float bad_clips[] = {0, -0.5f, 1.0000001f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad_clips / sizeof *bad_clips; ++i) {
        rule.clip = bad_clips[i];
        expect_bad_key(plan, rule, "must be above 0 and at most 1");
        lk_value_rule clipped_value = value_rule(2);
        clipped_value.clip = bad_clips[i];
        expect_failure(lk_plan_set_value(plan, 0, 0, &clipped_value), LK_E_ARGUMENT,
                       "rule.clip is");
    }
    rule.clip = 1;
    rule.size = 8;
    expect_bad_key(plan, rule, "rule.size is 8");
    expect_failure(lk_plan_set_key(plan, 0, 0, NULL), LK_E_ARGUMENT, "rule is NULL");

    lk_value_rule value = value_rule(6);
    expect_failure(lk_plan_set_value(plan, 0, 0, &value), LK_E_ARGUMENT, "rule.bits is 6");
    value = value_rule(2);
    value.group = 8;
    expect_failure(lk_plan_set_value(plan, 0, 0, &value), LK_E_ARGUMENT, "rule.group is 8");
    expect_failure(lk_plan_set_value(plan, 0, 0, NULL), LK_E_ARGUMENT, "rule is NULL");
    expect_failure(lk_plan_set_metadata(plan, 0, 3), LK_E_ARGUMENT, "metadata is 3");
    char *after = write_json(plan);
    assert_string_equal(before, after);
    free(before);
    free(after);
    lk_plan_destroy(&plan);
}

static void expect_width(const lk_plan *plan, uint32_t is_value, uint32_t channel, uint32_t bits,
                         uint32_t boost_bits) {
    uint32_t got = 0, got_boost = 0;
    assert_int_equal(
        lk_plan_width(plan, 0, 0, is_value, channel, 0, LK_CHUNK_NONE, &got, &got_boost), LK_OK);
    assert_int_equal(got, bits);
    assert_int_equal(got_boost, boost_bits);
}

static void widths_follow_rung_and_class(void **state) {
    (void)state;
    const uint8_t rungs[] = {16, 8, 4, 2};
    const uint8_t widths[] = {1, 2, 3, 4, 8, 16};
    const uint8_t expected[4][6] = {
        {16, 16, 16, 16, 16, 16}, {1, 2, 3, 4, 8, 8}, {1, 2, 3, 4, 4, 4}, {1, 2, 3, 2, 2, 2}};
    struct model m;
    make_model(&m, 1, 1, 1, 96);
    lk_plan *plan = make_plan("fp16", &m);
    uint8_t classes[96];
    for (uint32_t c = 0; c < 96; ++c)
        classes[c] = widths[c / 16];
    lk_key_rule rule = key_rule(2);
    rule.channel_bits = classes;
    assert_int_equal(lk_plan_set_key(plan, 0, 0, &rule), LK_OK);
    for (uint32_t c = 0; c < 96; ++c)
        expect_width(plan, 0, c, classes[c], classes[c]);
    for (uint32_t r = 0; r < 4; ++r) {
        assert_int_equal(lk_plan_set_ladder(plan, 0, rungs, 4, rungs[r]), LK_OK);
        for (uint32_t c = 0; c < 96; ++c)
            expect_width(plan, 0, c, expected[r][c / 16], expected[r][c / 16]);
        expect_width(plan, 1, 0, rungs[r], rungs[r]);
    }
    rule = key_rule(2);
    rule.boost_channels = 16;
    rule.boost_bits = 8;
    rule.boost_ranking = LK_RANKING_KEY;
    const uint32_t boosted[] = {16, 8, 4, 2};
    const uint32_t ordinary[] = {16, 2, 2, 2};
    assert_int_equal(lk_plan_set_key(plan, 0, 0, &rule), LK_OK);
    for (uint32_t r = 0; r < 4; ++r) {
        assert_int_equal(lk_plan_set_ladder(plan, 0, rungs, 4, rungs[r]), LK_OK);
        expect_width(plan, 0, 7, ordinary[r], boosted[r]);
    }
    rule.bits = 3;
    rule.boost_bits = 4;
    assert_int_equal(lk_plan_set_key(plan, 0, 0, &rule), LK_OK);
    expect_width(plan, 0, 7, 3, 3);
    lk_plan_destroy(&plan);
}

static void ladders_are_checked(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("kivi2", &m);
    const uint8_t rising[] = {4, 8};
    const uint8_t twice[] = {8, 8};
    const uint8_t three[] = {8, 3};
    const uint8_t five[] = {16, 8, 4, 2, 2};
    const uint8_t good[] = {8, 4};
    expect_failure(lk_plan_set_ladder(plan, 0, rising, 2, 4), LK_E_ARGUMENT, "rungs[1] is 8");
    expect_failure(lk_plan_set_ladder(plan, 0, twice, 2, 8), LK_E_ARGUMENT, "rungs[1] is 8");
    expect_failure(lk_plan_set_ladder(plan, 0, three, 2, 8), LK_E_ARGUMENT, "rungs[1] is 3");
    expect_failure(lk_plan_set_ladder(plan, 0, five, 5, 8), LK_E_ARGUMENT, "n_rungs is 5");
    expect_failure(lk_plan_set_ladder(plan, 0, good, 2, 16), LK_E_ARGUMENT, "rung is 16");
    expect_failure(lk_plan_set_ladder(plan, 0, NULL, 0, 4), LK_E_ARGUMENT, "rung is 4");
    assert_int_equal(lk_plan_set_ladder(plan, LK_ALL, good, 2, 8), LK_OK);
    expect_failure(lk_plan_set_shrink_order(plan, 0, 65536), LK_E_ARGUMENT, "order is 65536");
    assert_int_equal(lk_plan_set_shrink_order(plan, 9, 1), LK_E_NOT_FOUND);
    assert_int_equal(lk_plan_set_shrink_order(plan, 0, 65535), LK_OK);
    uint8_t rungs[4];
    uint32_t n_rungs, rung, order;
    assert_int_equal(lk_plan_get_ladder(plan, 0, rungs, &n_rungs, &rung, &order), LK_OK);
    assert_int_equal(n_rungs, 2);
    assert_int_equal(rungs[0], good[0]);
    assert_int_equal(rung, 8);
    assert_int_equal(order, 65535);
    assert_int_equal(lk_plan_get_ladder(plan, 99, rungs, NULL, NULL, NULL), LK_E_NOT_FOUND);
    assert_int_equal(lk_plan_set_ladder(plan, LK_ALL, NULL, 0, 0), LK_OK);
    lk_plan_destroy(&plan);
}

static uint64_t budget_of(const lk_plan *plan, uint32_t layer) {
    uint64_t budget = 1;
    assert_int_equal(lk_plan_get_layer_budget(plan, layer, &budget), LK_OK);
    return budget;
}

static void layer_budgets_belong_to_ladders(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 3, 1, 1, 64);
    lk_plan *plan = make_plan("kivi2", &m);
    const uint8_t rungs[] = {8, 4};
    expect_failure(lk_plan_set_layer_budget(plan, 0, 5), LK_E_ARGUMENT, "layer 0 has no ladder");
    assert_int_equal(lk_plan_set_layer_budget(plan, LK_ALL, 5), LK_OK);
    assert_int_equal(budget_of(plan, 0), 0);
    assert_int_equal(lk_plan_set_ladder(plan, 1, rungs, 2, 8), LK_OK);
    assert_int_equal(lk_plan_set_layer_budget(plan, LK_ALL, 1ull << 53), LK_OK);
    assert_int_equal(budget_of(plan, 0), 0);
    assert_int_equal(budget_of(plan, 1), 1ull << 53);
    expect_failure(lk_plan_set_layer_budget(plan, 1, (1ull << 53) + 1), LK_E_ARGUMENT,
                   "budget_bytes is 9007199254740993, must be from 1 to 2^53");
    expect_failure(lk_plan_set_layer_budget(plan, 3, 1), LK_E_NOT_FOUND, "layer is 3");
    expect_failure(lk_plan_set_layer_budget(NULL, 0, 1), LK_E_ARGUMENT, "plan");
    expect_failure(lk_plan_get_layer_budget(plan, 1, NULL), LK_E_ARGUMENT, "budget_bytes");
    uint64_t unused;
    expect_failure(lk_plan_get_layer_budget(plan, 3, &unused), LK_E_NOT_FOUND, "layer is 3");
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
    lk_chunk_rule chunks;
    assert_int_equal(lk_chunk_rule_init(&chunks, sizeof chunks), LK_OK);
    assert_int_equal(lk_plan_set_chunks(plan, &chunks), LK_OK);
    expect_failure(lk_plan_validate(plan, NULL), LK_E_ARGUMENT,
                   "/layers/1/budget_bytes is 9007199254740992, must not be there with /chunks");
    chunks.chunk_tokens = 0;
    assert_int_equal(lk_plan_set_chunks(plan, &chunks), LK_OK);
    assert_int_equal(lk_plan_set_layer_budget(plan, 1, 0), LK_OK);
    assert_int_equal(budget_of(plan, 1), 0);
    assert_int_equal(lk_plan_set_layer_budget(plan, 1, 7), LK_OK);
    assert_int_equal(lk_plan_set_ladder(plan, 1, rungs, 2, 4), LK_OK);
    assert_int_equal(budget_of(plan, 1), 7);
    assert_int_equal(lk_plan_set_ladder(plan, 1, NULL, 0, 0), LK_OK);
    assert_int_equal(budget_of(plan, 1), 0);
    uint32_t rung;
    expect_failure(lk_plan_rung(plan, 1, 100, 1, 1, &rung), LK_E_ARGUMENT, "no ladder");
    expect_failure(lk_plan_rung(plan, 3, 100, 1, 1, &rung), LK_E_NOT_FOUND, "layer is 3");
    assert_int_equal(lk_plan_set_ladder(plan, 1, rungs, 2, 8), LK_OK);
    expect_failure(lk_plan_rung(plan, 1, 0, 1, 1, &rung), LK_E_ARGUMENT, "n_tokens is 0");
    expect_failure(lk_plan_rung(plan, 1, 1, 1, 1, NULL), LK_E_ARGUMENT, "rung");
    assert_int_equal(lk_plan_rung(plan, 1, UINT64_MAX, 1, 1, &rung), LK_E_ARGUMENT);
    assert_int_equal(lk_plan_rung(plan, 1, 100000, 1, 1, &rung), LK_OK);
    assert_int_equal(rung, 8);
    lk_plan_destroy(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_budgets_belong_to_ladders),
        cmocka_unit_test(rules_are_read_back),
        cmocka_unit_test(centers_are_kept_beside_rules),
        cmocka_unit_test(scales_are_kept_beside_centers),
        cmocka_unit_test(rotations_are_a_layer_s),
        cmocka_unit_test(bad_rules_are_refused),
        cmocka_unit_test(widths_follow_rung_and_class),
        cmocka_unit_test(ladders_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
