// Spans of new tokens that see each other both ways: answers against attention in double precision,
// in one step and in chunks, and every refusal.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "rig.h"

#define BUDGET (64u << 20)
#define MAX_TOKENS 256u
#define QUERY_HEADS 4u
#define KV_HEADS 2u
#define HEAD_DIM 32u
#define WIDTH (QUERY_HEADS * HEAD_DIM)
// Values are rounded to FP16, keys of up to 7 too: a logit moves by less than 0.02, and a device
// rounds weights.
#define MOST 2e-2f

static uint32_t g_flags;  // of the steps of a case

typedef struct span {
    uint32_t first, end;
} span;

// Spans of the whole sequence, one of them longer than the window.
static const span kSpans[] = {{3, 8}, {8, 20}, {70, 110}, {115, 116}, {120, 158}};
#define N_SPANS 5u
#define WINDOW 30u

static void open_model(rig *r, uint32_t window_tokens) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 2, QUERY_HEADS, KV_HEADS, HEAD_DIM);
    r->layers[1].window_tokens = window_tokens;
    rig_open(r);
    rig_preset(r, "fp16");
    rig_is_ok(rig_cache(r, 2, MAX_TOKENS, BUDGET));
}

static uint32_t reach_of(uint32_t token) {
    for (uint32_t s = 0; s < N_SPANS; ++s)
        if (token >= kSpans[s].first && token < kSpans[s].end)
            return kSpans[s].end - 1;
    return token;
}

static int is_visible(uint32_t query, uint32_t key, uint32_t window) {
    const int has_spans = window || g_flags != LK_SPANS_WINDOWED;
    return key <= (has_spans ? reach_of(query) : query) && (!window || key + window > query);
}

// out [n][WIDTH] of a layer.
static void compute(const rig *r, uint32_t layer, uint32_t window, uint32_t n, double *out) {
    rig_token tokens[MAX_TOKENS];
    for (uint32_t t = 0; t < n; ++t)
        tokens[t] = (rig_token){1, t};
    float *q = malloc((size_t)n * WIDTH * sizeof *q);
    float *k = malloc((size_t)n * KV_HEADS * HEAD_DIM * sizeof *k);
    float *v = malloc((size_t)n * KV_HEADS * HEAD_DIM * sizeof *v);
    assert_true(q && k && v);
    rig_values(r, layer, RIG_Q, tokens, n, q);
    rig_values(r, layer, RIG_K, tokens, n, k);
    rig_values(r, layer, RIG_V, tokens, n, v);
    for (uint32_t t = 0; t < n; ++t)
        for (uint32_t h = 0; h < QUERY_HEADS; ++h) {
            const float *query = q + ((size_t)t * QUERY_HEADS + h) * HEAD_DIM;
            double *to = out + ((size_t)t * QUERY_HEADS + h) * HEAD_DIM;
            double sum = 0;
            memset(to, 0, HEAD_DIM * sizeof *to);
            for (uint32_t i = 0; i < n; ++i) {
                if (!is_visible(t, i, window))
                    continue;
                const size_t at = ((size_t)i * KV_HEADS + h / 2) * HEAD_DIM;
                double dot = 0;
                for (uint32_t c = 0; c < HEAD_DIM; ++c)
                    dot += (double)query[c] * (double)k[at + c];
                const double weight = exp(dot / sqrt(HEAD_DIM));
                sum += weight;
                for (uint32_t c = 0; c < HEAD_DIM; ++c)
                    to[c] += weight * (double)v[at + c];
            }
            for (uint32_t c = 0; c < HEAD_DIM; ++c)
                to[c] /= sum;
        }
    free(q);
    free(k);
    free(v);
}

// Tokens [first, end) of the sequence with the spans that begin there; out [end - first][2 WIDTH].
static void step(rig *r, lk_sequence id, uint32_t first, uint32_t end, float *out) {
    uint32_t spans[3 * N_SPANS];
    uint32_t n_spans = 0;
    for (uint32_t s = 0; s < N_SPANS; ++s)
        if (kSpans[s].first >= first && kSpans[s].first < end) {
            assert_true(kSpans[s].end <= end);
            spans[3 * n_spans] = 0;
            spans[3 * n_spans + 1] = kSpans[s].first - first;
            spans[3 * n_spans++ + 2] = kSpans[s].end - first;
        }
    const uint32_t n = end - first;
    rig_token tokens[MAX_TOKENS];
    for (uint32_t t = 0; t < n; ++t)
        tokens[t] = (rig_token){1, first + t};
    rig_is_ok(lk_step_begin_spans(r->cache, r->device->queue, 1, &id, &n, spans, n_spans, g_flags));
    memset(spans, 255, sizeof spans);  // they were copied
    rig_is_ok(rig_layers(r, tokens, n, out));
    rig_is_ok(lk_step_commit(r->cache, NULL));
}

static void tokens_of_spans_see_each_other(void **unused) {
    (void)unused;
    static const uint32_t kCuts[][6] = {
        {0, 160}, {0, 3, 64, 112, 160}, {0, 20, 21, 110, 119, 160}, {0, 30, 70, 118, 159, 160}};
    for (uint32_t window = 0; window <= WINDOW; window += WINDOW)
        for (size_t i = 0; i < sizeof kCuts / sizeof *kCuts; ++i) {
            rig r;
            g_flags = i % 2 ? LK_SPANS_WINDOWED : 0;
            open_model(&r, window);
            double *wanted = malloc(160 * WIDTH * sizeof *wanted);
            float *found = malloc((size_t)160 * 2 * WIDTH * sizeof *found);
            assert_true(wanted && found);
            lk_sequence id;
            rig_is_ok(lk_sequence_add(r.cache, &id));
            for (uint32_t c = 0; kCuts[i][c] != 160; ++c)
                step(&r, id, kCuts[i][c], kCuts[i][c + 1], found + (size_t)kCuts[i][c] * 2 * WIDTH);
            for (uint32_t l = 0; l < 2; ++l) {
                compute(&r, l, l ? window : 0, 160, wanted);
                for (uint32_t t = 0; t < 160; ++t)
                    for (uint32_t c = 0; c < WIDTH; ++c) {
                        const double apart =
                            wanted[t * WIDTH + c] - (double)found[(t * 2 + l) * WIDTH + c];
                        if (!(fabs(apart) <= (double)MOST))
                            fail_msg("cut %zu, window %u, layer %u, token %u: %g apart", i, window,
                                     l, t, apart);
                    }
            }
            free(wanted);
            free(found);
            rig_close(&r);
        }
}

// A sequence without spans answers as in a step without any, next to one that has some.
static void sequences_without_spans_stay(void **unused) {
    (void)unused;
    rig r;
    open_model(&r, 0);
    lk_sequence ids[2];
    float alone[7 * 2 * WIDTH], together[16 * 2 * WIDTH];
    const uint32_t counts[] = {9, 7};
    const uint32_t spans[] = {0, 2, 9};
    rig_token tokens[16];
    rig_is_ok(lk_sequence_add(r.cache, &ids[0]));
    rig_is_ok(lk_sequence_add(r.cache, &ids[1]));
    for (uint32_t t = 0; t < 16; ++t)
        tokens[t] = (rig_token){t < 9, t < 9 ? t : t - 9};
    rig_is_ok(lk_step_begin_spans(r.cache, r.device->queue, 2, ids, counts, spans, 1, 0));
    rig_is_ok(rig_layers(&r, tokens, 16, together));
    rig_is_ok(lk_step_discard(r.cache));
    rig_is_ok(lk_step_begin_spans(r.cache, r.device->queue, 1, ids + 1, counts + 1, NULL, 0, 0));
    rig_is_ok(rig_layers(&r, tokens + 9, 7, alone));
    rig_is_ok(lk_step_discard(r.cache));
    assert_true(rig_distance(alone, together + 9 * 2 * WIDTH, 7 * 2 * WIDTH) <= rig_tolerance());
    // The step after one with spans has none.
    rig_is_ok(rig_begin(&r, 2, ids, counts, NULL));
    rig_is_ok(rig_layers(&r, tokens, 16, together));
    rig_is_ok(lk_step_discard(r.cache));
    rig_is_ok(rig_begin(&r, 1, ids, counts, NULL));
    float causal[9 * 2 * WIDTH];
    rig_is_ok(rig_layers(&r, tokens, 9, causal));
    rig_is_ok(lk_step_discard(r.cache));
    assert_true(rig_distance(causal, together, 9 * 2 * WIDTH) <= rig_tolerance());
    rig_close(&r);
}

static void wrong_spans_are_refused(void **unused) {
    (void)unused;
    rig r;
    open_model(&r, WINDOW);
    lk_sequence ids[2];
    rig_is_ok(lk_sequence_add(r.cache, &ids[0]));
    rig_is_ok(lk_sequence_add(r.cache, &ids[1]));
    const uint32_t counts[] = {50, 10};
    const struct {
        uint32_t n;
        uint32_t spans[6];
        const char *text;
    } faults[] = {{1, {2, 0, 1}, "span 0 has tokens 0 to 1 of sequence 2 of 2"},
                  {1, {1, 5, 5}, "span 0 has tokens 5 to 5"},
                  {1, {1, 6, 5}, "span 0 has tokens 6 to 5"},
                  {1, {1, 5, 11}, "span 0 has tokens 5 to 11 of sequence 1"},
                  {2,
                   {0, 5, 9, 0, 8, 12},
                   "span 1 has tokens 8 to 12 of sequence 0 of 2, "
                   "after token 9"},
                  {2, {0, 5, 9, 0, 1, 3}, "span 1 has tokens 1 to 3"},
                  {2, {1, 5, 9, 0, 1, 3}, "span 1 has tokens 1 to 3 of sequence 0"},
                  {2, {1, 0, 2, 0, 0, 41}, "span 1 has tokens 0 to 41"}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
        assert_int_equal(lk_step_begin_spans(r.cache, r.device->queue, 2, ids, counts,
                                             faults[i].spans, faults[i].n, 0),
                         LK_E_ARGUMENT);
        rig_sentence(faults[i].text);
    }
    assert_int_equal(lk_step_begin_spans(r.cache, r.device->queue, 2, ids, counts, NULL, 1, 0),
                     LK_E_ARGUMENT);
    rig_sentence("spans is NULL");
    assert_int_equal(lk_step_begin_spans(r.cache, r.device->queue, 2, ids, counts, NULL, 0, 2),
                     LK_E_ARGUMENT);
    rig_sentence("flags is 0x2");
    const uint32_t spans[] = {0, 0, 40, 1, 9, 10};
    rig_is_ok(lk_step_begin_spans(r.cache, r.device->queue, 2, ids, counts, spans, 2, 0));
    assert_int_equal(lk_step_begin_spans(r.cache, r.device->queue, 2, ids, counts, spans, 2, 0),
                     LK_E_STATE);
    const lk_status replayed = lk_step_replay(r.cache);
    assert_int_equal(replayed, LK_E_UNSUPPORTED);
    rig_is_ok(lk_step_discard(r.cache));
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_of_spans_see_each_other),
        cmocka_unit_test(sequences_without_spans_stay),
        cmocka_unit_test(wrong_spans_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
