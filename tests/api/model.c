// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#define BUDGET (256u << 20)

const char *const kModelPlans[] = {"fp16",      "int8",      "kivi4", "kivi2",   "kitty",
                                   "kitty-pro", "wide-keys", "mixed", "queries", NULL};

static void set_widths(rig *r, uint32_t layer, uint32_t key_bits, uint32_t value_bits,
                       uint32_t value_group) {
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.bits = key_bits;
    key.group = 32;
    assert_int_equal(lk_plan_set_key(r->plan, layer, LK_ALL, &key), LK_OK);
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    value.bits = value_bits;
    value.group = value_group;
    assert_int_equal(lk_plan_set_value(r->plan, layer, LK_ALL, &value), LK_OK);
}

static void clip(rig *r, uint32_t layer) {
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    assert_int_equal(lk_plan_get_key(r->plan, layer, 0, &key), LK_OK);
    key.clip = 0.7f;
    assert_int_equal(lk_plan_set_key(r->plan, layer, LK_ALL, &key), LK_OK);
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    assert_int_equal(lk_plan_get_value(r->plan, layer, 0, &value), LK_OK);
    value.clip = 0.55f;
    assert_int_equal(lk_plan_set_value(r->plan, layer, LK_ALL, &value), LK_OK);
}

// 2 bits with clips and boosted keys in layer 0, 3 and 1 bits with FP8 metadata in layer 1, and the
// heads of layer 2 at 8 and 4 bits.
static void mix(rig *r) {
    clip(r, 0);
    set_widths(r, 1, 3, 1, 48);
    assert_int_equal(lk_plan_set_metadata(r->plan, 1, LK_METADATA_F8), LK_OK);
    set_widths(r, 2, 8, 4, 0);
}

void model_open(rig *r, const rig_device *device, const char *plan) {
    memset(r, 0, sizeof *r);
    r->device = device;
    rig_geometry(r, 3, 4, 2, 64);
    r->layers[1].n_query_heads = 5;
    r->layers[1].n_kv_heads = 1;
    r->layers[1].head_dim = 80;
    r->layers[1].window_tokens = 150;
    // After the sinks of the plan, so that no page is dropped and any cut is possible.
    r->layers[1].window_sink_tokens = 20;
    r->layers[2].head_dim = 128;
    r->layers[2].n_query_heads = 2;
    r->layers[2].soft_cap = 20;
    rig_open(r);
    const int is_mixed = !strcmp(plan, "mixed");
    const int is_ranked = !strcmp(plan, "queries");
    rig_preset(r, is_mixed || is_ranked ? "kitty-pro" : plan);
    rig_recent(r, 64, 16, 40);
    if (is_mixed)
        mix(r);
    if (is_ranked)
        rig_query_ranking(r);
    assert_int_equal(rig_cache(r, 4, 512, BUDGET), LK_OK);
}

lk_sequence model_add(rig *r) {
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
    return id;
}
