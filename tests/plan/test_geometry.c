/* Geometries: what is refused, what is read, what matches a plan.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "plan_test.h"

static void expect_bad_layer(lk_layer layer, const char *part) {
    struct model m;
    make_model(&m, 2, 2, 2, 64);
    m.layers[1] = layer;
    lk_plan *plan = (lk_plan *)&m;
    expect_failure(lk_plan_preset("kivi2", &m.geometry, &plan), LK_E_ARGUMENT, part);
    assert_null(plan);
}

static void bad_geometries_are_refused(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 2, 2, 64);
    const lk_layer good = m.layers[0];
    lk_layer bad = good;
    bad.n_kv_heads = 0;
    expect_bad_layer(bad, "geometry.layers[1].n_kv_heads is 0");
    bad.n_kv_heads = 1025;
    expect_bad_layer(bad, "n_kv_heads is 1025");
    bad = good;
    bad.n_query_heads = 5;
    expect_bad_layer(bad, "n_query_heads is 5");
    bad.n_query_heads = 2 * 1025;
    expect_bad_layer(bad, "n_query_heads is 2050, must be 1 to 1024 times the 2 KV heads");
    bad.n_query_heads = 0;
    expect_bad_layer(bad, "n_query_heads is 0");
    const uint32_t dims[] = {0, 16, 31, 40, 528, UINT32_MAX};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; ++i) {
        bad = good;
        bad.head_dim = dims[i];
        expect_bad_layer(bad, "head_dim is");
    }
    bad = good;
    bad.window_sink_tokens = 4;
    expect_bad_layer(bad, "window_sink_tokens is 4");
    const float reals[] = {-1.0f, INFINITY, NAN};
    for (size_t i = 0; i < 3; ++i) {
        bad = good;
        bad.scale = reals[i];
        expect_bad_layer(bad, "scale is");
        bad = good;
        bad.soft_cap = reals[i];
        expect_bad_layer(bad, "soft_cap is");
    }
    bad = good;
    bad.size = sizeof bad - 8;
    expect_bad_layer(bad, "layers[1].size");
}

static void a_longer_layer_is_read_at_its_stride(void **state) {
    (void)state;
    struct {
        lk_layer layer;
        uint64_t later[2];
    } longer[3];
    memset(longer, 0, sizeof longer);
    struct model m;
    make_model(&m, 3, 2, 2, 64);
    for (uint32_t l = 0; l < 3; ++l) {
        longer[l].layer = m.layers[l];
        longer[l].layer.size = sizeof longer[l];
        longer[l].layer.head_dim = 32 * (l + 1);
        m.layers[l].head_dim = 32 * (l + 1);
    }
    lk_geometry geometry = m.geometry;
    geometry.layers = &longer[0].layer;
    lk_plan *plan = NULL;
    assert_int_equal(lk_plan_preset("kivi2", &geometry, &plan), LK_OK);
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);
    lk_plan_destroy(&plan);
    longer[2].later[1] = 1;
    expect_failure(lk_plan_preset("kivi2", &geometry, &plan), LK_E_UNSUPPORTED, "layers[2].size");
}

static void other_geometries_do_not_match(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 3, 2, 1, 64);
    m.layers[1].window_tokens = 512;
    m.layers[1].window_sink_tokens = 4;
    m.layers[2].scale = 0.125f;
    m.layers[2].soft_cap = 50.0f;
    lk_plan *plan = make_plan("kitty", &m);
    const float logits[2] = {0, 0};
    m.layers[0].sink_logits = logits; /* no part of the plan */
    m.layers[0].scale = -0.0f;
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);
    struct model n = m;
    n.geometry.layers = n.layers;
    n.geometry.n_layers = 2;
    expect_failure(lk_plan_validate(plan, &n.geometry), LK_E_MISMATCH, "n_layers is 2");
    n.geometry.n_layers = 3;
    n.layers[1].window_tokens = 511;
    expect_failure(lk_plan_validate(plan, &n.geometry), LK_E_MISMATCH,
                   "layers[1].window_tokens is 511");
    n.layers[1].window_tokens = 512;
    n.layers[2].soft_cap = 30;
    expect_failure(lk_plan_validate(plan, &n.geometry), LK_E_MISMATCH, "layers[2].soft_cap is 30");
    n.layers[2].head_dim = 80;
    expect_failure(lk_plan_validate(plan, &n.geometry), LK_E_MISMATCH, "layers[2].head_dim is 80");
    n.layers[0].n_query_heads = 4;
    expect_failure(lk_plan_validate(plan, &n.geometry), LK_E_MISMATCH,
                   "layers[0].n_query_heads is 4, the plan is made for 2");
    n.layers[0].n_kv_heads = 0;
    expect_failure(lk_plan_validate(plan, &n.geometry), LK_E_ARGUMENT, "n_kv_heads is 0");
    lk_plan_destroy(&plan);
}

/* Layers 0 and 1 have their own keys and values, 2 and 3 read those of 0. */
static void make_reading_model(struct model *m) {
    make_model(m, 4, 2, 2, 64);
    m->layers[1].head_dim = 96;
    m->layers[1].window_tokens = 512;
    m->layers[2].kv_layer = m->layers[3].kv_layer = 0;
    m->layers[3].n_query_heads = 16;
    m->layers[3].scale = 0.5f;
    m->layers[3].soft_cap = 30;
}

static void expect_bad_reader(const struct model *good, uint32_t layer, uint32_t kv_layer,
                              const char *part) {
    struct model m = *good;
    m.geometry.layers = m.layers;
    m.layers[layer].kv_layer = kv_layer;
    lk_plan *plan = (lk_plan *)&m;
    expect_failure(lk_plan_preset("kivi2", &m.geometry, &plan), LK_E_ARGUMENT, part);
    assert_null(plan);
}

static void reading_layers_follow_one_with_keys(void **state) {
    (void)state;
    struct model m;
    make_reading_model(&m);
    expect_bad_reader(&m, 0, 1,
                      "layers[0].kv_layer is 1, must be an earlier layer than 0, or none");
    expect_bad_reader(&m, 2, 4, "layers[2].kv_layer is 4, must be an earlier layer than 2");
    expect_bad_reader(&m, 3, 2, "layers[3].kv_layer is 2, which reads layer 0: name that layer");
    expect_bad_reader(&m, 2, 1, "layers[2].head_dim is 64, must be 96 as that of kv_layer 1");
    m.layers[3].window_tokens = 8;
    expect_bad_reader(&m, 3, 0, "layers[3].window_tokens is 8, must be 0 as that of kv_layer 0");
    m.layers[0].window_tokens = m.layers[2].window_tokens = 8;
    m.layers[3].window_sink_tokens = 1;
    expect_bad_reader(&m, 3, 0, "layers[3].window_sink_tokens is 1, must be 0");
    make_reading_model(&m);
    m.layers[3].n_kv_heads = 4;
    expect_bad_reader(&m, 3, 0, "layers[3].n_kv_heads is 4, must be 2 as that of kv_layer 0");
}

/* Its own number, no number and a struct without the field all say the same. */
static void a_layer_may_name_itself(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 2, 2, 64);
    lk_plan *plan = make_plan("kivi2", &m);
    m.layers[0].kv_layer = 0;
    m.layers[1].kv_layer = 1;
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);
    struct model older;
    make_model(&older, 2, 2, 2, 64);
    unsigned char bytes[2][offsetof(lk_layer, kv_layer)];
    for (uint32_t l = 0; l < 2; ++l) {
        lk_layer layer;
        memset(&layer, 0xa5, sizeof layer);
        assert_int_equal(lk_layer_init(&layer, sizeof bytes[l]), LK_OK);
        assert_int_equal(layer.kv_layer, 0xa5a5a5a5);
        memcpy(bytes[l], &older.layers[l], sizeof bytes[l]);
        memcpy(bytes[l], &layer.size, sizeof layer.size);
    }
    lk_geometry geometry = older.geometry;
    memcpy(&geometry.layers, &(const void *){bytes}, sizeof geometry.layers);
    assert_int_equal(lk_plan_validate(plan, &geometry), LK_OK);
    lk_layer layer;
    assert_int_equal(lk_layer_init(&layer, sizeof layer), LK_OK);
    assert_int_equal(lk_plan_get_layer(plan, 1, &layer), LK_OK);
    assert_int_equal(layer.kv_layer, LK_OWN_KV);
    assert_int_equal(layer.n_query_heads, 4);
    expect_failure(lk_plan_get_layer(plan, 2, &layer), LK_E_NOT_FOUND, "layer is 2");
    expect_failure(lk_plan_get_layer(plan, LK_ALL, &layer), LK_E_NOT_FOUND, "layer is");
    expect_failure(lk_plan_get_layer(plan, 0, NULL), LK_E_ARGUMENT, "out is NULL");
    expect_failure(lk_plan_get_layer(NULL, 0, &layer), LK_E_ARGUMENT, "plan is NULL");
    lk_plan_destroy(&plan);
}

/* A setter of the KV layer, or of all, changes its reading layers; they take none of their own. */
static void rules_are_the_kv_layers(void **state) {
    (void)state;
    struct model m;
    make_reading_model(&m);
    lk_plan *plan = make_plan("pm-kvq", &m);
    char *before = write_json(plan);
    lk_key_rule key = key_rule(4);
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    value.bits = 2;
    float numbers[64];
    for (int c = 0; c < 64; ++c)
        numbers[c] = 0.5f;
    const uint8_t rungs[2] = {8, 4};
    for (uint32_t l = 2; l < 4; ++l) {
        const char *part = "which reads the keys and values of layer 0: set that layer's";
        expect_failure(lk_plan_set_key(plan, l, LK_ALL, &key), LK_E_ARGUMENT, part);
        expect_failure(lk_plan_set_value(plan, l, 0, &value), LK_E_ARGUMENT, part);
        expect_failure(lk_plan_set_key_centers(plan, l, 0, numbers), LK_E_ARGUMENT, part);
        expect_failure(lk_plan_set_key_scales(plan, l, 0, numbers), LK_E_ARGUMENT, part);
        expect_failure(lk_plan_set_metadata(plan, l, LK_METADATA_F8), LK_E_ARGUMENT, part);
        expect_failure(lk_plan_set_key_rotation(plan, l, LK_ROTATION_HADAMARD), LK_E_ARGUMENT,
                       part);
        expect_failure(lk_plan_set_ladder(plan, l, rungs, 2, 8), LK_E_ARGUMENT, part);
        expect_failure(lk_plan_set_shrink_order(plan, l, 1), LK_E_ARGUMENT, part);
        expect_failure(lk_plan_set_layer_budget(plan, l, 1), LK_E_ARGUMENT, part);
    }
    char *after = write_json(plan);
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(lk_plan_set_key(plan, 0, 1, &key), LK_OK);
    assert_int_equal(lk_plan_set_value(plan, 0, LK_ALL, &value), LK_OK);
    assert_int_equal(lk_plan_set_key_centers(plan, 0, 0, numbers), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(plan, 0, 1, numbers), LK_OK);
    assert_int_equal(lk_plan_set_key_rotation(plan, 0, LK_ROTATION_HADAMARD), LK_OK);
    assert_int_equal(lk_plan_set_ladder(plan, 0, rungs, 2, 8), LK_OK);
    assert_int_equal(lk_plan_set_shrink_order(plan, LK_ALL, 7), LK_OK);
    assert_int_equal(lk_plan_set_layer_budget(plan, 0, 1u << 20), LK_OK);
    for (uint32_t l = 2; l < 4; ++l) {
        const float *found;
        uint32_t n_rungs, rung, order;
        uint64_t budget_bytes;
        assert_int_equal(lk_plan_get_key(plan, l, 1, &key), LK_OK);
        assert_int_equal(key.bits, 4);
        assert_int_equal(lk_plan_get_value(plan, l, 0, &value), LK_OK);
        assert_int_equal(value.bits, 2);
        assert_int_equal(lk_plan_get_key_centers(plan, l, 0, &found), LK_OK);
        assert_memory_equal(found, numbers, sizeof numbers);
        assert_int_equal(lk_plan_get_key_scales(plan, l, 1, &found), LK_OK);
        assert_memory_equal(found, numbers, sizeof numbers);
        lk_rotation rotation;
        assert_int_equal(lk_plan_get_key_rotation(plan, l, &rotation), LK_OK);
        assert_int_equal(rotation, LK_ROTATION_HADAMARD);
        assert_int_equal(lk_plan_get_ladder(plan, l, NULL, &n_rungs, &rung, &order), LK_OK);
        assert_true(n_rungs == 2 && rung == 8 && order == 7);
        assert_int_equal(lk_plan_get_layer_budget(plan, l, &budget_bytes), LK_OK);
        assert_int_equal(budget_bytes, 1u << 20);
        uint32_t of_kv_layer, of_reader;
        assert_int_equal(lk_plan_rung(plan, 0, 50000, 1, 100, &of_kv_layer), LK_OK);
        assert_int_equal(lk_plan_rung(plan, l, 50000, 1, 100, &of_reader), LK_OK);
        assert_int_equal(of_kv_layer, 4);
        assert_int_equal(of_reader, 4);
    }
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);
    lk_plan_destroy(&plan);
}

static void replace(char *text, const char *from, const char *to) {
    char *at = strstr(text, from);
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
}

static void expect_bad_json(const char *text, const char *from, const char *to, lk_status status,
                            const char *part) {
    char *own = malloc(strlen(text) + 1);
    assert_non_null(own);
    memcpy(own, text, strlen(text) + 1);
    replace(own, from, to);
    lk_plan *plan = NULL;
    expect_failure(lk_plan_from_json(own, strlen(own), &plan), status, part);
    free(own);
}

static void json_has_kv_layers(void **state) {
    (void)state;
    struct model m;
    make_reading_model(&m);
    lk_plan *plan = make_plan("kivi2", &m);
    lk_key_rule key = key_rule(4);
    assert_int_equal(lk_plan_set_key(plan, 0, 1, &key), LK_OK);
    char *text = write_json(plan);
    lk_plan *read = NULL;
    assert_int_equal(lk_plan_from_json(text, strlen(text), &read), LK_OK);
    assert_int_equal(lk_plan_validate(read, &m.geometry), LK_OK);
    char *again = write_json(read);
    assert_string_equal(text, again);
    free(again);
    lk_plan_destroy(&read);
    expect_bad_json(text, "\"kv_layer\": 0", "\"kv_layer\": 1", LK_E_CORRUPT,
                    "/geometry/layers/2/head_dim is 64, must be 96 as that of kv_layer 1");
    expect_bad_json(text, "\"kv_layer\": 0", "\"kv_layer\": 3", LK_E_CORRUPT, "kv_layer is 3");
    expect_bad_json(text, "\"kv_layer\": 0", "\"kv_layer\": x", LK_E_CORRUPT, "");
    expect_bad_json(text, "\"kv_layer\": 0", "\"soft_caps\":0", LK_E_CORRUPT, "soft_caps");
    /* The last of the rules are those of layers 2 and 3. */
    char *last = text;
    for (char *next; (next = strstr(last + 1, "\"value\": {\"bits\": 2"));)
        last = next;
    memcpy(last, "\"value\": {\"bits\": 4", strlen("\"value\": {\"bits\": 4"));
    expect_failure(
        lk_plan_from_json(text, strlen(text), &read), LK_E_CORRUPT,
        "/layers gives layer 2 other rules than layer 0, whose keys and values it reads");
    free(text);
    /* The same layers with their own keys and values are another geometry. */
    struct model own = m;
    own.geometry.layers = own.layers;
    own.layers[3].kv_layer = LK_OWN_KV;
    expect_failure(
        lk_plan_validate(plan, &own.geometry), LK_E_MISMATCH,
        "layers[3] attends to the keys and values of layer 3, the plan is made for those "
        "of layer 0");
    lk_plan_destroy(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_layers_follow_one_with_keys),
        cmocka_unit_test(a_layer_may_name_itself),
        cmocka_unit_test(rules_are_the_kv_layers),
        cmocka_unit_test(json_has_kv_layers),
        cmocka_unit_test(bad_geometries_are_refused),
        cmocka_unit_test(a_longer_layer_is_read_at_its_stride),
        cmocka_unit_test(other_geometries_do_not_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
