/* What the tests of plans share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAN_TEST_H
#define PLAN_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <lowkey/lowkey.h>

#define MAX_TEST_LAYERS 64

struct model {
    lk_layer layers[MAX_TEST_LAYERS];
    lk_geometry geometry;
};

static inline void make_model(struct model *m, uint32_t n_layers, uint32_t kv_heads, uint32_t group,
                              uint32_t head_dim) {
    for (uint32_t l = 0; l < n_layers; ++l) {
        assert_int_equal(lk_layer_init(&m->layers[l], sizeof m->layers[l]), LK_OK);
        m->layers[l].n_kv_heads = kv_heads;
        m->layers[l].n_query_heads = kv_heads * group;
        m->layers[l].head_dim = head_dim;
    }
    assert_int_equal(lk_geometry_init(&m->geometry, sizeof m->geometry), LK_OK);
    m->geometry.n_layers = n_layers;
    m->geometry.layers = m->layers;
}

static inline lk_plan *make_plan(const char *preset, const struct model *m) {
    lk_plan *plan = NULL;
    assert_int_equal(lk_plan_preset(preset, &m->geometry, &plan), LK_OK);
    assert_non_null(plan);
    return plan;
}

static inline const char *sentence(void) {
    static char text[1024];
    assert_int_equal(lk_last_error(text, sizeof text, NULL), LK_OK);
    return text;
}

/* The call failed with this status and said this. */
static inline void expect_failure(lk_status status, lk_status expected, const char *part) {
    if (status != expected || !strstr(sentence(), part))
        fail_msg("status %s, sentence \"%s\"; expected %s and \"%s\"", lk_status_name(status),
                 sentence(), lk_status_name(expected), part);
}

static inline char *write_json(const lk_plan *plan) {
    size_t needed = 0;
    assert_int_equal(lk_plan_to_json(plan, NULL, 0, &needed), LK_OK);
    char *text = malloc(needed);
    assert_non_null(text);
    assert_int_equal(lk_plan_to_json(plan, text, needed, &needed), LK_OK);
    assert_int_equal(strlen(text) + 1, needed);
    return text;
}

static inline lk_key_rule key_rule(uint32_t bits) {
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    rule.bits = bits;
    return rule;
}

static inline lk_value_rule value_rule(uint32_t bits) {
    lk_value_rule rule;
    assert_int_equal(lk_value_rule_init(&rule, sizeof rule), LK_OK);
    rule.bits = bits;
    return rule;
}

/* From memory of the text's own length, so that a sanitizer reports a read past its end. */
static inline lk_status read_json(const char *text, size_t bytes, lk_plan **out) {
    char *exact = malloc(bytes ? bytes : 1);
    assert_non_null(exact);
    memcpy(exact, text, bytes);
    const lk_status status = lk_plan_from_json(exact, bytes, out);
    free(exact);
    return status;
}

static inline lk_plan_size plan_size(const lk_plan *plan, uint64_t n_tokens, uint32_t n_sequences,
                                     uint32_t step_tokens) {
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(plan, n_tokens, n_sequences, step_tokens, &size), LK_OK);
    return size;
}

#endif
