// SPDX-License-Identifier: Apache-2.0
#include "chunked.h"

uint32_t chunked_random(uint32_t *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 8; }

void chunked_rule(rig *r, shape s, uint32_t reorder, uint32_t hold) {
    lk_chunk_rule rule;
    assert_int_equal(lk_chunk_rule_init(&rule, sizeof rule), LK_OK);
    rule.chunk_tokens = s.chunk_tokens;
    rule.reorder = reorder;
    rule.hold = hold;
    assert_int_equal(lk_plan_set_chunks(r->plan, &rule), LK_OK);
    rig_recent(r, s.page_tokens, SINKS, 0);
}

void chunked_open(rig *r, const rig_device *device, uint32_t cpu_mask, shape s, uint32_t reorder) {
    memset(r, 0, sizeof *r);
    r->device = device;
    r->cpu_mask = cpu_mask;
    rig_geometry(r, 2, 4, 2, 64);
    r->layers[1].head_dim = 32;
    rig_open(r);
    rig_preset(r, "cocktail");
    chunked_rule(r, s, reorder, 1);
}

void chunked_window(rig *r, shape s, const char *preset) {
    lk_plan_destroy(&r->plan);
    r->layers[1].window_tokens = 40;
    rig_preset(r, preset);
    chunked_rule(r, s, 0, 0);
}

lk_status chunked_append(rig *r, lk_sequence id, uint32_t chain, uint32_t n) {
    lk_status status = LK_OK;
    for (uint32_t done = 0; !status && done < n; done += 200)
        status = rig_append_step(r, id, chain, done, n - done < 200 ? n - done : 200);
    return status;
}

lk_sequence chunked_prompt(rig *r, uint32_t chain, uint32_t n) {
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
    assert_int_equal(lk_sequence_defer(r->cache, id, LK_DEFER_REFUSE), LK_OK);
    assert_int_equal(chunked_append(r, id, chain, n), LK_OK);
    return id;
}

lk_chunks_info chunked_info(rig *r, lk_sequence id) {
    lk_chunks_info info;
    assert_int_equal(lk_chunks_info_init(&info, sizeof info), LK_OK);
    assert_int_equal(lk_chunks_get(r->cache, id, &info, 0, NULL, NULL, NULL), LK_OK);
    return info;
}

void chunked_classes(uint32_t *seed, uint32_t n, lk_chunk_class *classes) {
    for (uint32_t c = 0; c < n; ++c) {
        const uint32_t x = chunked_random(seed) % 10;
        classes[c] = x < 5 ? LK_CHUNK_LOW : x < 8 ? LK_CHUNK_MIDDLE : LK_CHUNK_HIGH;
    }
}
