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
    bad.n_query_heads = 34;
    expect_bad_layer(bad, "n_query_heads is 34");
    bad.n_query_heads = 0;
    expect_bad_layer(bad, "n_query_heads is 0");
    const uint32_t dims[] = {0, 16, 31, 40, 272, UINT32_MAX};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_geometries_are_refused),
        cmocka_unit_test(a_longer_layer_is_read_at_its_stride),
        cmocka_unit_test(other_geometries_do_not_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
