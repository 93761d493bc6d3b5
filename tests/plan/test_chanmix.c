/* ChanMix's own byte order: its published bytes, and the order of a plan's channels.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "plan_test.h"

/* A layout of up to four channels in the order of their numbers, by the kernels' rule. */
static lk_chanmix_layout hand_made(const uint8_t *bits, uint32_t n) {
    lk_chanmix_layout layout;
    assert_int_equal(lk_chanmix_layout_init(&layout, sizeof layout), LK_OK);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; ++i) {
        sum += bits[i];
        layout.channel[i] = (uint8_t)i;
        layout.bits[i] = bits[i];
        layout.byte[i] = (uint8_t)((sum - 1) / 8);
        layout.shift[i] = (uint8_t)((8 - sum % 8) % 8);
    }
    layout.head_dim = n;
    layout.token_bytes = sum / 8;
    return layout;
}

static void published_bytes_come_out(void **state) {
    (void)state;
    const struct {
        uint8_t bits[4], codes[4], byte;
        uint32_t n;
    } golden[] = {
        {{3, 1, 3, 1}, {5, 1, 2, 0}, 0xB4, 4},
        {{3, 2, 2, 1}, {5, 2, 1, 1}, 0xB3, 4},
        {{4, 4}, {9, 6}, 0x96, 2},
    };
    for (size_t i = 0; i < sizeof golden / sizeof *golden; ++i) {
        const lk_chanmix_layout layout = hand_made(golden[i].bits, golden[i].n);
        uint8_t bytes[2] = {0xEE, 0xEE};
        uint8_t codes[4];
        assert_int_equal(lk_chanmix_pack(&layout, golden[i].codes, 1, bytes), LK_OK);
        assert_int_equal(bytes[0], golden[i].byte);
        assert_int_equal(bytes[1], 0xEE);
        assert_int_equal(lk_chanmix_unpack(&layout, bytes, 1, codes), LK_OK);
        assert_memory_equal(codes, golden[i].codes, golden[i].n);
    }
}

/* Two 4-bit strips, 5 pairs and ordinary channels, in a head of 64. */
static lk_plan *mixed_plan(struct model *m, uint8_t *classes) {
    make_model(m, 2, 2, 1, 64);
    lk_plan *plan = make_plan("kivi2", m);
    memset(classes, 2, 64);
    memset(classes + 16, 4, 32);
    for (uint32_t i = 0; i < 5; ++i) {
        classes[3 * i] = 3;
        classes[63 - 2 * i] = 1;
    }
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    rule.bits = 2;
    rule.channel_bits = classes;
    assert_int_equal(lk_plan_set_key(plan, 1, 1, &rule), LK_OK);
    assert_int_equal(lk_plan_validate(plan, &m->geometry), LK_OK);
    return plan;
}

static void plans_have_an_order(void **state) {
    (void)state;
    struct model m;
    uint8_t classes[64];
    lk_plan *plan = mixed_plan(&m, classes);
    lk_chanmix_layout layout;
    assert_int_equal(lk_chanmix_layout_init(&layout, sizeof layout), LK_OK);
    assert_int_equal(lk_plan_chanmix_layout(plan, 1, 1, &layout), LK_OK);
    assert_int_equal(layout.head_dim, 64);
    assert_int_equal(layout.token_bytes, 16 + 8);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 64; ++i) {
        sum += layout.bits[i];
        assert_int_equal(layout.bits[i], classes[layout.channel[i]]);
        assert_int_equal(layout.byte[i], (sum - 1) / 8);
        assert_int_equal(layout.shift[i], (8 - sum % 8) % 8);
    }
    for (uint32_t i = 0; i < 5; ++i) { /* an outlier, then its partner, after the 4-bit ones */
        assert_int_equal(layout.channel[32 + 2 * i], 3 * i);
        assert_int_equal(layout.channel[33 + 2 * i], 55 + 2 * i);
    }
    enum { N = 7 };
    uint8_t codes[N * 64], again[N * 64], bytes[N * 24];
    for (uint32_t i = 0; i < N * 64; ++i)
        codes[i] = (uint8_t)(i * 37 % 16 & ((1u << classes[i % 64]) - 1));
    assert_int_equal(lk_chanmix_pack(&layout, codes, N, bytes), LK_OK);
    assert_int_equal(lk_chanmix_unpack(&layout, bytes, N, again), LK_OK);
    assert_memory_equal(again, codes, sizeof codes);
    /* A head without outliers takes as many bytes as a uniform one. */
    assert_int_equal(lk_plan_chanmix_layout(plan, 0, 0, &layout), LK_OK);
    assert_int_equal(layout.token_bytes, 16);
    lk_plan_destroy(&plan);
}

static void what_closes_no_bytes_is_refused(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_chanmix_layout layout;
    assert_int_equal(lk_chanmix_layout_init(&layout, sizeof layout), LK_OK);
    lk_plan *plan = make_plan("fp16", &m);
    expect_failure(lk_plan_chanmix_layout(plan, 0, 0, &layout), LK_E_ARGUMENT,
                   "channels at 16 bits");
    expect_failure(lk_plan_chanmix_layout(plan, 0, 1, &layout), LK_E_NOT_FOUND, "kv_head is 1");
    expect_failure(lk_plan_chanmix_layout(plan, 0, 0, NULL), LK_E_ARGUMENT, "out is NULL");
    expect_failure(lk_plan_chanmix_layout(NULL, 0, 0, &layout), LK_E_ARGUMENT, "plan is NULL");
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    rule.bits = 3;
    assert_int_equal(lk_plan_set_key(plan, 0, 0, &rule), LK_OK);
    expect_failure(lk_plan_chanmix_layout(plan, 0, 0, &layout), LK_E_ARGUMENT,
                   "64 channels of 3 bits and 0 of 1 bit");
    lk_plan_destroy(&plan);
    plan = make_plan("kitty", &m);
    expect_failure(lk_plan_chanmix_layout(plan, 0, 0, &layout), LK_E_ARGUMENT,
                   "channels that pages boost");
    lk_plan_destroy(&plan);
}

static void bad_layouts_and_codes_are_refused(void **state) {
    (void)state;
    const uint8_t bits[4] = {3, 1, 3, 1};
    const lk_chanmix_layout good = hand_made(bits, 4);
    const uint8_t codes[4] = {5, 2, 2, 0};
    uint8_t bytes[1] = {0xEE};
    uint8_t out[4];
    expect_failure(lk_chanmix_pack(&good, codes, 1, bytes), LK_E_ARGUMENT,
                   "the code of token 0, channel 1 is 2, beyond 1 bits");
    assert_int_equal(bytes[0], 0xEE);
    expect_failure(lk_chanmix_pack(&good, NULL, 1, bytes), LK_E_ARGUMENT, "codes is NULL");
    expect_failure(lk_chanmix_unpack(&good, bytes, 1, NULL), LK_E_ARGUMENT, "codes is NULL");
    expect_failure(lk_chanmix_unpack(NULL, bytes, 1, out), LK_E_ARGUMENT, "layout is NULL");
    lk_chanmix_layout bad = good;
    bad.channel[2] = 0;
    expect_failure(lk_chanmix_unpack(&bad, bytes, 1, out), LK_E_ARGUMENT, "no permutation");
    bad = good;
    bad.channel[2] = 4;
    expect_failure(lk_chanmix_unpack(&bad, bytes, 1, out), LK_E_ARGUMENT, "layout.channel[2] is 4");
    bad = good;
    bad.byte[3] = 1;
    expect_failure(lk_chanmix_unpack(&bad, bytes, 1, out), LK_E_ARGUMENT, "layout.byte[3] is 1");
    bad = good;
    bad.shift[0] = 6;
    expect_failure(lk_chanmix_unpack(&bad, bytes, 1, out), LK_E_ARGUMENT, "layout.bits[0] is 3");
    bad = good;
    bad.shift[1] = 5;
    expect_failure(lk_chanmix_unpack(&bad, bytes, 1, out), LK_E_ARGUMENT,
                   "layout.byte[1] is 0, whose bits have another code");
    bad = good;
    bad.bits[1] = 0;
    expect_failure(lk_chanmix_unpack(&bad, bytes, 1, out), LK_E_ARGUMENT, "layout.bits[1] is 0");
    bad = good;
    bad.head_dim = 257;
    expect_failure(lk_chanmix_unpack(&bad, bytes, 1, out), LK_E_ARGUMENT, "layout.head_dim is 257");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_bytes_come_out),
        cmocka_unit_test(plans_have_an_order),
        cmocka_unit_test(what_closes_no_bytes_is_refused),
        cmocka_unit_test(bad_layouts_and_codes_are_refused),
    };
    return cmocka_run_group_tests_name("chanmix", tests, NULL, NULL);
}
