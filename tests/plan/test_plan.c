/* Plans as a whole: initial state, pages, names and windows, validation, every documented error.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "plan_test.h"

static void init_functions_set_the_documented_state(void **state) {
    (void)state;
    lk_key_rule rule = key_rule(7);
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    assert_int_equal(rule.size, sizeof rule);
    assert_int_equal(rule.bits, 16);
    assert_int_equal(rule.axis, LK_AXIS_CHANNEL);
    assert_int_equal(rule.one_bit, LK_ONE_BIT_DEVIATION);
    assert_int_equal(value_rule(16).bits, 16);
    assert_int_equal(value_rule(16).one_bit, LK_ONE_BIT_DEVIATION);
    assert_true(rule.clip == 1 && value_rule(16).clip == 1);
    expect_failure(lk_key_rule_init(NULL, sizeof rule), LK_E_ARGUMENT, "NULL");
    expect_failure(lk_key_rule_init(&rule, sizeof rule - 1), LK_E_ARGUMENT, "smallest known");
    expect_failure(lk_value_rule_init(NULL, 64), LK_E_ARGUMENT, "NULL");
    expect_failure(lk_layer_init(NULL, 64), LK_E_ARGUMENT, "NULL");
    expect_failure(lk_geometry_init(NULL, 64), LK_E_ARGUMENT, "NULL");
    expect_failure(lk_plan_size_init(NULL, 128), LK_E_ARGUMENT, "NULL");
}

static void bad_preset_calls_are_refused(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 2, 2, 64);
    lk_plan *plan = (lk_plan *)&m;
    expect_failure(lk_plan_preset("kitten", &m.geometry, &plan), LK_E_NOT_FOUND, "\"kitten\"");
    assert_null(plan);
    expect_failure(lk_plan_preset(NULL, &m.geometry, &plan), LK_E_ARGUMENT, "name is NULL");
    expect_failure(lk_plan_preset("fp16", NULL, &plan), LK_E_ARGUMENT, "geometry is NULL");
    expect_failure(lk_plan_preset("fp16", &m.geometry, NULL), LK_E_ARGUMENT, "out is NULL");
    m.geometry.n_layers = 0;
    expect_failure(lk_plan_preset("fp16", &m.geometry, &plan), LK_E_ARGUMENT, "n_layers is 0");
    m.geometry.n_layers = 1025;
    expect_failure(lk_plan_preset("fp16", &m.geometry, &plan), LK_E_ARGUMENT, "n_layers is 1025");
    m.geometry.n_layers = 1;
    m.geometry.layers = NULL;
    expect_failure(lk_plan_preset("fp16", &m.geometry, &plan), LK_E_ARGUMENT, "layers is NULL");
    m.geometry.size = 4;
    expect_failure(lk_plan_preset("fp16", &m.geometry, &plan), LK_E_ARGUMENT, "geometry.size is 4");
    assert_null(plan);
}

static double bits_of(const lk_plan *plan) {
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(plan, 8192, 1, 512, &size), LK_OK);
    return size.bits_per_value;
}

static lk_plan *default_plan(const struct model *m, double bits) {
    lk_plan *plan = NULL;
    if (lk_plan_default(&m->geometry, bits, &plan) != LK_OK)
        fail_msg("%g bits: %s", bits, sentence());
    assert_int_equal(lk_plan_validate(plan, &m->geometry), LK_OK);
    assert_string_equal(lk_plan_name(plan), "default");
    return plan;
}

/* The text of a preset under another name. */
static void expect_preset(const lk_plan *plan, const char *preset, const struct model *m) {
    lk_plan *other = make_plan(preset, m);
    assert_int_equal(lk_plan_set_name(other, lk_plan_name(plan)), LK_OK);
    char *text = write_json(plan), *expected = write_json(other);
    assert_string_equal(text, expected);
    free(text);
    free(expected);
    lk_plan_destroy(&other);
}

/* More bits never make a narrower plan, and presets come at their own bits. */
static void a_default_plan_is_the_best_within_its_bits(void **state) {
    (void)state;
    const uint32_t dims[] = {32, 64, 80, 128, 256};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; ++d) {
        struct model m;
        make_model(&m, 3, 2, 2, dims[d]);
        double last = 0;
        for (double limit = 2.25; limit <= 16; limit += 0.125) {
            lk_plan *plan = default_plan(&m, limit);
            assert_true(bits_of(plan) <= limit && bits_of(plan) >= last);
            last = bits_of(plan);
            lk_plan_destroy(&plan);
        }
        const char *const presets[] = {"fp16", "int8", "kivi4"};
        for (size_t i = 0; i < sizeof presets / sizeof *presets; ++i) {
            lk_plan *preset = make_plan(presets[i], &m);
            lk_plan *plan = default_plan(&m, bits_of(preset));
            expect_preset(plan, presets[i], &m);
            lk_plan_destroy(&plan);
            lk_plan_destroy(&preset);
        }
    }
}

static void the_default_without_a_limit_answers_as_fp16(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 2, 2, 128);
    lk_plan *plan = default_plan(&m, 0);
    expect_preset(plan, "int8", &m);
    lk_plan *named = make_plan("default", &m);
    assert_string_equal(lk_plan_name(named), "default");
    assert_true(bits_of(named) == bits_of(plan));
    lk_plan_destroy(&named);
    lk_plan_destroy(&plan);
    for (uint32_t i = 0; lk_plan_preset_name(i); ++i)
        assert_string_not_equal(lk_plan_preset_name(i), "default");
}

/* Pages of a layer: boosted channels at twice the bits of the others. */
struct widths {
    uint32_t key_bits, boosted, value_bits;
};

static void expect_layer(const lk_plan *plan, uint32_t layer, struct widths want) {
    lk_key_rule key = key_rule(2);
    lk_value_rule value = value_rule(2);
    assert_int_equal(lk_plan_get_key(plan, layer, 1, &key), LK_OK);
    assert_int_equal(lk_plan_get_value(plan, layer, 1, &value), LK_OK);
    assert_int_equal(key.bits, want.key_bits);
    assert_int_equal(key.boost_channels, want.boosted);
    assert_int_equal(key.boost_bits, want.boosted ? 2 * want.key_bits : 0);
    assert_true(key.clip == (want.key_bits == 2 && want.boosted >= 32 ? 0.9f : 1.0f));
    assert_int_equal(value.bits, want.value_bits);
    assert_true(value.clip == (want.value_bits == 2 ? 0.7f : 1.0f));
}

/* Values keep 2 bits longest in the middle layers, and the core of these has the widest keys. */
static void a_narrow_default_is_widest_in_the_middle(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 8, 2, 2, 128);
    const struct widths core = {4, 16, 2};
    const struct {
        double limit;
        struct widths outer, middle, core;
        uint32_t first, end; /* of the middle layers */
    } cases[] = {
        {1.625, {2, 0, 1}, {2, 0, 1}, {2, 0, 1}, 0, 8},
        {2, {2, 16, 1}, {2, 48, 2}, {2, 48, 2}, 3, 5},
        {2.25, {2, 48, 1}, {2, 48, 2}, {2, 48, 2}, 3, 6},
        {2.41, {2, 48, 1}, {2, 48, 2}, core, 3, 5},
        {2.54, {2, 64, 1}, {2, 64, 2}, core, 3, 6},
        {2.7, {2, 80, 1}, {2, 80, 2}, core, 2, 6},
        {3.04, {2, 96, 2}, {2, 96, 2}, core, 0, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        lk_plan *plan = default_plan(&m, cases[i].limit);
        uint32_t sinks = 0, recent = 0;
        assert_int_equal(lk_plan_get_pages(plan, NULL, &sinks, &recent), LK_OK);
        assert_true(sinks == 32 && recent == 128);
        for (uint32_t l = 0; l < 8; ++l)
            expect_layer(plan, l,
                         l == 3 || l == 4                          ? cases[i].core
                         : l >= cases[i].first && l < cases[i].end ? cases[i].middle
                                                                   : cases[i].outer);
        lk_plan_destroy(&plan);
    }
}

/* Nothing far back is visible in a layer with a window, so its keys need no more bits. */
static void layers_with_a_window_are_no_core_of_the_default(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 8, 2, 2, 128);
    for (uint32_t l = 0; l < 8; l += 2)
        m.layers[l].window_tokens = 512;
    lk_plan *plan = default_plan(&m, 2.27);
    for (uint32_t l = 0; l < 8; ++l)
        expect_layer(plan, l,
                     l == 3   ? (struct widths){4, 16, 2}
                     : l == 4 ? (struct widths){2, 48, 2}
                              : (struct widths){2, 48, 1});
    lk_plan_destroy(&plan);
}

static void bad_limits_of_default_plans_are_refused(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 2, 2, 128);
    lk_plan *plan = (lk_plan *)&m;
    expect_failure(lk_plan_default(&m.geometry, 1.5, &plan), LK_E_BUDGET, "must be at least 1.625");
    assert_null(plan);
    expect_failure(lk_plan_default(&m.geometry, -1, &plan), LK_E_ARGUMENT, "bits_per_value is -1");
    expect_failure(lk_plan_default(&m.geometry, 16.5, &plan), LK_E_ARGUMENT, "is 16.5");
    expect_failure(lk_plan_default(&m.geometry, NAN, &plan), LK_E_ARGUMENT, "from 0 to 16");
    expect_failure(lk_plan_default(NULL, 3, &plan), LK_E_ARGUMENT, "geometry is NULL");
    expect_failure(lk_plan_default(&m.geometry, 3, NULL), LK_E_ARGUMENT, "out is NULL");
    m.geometry.n_layers = 0;
    expect_failure(lk_plan_default(&m.geometry, 3, &plan), LK_E_ARGUMENT, "n_layers is 0");
}

static void pages_names_and_windows_are_checked(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("kitty", &m);
    uint32_t page = 0, sinks = 0, window = 0;
    assert_int_equal(lk_plan_set_pages(plan, 64), LK_OK);
    assert_int_equal(lk_plan_get_pages(plan, &page, &sinks, &window), LK_OK);
    assert_int_equal(page, 64);
    assert_int_equal(sinks, 32);
    assert_int_equal(window, 128);
    assert_int_equal(lk_plan_set_pages(plan, 32), LK_OK);
    assert_int_equal(lk_plan_get_pages(plan, &page, NULL, NULL), LK_OK);
    assert_int_equal(page, 32);
    expect_failure(lk_plan_set_pages(plan, 96), LK_E_ARGUMENT, "page_tokens is 96");
    expect_failure(lk_plan_set_recent(plan, 8, 0), LK_E_ARGUMENT, "sink_tokens is 8");
    expect_failure(lk_plan_set_recent(plan, 1040, 0), LK_E_ARGUMENT, "sink_tokens is 1040");
    expect_failure(lk_plan_set_recent(plan, 0, 65537), LK_E_ARGUMENT, "recent_tokens is 65537");
    assert_int_equal(lk_plan_set_recent(plan, 1024, 65536), LK_OK);
    assert_int_equal(lk_plan_get_pages(plan, &page, &sinks, &window), LK_OK);
    assert_int_equal(page, 32);
    assert_int_equal(sinks, 1024);
    assert_int_equal(window, 65536);

    char longest[65];
    memset(longest, 'n', sizeof longest);
    longest[64] = 0;
    expect_failure(lk_plan_set_name(plan, longest), LK_E_ARGUMENT, "64 bytes");
    expect_failure(lk_plan_set_name(plan, ""), LK_E_ARGUMENT, "0 bytes");
    expect_failure(lk_plan_set_name(plan, "a\nb"), LK_E_ARGUMENT, "0x0a at byte 1");
    const char *broken[] = {"\xff",
                            "a\xc3",
                            "\xc0\x80",
                            "\xed\xa0\x80",
                            "\xf4\x90\x80\x80",
                            "\xe0\x80\x80",
                            "\xf0\x80\x80\x80",
                            "\x80"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; ++i)
        expect_failure(lk_plan_set_name(plan, broken[i]), LK_E_ARGUMENT, "must be UTF-8");
    assert_string_equal(lk_plan_name(plan), "kitty");
    longest[63] = 0;
    assert_int_equal(lk_plan_set_name(plan, longest), LK_OK);
    assert_string_equal(lk_plan_name(plan), longest);
    assert_int_equal(lk_plan_set_name(plan, "K\xc3\xa4tzchen \xf0\x9f\x90\xb1 \"\\"), LK_OK);
    assert_null(lk_plan_name(NULL));
    lk_plan_destroy(&plan);
}

static void absent_places_are_not_found(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 2, 1, 64);
    m.layers[1].n_kv_heads = m.layers[1].n_query_heads = 4;
    lk_plan *plan = make_plan("kitty", &m);
    lk_key_rule key = key_rule(2);
    lk_value_rule value = value_rule(2);
    const uint8_t rungs[] = {4};
    uint32_t bits, boost;
    expect_failure(lk_plan_set_key(plan, 2, 0, &key), LK_E_NOT_FOUND, "layer is 2");
    expect_failure(lk_plan_set_key(plan, 0, 2, &key), LK_E_NOT_FOUND, "kv_head is 2");
    expect_failure(lk_plan_set_key(plan, LK_ALL, 3, &key), LK_E_NOT_FOUND, "layer 0 has 2");
    expect_failure(lk_plan_set_value(plan, 2, 0, &value), LK_E_NOT_FOUND, "layer is 2");
    expect_failure(lk_plan_set_value(plan, 1, 4, &value), LK_E_NOT_FOUND, "kv_head is 4");
    expect_failure(lk_plan_set_metadata(plan, 2, LK_METADATA_F8), LK_E_NOT_FOUND, "layer is 2");
    expect_failure(lk_plan_set_ladder(plan, 2, rungs, 1, 4), LK_E_NOT_FOUND, "layer is 2");
    expect_failure(lk_plan_get_key(plan, LK_ALL, 0, &key), LK_E_NOT_FOUND, "layer is");
    expect_failure(lk_plan_get_value(plan, 0, LK_ALL, &value), LK_E_NOT_FOUND, "kv_head is");
    expect_failure(lk_plan_width(plan, 0, 0, 0, 64, 0, LK_CHUNK_NONE, &bits, &boost),
                   LK_E_NOT_FOUND, "channel is 64");
    expect_failure(lk_plan_width(plan, 0, 2, 0, 0, 0, LK_CHUNK_NONE, &bits, &boost), LK_E_NOT_FOUND,
                   "kv_head is 2");
    expect_failure(lk_plan_width(plan, 0, 0, 2, 0, 0, LK_CHUNK_NONE, &bits, &boost), LK_E_ARGUMENT,
                   "is_value is 2");
    lk_plan_destroy(&plan);
}

static void null_plans_are_refused(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("kitty", &m);
    lk_key_rule key = key_rule(2);
    lk_value_rule value = value_rule(2);
    lk_plan_size size;
    uint32_t n = 0;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    lk_plan *none = plan;
    expect_failure(lk_plan_copy(NULL, &none), LK_E_ARGUMENT, "plan is NULL");
    assert_null(none);
    expect_failure(lk_plan_copy(plan, NULL), LK_E_ARGUMENT, "out is NULL");
    expect_failure(lk_plan_set_name(NULL, "a"), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_set_name(plan, NULL), LK_E_ARGUMENT, "name is NULL");
    expect_failure(lk_plan_set_key(NULL, 0, 0, &key), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_set_value(NULL, 0, 0, &value), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_set_metadata(NULL, 0, 1), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_set_pages(NULL, 32), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_set_recent(NULL, 0, 0), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_set_ladder(NULL, 0, NULL, 0, 0), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_set_ladder(plan, 0, NULL, 1, 4), LK_E_ARGUMENT, "rungs is NULL");
    expect_failure(lk_plan_get_key(NULL, 0, 0, &key), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_get_key(plan, 0, 0, NULL), LK_E_ARGUMENT, "rule is NULL");
    expect_failure(lk_plan_get_value(NULL, 0, 0, &value), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_get_value(plan, 0, 0, NULL), LK_E_ARGUMENT, "rule is NULL");
    expect_failure(lk_plan_get_pages(NULL, &n, &n, &n), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_width(NULL, 0, 0, 0, 0, 0, LK_CHUNK_NONE, &n, &n), LK_E_ARGUMENT,
                   "plan is NULL");
    expect_failure(lk_plan_width(plan, 0, 0, 0, 0, 0, LK_CHUNK_NONE, NULL, &n), LK_E_ARGUMENT,
                   "bits is NULL");
    expect_failure(lk_plan_width(plan, 0, 0, 0, 0, 0, LK_CHUNK_NONE, &n, NULL), LK_E_ARGUMENT,
                   "boost_bits is NULL");
    expect_failure(lk_plan_validate(NULL, NULL), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_bytes(NULL, 1, 1, 1, &size), LK_E_ARGUMENT, "plan is NULL");
    expect_failure(lk_plan_bytes(plan, 1, 1, 1, NULL), LK_E_ARGUMENT, "out is NULL");
    expect_failure(lk_plan_bytes(plan, 0, 1, 1, &size), LK_E_ARGUMENT, "n_tokens is 0");
    expect_failure(lk_plan_bytes(plan, 1, 0, 1, &size), LK_E_ARGUMENT, "n_sequences is 0");
    expect_failure(lk_plan_bytes(plan, 1, 1, 0, &size), LK_E_ARGUMENT, "step_tokens is 0");
    size.size = 16;
    expect_failure(lk_plan_bytes(plan, 1, 1, 1, &size), LK_E_ARGUMENT, "out.size is 16");
    lk_plan_destroy(&plan);
}

static void expect_invalid(lk_plan *plan, const char *part) {
    expect_failure(lk_plan_validate(plan, NULL), LK_E_ARGUMENT, part);
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(plan, 1000, 1, 1, &size), LK_E_ARGUMENT);
}

static void set_classes(lk_plan *plan, uint32_t n1, uint32_t n3, uint32_t n4) {
    uint8_t classes[64];
    for (uint32_t c = 0; c < 64; ++c)
        classes[c] = (uint8_t)(c < n1 ? 1 : c < n1 + n3 ? 3 : c < n1 + n3 + n4 ? 4 : 2);
    lk_key_rule rule = key_rule(2);
    rule.channel_bits = classes;
    assert_int_equal(lk_plan_set_key(plan, 1, 1, &rule), LK_OK);
}

static void wholes_without_a_meaning_are_invalid(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 3, 2, 1, 64);
    lk_plan *plan = make_plan("kivi2", &m);
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);
    set_classes(plan, 5, 5, 0);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
    set_classes(plan, 5, 4, 0);
    expect_invalid(plan, "/layers/1/heads/1/key/classes puts 4 channels at 3 bits");
    expect_invalid(plan, "(layer 1, KV head 1)");
    set_classes(plan, 5, 5, 4);
    expect_invalid(plan, "puts 4 channels at 4 bits");
    const uint8_t rungs[] = {16, 2};
    assert_int_equal(lk_plan_set_ladder(plan, 1, rungs, 2, 16), LK_OK);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK); /* at 2 bits they join the others */
    assert_int_equal(lk_plan_set_ladder(plan, 1, NULL, 0, 0), LK_OK);
    set_classes(plan, 16, 0, 0);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
    assert_int_equal(lk_plan_set_pages(plan, 32), LK_OK);
    expect_invalid(plan, "pages of 32 tokens");
    set_classes(plan, 5, 5, 0);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK); /* shared slots are 2-bit slots */

    lk_key_rule rule = key_rule(3);
    assert_int_equal(lk_plan_set_key(plan, 2, 0, &rule), LK_OK);
    expect_invalid(plan, "/layers/2/heads/0/key/bits is 3");
    rule = key_rule(2);
    rule.group = 64;
    assert_int_equal(lk_plan_set_key(plan, 2, 0, &rule), LK_OK);
    expect_invalid(plan, "/layers/2/heads/0/key/group is 64, must be at most page_tokens 32");
    rule.axis = LK_AXIS_TOKEN;
    rule.group = 80;
    assert_int_equal(lk_plan_set_key(plan, 2, 0, &rule), LK_OK);
    expect_invalid(plan, "key/group is 80, must be at most head_dim 64");
    rule = key_rule(2);
    rule.boost_channels = 49;
    rule.boost_bits = 4;
    rule.boost_ranking = LK_RANKING_KEY;
    assert_int_equal(lk_plan_set_key(plan, 2, 0, &rule), LK_OK);
    expect_invalid(plan, "key/boost/channels is 49");
    rule.boost_channels = 48;
    assert_int_equal(lk_plan_set_key(plan, 2, 0, &rule), LK_OK);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
    lk_value_rule value = value_rule(1);
    assert_int_equal(lk_plan_set_value(plan, 0, 1, &value), LK_OK);
    expect_invalid(plan, "/layers/0/heads/1/value/bits is 1");
    value = value_rule(4);
    value.group = 80;
    assert_int_equal(lk_plan_set_value(plan, 0, 1, &value), LK_OK);
    expect_invalid(plan, "/layers/0/heads/1/value/group is 80");
    lk_plan_destroy(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_functions_set_the_documented_state),
        cmocka_unit_test(bad_preset_calls_are_refused),
        cmocka_unit_test(a_default_plan_is_the_best_within_its_bits),
        cmocka_unit_test(the_default_without_a_limit_answers_as_fp16),
        cmocka_unit_test(a_narrow_default_is_widest_in_the_middle),
        cmocka_unit_test(layers_with_a_window_are_no_core_of_the_default),
        cmocka_unit_test(bad_limits_of_default_plans_are_refused),
        cmocka_unit_test(pages_names_and_windows_are_checked),
        cmocka_unit_test(absent_places_are_not_found),
        cmocka_unit_test(null_plans_are_refused),
        cmocka_unit_test(wholes_without_a_meaning_are_invalid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
