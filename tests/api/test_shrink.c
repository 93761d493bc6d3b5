// Ladders and budgets: pages go down rung by rung, by hand and on a shortfall, and what they answer
// is what the reference on the same pages answers.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "ladder.h"
#include "model.h"

static lk_status shrink_pair(rig_pair *p, uint32_t layer, uint32_t bits) {
    const lk_status status = lk_cache_shrink(p->fast.cache, layer, bits);
    assert_int_equal(lk_cache_shrink(p->reference.cache, layer, bits), status);
    return status;
}

// A snapshot of pages at several rungs answers the same in a cache whose layers are at the first.
static void load_elsewhere(rig_pair *p, const char *plan, uint32_t length) {
    uint64_t n_bytes = 0;
    const lk_sequence id = 1;
    assert_int_equal(lk_snapshot_save_memory(p->fast.cache, 1, &id, NULL, NULL, 0, &n_bytes),
                     LK_OK);
    void *bytes = malloc(n_bytes);
    assert_non_null(bytes);
    assert_int_equal(lk_snapshot_save_memory(p->fast.cache, 1, &id, NULL, bytes, n_bytes, NULL),
                     LK_OK);
    rig other;
    ladder_open(&other, rig_default(), 0, plan);
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
    rig_pair_compare(p, 20, "a snapshot");
    assert_int_equal(rig_begin(&p->fast, 1, &id, (uint32_t[]){20}, NULL), LK_OK);
    assert_int_equal(lk_step_discard(p->fast.cache), LK_OK);
    const uint64_t held = rig_stats(&other).payload_bytes + rig_stats(&other).recent_bytes;
    assert_int_equal(lk_cache_shrink(other.cache, LK_ALL, 2), LK_OK);
    assert_true(rig_stats(&other).payload_bytes + rig_stats(&other).recent_bytes < held);
    rig_close(&other);
}

static void run_ladder(const char *plan) {
    rig_pair p;
    rig_pair_open(&p, plan);
    for (rig *r = &p.fast; r; r = r == &p.fast ? &p.reference : NULL) {
        rig_recent(r, 64, 16, 40);
        assert_int_equal(rig_cache(r, 4, 512, 64u << 20), LK_OK);
        lk_sequence id;
        assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
        assert_int_equal(id, 1);
    }
    rig_pair_step(&p, 1, 0, 300, "a prompt");
    uint32_t length = 300;
    for (uint32_t i = 0; i < 3; ++i, length += 40)
        rig_pair_step(&p, 1, length, 40, "chunks");
    lk_sequence child;
    assert_int_equal(lk_sequence_fork(p.fast.cache, 1, 200, &child), LK_OK);
    assert_int_equal(lk_sequence_fork(p.reference.cache, 1, 200, &child), LK_OK);
    for (uint32_t bits = 8; bits >= 2; bits /= 2) {
        const lk_cache_stats wide = rig_stats(&p.fast);
        assert_int_equal(shrink_pair(&p, bits == 4 ? 0 : LK_ALL, bits), LK_OK);
        rig_pair_compare_stats(&p);
        const lk_cache_stats narrow = rig_stats(&p.fast);
        const int is_final = bits == 4 && !strcmp(plan, "chanmix");
        assert_true(is_final || narrow.pages_shrunk > wide.pages_shrunk);
        // Eight pages of each block before the recent tokens once, though two sequences share some
        // of them; to 2 bits those of the second layer go two steps.
        assert_true(narrow.pages_shrunk - wide.pages_shrunk <=
                    (length - 56) / 64 * (bits == 2 ? 12 : 8));
        assert_true(is_final || narrow.payload_bytes + narrow.recent_bytes <
                                    wide.payload_bytes + wide.recent_bytes);
        char what[32];
        snprintf(what, sizeof what, "after a shrink to %u", bits);
        rig_pair_step(&p, 1, length, 3, what);
        length += 3;
        rig_pair_step(&p, 1, length, 70, "pages at the new rung");
        length += 70;
        rig_pair_compare_stats(&p);
        if (bits == 4)
            load_elsewhere(&p, plan, length);
    }
    rig_pair_step(&p, child, 200, 100, "a fork");
    // Pages that are cut come back from their codes.
    assert_int_equal(lk_sequence_truncate(p.fast.cache, 1, 217), LK_OK);
    assert_int_equal(lk_sequence_truncate(p.reference.cache, 1, 217), LK_OK);
    rig_pair_step(&p, 1, 217, 150, "after a cut");
    rig_pair_compare_stats(&p);
    rig_pair_close(&p);
}

static void pages_answer_as_the_reference(void **state) {
    (void)state;
    for (uint32_t i = 0; kLadderPlans[i]; ++i)
        run_ladder(kLadderPlans[i]);
}

static void layers_without_a_ladder_stay(void **state) {
    (void)state;
    rig r;
    ladder_open(&r, NULL, 0, "pm-kvq");
    assert_int_equal(lk_plan_set_ladder(r.plan, 1, NULL, 0, 0), LK_OK);
    assert_int_equal(rig_cache(&r, 1, 256, 16u << 20), LK_OK);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    assert_int_equal(rig_append_step(&r, id, 1, 0, 250), LK_OK);
    const lk_cache_stats before = rig_stats(&r);
    assert_int_equal(lk_cache_shrink(r.cache, 1, 8), LK_E_ARGUMENT);
    const lk_cache_stats after = rig_stats(&r);
    assert_memory_equal(&before, &after, sizeof before);
    rig_close(&r);
}

static void wrong_shrinks_are_refused(void **state) {
    (void)state;
    rig r;
    ladder_open(&r, NULL, 0, "pm-kvq");
    assert_int_equal(ladder_set(&r, 1, "84", 8), LK_OK);
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

#define LAYER_STEP 16u

// A cache whose layers have budgets, and one that is taken to the same rungs by hand.
typedef struct budgeted {
    rig own;
    rig by_hand;
    float *x;
    float *y;
    uint32_t length;
    uint32_t rungs[2];
} budgeted;

static void open_budgeted(rig *r, uint64_t first, uint64_t second) {
    ladder_open(r, rig_default(), 0, "pm-kvq");
    rig_recent(r, 64, 16, 40);
    assert_int_equal(lk_plan_set_layer_budget(r->plan, 0, first), LK_OK);
    assert_int_equal(lk_plan_set_layer_budget(r->plan, 1, second), LK_OK);
    assert_int_equal(rig_cache(r, 2, 512, 64u << 20), LK_OK);
}

// Do the layers go down in the next step? What is due is packed before.
static int take_down_by_hand(budgeted *b) {
    int any = 0;
    for (uint32_t l = 0; l < 2; ++l) {
        uint32_t rung;
        assert_int_equal(lk_plan_rung(b->own.plan, l, b->length + LAYER_STEP, 1, LAYER_STEP, &rung),
                         LK_OK);
        if (rung == b->rungs[l])
            continue;
        assert_true(rung < b->rungs[l]);
        const lk_sequence id = 1;
        assert_int_equal(rig_begin(&b->by_hand, 1, &id, (uint32_t[]){1}, NULL), LK_OK);
        assert_int_equal(lk_step_discard(b->by_hand.cache), LK_OK);
        assert_int_equal(lk_cache_shrink(b->by_hand.cache, l, rung), LK_OK);
        b->rungs[l] = rung;
        any = 1;
    }
    return any;
}

// Have the caches the same answers? A device cuts a step's work by the bytes that blocks had when
// they last changed, which is another step in another cache: the last bits of its sums differ.
static int answers_are_same(const budgeted *b) {
    const size_t n = LAYER_STEP * rig_width(&b->own);
    if (rig_default() == rig_host())
        return !memcmp(b->x, b->y, n * sizeof *b->x);
    return rig_distance(b->x, b->y, n) <= rig_tolerance();
}

static void step_both(budgeted *b) {
    const int goes_down = take_down_by_hand(b);
    assert_int_equal(rig_step(&b->own, 1, 1, b->length, LAYER_STEP, b->x), LK_OK);
    assert_int_equal(rig_step(&b->by_hand, 1, 1, b->length, LAYER_STEP, b->y), LK_OK);
    b->length += LAYER_STEP;
    if (goes_down) {  // all at once, what a few steps would do
        for (uint32_t l = 0; l < 2; ++l)
            if (b->rungs[l] < 16)
                assert_int_equal(lk_cache_shrink(b->own.cache, l, b->rungs[l]), LK_OK);
    } else if (!answers_are_same(b)) {
        fail_msg("at %u tokens pages differ from those that were shrunk by hand", b->length);
    }
    const lk_cache_stats a = rig_stats(&b->own);
    const lk_cache_stats c = rig_stats(&b->by_hand);
    assert_int_equal(a.payload_bytes, c.payload_bytes);
    assert_int_equal(a.metadata_bytes, c.metadata_bytes);
    assert_int_equal(a.recent_bytes, c.recent_bytes);
    assert_int_equal(a.pages_shrunk, c.pages_shrunk);
}

// A loaded sequence is at its pages' widths, and the first step takes layers to the rungs again.
static void load_budgeted(budgeted *b) {
    uint64_t n_bytes = 0;
    const lk_sequence id = 1;
    assert_int_equal(lk_snapshot_save_memory(b->own.cache, 1, &id, NULL, NULL, 0, &n_bytes), LK_OK);
    void *bytes = malloc(n_bytes);
    assert_non_null(bytes);
    assert_int_equal(lk_snapshot_save_memory(b->own.cache, 1, &id, NULL, bytes, n_bytes, NULL),
                     LK_OK);
    rig other;
    open_budgeted(&other, 170000, 400001);
    lk_sequence loaded;
    uint32_t n = 0;
    assert_int_equal(lk_snapshot_load_memory(other.cache, NULL, bytes, n_bytes, 1, &loaded, &n),
                     LK_E_MISMATCH);
    rig_close(&other);
    open_budgeted(&other, 170000, 400000);
    assert_int_equal(lk_snapshot_load_memory(other.cache, NULL, bytes, n_bytes, 1, &loaded, &n),
                     LK_OK);
    free(bytes);
    for (uint32_t i = 0; i < 6; ++i, b->length += LAYER_STEP) {
        assert_int_equal(rig_step(&b->own, 1, 1, b->length, LAYER_STEP, b->x), LK_OK);
        assert_int_equal(rig_step(&other, loaded, 1, b->length, LAYER_STEP, b->y), LK_OK);
        assert_true(answers_are_same(b));
        assert_int_equal(rig_stats(&other).payload_bytes, rig_stats(&b->own).payload_bytes);
        assert_int_equal(rig_stats(&other).recent_bytes, rig_stats(&b->own).recent_bytes);
    }
    rig_close(&other);
}

static void budgets_of_layers_give_pages_of_their_rung(void **state) {
    (void)state;
    budgeted b = {.rungs = {16, 16}};
    open_budgeted(&b.own, 170000, 400000);
    ladder_open(&b.by_hand, rig_default(), 0, "pm-kvq");
    rig_recent(&b.by_hand, 64, 16, 40);
    assert_int_equal(rig_cache(&b.by_hand, 2, 512, 64u << 20), LK_OK);
    const size_t n_values = LAYER_STEP * rig_width(&b.own);
    b.x = malloc(n_values * sizeof *b.x);
    b.y = malloc(n_values * sizeof *b.y);
    assert_non_null(b.x);
    assert_non_null(b.y);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(b.own.cache, &id), LK_OK);
    assert_int_equal(lk_sequence_add(b.by_hand.cache, &id), LK_OK);
    while (b.length < 1500)
        step_both(&b);
    assert_int_equal(b.rungs[0], 2);
    assert_int_equal(b.rungs[1], 4);
    load_budgeted(&b);
    free(b.x);
    free(b.y);
    rig_close(&b.own);
    rig_close(&b.by_hand);
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
#define MOST_SHRUNK 1300u  // pages in a step: a batch, the ones ahead, and the pages of one block

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
        status = rig_append_step(&r, id, 1, length, 64);
        stats = rig_stats(&r);
        assert_true(stats.reserved_bytes <= GENERATION_BUDGET);
        assert_true(stats.pages_shrunk - before.pages_shrunk <= MOST_SHRUNK);
        if (length + 64 <= at_16 * 8 / 10)
            assert_int_equal(stats.pages_shrunk, 0);
    }
    assert_int_equal(status, LK_E_BUDGET);
    rig_sentence("is short of");
    print_message("%u tokens in the bytes of %llu at 16 bits, %.2f times\n", length,
                  (unsigned long long)at_16, (double)length / (double)at_16);
    assert_true(length >= at_16 * 13 / 2);
    assert_int_equal(stats.n_tokens, before.n_tokens);
    assert_int_equal(stats.pages_shrunk, before.pages_shrunk);
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

// The same budget, step by step with the reference, which shrinks the same pages.
static void a_budget_answers_as_the_reference(void **state) {
    (void)state;
    rig_pair p;
    rig_pair_open(&p, "pm-kvq");
    assert_int_equal(rig_cache(&p.fast, 2, 256, 4u << 20), LK_OK);
    assert_int_equal(rig_cache(&p.reference, 2, 256, 4u << 20), LK_OK);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(p.fast.cache, &id), LK_OK);
    assert_int_equal(lk_sequence_add(p.reference.cache, &id), LK_OK);
    uint32_t length = 0;
    for (; length < 9000; length += 250) {
        if (length % 3000 == 2000) {
            rig_pair_step(&p, id, length, 10, "under a budget");
            assert_int_equal(rig_append_step(&p.fast, id, 1, length + 10, 240), LK_OK);
            assert_int_equal(rig_append_step(&p.reference, id, 1, length + 10, 240), LK_OK);
        } else {
            assert_int_equal(rig_append_step(&p.fast, id, 1, length, 250), LK_OK);
            assert_int_equal(rig_append_step(&p.reference, id, 1, length, 250), LK_OK);
        }
        rig_pair_compare_stats(&p);
    }
    assert_true(rig_stats(&p.fast).pages_shrunk > 0);
    rig_pair_close(&p);
}

static void budgets_change_at_run_time(void **state) {
    (void)state;
    rig_pair p;
    rig_pair_open(&p, "boost");
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
            assert_int_equal(rig_append_step(r, id, 1, place, 250), LK_OK);
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
        rig_pair_compare_stats(&p);
    }
    after = rig_stats(&p.fast);
    assert_true(after.pages_shrunk > 0 && after.budget_bytes < 3u << 20);
    assert_int_equal(lk_cache_set_budget(p.fast.cache, 16u << 20), LK_OK);
    assert_int_equal(lk_cache_set_budget(p.reference.cache, 16u << 20), LK_OK);
    rig_pair_step(&p, 1, 4000, 250, "after a lower budget");
    rig_pair_close(&p);
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
    assert_true(pressure->shortfall_bytes > 0 && pressure->capacity > 0);
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
    ladder_open(r, NULL, 0, "pm-kvq");
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
            assert_int_equal(rig_append_step(r, id, i, place, 100), LK_OK);
    }
}

// Tokens of sequence 3 until a step fails, whose status comes back.
static lk_status fill_third(rig *r, uint32_t *length) {
    lk_status status = LK_OK;
    while (!status && *length < 20000) {
        status = rig_append_step(r, 3, 2, *length, 100);
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
    ladder_open(&r, NULL, 0, "pm-kvq");
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

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_answer_as_the_reference),
        cmocka_unit_test(wrong_shrinks_are_refused),
        cmocka_unit_test(layers_without_a_ladder_stay),
        cmocka_unit_test(budgets_of_layers_give_pages_of_their_rung),
        cmocka_unit_test(a_generation_runs_six_and_a_half_times),
        cmocka_unit_test(a_budget_answers_as_the_reference),
        cmocka_unit_test(budgets_change_at_run_time),
        cmocka_unit_test(the_host_is_asked),
        cmocka_unit_test(the_least_recently_used_goes),
        cmocka_unit_test(private_bytes_are_limited),
        cmocka_unit_test(small_budgets_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
