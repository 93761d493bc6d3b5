/* Values of another dim than keys, and latent layers: what is refused, what rules they have, what
 * JSON and bytes say.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "plan_test.h"

/* Layers 0 and 1 are latent, 2 has narrow values, 3 has values as wide as keys. */
static void make_latent_model(struct model *m) {
    make_model(m, 4, 1, 16, 576);
    for (uint32_t l = 0; l < 2; ++l) {
        m->layers[l].value_dim = 512;
        m->layers[l].flags = LK_LAYER_LATENT;
    }
    m->layers[2].head_dim = 192;
    m->layers[2].value_dim = 128;
    m->layers[3].head_dim = m->layers[3].value_dim = 128;
}

static void expect_bad(uint32_t head_dim, uint32_t value_dim, uint32_t flags, const char *part) {
    struct model m;
    make_latent_model(&m);
    m.layers[1].head_dim = head_dim;
    m.layers[1].value_dim = value_dim;
    m.layers[1].flags = flags;
    lk_plan *plan = (lk_plan *)&m;
    expect_failure(lk_plan_preset("kivi2", &m.geometry, &plan), LK_E_ARGUMENT, part);
    assert_null(plan);
}

static void bad_dims_are_refused(void **state) {
    (void)state;
    expect_bad(576, 0, 0, "layers[1].head_dim is 576, must be a multiple of 16 from 32 to 512");
    expect_bad(592, 512, 1, "head_dim is 592, must be a multiple of 16 from 32 to 576 in a latent");
    expect_bad(64, 16, 0, "layers[1].value_dim is 16, must be a multiple of 16 from 32 to 512");
    expect_bad(64, 40, 0, "value_dim is 40");
    expect_bad(64, 528, 0, "value_dim is 528");
    expect_bad(576, 0, 1, "value_dim is 576, must be a multiple of 16 from 32 to 512");
    expect_bad(64, 128, 1, "value_dim is 128, must be at most head_dim 64 in a latent layer");
    expect_bad(64, 64, 2, "layers[1].flags is 2, must be LK_LAYER_LATENT or 0");
    struct model m;
    make_latent_model(&m);
    m.layers[1].kv_layer = 0;
    m.layers[1].value_dim = 256;
    lk_plan *plan = NULL;
    expect_failure(lk_plan_preset("kivi2", &m.geometry, &plan), LK_E_ARGUMENT,
                   "layers[1].value_dim is 256, must be 512 as that of kv_layer 0");
    m.layers[1].value_dim = 512;
    m.layers[0].head_dim = m.layers[1].head_dim = 512;
    m.layers[1].flags = 0;
    expect_failure(lk_plan_preset("kivi2", &m.geometry, &plan), LK_E_ARGUMENT,
                   "layers[1].flags is 0, must be 1 as that of kv_layer 0");
}

/* 0 and head_dim say the same; other dims and flags are other geometries. */
static void geometries_are_compared(void **state) {
    (void)state;
    struct model m;
    make_latent_model(&m);
    lk_plan *plan = make_plan("kitty", &m);
    m.layers[3].value_dim = 0;
    m.layers[3].reserved = 7;
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);
    lk_layer layer;
    assert_int_equal(lk_layer_init(&layer, sizeof layer), LK_OK);
    assert_int_equal(lk_plan_get_layer(plan, 3, &layer), LK_OK);
    assert_int_equal(layer.value_dim, 0);
    assert_int_equal(lk_plan_get_layer(plan, 1, &layer), LK_OK);
    assert_true(layer.value_dim == 512 && layer.flags == LK_LAYER_LATENT);
    m.layers[3].value_dim = 64;
    expect_failure(lk_plan_validate(plan, &m.geometry), LK_E_MISMATCH,
                   "layers[3].value_dim is 64, the plan is made for 128");
    m.layers[3].value_dim = 0;
    m.layers[3].flags = LK_LAYER_LATENT;
    expect_failure(lk_plan_validate(plan, &m.geometry), LK_E_MISMATCH,
                   "layers[3].flags is 1, the plan is made for 0");
    lk_plan_destroy(&plan);
}

static void latent_layers_have_no_rule_for_values(void **state) {
    (void)state;
    struct model m;
    make_latent_model(&m);
    lk_plan *plan = make_plan("kivi4", &m);
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    value.bits = 2;
    value.group = 64;
    expect_failure(lk_plan_set_value(plan, 1, LK_ALL, &value), LK_E_ARGUMENT,
                   "layer is 1, a latent one: its values are channels of its keys");
    assert_int_equal(lk_plan_set_value(plan, LK_ALL, LK_ALL, &value), LK_OK);
    expect_failure(lk_plan_get_value(plan, 0, 0, &value), LK_E_NOT_FOUND, "layer is 0, a latent");
    for (uint32_t l = 2; l < 4; ++l) {
        assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
        assert_int_equal(lk_plan_get_value(plan, l, 0, &value), LK_OK);
        assert_int_equal(value.bits, 2);
    }
    uint32_t bits, boost_bits;
    assert_int_equal(lk_plan_width(plan, 0, 0, 1, 511, 0, LK_CHUNK_NONE, &bits, &boost_bits),
                     LK_OK);
    assert_int_equal(bits, 4);
    expect_failure(lk_plan_width(plan, 0, 0, 1, 512, 0, LK_CHUNK_NONE, &bits, &boost_bits),
                   LK_E_NOT_FOUND, "channel is 512, layer 0 has value_dim 512");
    expect_failure(lk_plan_width(plan, 2, 0, 1, 128, 0, LK_CHUNK_NONE, &bits, &boost_bits),
                   LK_E_NOT_FOUND, "channel is 128, layer 2 has value_dim 128");
    assert_int_equal(lk_plan_width(plan, 2, 0, 0, 191, 0, LK_CHUNK_NONE, &bits, &boost_bits),
                     LK_OK);
    float numbers[576] = {0};
    for (uint32_t c = 0; c < 576; ++c)
        numbers[c] = 1;
    expect_failure(lk_plan_set_key_centers(plan, 0, 0, numbers), LK_E_ARGUMENT,
                   "centers are for the keys of layer 0, a latent one");
    expect_failure(lk_plan_set_key_scales(plan, 1, LK_ALL, numbers), LK_E_ARGUMENT,
                   "scales are for the keys of layer 1, a latent one");
    assert_int_equal(lk_plan_set_key_centers(plan, 0, 0, NULL), LK_OK);
    assert_int_equal(lk_plan_set_key_centers(plan, 2, 0, numbers), LK_OK);
    for (uint32_t i = 0; i < 2; ++i) {
        expect_failure(lk_plan_set_key_rotation(plan, i ? LK_ALL : 1, LK_ROTATION_HADAMARD),
                       LK_E_ARGUMENT, "a latent one: its values are channels of its keys");
        lk_rotation rotation;
        assert_int_equal(lk_plan_get_key_rotation(plan, 2, &rotation), LK_OK);
        assert_int_equal(rotation, LK_ROTATION_NONE);
    }
    assert_int_equal(lk_plan_set_key_rotation(plan, LK_ALL, LK_ROTATION_NONE), LK_OK);
    assert_int_equal(lk_plan_set_key_rotation(plan, 2, LK_ROTATION_HADAMARD), LK_OK);
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);
    value.group = 192;
    assert_int_equal(lk_plan_set_value(plan, 2, 0, &value), LK_OK);
    expect_failure(lk_plan_validate(plan, NULL), LK_E_ARGUMENT,
                   "value/group is 192, must be at most value_dim 128");
    lk_plan_destroy(&plan);
}

static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    assert_non_null(at);
    const size_t n = strlen(text) + strlen(to) + 1;
    char *out = malloc(n);
    assert_non_null(out);
    (void)snprintf(out, n, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void expect_bad_json(const char *text, const char *from, const char *to, lk_status status,
                            const char *part) {
    char *own = replaced(text, from, to);
    lk_plan *plan = NULL;
    expect_failure(lk_plan_from_json(own, strlen(own), &plan), status, part);
    free(own);
}

static void json_has_dims(void **state) {
    (void)state;
    struct model m;
    make_latent_model(&m);
    lk_plan *plan = make_plan("kivi4", &m);
    char *text = write_json(plan);
    lk_plan *read = NULL;
    if (lk_plan_from_json(text, strlen(text), &read))
        fail_msg("%s", sentence());
    assert_int_equal(lk_plan_validate(read, &m.geometry), LK_OK);
    char *again = write_json(read);
    assert_string_equal(text, again);
    free(again);
    lk_plan_destroy(&read);
    assert_non_null(strstr(text, "\"value_dim\": 512, \"latent\": true}"));
    expect_bad_json(text, "\"value_dim\": 512", "\"value_dim\": 480", LK_E_MISMATCH,
                    "/geometry/hash is");
    expect_bad_json(text, "\"value_dim\": 512", "\"value_dim\": 592", LK_E_CORRUPT,
                    "/geometry/layers/0/value_dim is 592");
    expect_bad_json(text, "\"value_dim\": 128", "\"value_dim\": 192", LK_E_MISMATCH, "hash");
    expect_bad_json(text, ", \"latent\": true", "", LK_E_CORRUPT,
                    "/geometry/layers/0/head_dim is 576, must be a multiple of 16 from 32 to 512");
    expect_bad_json(text, "\"latent\": true", "\"latent\": 1", LK_E_CORRUPT,
                    "/geometry/layers/0/latent is of type");
    expect_bad_json(text, "\"group\": 0}}]},", "\"group\": 0}, \"value\": {\"bits\": 4}}]},",
                    LK_E_CORRUPT,
                    "/layers/0/heads/0/value is there, must not be in a latent layer");
    expect_bad_json(text, "\"group\": 0}}]},", "\"group\": 0, \"centers\": [0]}}]},", LK_E_CORRUPT,
                    "/layers/0/heads/0/key/centers is there, must not be in a latent layer");
    expect_bad_json(text, "\"metadata\"", "\"key_rotation\": \"hadamard\", \"metadata\"",
                    LK_E_CORRUPT, "/layers/0/key_rotation is there, must not be in a latent layer");
    expect_bad_json(text, "{\"count\": 2, \"metadata\"", "{\"count\": 3, \"metadata\"",
                    LK_E_CORRUPT, "/layers/0/heads is for layers of head_dim 576 and 192");
    free(text);
    lk_plan_destroy(&plan);
    /* The same keys, but with values. */
    make_model(&m, 2, 1, 16, 512);
    m.layers[0].flags = LK_LAYER_LATENT;
    plan = make_plan("kivi4", &m);
    text = write_json(plan);
    expect_bad_json(text, "{\"count\": 1, \"metadata\"", "{\"count\": 2, \"metadata\"",
                    LK_E_CORRUPT,
                    "/layers/0/heads is for layers of value_dim 512 (latent) and 512");
    free(text);
    lk_plan_destroy(&plan);
}

/* bytes_per_token: a latent page is its keys alone. */
static void bytes_are_those_of_dims(void **state) {
    (void)state;
    struct model m;
    make_latent_model(&m);
    m.geometry.n_layers = 1;
    lk_plan *plan = make_plan("kivi4", &m);
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(plan, 1 << 17, 1, 1, &size), LK_OK);
    assert_true(size.bits_per_value == 4.25);
    assert_true(size.bytes_per_token == 576 * 4.25 / 8);
    assert_int_equal(size.fp16_bytes, (uint64_t)576 * 2 << 17);
    lk_plan_destroy(&plan);
    make_model(&m, 1, 8, 2, 192);
    m.layers[0].value_dim = 128;
    plan = make_plan("kivi4", &m);
    assert_int_equal(lk_plan_bytes(plan, 1 << 17, 1, 1, &size), LK_OK);
    assert_true(size.bits_per_value == 4.25);
    assert_true(size.bytes_per_token == 8 * (192 + 128) * 4.25 / 8);
    assert_int_equal(size.fp16_bytes, (uint64_t)8 * (192 + 128) * 2 << 17);
    lk_plan_destroy(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_dims_are_refused),
        cmocka_unit_test(geometries_are_compared),
        cmocka_unit_test(latent_layers_have_no_rule_for_values),
        cmocka_unit_test(json_has_dims),
        cmocka_unit_test(bytes_are_those_of_dims),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
