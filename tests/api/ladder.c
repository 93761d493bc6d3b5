// SPDX-License-Identifier: Apache-2.0
#include "ladder.h"

#include <stdio.h>

lk_status ladder_set(rig *r, uint32_t layer, const char *rungs, uint32_t rung) {
    uint8_t all[4];
    uint32_t n = 0;
    for (; rungs[n]; ++n)
        all[n] = (uint8_t)(rungs[n] == '6' ? 16 : rungs[n] - '0');
    return lk_plan_set_ladder(r->plan, layer, all, n, rung);
}

// Set the keys of a head, of all heads of a layer, or of all layers.
static void set_key_of(rig *r, uint32_t layer, uint32_t head, uint32_t bits, uint32_t boost_bits,
                       const uint8_t *classes) {
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.bits = bits;
    key.boost_bits = boost_bits;
    key.boost_channels = boost_bits ? 16 : 0;
    key.boost_ranking = boost_bits ? LK_RANKING_KEY : 0;
    key.channel_bits = classes;
    assert_int_equal(lk_plan_set_key(r->plan, layer, head, &key), LK_OK);
}

static void set_key(rig *r, uint32_t bits, uint32_t boost_bits, const uint8_t *classes) {
    set_key_of(r, LK_ALL, LK_ALL, bits, boost_bits, classes);
}

static void set_value(rig *r, uint32_t bits) {
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    value.bits = bits;
    assert_int_equal(lk_plan_set_value(r->plan, LK_ALL, LK_ALL, &value), LK_OK);
}

const char *const kLadderPlans[] = {"pm-kvq",  "pm-kvq-paper", "boost", "classes",
                                    "chanmix", "families",     NULL};

// FP8 ranges of 32 keys or values, and static classes that a rung narrows: other planes at each.
static void make_bytes_of_32(rig *r) {
    uint8_t classes[2][64];
    for (uint32_t c = 0; c < 64; ++c) {
        classes[0][c] = (uint8_t)(c % 8 == 1 ? 3 : c % 8 == 6 ? 1 : 2);
        classes[1][c] = (uint8_t)(c % 4 == 3 ? 8 : c % 4 == 1 ? 4 : 2);
    }
    for (uint32_t l = 0; l < 2; ++l) {
        lk_key_rule key;
        assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
        key.bits = 2;
        key.group = 32;
        key.channel_bits = classes[l];
        assert_int_equal(lk_plan_set_key(r->plan, l, LK_ALL, &key), LK_OK);
        assert_int_equal(lk_plan_set_metadata(r->plan, l, LK_METADATA_F8), LK_OK);
    }
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    value.bits = 4;
    value.group = 32;
    assert_int_equal(lk_plan_set_value(r->plan, LK_ALL, LK_ALL, &value), LK_OK);
}

// ChanMix's outliers with their partners, Kitty's boost and wider channels of a retrieval head,
// keys per token with centers, scales and a rotation, and ladders over all of them.
static void make_families(rig *r) {
    uint8_t outliers[64], mixed[64];
    float centers[64], scales[64];
    for (uint32_t c = 0; c < 64; ++c) {
        outliers[c] = (uint8_t)(c % 8 == 1 ? 3 : c % 8 == 6 ? 1 : 2);
        mixed[c] = (uint8_t)(c % 4 == 3 ? 8 : c % 4 == 1 ? 4 : 2);
        centers[c] = 0.125f * (float)(c % 9) - 0.5f;
        scales[c] = 0.5f + 0.25f * (float)(c % 5);
    }
    set_key_of(r, 0, 0, 2, 0, outliers);
    set_key_of(r, 0, 1, 4, 8, NULL);
    set_key_of(r, 1, 0, 2, 0, mixed);
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.bits = 8;
    key.axis = LK_AXIS_TOKEN;
    assert_int_equal(lk_plan_set_key(r->plan, 1, 1, &key), LK_OK);
    assert_int_equal(lk_plan_set_key_centers(r->plan, 1, 1, centers), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(r->plan, 1, 1, scales), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(r->plan, 0, 1, scales), LK_OK);
    assert_int_equal(lk_plan_set_key_rotation(r->plan, 1, LK_ROTATION_HADAMARD), LK_OK);
    set_value(r, 8);
    assert_int_equal(lk_plan_set_shrink_order(r->plan, 1, 3), LK_OK);
}

// Cocktail's classes; tokens after the context go down the ladders.
static void set_chunks(rig *r) {
    lk_chunk_rule rule;
    assert_int_equal(lk_chunk_rule_init(&rule, sizeof rule), LK_OK);
    rule.hold = 0;
    assert_int_equal(lk_plan_set_chunks(r->plan, &rule), LK_OK);
}

void ladder_plan(rig *r, const char *plan) {
    uint8_t classes[64];
    const int is_preset = !strncmp(plan, "pm-kvq", 6);
    rig_preset(r, is_preset ? plan : "pm-kvq");
    assert_int_equal(lk_plan_set_name(r->plan, plan), LK_OK);
    if (is_preset)
        return;
    assert_int_equal(ladder_set(r, LK_ALL, "6842", 16), LK_OK);
    if (!strcmp(plan, "boost")) {  // Kitty's pages, one step wider at first
        set_key(r, 4, 8, NULL);
        set_value(r, 4);
        assert_int_equal(ladder_set(r, 0, "842", 8), LK_OK);
    } else if (!strcmp(plan, "classes")) {
        for (uint32_t c = 0; c < 64; ++c)
            classes[c] = (uint8_t)(c % 4 == 3 ? 8 : c % 4 == 1 ? 4 : 2);
        set_key(r, 2, 0, classes);
        set_value(r, 8);
        assert_int_equal(ladder_set(r, 1, "842", 8), LK_OK);
    } else if (!strcmp(plan, "families")) {
        make_families(r);
    } else if (!strcmp(plan, "all families")) {
        make_families(r);
        set_chunks(r);
    } else if (!strcmp(plan, "bytes of 32")) {
        make_bytes_of_32(r);
    } else {  // outliers and their partners stay
        for (uint32_t c = 0; c < 64; ++c)
            classes[c] = (uint8_t)(c % 8 == 1 ? 3 : c % 8 == 6 ? 1 : 2);
        set_key(r, 2, 0, classes);
        set_value(r, 4);
    }
}

void ladder_open(rig *r, const rig_device *device, uint32_t cpu_mask, const char *plan) {
    memset(r, 0, sizeof *r);
    r->device = device;
    r->cpu_mask = cpu_mask;
    rig_geometry(r, 2, 4, 2, 64);
    rig_open(r);
    ladder_plan(r, plan);
}

void rig_pair_open(rig_pair *p, const char *plan) {
    ladder_open(&p->fast, rig_default(), 0, plan);
    ladder_open(&p->reference, rig_host(), LK_CPU_REFERENCE_ONLY, plan);
    const size_t bytes = (size_t)RIG_PAIR_TOKENS * rig_width(&p->fast) * sizeof(float);
    p->x = malloc(bytes);
    p->y = malloc(bytes);
    assert_non_null(p->x);
    assert_non_null(p->y);
}

void rig_pair_close(rig_pair *p) {
    free(p->x);
    free(p->y);
    rig_close(&p->fast);
    rig_close(&p->reference);
}

void rig_pair_compare(const rig_pair *p, uint32_t n, const char *what) {
    const float distance = rig_distance(p->x, p->y, (size_t)n * rig_width(&p->fast));
    if (!(distance <= RIG_MOST))
        fail_msg("%s, %s: outputs are %g apart", lk_plan_name(p->fast.plan), what,
                 (double)distance);
}

void rig_pair_step(rig_pair *p, lk_sequence id, uint32_t place, uint32_t n, const char *what) {
    assert_int_equal(rig_step(&p->fast, id, 1, place, n, p->x), LK_OK);
    assert_int_equal(rig_step(&p->reference, id, 1, place, n, p->y), LK_OK);
    rig_pair_compare(p, n, what);
}

void rig_pair_compare_stats(const rig_pair *p) {
    const lk_cache_stats a = rig_stats(&p->fast);
    const lk_cache_stats b = rig_stats(&p->reference);
    assert_int_equal(a.payload_bytes, b.payload_bytes);
    assert_int_equal(a.metadata_bytes, b.metadata_bytes);
    assert_int_equal(a.recent_bytes, b.recent_bytes);
    assert_int_equal(a.pages_shrunk, b.pages_shrunk);
    // A device lays out many blocks at once, so its pages may lie in more extents.
    assert_int_equal(a.reserved_bytes - a.fragmented_bytes, b.reserved_bytes - b.fragmented_bytes);
    assert_memory_equal(a.plane_bytes, b.plane_bytes, sizeof a.plane_bytes);
}
