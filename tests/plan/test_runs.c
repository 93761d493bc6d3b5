/* Rules that heads and layers share behave as if each head had its own: random changes against a
 * table of all heads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "plan_test.h"

enum { LAYERS = 6, HEADS = 5, DIM = 32, CHANGES = 3000 };

struct head {
    uint32_t key_bits, value_bits;
    int has_classes, has_centers, has_scales;
    uint8_t classes[DIM];
    float centers[DIM], scales[DIM];
};

static uint32_t lcg = 1;
static uint32_t below(uint32_t n) {
    lcg = lcg * 1664525u + 1013904223u;
    return (lcg >> 8) % n;
}

static const uint8_t widths[] = {2, 4, 8, 16};

static void change_key(lk_plan *plan, uint32_t layer, uint32_t h, struct head *to) {
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    to->key_bits = rule.bits = widths[below(4)];
    to->has_classes = below(2) != 0;
    memset(to->classes, widths[below(4)], DIM);
    memset(to->classes, widths[below(4)], DIM / 2);
    rule.channel_bits = to->has_classes ? to->classes : NULL;
    assert_int_equal(lk_plan_set_key(plan, layer, h, &rule), LK_OK);
}

static void change_value(lk_plan *plan, uint32_t layer, uint32_t h, struct head *to) {
    lk_value_rule rule;
    assert_int_equal(lk_value_rule_init(&rule, sizeof rule), LK_OK);
    to->value_bits = rule.bits = widths[below(4)];
    assert_int_equal(lk_plan_set_value(plan, layer, h, &rule), LK_OK);
}

static void change_numbers(lk_plan *plan, uint32_t layer, uint32_t h, struct head *to) {
    for (uint32_t c = 0; c < DIM; ++c) {
        to->centers[c] = (float)below(3);
        to->scales[c] = (float)(1 + below(2));
    }
    to->has_centers = below(3) != 0;
    to->has_scales = below(3) != 0;
    assert_int_equal(lk_plan_set_key_centers(plan, layer, h, to->has_centers ? to->centers : NULL),
                     LK_OK);
    assert_int_equal(lk_plan_set_key_scales(plan, layer, h, to->has_scales ? to->scales : NULL),
                     LK_OK);
}

static void expect_head(const lk_plan *plan, uint32_t layer, uint32_t h, const struct head *own) {
    lk_key_rule key;
    lk_value_rule value;
    const float *centers = NULL, *scales = NULL;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    assert_int_equal(lk_plan_get_key(plan, layer, h, &key), LK_OK);
    assert_int_equal(lk_plan_get_value(plan, layer, h, &value), LK_OK);
    assert_int_equal(lk_plan_get_key_centers(plan, layer, h, &centers), LK_OK);
    assert_int_equal(lk_plan_get_key_scales(plan, layer, h, &scales), LK_OK);
    assert_int_equal(key.bits, own->key_bits);
    assert_int_equal(value.bits, own->value_bits);
    assert_int_equal(key.channel_bits != NULL, own->has_classes);
    assert_int_equal(centers != NULL, own->has_centers);
    assert_int_equal(scales != NULL, own->has_scales);
    if (own->has_classes)
        assert_memory_equal(key.channel_bits, own->classes, DIM);
    if (own->has_centers)
        assert_memory_equal(centers, own->centers, sizeof own->centers);
    if (own->has_scales)
        assert_memory_equal(scales, own->scales, sizeof own->scales);
}

static void expect_plan(const lk_plan *plan, struct head (*heads)[HEADS]) {
    for (uint32_t l = 0; l < LAYERS; ++l)
        for (uint32_t h = 0; h < HEADS; ++h)
            expect_head(plan, l, h, &heads[l][h]);
}

/* What the change gave one head, its others in the range get. */
static void spread(struct head (*heads)[HEADS], uint32_t layer, uint32_t h, int kind,
                   const struct head *from) {
    for (uint32_t l = layer == LK_ALL ? 0 : layer; l < (layer == LK_ALL ? LAYERS : layer + 1); ++l)
        for (uint32_t i = h == LK_ALL ? 0 : h; i < (h == LK_ALL ? HEADS : h + 1); ++i) {
            struct head *to = &heads[l][i];
            if (kind == 0) {
                to->key_bits = from->key_bits;
                to->has_classes = from->has_classes;
                memcpy(to->classes, from->classes, sizeof to->classes);
            } else if (kind == 1) {
                to->value_bits = from->value_bits;
            } else {
                to->has_centers = from->has_centers;
                to->has_scales = from->has_scales;
                memcpy(to->centers, from->centers, sizeof to->centers);
                memcpy(to->scales, from->scales, sizeof to->scales);
            }
        }
}

static void shared_rules_are_each_head_s_own(void **state) {
    (void)state;
    struct model m;
    make_model(&m, LAYERS, HEADS, 1, DIM);
    lk_plan *plan = make_plan("fp16", &m);
    static struct head heads[LAYERS][HEADS];
    for (uint32_t i = 0; i < LAYERS * HEADS; ++i)
        heads[i / HEADS][i % HEADS].key_bits = heads[i / HEADS][i % HEADS].value_bits = 16;
    for (uint32_t i = 0; i < CHANGES; ++i) {
        void (*const kChanges[])(lk_plan *, uint32_t, uint32_t, struct head *) = {
            change_key, change_value, change_numbers};
        const int kind = (int)below(3);
        const uint32_t layer = below(4) ? below(LAYERS) : LK_ALL;
        const uint32_t h = below(4) ? below(HEADS) : LK_ALL;
        struct head changed = {0};
        kChanges[kind](plan, layer, h, &changed);
        spread(heads, layer, h, kind, &changed);
        expect_plan(plan, heads);
        if (i % 50)
            continue;
        lk_plan *copy = NULL, *read = NULL;
        assert_int_equal(lk_plan_copy(plan, &copy), LK_OK);
        char *json = write_json(plan);
        assert_int_equal(read_json(json, strlen(json), &read), LK_OK);
        change_value(copy, LK_ALL, LK_ALL, &changed);
        expect_plan(plan, heads);
        expect_plan(read, heads);
        char *again = write_json(read);
        assert_string_equal(json, again);
        free(again);
        free(json);
        lk_plan_destroy(&plan);
        lk_plan_destroy(&copy);
        plan = read;
    }
    lk_plan_destroy(&plan);
}

/* A rule may come from the plan that it goes to. */
static void numbers_of_the_plan_itself_are_copied(void **state) {
    (void)state;
    struct model m;
    make_model(&m, LAYERS, HEADS, 1, DIM);
    lk_plan *plan = make_plan("fp16", &m);
    struct head own = {0};
    own.value_bits = 16;
    for (uint32_t i = 0; i < 200; ++i) {
        change_key(plan, 0, 0, &own);
        change_numbers(plan, 0, 0, &own);
        lk_key_rule key;
        const float *centers = NULL, *scales = NULL;
        assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
        assert_int_equal(lk_plan_get_key(plan, 0, 0, &key), LK_OK);
        assert_int_equal(lk_plan_set_key(plan, 3, LK_ALL, &key), LK_OK);
        assert_int_equal(lk_plan_get_key_centers(plan, 0, 0, &centers), LK_OK);
        assert_int_equal(lk_plan_set_key_centers(plan, 3, LK_ALL, centers), LK_OK);
        assert_int_equal(lk_plan_get_key_scales(plan, 0, 0, &scales), LK_OK);
        assert_int_equal(lk_plan_set_key_scales(plan, 3, LK_ALL, scales), LK_OK);
        expect_head(plan, 0, 0, &own);
        expect_head(plan, 3, HEADS - 1, &own);
    }
    lk_plan_destroy(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_rules_are_each_head_s_own),
        cmocka_unit_test(numbers_of_the_plan_itself_are_copied),
    };
    return cmocka_run_group_tests_name("plan runs", tests, NULL, NULL);
}
