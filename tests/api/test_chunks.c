// Chunks: classes by request, kept in another order than they came. What a cache answers is what
// the reference answers whose pages are the chunks, in their order, at the same classes.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "chunked.h"

#define MAX_TOKENS 1200u
#define BUDGET (64u << 20)

typedef struct pair {
    shape shape;
    rig fast, reference;
    float *x, *y;
} pair;

// A device in software takes seconds for what the CPU does in milliseconds.
static int is_quick(void) { return rig_default() == rig_host(); }

static void open_pair(pair *p, shape s) {
    p->shape = s;
    chunked_open(&p->fast, rig_default(), 0, s, 1);
    chunked_open(&p->reference, rig_host(), LK_CPU_REFERENCE_ONLY,
                 (shape){s.chunk_tokens, s.chunk_tokens}, 0);
    const size_t bytes = (size_t)MAX_TOKENS * rig_width(&p->fast) * sizeof(float);
    p->x = malloc(bytes);
    p->y = malloc(bytes);
    assert_non_null(p->x);
    assert_non_null(p->y);
}

static void make_caches(pair *p, uint64_t budget) {
    assert_int_equal(rig_cache(&p->fast, 6, 512, budget), LK_OK);
    assert_int_equal(rig_cache(&p->reference, 6, 512, BUDGET), LK_OK);
}

static void close_pair(pair *p) {
    free(p->x);
    free(p->y);
    rig_close(&p->fast);
    rig_close(&p->reference);
}

static void compare(const pair *p, uint32_t n, const char *what) {
    const float distance = rig_distance(p->x, p->y, (size_t)n * rig_width(&p->fast));
    if (!(distance <= RIG_MOST))
        fail_msg("pages of %u, chunks of %u, %s: outputs are %g apart", p->shape.page_tokens,
                 p->shape.chunk_tokens, what, (double)distance);
}

static void step_pair(pair *p, lk_sequence id, uint32_t chain, uint32_t place, uint32_t n,
                      const char *what) {
    assert_int_equal(rig_step(&p->fast, id, chain, place, n, p->x), LK_OK);
    assert_int_equal(rig_step(&p->reference, id, chain, place, n, p->y), LK_OK);
    compare(p, n, what);
}

static lk_sequence prompt_pair(pair *p, uint32_t chain, uint32_t n) {
    const lk_sequence id = chunked_prompt(&p->fast, chain, n);
    assert_int_equal(chunked_prompt(&p->reference, chain, n), id);
    return id;
}

// The order is a permutation, classes are neighbours, and only wider ones fill pages.
static void check_lists(rig *r, lk_sequence id, shape s, lk_chunk_class *stored) {
    lk_chunk_class assigned[MAX_CHUNKS];
    uint32_t order[MAX_CHUNKS];
    const uint32_t n = chunked_info(r, id).n_chunks;
    assert_int_equal(lk_chunks_get(r->cache, id, NULL, MAX_CHUNKS, assigned, stored, order), LK_OK);
    uint8_t seen[MAX_CHUNKS] = {0};
    uint32_t counts[4] = {0};
    for (uint32_t i = 0; i < n; ++i) {
        assert_true(order[i] < n && !seen[order[i]]++);
        assert_true(!i || stored[order[i]] >= stored[order[i - 1]]);
        ++counts[stored[i]];
    }
    const uint32_t block = s.chunk_tokens < s.page_tokens ? s.page_tokens / s.chunk_tokens : 1;
    assert_int_equal(counts[LK_CHUNK_LOW] % block, 0);
    assert_int_equal(counts[LK_CHUNK_MIDDLE] % block, 0);
}

// Assign classes to both: the reference gets what the other keeps. Where a chunk fills a page of a
// wider class once it was packed, the reference has its values at the narrower one.
static void assign_pair(pair *p, lk_sequence id, uint32_t n_context, const lk_chunk_class *classes,
                        const float *scores) {
    const uint32_t n = (n_context - SINKS) / p->shape.chunk_tokens;
    lk_chunk_class stored[MAX_CHUNKS];
    const int is_first = !chunked_info(&p->fast, id).is_assigned;
    assert_int_equal(lk_chunks_assign(p->fast.cache, id, n_context, n, classes, scores), LK_OK);
    check_lists(&p->fast, id, p->shape, stored);
    assert_int_equal(lk_chunks_assign(p->reference.cache, id, n_context, n, stored, NULL), LK_OK);
    lk_chunk_class same[MAX_CHUNKS];
    assert_int_equal(lk_chunks_get(p->reference.cache, id, NULL, MAX_CHUNKS, NULL, same, NULL),
                     LK_OK);
    for (uint32_t c = 0; c < n; ++c)
        assert_true(same[c] <= stored[c] && (!is_first || same[c] == stored[c]));
}

static const shape kShapes[] = {{128, 32}, {64, 32}, {32, 32}, {128, 64}, {32, 64}, {64, 128}};

static void run_shape(shape s, uint32_t n_context) {
    pair p;
    open_pair(&p, s);
    make_caches(&p, BUDGET);
    uint32_t seed = s.page_tokens + s.chunk_tokens;
    const uint32_t length = n_context + 9;
    const lk_sequence id = prompt_pair(&p, 1, length);
    lk_chunk_class classes[MAX_CHUNKS];
    chunked_classes(&seed, (n_context - SINKS) / s.chunk_tokens, classes);
    assign_pair(&p, id, n_context, classes, NULL);
    step_pair(&p, id, 1, length, 3, "a decode step");
    step_pair(&p, id, 1, length + 3, 70, "a long step");
    step_pair(&p, id, 1, length + 73, 1, "a token");
    close_pair(&p);
}

static void permutations_answer_as_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof kShapes / sizeof *kShapes; ++i) {
        run_shape(kShapes[i], SINKS + 7 * kShapes[i].chunk_tokens + 11);
        if (is_quick())
            run_shape(kShapes[i], SINKS + 6 * kShapes[i].chunk_tokens);
    }
}

static void chunks_of_one_class(void **state) {
    (void)state;
    for (lk_chunk_class all = LK_CHUNK_LOW; all <= LK_CHUNK_HIGH; ++all)
        for (uint32_t n = 0; n < 6; n += is_quick() ? 1 : 5) {
            pair p;
            open_pair(&p, kShapes[0]);
            make_caches(&p, BUDGET);
            const uint32_t n_context = SINKS + 32 * n + 5;
            const lk_sequence id = prompt_pair(&p, 1, n_context);
            lk_chunk_class classes[6];
            for (uint32_t c = 0; c < n; ++c)
                classes[c] = all;
            assign_pair(&p, id, n_context, classes, NULL);
            const lk_chunks_info info = chunked_info(&p.fast, id);
            assert_int_equal(info.n_chunks, n);
            assert_int_equal(info.is_assigned, 1);
            assert_int_equal(info.deferral, LK_DEFER_OFF);
            assert_int_equal(info.n_low, all == LK_CHUNK_LOW ? n / 4 * 4 : 0);
            assert_int_equal(info.n_wider, all == LK_CHUNK_HIGH ? 0 : n % 4);
            step_pair(&p, id, 1, n_context, 2, "one class");
            close_pair(&p);
        }
}

// Pages at 16 bits that are too many for one part of decode, among those that are packed.
static void many_chunks_stay_at_16_bits(void **state) {
    (void)state;
    enum { N_CHUNKS = 24 };
    const lk_chunk_class turn[] = {LK_CHUNK_HIGH, LK_CHUNK_LOW, LK_CHUNK_HIGH, LK_CHUNK_MIDDLE,
                                   LK_CHUNK_HIGH};
    pair p;
    open_pair(&p, (shape){128, 128});
    make_caches(&p, BUDGET);
    const uint32_t n_context = SINKS + N_CHUNKS * 128;
    const lk_sequence id = prompt_pair(&p, 1, n_context + 40);
    lk_chunk_class classes[N_CHUNKS];
    for (uint32_t c = 0; c < N_CHUNKS; ++c)
        classes[c] = turn[c % (sizeof turn / sizeof *turn)];
    assign_pair(&p, id, n_context, classes, NULL);
    step_pair(&p, id, 1, n_context + 40, 2, "a decode step");
    close_pair(&p);
}

// All at 16 bits: what a cache of 16 bits answers, in whatever order. Small chunks too.
static void sixteen_bits_are_exact(void **state) {
    (void)state;
    const shape shapes[] = {{128, 8}, {128, 32}, {64, 16}, {32, 256}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
        rig r, plain;
        chunked_open(&r, rig_default(), 0, shapes[i], 1);
        assert_int_equal(rig_cache(&r, 2, 512, BUDGET), LK_OK);
        memset(&plain, 0, sizeof plain);
        rig_geometry(&plain, 2, 4, 2, 64);
        plain.layers[1].head_dim = 32;
        rig_open(&plain);
        rig_preset(&plain, "fp16");
        assert_int_equal(rig_cache(&plain, 2, 512, BUDGET), LK_OK);
        const uint32_t n_context = SINKS + 2 * 256 + 5;
        const lk_sequence id = chunked_prompt(&r, 3, n_context);
        lk_sequence other;
        assert_int_equal(lk_sequence_add(plain.cache, &other), LK_OK);
        assert_int_equal(chunked_append(&plain, other, 3, n_context), LK_OK);
        lk_chunk_class classes[MAX_CHUNKS];
        const uint32_t n = (n_context - SINKS) / shapes[i].chunk_tokens;
        for (uint32_t c = 0; c < n; ++c)
            classes[c] = LK_CHUNK_HIGH;
        assert_int_equal(lk_chunks_assign(r.cache, id, n_context, n, classes, NULL), LK_OK);
        float *x = malloc(4 * rig_width(&r) * sizeof *x);
        float *y = malloc(4 * rig_width(&r) * sizeof *y);
        assert_non_null(x);
        assert_non_null(y);
        assert_int_equal(rig_step(&r, id, 3, n_context, 4, x), LK_OK);
        assert_int_equal(rig_step(&plain, other, 3, n_context, 4, y), LK_OK);
        assert_true(rig_distance(x, y, 4 * rig_width(&r)) <= rig_tolerance());
        free(x);
        free(y);
        rig_close(&r);
        rig_close(&plain);
    }
}

// The best of what fills no page goes one class up; without scores the last.
static void the_best_fill_no_page(void **state) {
    (void)state;
    rig r;
    chunked_open(&r, rig_default(), 0, kShapes[0], 1);
    assert_int_equal(rig_cache(&r, 2, 512, BUDGET), LK_OK);
    const uint32_t n_context = SINKS + 32 * 6;
    const lk_chunk_class low[6] = {1, 1, 1, 1, 1, 1};
    const float scores[6] = {0.1f, 0.5f, 0.2f, 0.5f, 0.3f, -1.0f};
    lk_chunk_class stored[6];
    const lk_chunk_class by_score[6] = {1, 3, 1, 3, 1, 1};
    const lk_chunk_class by_position[6] = {1, 1, 1, 1, 3, 3};
    const lk_sequence id = chunked_prompt(&r, 1, n_context);
    const lk_sequence other = chunked_prompt(&r, 1, n_context);
    assert_int_equal(lk_chunks_assign(r.cache, id, n_context, 6, low, scores), LK_OK);
    assert_int_equal(lk_chunks_get(r.cache, id, NULL, 6, NULL, stored, NULL), LK_OK);
    assert_memory_equal(stored, by_score, sizeof stored);
    assert_int_equal(lk_chunks_assign(r.cache, other, n_context, 6, low, NULL), LK_OK);
    assert_int_equal(lk_chunks_get(r.cache, other, NULL, 6, NULL, stored, NULL), LK_OK);
    assert_memory_equal(stored, by_position, sizeof stored);
    rig_close(&r);
}

static void remove_pair(pair *p, lk_sequence id) {
    assert_int_equal(lk_sequence_remove(p->fast.cache, id), LK_OK);
    assert_int_equal(lk_sequence_remove(p->reference.cache, id), LK_OK);
}

// At every token: a fork made there, a fork cut there and a sequence alone answer alike.
static void cuts_answer_as_the_reference(void **state) {
    (void)state;
    const uint32_t stride = is_quick() ? 1 : 61;
    const shape shapes[] = {{64, 32}, {32, 64}};
    for (uint32_t i = 0; i < 2; ++i) {
        pair p;
        open_pair(&p, shapes[i]);
        make_caches(&p, BUDGET);
        uint32_t seed = 5 + i;
        const uint32_t n_context = SINKS + 6 * shapes[i].chunk_tokens + 7;
        const uint32_t length = n_context + 20;
        const lk_sequence id = prompt_pair(&p, 1, length);
        lk_chunk_class classes[6];
        chunked_classes(&seed, 6, classes);
        assign_pair(&p, id, n_context, classes, NULL);
        for (uint32_t n = i; n <= length; n += stride) {
            char what[64];
            lk_sequence child, same;
            assert_int_equal(lk_sequence_fork(p.fast.cache, id, n, &child), LK_OK);
            assert_int_equal(lk_sequence_fork(p.reference.cache, id, n, &same), LK_OK);
            snprintf(what, sizeof what, "a fork of %u tokens", n);
            step_pair(&p, child, 2, n, 2, what);
            remove_pair(&p, child);
            assert_int_equal(lk_sequence_fork(p.fast.cache, id, LK_ALL_TOKENS, &child), LK_OK);
            assert_int_equal(lk_sequence_fork(p.reference.cache, id, LK_ALL_TOKENS, &same), LK_OK);
            assert_int_equal(lk_sequence_truncate(p.fast.cache, child, n), LK_OK);
            assert_int_equal(lk_sequence_truncate(p.reference.cache, same, n), LK_OK);
            if (n >= SINKS + shapes[i].chunk_tokens) {
                lk_chunk_class stored[MAX_CHUNKS];
                check_lists(&p.fast, child, shapes[i], stored);
            }
            snprintf(what, sizeof what, "a cut at %u", n);
            step_pair(&p, child, 2, n, 70, what);
            const uint32_t again = n * 3 / 4;
            assert_int_equal(lk_sequence_truncate(p.fast.cache, child, again), LK_OK);
            assert_int_equal(lk_sequence_truncate(p.reference.cache, same, again), LK_OK);
            snprintf(what, sizeof what, "a cut at %u and at %u", n, again);
            step_pair(&p, child, 2, again, 2, what);
            remove_pair(&p, child);
        }
        step_pair(&p, id, 1, length, 2, "what was forked");
        for (uint32_t n = length; n > 40; n -= 37) {
            assert_int_equal(lk_sequence_truncate(p.fast.cache, id, n), LK_OK);
            assert_int_equal(lk_sequence_truncate(p.reference.cache, id, n), LK_OK);
            const uint32_t two = 2;
            rig_token tokens[2] = {{1, n}, {1, n + 1}};
            assert_int_equal(rig_begin(&p.fast, 1, &id, &two, NULL), LK_OK);
            assert_int_equal(rig_begin(&p.reference, 1, &id, &two, NULL), LK_OK);
            assert_int_equal(rig_layers(&p.fast, tokens, 2, p.x), LK_OK);
            assert_int_equal(rig_layers(&p.reference, tokens, 2, p.y), LK_OK);
            compare(&p, 2, "cut again and again");
            assert_int_equal(lk_step_discard(p.fast.cache), LK_OK);
            assert_int_equal(lk_step_discard(p.reference.cache), LK_OK);
        }
        close_pair(&p);
    }
}

// One document, several questions: each fork has classes of its own.
static void forks_have_their_own_classes(void **state) {
    (void)state;
    pair p;
    open_pair(&p, kShapes[0]);
    make_caches(&p, BUDGET);
    uint32_t seed = 9;
    const uint32_t n_context = SINKS + 32 * 10 + 3;
    const lk_sequence id = prompt_pair(&p, 1, n_context);
    lk_sequence forks[3], same;
    lk_chunk_class classes[10];
    for (uint32_t i = 0; i < 3; ++i) {
        assert_int_equal(lk_sequence_fork(p.fast.cache, id, LK_ALL_TOKENS, &forks[i]), LK_OK);
        assert_int_equal(lk_sequence_fork(p.reference.cache, id, LK_ALL_TOKENS, &same), LK_OK);
        assert_int_equal(chunked_info(&p.fast, forks[i]).deferral, LK_DEFER_REFUSE);
        chunked_classes(&seed, 10, classes);
        assign_pair(&p, forks[i], n_context, classes, NULL);
    }
    step_pair(&p, id, 1, n_context, 5, "the parent");
    for (uint32_t i = 0; i < 3; ++i)
        step_pair(&p, forks[i], 2 + i, n_context, 5, "a fork");
    // A fork of a fork shares what was reordered, and is assigned anew.
    assert_int_equal(lk_sequence_fork(p.fast.cache, forks[0], LK_ALL_TOKENS, &same), LK_OK);
    assert_int_equal(lk_sequence_fork(p.reference.cache, forks[0], LK_ALL_TOKENS, &same), LK_OK);
    for (uint32_t c = 0; c < 10; ++c)
        classes[c] = LK_CHUNK_LOW;
    assign_pair(&p, same, n_context, classes, NULL);
    remove_pair(&p, id);
    remove_pair(&p, forks[1]);
    step_pair(&p, forks[0], 2, n_context + 5, 5, "what was forked twice");
    step_pair(&p, same, 7, n_context + 5, 5, "a fork of a fork");
    step_pair(&p, forks[2], 4, n_context + 5, 80, "the last fork");
    close_pair(&p);
}

// For another query a chunk may become narrower, not wider.
static void classes_are_assigned_again(void **state) {
    (void)state;
    for (size_t i = 0; i < 5; ++i) {
        pair p;
        open_pair(&p, kShapes[i]);
        make_caches(&p, BUDGET);
        uint32_t seed = 21 + (uint32_t)i;
        const uint32_t n_context = SINKS + kShapes[i].chunk_tokens * 8 + 3;
        const lk_sequence id = prompt_pair(&p, 1, n_context);
        lk_chunk_class first[8], stored[8], second[8], now[8];
        chunked_classes(&seed, 8, first);
        assign_pair(&p, id, n_context, first, NULL);
        assert_int_equal(lk_chunks_get(p.fast.cache, id, NULL, 8, NULL, stored, NULL), LK_OK);
        step_pair(&p, id, 1, n_context, 4, "the first query");
        const uint64_t dequantized = rig_stats(&p.fast).pages_dequantized;
        assign_pair(&p, id, n_context, stored, NULL);  // nothing to do
        assert_int_equal(rig_stats(&p.fast).pages_dequantized, dequantized);
        chunked_classes(&seed, 8, second);
        assign_pair(&p, id, n_context, second, NULL);
        assert_int_equal(lk_chunks_get(p.fast.cache, id, NULL, 8, NULL, now, NULL), LK_OK);
        uint32_t n_narrower = 0;
        for (uint32_t c = 0; c < 8; ++c) {
            assert_true(now[c] >= (second[c] < stored[c] ? second[c] : stored[c]));
            n_narrower += now[c] < second[c];
        }
        assert_int_equal(chunked_info(&p.fast, id).n_narrower, n_narrower);
        step_pair(&p, id, 1, n_context + 4, 4, "the second query");
        // Tokens that came since join the context.
        const uint32_t grown = kShapes[i].chunk_tokens * 2;
        step_pair(&p, id, 1, n_context + 8, grown, "more context");
        lk_chunk_class more[10];
        chunked_classes(&seed, 10, more);
        assign_pair(&p, id, n_context + 8 + grown, more, NULL);
        step_pair(&p, id, 1, n_context + 8 + grown, 4, "a longer context");
        close_pair(&p);
    }
}

static uint64_t held(rig *r) { return rig_stats(r).reserved_bytes; }

// What a call that is refused leaves as it was.
static void expect_same(rig *r, const lk_cache_stats *before) {
    lk_cache_stats after = rig_stats(r);
    after.free_bytes = before->free_bytes;  // slabs may have come and gone
    assert_memory_equal(before, &after, sizeof after);
}

static void answer(rig *r, lk_sequence id, uint32_t place, float *out) {
    const uint32_t two = 2;
    const rig_token tokens[2] = {{1, place}, {1, place + 1}};
    assert_int_equal(rig_begin(r, 1, &id, &two, NULL), LK_OK);
    assert_int_equal(rig_layers(r, tokens, 2, out), LK_OK);
    assert_int_equal(lk_step_discard(r->cache), LK_OK);
}

// A chunk packed from originals has the bits of one that had its class at first.
static void originals_are_promoted(void **state) {
    (void)state;
    const shape shapes[] = {{128, 32}, {32, 64}};
    for (uint32_t i = 0; i < 2; ++i) {
        rig r;
        chunked_open(&r, rig_default(), 0, shapes[i], 1);
        assert_int_equal(rig_cache(&r, 4, 512, BUDGET), LK_OK);
        uint32_t seed = 31 + i;
        const uint32_t n_context = SINKS + shapes[i].chunk_tokens * 9 + 3;
        const lk_sequence id = chunked_prompt(&r, 1, n_context),
                          once = chunked_prompt(&r, 1, n_context);
        const size_t bytes = 2 * rig_width(&r) * sizeof(float);
        float *x = malloc(bytes), *y = malloc(bytes);
        assert_non_null(x);
        assert_non_null(y);
        lk_chunk_class first[9], second[9], kept[9], assigned_once[9];
        chunked_classes(&seed, 9, first);
        for (uint32_t c = 0; c < 9; ++c)
            second[c] = LK_CHUNK_LOW + LK_CHUNK_HIGH - first[c];
        assert_int_equal(lk_chunks_retain(r.cache, id, 64), LK_OK);
        const lk_cache_stats before = rig_stats(&r);
        assert_int_equal(lk_chunks_assign(r.cache, id, n_context, 9, first, NULL), LK_E_BUDGET);
        rig_sentence("may be retained");
        expect_same(&r, &before);
        assert_int_equal(lk_chunks_retain(r.cache, id, 16u << 20), LK_OK);
        assert_int_equal(lk_chunks_assign(r.cache, id, n_context, 9, first, NULL), LK_OK);
        const uint64_t retained = chunked_info(&r, id).retained_bytes;
        assert_true(retained > 0 && retained <= 16u << 20);
        assert_int_equal(lk_chunks_retain(r.cache, id, retained - 1), LK_E_BUDGET);
        lk_sequence fork;
        assert_int_equal(lk_sequence_fork(r.cache, id, LK_ALL_TOKENS, &fork), LK_OK);
        assert_int_equal(lk_chunks_retain(r.cache, id, 0), LK_OK);
        assert_int_equal(chunked_info(&r, id).retained_bytes, 0);
        assert_int_equal(lk_chunks_assign(r.cache, fork, n_context, 9, second, NULL), LK_OK);
        assert_int_equal(chunked_info(&r, fork).n_narrower, 0);
        assert_int_equal(lk_chunks_assign(r.cache, once, n_context, 9, second, NULL), LK_OK);
        assert_int_equal(lk_chunks_get(r.cache, fork, NULL, 9, NULL, kept, NULL), LK_OK);
        assert_int_equal(lk_chunks_get(r.cache, once, NULL, 9, NULL, assigned_once, NULL), LK_OK);
        assert_memory_equal(kept, assigned_once, sizeof kept);
        answer(&r, fork, n_context, x);
        answer(&r, once, n_context, y);
        assert_true(rig_distance(x, y, 2 * rig_width(&r)) <= rig_tolerance());
        // A cut chunk's tokens are not what comes in their place.
        assert_int_equal(lk_sequence_truncate(r.cache, fork, SINKS + shapes[i].chunk_tokens * 4),
                         LK_OK);
        assert_int_equal(rig_append_step(&r, fork, 5, 0, shapes[i].chunk_tokens), LK_OK);
        for (uint32_t c = 0; c < 5; ++c)
            first[c] = LK_CHUNK_HIGH;
        const uint32_t grown = SINKS + shapes[i].chunk_tokens * 5;
        assert_int_equal(lk_chunks_assign(r.cache, fork, grown, 5, first, NULL), LK_OK);
        assert_int_equal(chunked_info(&r, fork).n_high, 5);
        const lk_sequence plain = chunked_prompt(&r, 1, grown - shapes[i].chunk_tokens);
        assert_int_equal(rig_append_step(&r, plain, 5, 0, shapes[i].chunk_tokens), LK_OK);
        answer(&r, fork, grown, x);
        answer(&r, plain, grown, y);
        assert_true(rig_distance(x, y, 2 * rig_width(&r)) <= rig_tolerance());
        free(x);
        free(y);
        rig_close(&r);
    }
}

// Pages that keep their class move with their codes, also those that forks share: keys that are
// ranked by what codes stand for may get other ranks.
static void shared_pages_move_as_they_are(void **state) {
    (void)state;
    const shape s = {32, 32};
    rig r;
    chunked_open(&r, rig_default(), 0, s, 1);
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    rule.bits = 2;
    rule.boost_channels = 16;
    rule.boost_bits = 4;
    rule.boost_ranking = LK_RANKING_KEY;
    assert_int_equal(lk_plan_set_key(r.plan, LK_ALL, LK_ALL, &rule), LK_OK);
    assert_int_equal(lk_plan_set_metadata(r.plan, LK_ALL, LK_METADATA_F8), LK_OK);
    assert_int_equal(rig_cache(&r, 3, 512, BUDGET), LK_OK);
    const uint32_t n_context = SINKS + 6 * s.chunk_tokens + 3;
    const lk_sequence shared = chunked_prompt(&r, 1, n_context),
                      alone = chunked_prompt(&r, 1, n_context);
    lk_sequence fork;
    lk_chunk_class classes[6];
    for (uint32_t c = 0; c < 6; ++c)
        classes[c] = LK_CHUNK_MIDDLE;
    assert_int_equal(lk_chunks_assign(r.cache, shared, n_context, 6, classes, NULL), LK_OK);
    assert_int_equal(lk_chunks_assign(r.cache, alone, n_context, 6, classes, NULL), LK_OK);
    assert_int_equal(lk_sequence_fork(r.cache, shared, LK_ALL_TOKENS, &fork), LK_OK);
    classes[5] = LK_CHUNK_LOW;  // it goes before the others
    assert_int_equal(lk_chunks_assign(r.cache, shared, n_context, 6, classes, NULL), LK_OK);
    assert_int_equal(lk_chunks_assign(r.cache, alone, n_context, 6, classes, NULL), LK_OK);
    const size_t n = 2 * rig_width(&r);
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    assert_non_null(x);
    assert_non_null(y);
    answer(&r, shared, n_context, x);
    answer(&r, alone, n_context, y);
    assert_true(rig_distance(x, y, n) <= rig_tolerance());
    free(x);
    free(y);
    rig_close(&r);
}

// What a window has taken a part of stays as it is, and nothing of it is retained.
static void windows_leave_no_originals(void **state) {
    (void)state;
    const shape s = {32, 32};
    const uint64_t row_bytes = 32 * 2 * (64 + 32) * 2 * sizeof(uint16_t);
    rig r;
    chunked_open(&r, rig_default(), 0, s, 0);
    chunked_window(&r, s, "fp16");
    assert_int_equal(rig_cache(&r, 2, 512, BUDGET), LK_OK);
    const uint32_t n_context = SINKS + 9 * s.chunk_tokens + 3;
    lk_sequence id;  // not deferred: its pages, of 16 bits, have left the recent window
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    assert_int_equal(chunked_append(&r, id, 1, n_context), LK_OK);
    lk_chunk_class low[9], high[9], stored[9];
    for (uint32_t c = 0; c < 9; ++c) {
        low[c] = LK_CHUNK_LOW;
        high[c] = LK_CHUNK_HIGH;
    }
    assert_int_equal(lk_chunks_retain(r.cache, id, 16u << 20), LK_OK);
    assert_int_equal(lk_chunks_assign(r.cache, id, n_context, 9, low, NULL), LK_OK);
    const uint64_t retained = chunked_info(&r, id).retained_bytes;
    assert_true(retained >= row_bytes && retained <= 3 * row_bytes);
    assert_int_equal(lk_chunks_get(r.cache, id, NULL, 9, NULL, stored, NULL), LK_OK);
    assert_int_equal(stored[8], LK_CHUNK_LOW);
    assert_int_equal(stored[0], LK_CHUNK_HIGH);
    assert_int_equal(lk_chunks_assign(r.cache, id, n_context, 9, high, NULL), LK_OK);
    assert_int_equal(chunked_info(&r, id).n_narrower, 0);
    assert_int_equal(rig_append_step(&r, id, 1, n_context, 20), LK_OK);
    rig_close(&r);
}

// A budget that holds the prompt, but not the new pages in addition.
static void small_budgets_change_nothing(void **state) {
    (void)state;
    pair p;
    open_pair(&p, kShapes[0]);
    const uint32_t n_context = SINKS + 32 * 16;
    make_caches(&p, BUDGET);
    const lk_sequence measured = chunked_prompt(&p.fast, 1, n_context);
    const uint64_t needed = held(&p.fast);
    lk_sequence id = chunked_prompt(&p.reference, 1, n_context);
    lk_chunk_class classes[16];
    for (uint32_t c = 0; c < 16; ++c)
        classes[c] = c % 4 ? LK_CHUNK_LOW : LK_CHUNK_MIDDLE;
    assert_int_equal(lk_sequence_remove(p.fast.cache, measured), LK_OK);
    lk_cache_destroy(&p.fast.cache);
    int was_refused = 0;
    for (uint64_t budget = needed;; budget += 1u << 18) {
        assert_int_equal(rig_cache(&p.fast, 6, 512, budget), LK_OK);
        id = chunked_prompt(&p.fast, 1, n_context);
        const lk_cache_stats before = rig_stats(&p.fast);
        const lk_status status = lk_chunks_assign(p.fast.cache, id, n_context, 16, classes, NULL);
        assert_true(held(&p.fast) <= budget);
        if (status == LK_OK)
            break;
        assert_int_equal(status, LK_E_BUDGET);
        rig_sentence("is short of");
        expect_same(&p.fast, &before);
        assert_int_equal(chunked_info(&p.fast, id).is_assigned, 0);
        assert_int_equal(chunked_info(&p.fast, id).deferral, LK_DEFER_REFUSE);
        lk_cache_destroy(&p.fast.cache);
        was_refused = 1;
    }
    assert_true(was_refused);
    lk_chunk_class stored[MAX_CHUNKS];
    check_lists(&p.fast, id, p.shape, stored);
    assert_int_equal(lk_chunks_assign(p.reference.cache, 1, n_context, 16, stored, NULL), LK_OK);
    step_pair(&p, 1, 1, n_context, 2, "the least budget");
    close_pair(&p);
}

// Deferred prompts that do not fit are refused, or their oldest chunks are packed.
#define MANY 160u
static void deferred_prompts_have_a_budget(void **state) {
    (void)state;
    pair p;
    open_pair(&p, kShapes[0]);
    make_caches(&p, BUDGET);
    const uint32_t n_context = SINKS + 32 * MANY;
    assert_int_equal(chunked_prompt(&p.fast, 1, n_context), 1);
    const uint64_t budget = held(&p.fast) * 3 / 4;
    lk_cache_destroy(&p.fast.cache);
    assert_int_equal(rig_cache(&p.fast, 6, 512, budget), LK_OK);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(p.fast.cache, &id), LK_OK);
    assert_int_equal(lk_sequence_defer(p.fast.cache, id, LK_DEFER_REFUSE), LK_OK);
    lk_sequence unused;
    uint32_t length = 0;
    lk_status status = LK_OK;
    while (!status) {
        const lk_cache_stats before = rig_stats(&p.fast);
        status = rig_append_step(&p.fast, id, 1, length, 144);
        if (status)
            expect_same(&p.fast, &before);
        length += status ? 0 : 144;
        assert_int_equal(rig_stats(&p.fast).payload_bytes, 0);
    }
    assert_int_equal(status, LK_E_BUDGET);
    rig_sentence("is short of");
    assert_true(length < n_context);
    assert_int_equal(lk_sequence_remove(p.fast.cache, id), LK_OK);
    assert_int_equal(lk_sequence_add(p.fast.cache, &id), LK_OK);
    assert_int_equal(lk_sequence_defer(p.fast.cache, id, LK_DEFER_PACK), LK_OK);
    length = 0;
    for (uint32_t n; length < n_context; length += n) {
        n = n_context - length < 144 ? n_context - length : 144;
        assert_int_equal(rig_append_step(&p.fast, id, 1, length, n), LK_OK);
        assert_true(held(&p.fast) <= budget);
    }
    lk_chunk_class stored[MANY];
    assert_int_equal(lk_chunks_get(p.fast.cache, id, NULL, MANY, NULL, stored, NULL), LK_OK);
    uint32_t n_packed = 0;
    while (n_packed < MANY && stored[n_packed] == LK_CHUNK_MIDDLE)
        ++n_packed;
    assert_true(n_packed > 0 && n_packed < MANY && n_packed % 4 == 0);
    for (uint32_t c = n_packed; c < MANY; ++c)
        assert_int_equal(stored[c], LK_CHUNK_HIGH);
    assert_int_equal(chunked_info(&p.fast, id).n_middle, n_packed);
    // The reference has its oldest chunks packed by its host.
    assert_int_equal(lk_sequence_add(p.reference.cache, &unused), LK_OK);
    assert_int_equal(chunked_prompt(&p.reference, 1, n_context), id);
    assert_int_equal(lk_chunks_assign(p.reference.cache, id, n_context, MANY, stored, NULL), LK_OK);
    step_pair(&p, id, 1, n_context, 2, "packed by a budget");
    // What was packed gets no wider.
    lk_chunk_class classes[MANY];
    uint32_t seed = 3;
    chunked_classes(&seed, MANY, classes);
    assert_int_equal(lk_chunks_get(p.fast.cache, id, NULL, MANY, NULL, stored, NULL), LK_OK);
    uint32_t n_narrower = 0;
    for (uint32_t c = 0; c < MANY; ++c)
        n_narrower += stored[c] < classes[c];
    assert_true(n_narrower > 0);
    assert_int_equal(lk_sequence_truncate(p.fast.cache, id, n_context), LK_OK);
    assert_int_equal(lk_sequence_truncate(p.reference.cache, id, n_context), LK_OK);
    assign_pair(&p, id, n_context, classes, NULL);
    assert_true(held(&p.fast) <= budget);
    assert_true(chunked_info(&p.fast, id).n_narrower <= n_narrower);
    step_pair(&p, id, 1, n_context, 2, "assigned after that");
    close_pair(&p);
}

static void without_memory(void **state) {
    (void)state;
    rig r;
    chunked_open(&r, NULL, 0, kShapes[0], 1);
    assert_int_equal(rig_cache(&r, 4, 512, BUDGET), LK_OK);
    const uint32_t n_context = SINKS + 32 * 9 + 3;
    const lk_sequence id = chunked_prompt(&r, 1, n_context);
    lk_chunk_class classes[9];
    uint32_t seed = 17;
    chunked_classes(&seed, 9, classes);
    for (int what = 0; what < 3; ++what) {
        lk_status status = LK_E_NOMEM;
        for (int64_t nth = 1; status; ++nth) {
            lk_sequence child = 0;
            const lk_cache_stats before = rig_stats(&r);
            r.memory.fail_at = r.memory.n_calls + nth;
            status = what == 0   ? lk_chunks_assign(r.cache, id, n_context, 9, classes, NULL)
                     : what == 1 ? lk_sequence_fork(r.cache, id, SINKS + 32 * 5 + 7, &child)
                                 : lk_sequence_truncate(r.cache, id, SINKS + 32 * 5 + 7);
            r.memory.fail_at = 0;
            if (status) {
                assert_int_equal(status, LK_E_NOMEM);
                lk_cache_stats after = rig_stats(&r);
                after.free_bytes = before.free_bytes;
                after.pages_packed = before.pages_packed;
                after.pages_dequantized = before.pages_dequantized;
                assert_memory_equal(&before, &after, sizeof after);
                assert_int_equal(chunked_info(&r, id).is_assigned, what > 0);
            }
            assert_true(nth < 500);
        }
    }
    assert_int_equal(chunked_info(&r, id).n_chunks, 5);
    rig_close(&r);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    rig r;
    chunked_open(&r, NULL, 0, kShapes[0], 1);
    assert_int_equal(rig_cache(&r, 4, 512, BUDGET), LK_OK);
    const uint32_t n = SINKS + 32 * 3 + 1;
    const lk_sequence id = chunked_prompt(&r, 1, n);
    const lk_chunk_class good[3] = {LK_CHUNK_LOW, LK_CHUNK_HIGH, LK_CHUNK_LOW};
    const lk_chunk_class bad[3] = {LK_CHUNK_LOW, LK_CHUNK_NONE, 4};
    const float nan_score[3] = {0, NAN, 1};
    uint32_t order[2];
    assert_int_equal(lk_sequence_defer(NULL, id, 0), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_defer(r.cache, id, 3), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_defer(r.cache, 99, LK_DEFER_OFF), LK_E_NOT_FOUND);
    assert_int_equal(lk_chunks_assign(NULL, id, n, 3, good, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_chunks_assign(r.cache, 99, n, 3, good, NULL), LK_E_NOT_FOUND);
    assert_int_equal(lk_chunks_assign(r.cache, id, n + 31, 3, good, NULL), LK_E_ARGUMENT);
    rig_sentence("are 4 chunks");
    assert_int_equal(lk_chunks_assign(r.cache, id, n, 2, good, NULL), LK_E_ARGUMENT);
    rig_sentence("are 3 chunks");
    assert_int_equal(lk_chunks_assign(r.cache, id, n, 3, NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_chunks_assign(r.cache, id, n, 3, bad, NULL), LK_E_ARGUMENT);
    rig_sentence("chunk 1");
    assert_int_equal(lk_chunks_assign(r.cache, id, n, 3, good, nan_score), LK_E_DATA);
    rig_sentence("chunk 1");
    assert_int_equal(lk_chunks_get(NULL, id, NULL, 0, NULL, NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_chunks_get(r.cache, 99, NULL, 0, NULL, NULL, NULL), LK_E_NOT_FOUND);
    lk_chunks_info info = chunked_info(&r, id);
    assert_int_equal(info.n_chunks, 3);
    assert_int_equal(info.is_assigned, 0);
    assert_int_equal(info.first_token, SINKS);
    assert_int_equal(lk_chunks_get(r.cache, id, &info, 2, NULL, NULL, order), LK_E_ARGUMENT);
    rig_sentence("3 chunks");
    const uint32_t one = 1;
    assert_int_equal(rig_begin(&r, 1, &id, &one, NULL), LK_OK);
    assert_int_equal(lk_chunks_assign(r.cache, id, n, 3, good, NULL), LK_E_BUSY);
    assert_int_equal(lk_sequence_defer(r.cache, id, LK_DEFER_OFF), LK_E_BUSY);
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    assert_int_equal(lk_chunks_assign(r.cache, id, n, 3, good, NULL), LK_OK);
    assert_int_equal(lk_chunks_assign(r.cache, id, SINKS + 64, 2, good, NULL), LK_E_ARGUMENT);
    rig_sentence("has classes for 3");
    rig_close(&r);
}

// Pages that were packed before there were classes cannot have one, and a plan may have no chunks.
static void classes_come_before_packing(void **state) {
    (void)state;
    rig r;
    chunked_open(&r, NULL, 0, kShapes[0], 1);
    lk_value_rule value;
    rig_is_ok(lk_value_rule_init(&value, sizeof value));
    value.bits = 4;
    rig_is_ok(lk_plan_set_value(r.plan, LK_ALL, LK_ALL, &value));
    rig_is_ok(rig_cache(&r, 4, 512, BUDGET));
    lk_sequence id;
    const lk_chunk_class low[4] = {1, 1, 1, 1};
    const uint32_t n = SINKS + 128;
    rig_is_ok(lk_sequence_add(r.cache, &id));
    rig_is_ok(rig_fill(&r, id, 1, 0, n + 40, 60, NULL));
    assert_int_equal(lk_chunks_assign(r.cache, id, n, 4, low, NULL), LK_E_STATE);
    rig_sentence("packed without a class");
    rig_drop_cache(&r);
    rig_preset(&r, "kivi2");
    rig_is_ok(rig_cache(&r, 4, 512, BUDGET));
    rig_is_ok(lk_sequence_add(r.cache, &id));
    assert_int_equal(lk_sequence_defer(r.cache, id, LK_DEFER_REFUSE), LK_E_UNSUPPORTED);
    assert_int_equal(lk_chunks_assign(r.cache, id, 0, 0, NULL, NULL), LK_E_UNSUPPORTED);
    rig_sentence("no chunks");
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permutations_answer_as_the_reference),
        cmocka_unit_test(chunks_of_one_class),
        cmocka_unit_test(many_chunks_stay_at_16_bits),
        cmocka_unit_test(sixteen_bits_are_exact),
        cmocka_unit_test(the_best_fill_no_page),
        cmocka_unit_test(cuts_answer_as_the_reference),
        cmocka_unit_test(forks_have_their_own_classes),
        cmocka_unit_test(classes_are_assigned_again),
        cmocka_unit_test(originals_are_promoted),
        cmocka_unit_test(shared_pages_move_as_they_are),
        cmocka_unit_test(windows_leave_no_originals),
        cmocka_unit_test(small_budgets_change_nothing),
        cmocka_unit_test(deferred_prompts_have_a_budget),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(classes_come_before_packing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
