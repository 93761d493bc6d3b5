// Ladders and budgets: pages go down rung by rung, by hand and when bytes are lacking, and what
// they answer is what the reference on the same pages answers. --soak, the last argument, runs
// 200000 tokens over 64 sequences.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "model.h"

#define MAX_TOKENS 320
#define SOAK_SEQUENCES 64u

static int g_soak;

// As test_steps.c derives it; a code of 2 bits stands for values within |minimum| + range as well.
#define MOST 3.6e-2f

typedef struct pair {
    rig fast, reference;
    float *x, *y;
} pair;

static lk_status ladder(rig *r, uint32_t layer, const char *rungs, uint32_t rung) {
    uint8_t all[4];
    uint32_t n = 0;
    for (; rungs[n]; ++n)
        all[n] = (uint8_t)(rungs[n] == '6' ? 16 : rungs[n] - '0');
    return lk_plan_set_ladder(r->plan, layer, all, n, rung);
}

// Of all heads of a layer, or of all layers.
static void set_key_of(rig *r, uint32_t layer, uint32_t head, uint32_t bits, uint32_t boost_bits,
                       const uint8_t *classes) {
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.bits = bits;
    key.boost_bits = boost_bits;
    key.boost_channels = boost_bits ? 16 : 0;
    key.boost_score = boost_bits ? LK_SCORE_KEY : 0;
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

static const char *const kPlans[] = {"pm-kvq",  "pm-kvq-paper", "boost", "classes",
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
// keys per token with centers and scales, and ladders over all of them.
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
    set_value(r, 8);
    assert_int_equal(lk_plan_set_shrink_order(r->plan, 1, 3), LK_OK);
}

// Rungs of the layers: '6' is 16.
static void make_plan(rig *r, const char *plan) {
    uint8_t classes[64];
    const int is_preset = !strncmp(plan, "pm-kvq", 6);
    rig_preset(r, is_preset ? plan : "pm-kvq");
    if (is_preset)
        return;
    assert_int_equal(ladder(r, LK_ALL, "6842", 16), LK_OK);
    if (!strcmp(plan, "boost")) {  // Kitty's pages, one step wider at first
        set_key(r, 4, 8, NULL);
        set_value(r, 4);
        assert_int_equal(ladder(r, 0, "842", 8), LK_OK);
    } else if (!strcmp(plan, "classes")) {
        for (uint32_t c = 0; c < 64; ++c)
            classes[c] = (uint8_t)(c % 4 == 3 ? 8 : c % 4 == 1 ? 4 : 2);
        set_key(r, 2, 0, classes);
        set_value(r, 8);
        assert_int_equal(ladder(r, 1, "842", 8), LK_OK);
    } else if (!strcmp(plan, "families")) {
        make_families(r);
    } else if (!strcmp(plan, "bytes of 32")) {
        make_bytes_of_32(r);
    } else {  // outliers and their partners stay
        for (uint32_t c = 0; c < 64; ++c)
            classes[c] = (uint8_t)(c % 8 == 1 ? 3 : c % 8 == 6 ? 1 : 2);
        set_key(r, 2, 0, classes);
        set_value(r, 4);
    }
}

static void open_rig(rig *r, const rig_device *device, uint32_t cpu_mask, const char *plan) {
    memset(r, 0, sizeof *r);
    r->device = device;
    r->cpu_mask = cpu_mask;
    rig_geometry(r, 2, 4, 2, 64);
    rig_open(r);
    make_plan(r, plan);
    assert_int_equal(lk_plan_set_name(r->plan, plan), LK_OK);
}

static void open_pair(pair *p, const char *plan) {
    open_rig(&p->fast, rig_default(), 0, plan);
    open_rig(&p->reference, rig_host(), LK_CPU_REFERENCE_ONLY, plan);
    const size_t bytes = (size_t)MAX_TOKENS * rig_width(&p->fast) * sizeof(float);
    p->x = malloc(bytes);
    p->y = malloc(bytes);
    assert_non_null(p->x);
    assert_non_null(p->y);
}

static void close_pair(pair *p) {
    free(p->x);
    free(p->y);
    rig_close(&p->fast);
    rig_close(&p->reference);
}

static void compare(const pair *p, uint32_t n, const char *what) {
    const float distance = rig_distance(p->x, p->y, (size_t)n * rig_width(&p->fast));
    if (!(distance <= MOST))
        fail_msg("%s, %s: outputs are %g apart", lk_plan_name(p->fast.plan), what,
                 (double)distance);
}

static void step_pair(pair *p, lk_sequence id, uint32_t place, uint32_t n, const char *what) {
    assert_int_equal(rig_step(&p->fast, id, 1, place, n, p->x), LK_OK);
    assert_int_equal(rig_step(&p->reference, id, 1, place, n, p->y), LK_OK);
    compare(p, n, what);
}

// Keys and values alone, without attention.
static lk_status append_step(rig *r, lk_sequence id, uint32_t chain, uint32_t place, uint32_t n) {
    rig_token tokens[MAX_TOKENS];
    for (uint32_t t = 0; t < n; ++t)
        tokens[t] = (rig_token){chain, place + t};
    const lk_status status = rig_begin(r, 1, &id, &n, NULL);
    if (status)
        return status;
    for (uint32_t l = 0; l < r->geometry.n_layers; ++l)
        assert_int_equal(rig_append(r, l, tokens, n), LK_OK);
    return lk_step_commit(r->cache, NULL);
}

static void compare_stats(const pair *p) {
    const lk_cache_stats a = rig_stats(&p->fast);
    const lk_cache_stats b = rig_stats(&p->reference);
    assert_int_equal(a.payload_bytes, b.payload_bytes);
    assert_int_equal(a.metadata_bytes, b.metadata_bytes);
    assert_int_equal(a.recent_bytes, b.recent_bytes);
    assert_int_equal(a.halves_shrunk, b.halves_shrunk);
    assert_int_equal(a.reserved_bytes, b.reserved_bytes);
    assert_memory_equal(a.plane_bytes, b.plane_bytes, sizeof a.plane_bytes);
}

static lk_status shrink_pair(pair *p, uint32_t layer, uint32_t bits) {
    const lk_status status = lk_cache_shrink(p->fast.cache, layer, bits);
    assert_int_equal(lk_cache_shrink(p->reference.cache, layer, bits), status);
    return status;
}

// A snapshot of pages at several rungs answers the same in a cache whose layers are at the first.
static void load_elsewhere(pair *p, const char *plan, uint32_t length) {
    uint64_t n_bytes = 0;
    const lk_sequence id = 1;
    assert_int_equal(lk_snapshot_save_memory(p->fast.cache, 1, &id, NULL, NULL, 0, &n_bytes),
                     LK_OK);
    void *bytes = malloc(n_bytes);
    assert_non_null(bytes);
    assert_int_equal(lk_snapshot_save_memory(p->fast.cache, 1, &id, NULL, bytes, n_bytes, NULL),
                     LK_OK);
    rig other;
    open_rig(&other, rig_default(), 0, plan);
    rig_recent(&other, 64, 16, 40);
    assert_int_equal(rig_cache(&other, 4, 512, 64u << 20), LK_OK);
    lk_sequence loaded;
    uint32_t n = 0;
    assert_int_equal(lk_snapshot_load_memory(other.cache, NULL, bytes, n_bytes, 1, &loaded, &n),
                     LK_OK);
    assert_int_equal(n, 1);
    free(bytes);
    assert_int_equal(lk_cache_shrink(other.cache, LK_ALL, 8), LK_OK);  // for the step's own pages
    assert_int_equal(lk_cache_shrink(other.cache, 0, 4), LK_OK);
    assert_int_equal(rig_step(&other, loaded, 1, length, 20, p->x), LK_OK);
    assert_int_equal(rig_begin(&p->reference, 1, &id, (uint32_t[]){20}, NULL), LK_OK);
    rig_token tokens[20];
    for (uint32_t t = 0; t < 20; ++t)
        tokens[t] = (rig_token){1, length + t};
    assert_int_equal(rig_layers(&p->reference, tokens, 20, p->y), LK_OK);
    assert_int_equal(lk_step_discard(p->reference.cache), LK_OK);
    compare(p, 20, "a snapshot");
    assert_int_equal(rig_begin(&p->fast, 1, &id, (uint32_t[]){20}, NULL), LK_OK);
    assert_int_equal(lk_step_discard(p->fast.cache), LK_OK);
    const uint64_t held = rig_stats(&other).payload_bytes + rig_stats(&other).recent_bytes;
    assert_int_equal(lk_cache_shrink(other.cache, LK_ALL, 2), LK_OK);
    assert_true(rig_stats(&other).payload_bytes + rig_stats(&other).recent_bytes < held);
    rig_close(&other);
}

static void run_ladder(const char *plan) {
    pair p;
    open_pair(&p, plan);
    for (rig *r = &p.fast; r; r = r == &p.fast ? &p.reference : NULL) {
        rig_recent(r, 64, 16, 40);
        assert_int_equal(rig_cache(r, 4, 512, 64u << 20), LK_OK);
        lk_sequence id;
        assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
        assert_int_equal(id, 1);
    }
    step_pair(&p, 1, 0, 300, "a prompt");
    uint32_t length = 300;
    for (uint32_t i = 0; i < 3; ++i, length += 40)
        step_pair(&p, 1, length, 40, "chunks");
    lk_sequence child;
    assert_int_equal(lk_sequence_fork(p.fast.cache, 1, 200, &child), LK_OK);
    assert_int_equal(lk_sequence_fork(p.reference.cache, 1, 200, &child), LK_OK);
    for (uint32_t bits = 8; bits >= 2; bits /= 2) {
        const lk_cache_stats wide = rig_stats(&p.fast);
        assert_int_equal(shrink_pair(&p, bits == 4 ? 0 : LK_ALL, bits), LK_OK);
        compare_stats(&p);
        const lk_cache_stats narrow = rig_stats(&p.fast);
        const int is_final = bits == 4 && !strcmp(plan, "chanmix");
        assert_true(is_final || narrow.halves_shrunk > wide.halves_shrunk);
        // Eight halves of each row behind the window once, though two sequences have some of them;
        // to 2 bits those of the second layer go two steps.
        assert_true(narrow.halves_shrunk - wide.halves_shrunk <=
                    (length - 56) / 64 * (bits == 2 ? 12 : 8));
        assert_true(is_final || narrow.payload_bytes + narrow.recent_bytes <
                                    wide.payload_bytes + wide.recent_bytes);
        char what[32];
        snprintf(what, sizeof what, "behind a shrink to %u", bits);
        step_pair(&p, 1, length, 3, what);
        length += 3;
        step_pair(&p, 1, length, 70, "pages at the new rung");
        length += 70;
        compare_stats(&p);
        if (bits == 4)
            load_elsewhere(&p, plan, length);
    }
    step_pair(&p, child, 200, 100, "a fork");
    // Pages that are cut come back from their codes.
    assert_int_equal(lk_sequence_truncate(p.fast.cache, 1, 217), LK_OK);
    assert_int_equal(lk_sequence_truncate(p.reference.cache, 1, 217), LK_OK);
    step_pair(&p, 1, 217, 150, "behind a cut");
    compare_stats(&p);
    close_pair(&p);
}

static void pages_answer_as_the_reference(void **state) {
    (void)state;
    for (uint32_t i = 0; kPlans[i]; ++i)
        run_ladder(kPlans[i]);
}

static void layers_without_a_ladder_stay(void **state) {
    (void)state;
    rig r;
    open_rig(&r, NULL, 0, "pm-kvq");
    assert_int_equal(lk_plan_set_ladder(r.plan, 1, NULL, 0, 0), LK_OK);
    assert_int_equal(rig_cache(&r, 1, 256, 16u << 20), LK_OK);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    assert_int_equal(append_step(&r, id, 1, 0, 250), LK_OK);
    const lk_cache_stats before = rig_stats(&r);
    assert_int_equal(lk_cache_shrink(r.cache, 1, 8), LK_E_ARGUMENT);
    const lk_cache_stats after = rig_stats(&r);
    assert_memory_equal(&before, &after, sizeof before);
    rig_close(&r);
}

static void wrong_shrinks_are_refused(void **state) {
    (void)state;
    rig r;
    open_rig(&r, NULL, 0, "pm-kvq");
    assert_int_equal(ladder(&r, 1, "84", 8), LK_OK);
    assert_int_equal(rig_cache(&r, 2, 256, 16u << 20), LK_OK);
    assert_int_equal(lk_cache_shrink(NULL, 0, 4), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_shrink(r.cache, 2, 4), LK_E_NOT_FOUND);
    assert_int_equal(lk_cache_shrink(r.cache, 0, 16), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_shrink(r.cache, 0, 3), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_shrink(r.cache, LK_ALL, 5), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_shrink(r.cache, 1, 2), LK_E_ARGUMENT);
    rig_sentence("no rung");
    assert_int_equal(lk_cache_shrink(r.cache, 0, 4), LK_OK);
    assert_int_equal(lk_cache_shrink(r.cache, 0, 8), LK_E_ARGUMENT);
    rig_sentence("at 4 already");
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    const uint32_t n = 1;
    assert_int_equal(rig_begin(&r, 1, &id, &n, NULL), LK_OK);
    assert_int_equal(lk_cache_shrink(r.cache, 0, 2), LK_E_BUSY);
    assert_int_equal(lk_cache_set_budget(r.cache, 8u << 20), LK_E_BUSY);
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    rig_close(&r);
}

// Tokens of one sequence that a plan holds in a budget.
static uint64_t tokens_at_16_bits(rig *r, uint64_t budget) {
    lk_plan *plan = NULL;
    assert_int_equal(lk_plan_preset("fp16", &r->geometry, &plan), LK_OK);
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    uint64_t low = 0, high = 1u << 24;
    while (low + 1 < high) {
        const uint64_t middle = (low + high) / 2;
        const lk_status status = lk_plan_bytes(plan, middle, 1, 64, &size);
        *(status == LK_OK && size.cache_bytes <= budget ? &low : &high) = middle;
    }
    lk_plan_destroy(&plan);
    return low;
}

#define GENERATION_BUDGET (16u << 20)
#define MOST_SHRUNK \
    1300u  // halves in a step: a batch, those ahead, and what one row of pages takes

// Two layers of two KV heads of 128 channels: 2 KiB a token at 16 bits.
static void a_generation_runs_six_and_a_half_times(void **state) {
    (void)state;
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, 2, 4, 2, 128);
    rig_open(&r);
    rig_preset(&r, "pm-kvq");
    assert_int_equal(lk_plan_set_shrink_order(r.plan, 0, 7), LK_OK);
    assert_int_equal(rig_cache(&r, 1, 64, GENERATION_BUDGET), LK_OK);
    const uint64_t at_16 = tokens_at_16_bits(&r, GENERATION_BUDGET);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    uint32_t length = 0;
    lk_status status = LK_OK;
    lk_cache_stats stats = rig_stats(&r), before;
    for (; !status; length += status ? 0 : 64) {
        before = stats;
        status = append_step(&r, id, 1, length, 64);
        stats = rig_stats(&r);
        assert_true(stats.reserved_bytes <= GENERATION_BUDGET);
        assert_true(stats.halves_shrunk - before.halves_shrunk <= MOST_SHRUNK);
        if (length + 64 <= at_16 * 8 / 10)
            assert_int_equal(stats.halves_shrunk, 0);
    }
    assert_int_equal(status, LK_E_BUDGET);
    rig_sentence("lacks");
    print_message("%u tokens in the bytes of %llu at 16 bits, %.2f times\n", length,
                  (unsigned long long)at_16, (double)length / (double)at_16);
    assert_true(length >= at_16 * 13 / 2);
    assert_int_equal(stats.n_tokens, before.n_tokens);
    assert_int_equal(stats.halves_shrunk, before.halves_shrunk);
    assert_int_equal(stats.payload_bytes, before.payload_bytes);
    assert_int_equal(stats.plane_bytes[1] + stats.plane_bytes[2], 0);
    float *out = malloc(rig_width(&r) * 2 * sizeof *out);
    assert_non_null(out);
    assert_int_equal(lk_sequence_truncate(r.cache, id, length - 700), LK_OK);
    assert_int_equal(rig_step(&r, id, 1, length - 700, 2, out), LK_OK);
    for (uint32_t i = 0; i < 2 * rig_width(&r); ++i)
        assert_true(isfinite(out[i]));
    free(out);
    rig_close(&r);
}

// The same budget, step by step beside the reference, which shrinks the same pages.
static void a_budget_answers_as_the_reference(void **state) {
    (void)state;
    pair p;
    open_pair(&p, "pm-kvq");
    assert_int_equal(rig_cache(&p.fast, 2, 256, 4u << 20), LK_OK);
    assert_int_equal(rig_cache(&p.reference, 2, 256, 4u << 20), LK_OK);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(p.fast.cache, &id), LK_OK);
    assert_int_equal(lk_sequence_add(p.reference.cache, &id), LK_OK);
    uint32_t length = 0;
    for (; length < 9000; length += 250) {
        if (length % 3000 == 2000) {
            step_pair(&p, id, length, 10, "under a budget");
            assert_int_equal(append_step(&p.fast, id, 1, length + 10, 240), LK_OK);
            assert_int_equal(append_step(&p.reference, id, 1, length + 10, 240), LK_OK);
        } else {
            assert_int_equal(append_step(&p.fast, id, 1, length, 250), LK_OK);
            assert_int_equal(append_step(&p.reference, id, 1, length, 250), LK_OK);
        }
        compare_stats(&p);
    }
    assert_true(rig_stats(&p.fast).halves_shrunk > 0);
    close_pair(&p);
}

static void budgets_change_at_run_time(void **state) {
    (void)state;
    pair p;
    open_pair(&p, "boost");
    for (rig *r = &p.fast; r; r = r == &p.fast ? &p.reference : NULL) {
        lk_cache_desc desc;
        assert_int_equal(lk_cache_desc_init(&desc, sizeof desc), LK_OK);
        desc.max_sequences = 2;
        desc.max_step_tokens = 256;
        desc.budget_bytes = 12u << 20;
        desc.max_budget_bytes = 16u << 20;
        r->max_step_tokens = 256;
        assert_int_equal(lk_cache_create(r->context, &r->geometry, r->plan, &desc, &r->cache),
                         LK_OK);
        lk_sequence id;
        assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
        for (uint32_t place = 0; place < 4000; place += 250)
            assert_int_equal(append_step(r, id, 1, place, 250), LK_OK);
    }
    uint64_t budget = 0;
    assert_int_equal(lk_cache_get_budget(p.fast.cache, &budget), LK_OK);
    assert_int_equal(budget, 12u << 20);
    const lk_cache_stats before = rig_stats(&p.fast);
    assert_int_equal(lk_cache_set_budget(p.fast.cache, (16u << 20) + 1), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_set_budget(p.fast.cache, 1u << 20), LK_E_BUDGET);
    rig_sentence("last rungs");
    lk_cache_stats after = rig_stats(&p.fast);
    assert_memory_equal(&before, &after, sizeof before);
    for (uint64_t bytes = 11u << 20;; bytes -= 1u << 18) {
        const lk_status status = lk_cache_set_budget(p.fast.cache, bytes);
        assert_int_equal(lk_cache_set_budget(p.reference.cache, bytes), status);
        if (status) {
            assert_int_equal(status, LK_E_BUDGET);
            break;
        }
        assert_true(rig_stats(&p.fast).reserved_bytes <= bytes);
        compare_stats(&p);
    }
    after = rig_stats(&p.fast);
    assert_true(after.halves_shrunk > 0 && after.budget_bytes < 3u << 20);
    assert_int_equal(lk_cache_set_budget(p.fast.cache, 16u << 20), LK_OK);
    assert_int_equal(lk_cache_set_budget(p.reference.cache, 16u << 20), LK_OK);
    step_pair(&p, 1, 4000, 250, "behind a lower budget");
    close_pair(&p);
}

typedef struct host {
    rig *r;
    lk_pressure_action action;
    lk_sequence remove;
    uint64_t budget;
    uint32_t n_calls;
} host;

static lk_pressure_action answer(void *user, lk_pressure *pressure) {
    host *own = user;
    ++own->n_calls;
    assert_int_equal(pressure->size, sizeof *pressure);
    assert_true(pressure->lacking_bytes > 0 && pressure->capacity > 0);
    assert_true(pressure->reserved_bytes <= pressure->budget_bytes);
    if (own->action == LK_PRESSURE_BUDGET)
        pressure->budget_bytes = own->budget;
    if (own->action == LK_PRESSURE_REMOVE) {
        pressure->ids[0] = own->remove;
        pressure->n_ids = 1;
    }
    return own->action;
}

static void open_pressed(rig *r, host *own, uint32_t flags, uint64_t limit) {
    lk_cache_desc desc;
    open_rig(r, NULL, 0, "pm-kvq");
    assert_int_equal(lk_plan_set_ladder(r->plan, LK_ALL, NULL, 0, 0), LK_OK);
    assert_int_equal(lk_cache_desc_init(&desc, sizeof desc), LK_OK);
    desc.max_sequences = 4;
    desc.max_step_tokens = 256;
    desc.budget_bytes = 2u << 20;
    desc.max_budget_bytes = 3u << 20;
    desc.sequence_limit_bytes = limit;
    desc.flags = flags;
    desc.pressure = own ? answer : NULL;
    desc.pressure_user = own;
    r->max_step_tokens = 256;
    assert_int_equal(lk_cache_create(r->context, &r->geometry, r->plan, &desc, &r->cache), LK_OK);
    for (uint32_t i = 0; i < 3; ++i) {
        lk_sequence id;
        assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
        assert_int_equal(id, i + 1);
        for (uint32_t place = 0; place < 300; place += 100)
            assert_int_equal(append_step(r, id, i, place, 100), LK_OK);
    }
}

// Tokens of sequence 3 until a step fails, whose status comes back.
static lk_status fill_third(rig *r, uint32_t *length) {
    lk_status status = LK_OK;
    while (!status && *length < 20000) {
        status = append_step(r, 3, 2, *length, 100);
        *length += status ? 0 : 100;
        assert_true(rig_stats(r).reserved_bytes <= rig_stats(r).budget_bytes);
    }
    return status;
}

static void the_host_is_asked(void **state) {
    (void)state;
    rig r;
    host own = {&r, LK_PRESSURE_REFUSE, 0, 0, 0};
    open_pressed(&r, &own, 0, 0);
    uint32_t length = 300;
    assert_int_equal(fill_third(&r, &length), LK_E_BUDGET);
    const uint32_t refused_at = length;
    assert_true(own.n_calls > 0);
    own.action = LK_PRESSURE_BUDGET;
    own.budget = 2u << 20;
    assert_int_equal(fill_third(&r, &length), LK_E_ARGUMENT);
    own.budget = (3u << 20) + 1;
    assert_int_equal(fill_third(&r, &length), LK_E_ARGUMENT);
    assert_int_equal(length, refused_at);
    own.action = LK_PRESSURE_REMOVE;
    for (lk_sequence id = 3; id < 5; ++id) {
        own.remove = id;
        assert_int_equal(fill_third(&r, &length), LK_E_ARGUMENT);
        rig_sentence(id == 3 ? "is in the step" : "is not there");
    }
    own.action = 9;
    assert_int_equal(fill_third(&r, &length), LK_E_ARGUMENT);
    own.action = LK_PRESSURE_REMOVE;
    own.remove = 1;
    assert_int_equal(fill_third(&r, &length), LK_E_ARGUMENT);  // a second time it is gone
    assert_true(length > refused_at);
    uint64_t n_tokens;
    assert_int_equal(lk_sequence_length(r.cache, 1, &n_tokens), LK_E_NOT_FOUND);
    assert_int_equal(rig_stats(&r).sequences_evicted, 1);
    own.action = LK_PRESSURE_BUDGET;
    own.budget = 3u << 20;
    const uint32_t before = length;
    assert_int_equal(fill_third(&r, &length), LK_E_ARGUMENT);
    assert_true(length > before);
    assert_int_equal(rig_stats(&r).budget_bytes, 3u << 20);
    rig_close(&r);
}

static void the_least_recently_used_goes(void **state) {
    (void)state;
    rig r;
    open_pressed(&r, NULL, LK_CACHE_EVICT, 0);
    assert_int_equal(rig_step(&r, 1, 0, 300, 1, NULL), LK_OK);
    uint32_t length = 300;
    uint64_t n_tokens;
    while (rig_stats(&r).sequences_evicted == 0) {
        assert_int_equal(rig_step(&r, 3, 2, length, 100, NULL), LK_OK);
        length += 100;
    }
    assert_int_equal(lk_sequence_length(r.cache, 2, &n_tokens), LK_E_NOT_FOUND);
    assert_int_equal(lk_sequence_length(r.cache, 1, &n_tokens), LK_OK);
    assert_int_equal(fill_third(&r, &length), LK_E_BUDGET);
    assert_int_equal(rig_stats(&r).sequences_evicted, 2);
    assert_int_equal(rig_stats(&r).n_sequences, 1);
    rig_close(&r);
    open_pressed(&r, NULL, 0, 0);
    length = 300;
    assert_int_equal(fill_third(&r, &length), LK_E_BUDGET);
    assert_int_equal(rig_stats(&r).n_sequences, 3);
    rig_close(&r);
}

static void private_bytes_are_limited(void **state) {
    (void)state;
    rig r;
    open_pressed(&r, NULL, LK_CACHE_EVICT, 600u << 10);
    uint32_t length = 300;
    assert_int_equal(fill_third(&r, &length), LK_E_BUDGET);
    rig_sentence("private bytes");
    assert_int_equal(rig_stats(&r).sequences_evicted, 0);
    assert_true(length >= 400 && length < 600);
    // What a fork shares is nobody's own.
    lk_sequence child;
    assert_int_equal(lk_sequence_fork(r.cache, 3, length, &child), LK_OK);
    assert_int_equal(rig_step(&r, child, 2, length, 100, NULL), LK_OK);
    rig_close(&r);
}

static void small_budgets_are_refused(void **state) {
    (void)state;
    rig r;
    open_rig(&r, NULL, 0, "pm-kvq");
    assert_int_equal(rig_cache(&r, 1, 64, 300u << 10), LK_E_BUDGET);
    char sentence[512];
    lk_last_error(sentence, sizeof sentence, NULL);
    const char *number = strstr(sentence, "need ");
    assert_non_null(number);
    const uint64_t least = strtoull(number + 5, NULL, 10);
    assert_int_equal(rig_cache(&r, 1, 64, least - 1), LK_E_BUDGET);
    assert_int_equal(rig_cache(&r, 1, 64, least), LK_OK);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    assert_int_equal(rig_step(&r, id, 1, 0, 1, NULL), LK_OK);
    rig_close(&r);
}

static uint32_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

typedef struct soak {
    pair p;
    lk_sequence ids[SOAK_SEQUENCES];
    uint32_t lengths[SOAK_SEQUENCES];
    uint32_t ends[SOAK_SEQUENCES];
    uint64_t seed;
} soak;

static void renew(soak *s, uint32_t i) {
    for (rig *r = &s->p.fast; r; r = r == &s->p.fast ? &s->p.reference : NULL) {
        if (s->ids[i])
            assert_int_equal(lk_sequence_remove(r->cache, s->ids[i]), LK_OK);
    }
    assert_int_equal(lk_sequence_add(s->p.fast.cache, &s->ids[i]), LK_OK);
    lk_sequence same;
    assert_int_equal(lk_sequence_add(s->p.reference.cache, &same), LK_OK);
    assert_int_equal(same, s->ids[i]);
    s->lengths[i] = 0;
    s->ends[i] = 200 + next_random(&s->seed) % 2600;
}

static lk_status soak_step(rig *r, const soak *s, uint32_t i, uint32_t n, float *out) {
    return out ? rig_step(r, s->ids[i], i, s->lengths[i], n, out)
               : append_step(r, s->ids[i], i, s->lengths[i], n);
}

// Random lengths side by side under one budget; a sequence that is done makes room for another.
static void share_a_budget(const char *plan) {
    const uint64_t n_tokens = g_soak ? 200000 : 12000;
    const uint32_t n_sequences = g_soak ? SOAK_SEQUENCES : 6;
    const uint64_t budget = g_soak ? 40u << 20 : 6u << 20;
    soak s;
    memset(&s, 0, sizeof s);
    s.seed = 11;
    open_pair(&s.p, plan);
    assert_int_equal(rig_cache(&s.p.fast, n_sequences, 256, budget), LK_OK);
    assert_int_equal(rig_cache(&s.p.reference, n_sequences, 256, budget), LK_OK);
    for (uint32_t i = 0; i < n_sequences; ++i)
        renew(&s, i);
    uint64_t done = 0;
    uint32_t n_steps = 0, n_compared = 0;
    for (uint32_t turn = 0; done < n_tokens; ++turn, ++n_steps) {
        const uint32_t i = next_random(&s.seed) % n_sequences;
        const uint32_t n = 1 + next_random(&s.seed) % (turn % 3 ? 90 : 250);
        const int attends = turn % 10 == 0;
        const lk_status status = soak_step(&s.p.fast, &s, i, n, attends ? s.p.x : NULL);
        assert_int_equal(soak_step(&s.p.reference, &s, i, n, attends ? s.p.y : NULL), status);
        const lk_cache_stats stats = rig_stats(&s.p.fast);
        assert_true(stats.reserved_bytes <= budget);
        compare_stats(&s.p);
        if (status) {
            char sentence[512];
            lk_last_error(sentence, sizeof sentence, NULL);
            fail_msg("after %llu tokens: %s", (unsigned long long)done, sentence);
        }
        if (attends)
            compare(&s.p, n, "side by side");
        n_compared += (uint32_t)attends;
        done += n;
        s.lengths[i] += n;
        if (s.lengths[i] >= s.ends[i])
            renew(&s, i);
    }
    const lk_cache_stats stats = rig_stats(&s.p.fast);
    print_message(
        "%s: %llu tokens in %u steps, %u compared, %llu halves shrunk, %llu of %llu bytes "
        "reserved, %llu fragmented\n",
        plan, (unsigned long long)done, n_steps, n_compared,
        (unsigned long long)stats.halves_shrunk, (unsigned long long)stats.reserved_bytes,
        (unsigned long long)budget, (unsigned long long)stats.fragmented_bytes);
    assert_true(stats.halves_shrunk > 0);
    close_pair(&s.p);
}

static void many_sequences_share_a_budget(void **state) {
    (void)state;
    share_a_budget("pm-kvq");
}

// Rungs of layers, classes of channels and boosts of pages in one plan.
static void all_families_share_a_budget(void **state) {
    (void)state;
    share_a_budget("families");
}

static void narrow_numbers_share_a_budget(void **state) {
    (void)state;
    share_a_budget("bytes of 32");
}

int main(int argc, char **argv) {
    g_soak = argc > 1 && !strcmp(argv[argc - 1], "--soak");
    rig_arguments(argc - g_soak, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_answer_as_the_reference),
        cmocka_unit_test(wrong_shrinks_are_refused),
        cmocka_unit_test(layers_without_a_ladder_stay),
        cmocka_unit_test(a_generation_runs_six_and_a_half_times),
        cmocka_unit_test(a_budget_answers_as_the_reference),
        cmocka_unit_test(budgets_change_at_run_time),
        cmocka_unit_test(the_host_is_asked),
        cmocka_unit_test(the_least_recently_used_goes),
        cmocka_unit_test(private_bytes_are_limited),
        cmocka_unit_test(small_budgets_are_refused),
        cmocka_unit_test(many_sequences_share_a_budget),
        cmocka_unit_test(all_families_share_a_budget),
        cmocka_unit_test(narrow_numbers_share_a_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
