// Scores of chunks by attention, against the definition in double precision, and what
// lk_chunks_score_attention() promises around them.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "model.h"

#define BUDGET (64u << 20)
#define SINKS 16
#define MAX_CHUNKS 320

typedef struct score_case {
    const char *plan;
    uint32_t page_tokens;
    uint32_t chunk_tokens;
    uint32_t n_chunks;
    uint32_t leftover_tokens;  // between the context and the query
    uint32_t query_tokens;
    uint32_t step_tokens;  // of the scored step; the others come before in long steps
} score_case;

static const score_case kCases[] = {
    {"fp16", 64, 32, 9, 5, 7, 7},     // the query alone
    {"fp16", 64, 32, 9, 0, 1, 1},     // one row
    {"fp16", 64, 32, 9, 13, 40, 60},  // with the end of the context, in 16-bit rows
    {"fp16", 64, 32, 9, 0, 11, 315},  // context and query in one long step
    {"fp16", 32, 8, 33, 3, 20, 20},   // two chunks a tile, several units of columns
    {"fp16", 128, 24, 11, 0, 3, 3},   // chunks that begin within tiles
    {"fp16", 32, 256, 2, 0, 5, 261},  // chunks of several pages
    {"fp16", 128, 9, 31, 1, 2, 2},    // any number of tokens
    {"fp16", 64, 64, 1, 0, 33, 33},   // one chunk: all of it
    {"int8", 64, 32, 9, 9, 7, 7},     // packed
    {"int8", 128, 24, 21, 60, 70, 70},
};

// A context, whose pipelines serve all caches of the model, without a cache.
static void open_model(rig *r, const rig_device *device) {
    memset(r, 0, sizeof *r);
    r->device = device;
    rig_geometry(r, 3, 4, 2, 64);
    r->layers[0].n_query_heads = 10;
    r->layers[1].n_kv_heads = 1;
    r->layers[1].head_dim = 80;
    r->layers[1].window_tokens = 150;
    r->layers[1].window_sink_tokens = 20;  // after the plan's, so that any cut is possible
    r->layers[2].head_dim = 128;
    r->layers[2].n_query_heads = 2;
    r->layers[2].soft_cap = 5;
    rig_open(r);
}

static void open_cache(rig *r, const score_case *c) {
    rig_preset(r, c->plan);
    rig_recent(r, c->page_tokens, SINKS, 0);
    float centers[128];
    for (uint32_t i = 0; i < 128; ++i)
        centers[i] = (float)(i % 5) - 1.5f;
    assert_int_equal(lk_plan_set_key_centers(r->plan, 0, 1, centers), LK_OK);
    assert_int_equal(lk_plan_set_key_centers(r->plan, 2, 0, centers), LK_OK);
    float scales[128];
    for (uint32_t i = 0; i < 128; ++i)
        scales[i] = 0.5f + (float)(i % 11) / 4;
    assert_int_equal(lk_plan_set_key_scales(r->plan, 0, LK_ALL, scales), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(r->plan, 2, 1, scales), LK_OK);
    // The bound of 8 bits is that of the ranges of channels as they come.
    if (strcmp(c->plan, "int8"))
        assert_int_equal(lk_plan_set_key_rotation(r->plan, 2, LK_ROTATION_HADAMARD), LK_OK);
    assert_int_equal(rig_cache(r, 4, 512, BUDGET), LK_OK);
}

static lk_chunk_attention request_of(const score_case *c) {
    lk_chunk_attention request;
    assert_int_equal(lk_chunk_attention_init(&request, sizeof request), LK_OK);
    assert_int_equal(request.chunk_tokens, 32);
    request.chunk_tokens = c->chunk_tokens;
    request.n_chunks = c->n_chunks;
    request.n_query_tokens = c->query_tokens;
    return request;
}

static uint32_t total_tokens(const score_case *c) {
    return SINKS + c->chunk_tokens * c->n_chunks + c->leftover_tokens + c->query_tokens;
}

// Nearest FP16, ties to even.
static double f16_of(float x) {
    const int exponent = x != 0 ? ilogb((double)x) : -14;
    const double quantum = ldexp(1, (exponent > -14 ? exponent : -14) - 10);
    return nearbyint((double)x / quantum) * quantum;
}

// Blocks of n numbers times Hadamard's matrix, whose element (i, j) has the sign of the parity of
// i & j, divided by the square root of n.
static void rotate(double *numbers, uint32_t n_numbers, uint32_t n) {
    double out[128];
    for (uint32_t i = 0; i < n_numbers; ++i) {
        out[i] = 0;
        for (uint32_t j = 0; j < n; ++j)
            out[i] += (__builtin_popcount(i % n & j) & 1 ? -1 : 1) * numbers[i / n * n + j];
        out[i] /= sqrt((double)n);
    }
    memcpy(numbers, out, n_numbers * sizeof *numbers);
}

// The parameters of a head's keys.
typedef struct key_parameters {
    const float *centers, *scales;  // or NULL
    uint32_t rotation;              // channels of a block, or 0
} key_parameters;

static key_parameters parameters_of(const rig *r, uint32_t layer, uint32_t head) {
    const uint32_t head_dim = r->layers[layer].head_dim;
    key_parameters out;
    lk_rotation rotation;
    assert_int_equal(lk_plan_get_key_centers(r->plan, layer, head, &out.centers), LK_OK);
    assert_int_equal(lk_plan_get_key_scales(r->plan, layer, head, &out.scales), LK_OK);
    assert_int_equal(lk_plan_get_key_rotation(r->plan, layer, &rotation), LK_OK);
    out.rotation = rotation ? head_dim & (0u - head_dim) : 0;
    return out;
}

// A key as it is stored at 16 bits: centered, divided, rotated, rounded.
static void store_key(const key_parameters *p, uint32_t head_dim, const float *key, double *out) {
    for (uint32_t i = 0; i < head_dim; ++i) {
        const float centered = key[i] - (p->centers ? p->centers[i] : 0);
        out[i] = (double)(centered * (1 / (p->scales ? p->scales[i] : 1)));
    }
    if (p->rotation)
        rotate(out, head_dim, p->rotation);
    for (uint32_t i = 0; i < head_dim; ++i)
        out[i] = f16_of((float)out[i]);
}

// A query as stored keys meet it.
static void change_query(const key_parameters *p, uint32_t head_dim, const float *q, double *out) {
    for (uint32_t i = 0; i < head_dim; ++i)
        out[i] = (double)q[i] * (p->scales ? (double)p->scales[i] : 1);
    if (p->rotation)
        rotate(out, head_dim, p->rotation);
}

typedef struct row {
    double shares[MAX_CHUNKS];
    double error;  // of a logit, at most
} row;

// The definition, for one query token and head. Devices round queries to FP16, relative 2^-11,
// and a packed key of 8 bits is off by at most half a step: ranges reach to 4 + 2 * (1 + i % 7).
static void attend_query(const rig *r, const score_case *c, uint32_t layer, uint32_t head,
                         const float *q, const float *keys, row *out) {
    const lk_layer *own = &r->layers[layer];
    const uint32_t kv_head = head / (own->n_query_heads / own->n_kv_heads);
    const uint32_t n = c->chunk_tokens * c->n_chunks;
    const double scale = 1 / sqrt((double)own->head_dim);
    const double step = strcmp(c->plan, "fp16") ? 0.5 / 255 : 0;
    double *logits = malloc(n * sizeof *logits);
    assert_non_null(logits);
    const key_parameters p = parameters_of(r, layer, kv_head);
    double changed_q[128];
    change_query(&p, own->head_dim, q, changed_q);
    double row_max = -HUGE_VAL;
    out->error = 0;
    for (uint32_t t = 0; t < n; ++t) {
        const float *key = keys + ((size_t)(SINKS + t) * own->n_kv_heads + kv_head) * own->head_dim;
        double dot = 0;
        double error = 0;
        double stored[128];
        store_key(&p, own->head_dim, key, stored);
        for (uint32_t i = 0; i < own->head_dim; ++i) {
            const double center = (double)q[i] * (p.centers ? (double)p.centers[i] : 0);
            const double product = changed_q[i] * stored[i];
            dot += product + center;
            // In the basis that queries are rounded in.
            error +=
                (p.rotation ? fabs(product) + fabs(center) : fabs(product + center)) * 0x1p-11 +
                fabs((double)q[i]) * step * (2.1 + 2.1 * (1 + i % 7));
        }
        const double cap = (double)own->soft_cap;
        logits[t] = cap > 0 ? cap * tanh(dot * scale / cap) : dot * scale;
        row_max = logits[t] > row_max ? logits[t] : row_max;
        out->error = error * scale > out->error ? error * scale : out->error;
    }
    double sum = 0;
    for (uint32_t t = 0; t < n; ++t)
        sum += exp(logits[t] - row_max);
    memset(out->shares, 0, sizeof out->shares);
    for (uint32_t t = 0; t < n; ++t)
        out->shares[t / c->chunk_tokens] += exp(logits[t] - row_max) / sum;
    free(logits);
}

// Scores over the layers without a window, and how far an answer may be from each.
static void expected_scores(const rig *r, const score_case *c, uint32_t chain, double *scores,
                            double *bounds) {
    const uint32_t n = total_tokens(c);
    rig_token *tokens = malloc(n * sizeof *tokens);
    float *keys = malloc((size_t)n * 2 * 128 * sizeof *keys);
    float *queries = malloc((size_t)n * 10 * 128 * sizeof *queries);
    row *one = malloc(sizeof *one);
    assert_true(tokens && keys && queries && one);
    for (uint32_t t = 0; t < n; ++t)
        tokens[t] = (rig_token){chain, t};
    memset(scores, 0, MAX_CHUNKS * sizeof *scores);
    memset(bounds, 0, MAX_CHUNKS * sizeof *bounds);
    for (uint32_t layer = 0; layer < 3; layer += 2) {
        const lk_layer *own = &r->layers[layer];
        const double weight = 0.5 / own->n_query_heads / c->query_tokens;
        rig_values(r, layer, RIG_K, tokens, n, keys);
        rig_values(r, layer, RIG_Q, tokens, n, queries);
        for (uint32_t t = n - c->query_tokens; t < n; ++t)
            for (uint32_t h = 0; h < own->n_query_heads; ++h) {
                const float *q = queries + ((size_t)t * own->n_query_heads + h) * own->head_dim;
                attend_query(r, c, layer, h, q, keys, one);
                for (uint32_t i = 0; i < c->n_chunks; ++i) {
                    scores[i] += weight * one->shares[i];
                    bounds[i] += weight * one->shares[i] * (expm1(2 * one->error) + 2e-5);
                }
            }
    }
    free(tokens);
    free(keys);
    free(queries);
    free(one);
}

static void open_rig(rig *r, const score_case *c) {
    open_model(r, rig_default());
    open_cache(r, c);
}

// All tokens before the scored step, without attention.
static void fill_before(rig *r, lk_sequence id, const score_case *c, uint32_t chain) {
    static rig_token tokens[512];
    const uint32_t n = total_tokens(c) - c->step_tokens;
    for (uint32_t done = 0; done < n;) {
        const uint32_t n_now = n - done < 300 ? n - done : 300;
        for (uint32_t t = 0; t < n_now; ++t)
            tokens[t] = (rig_token){chain, done + t};
        assert_int_equal(rig_begin(r, 1, &id, &n_now, NULL), LK_OK);
        for (uint32_t l = 0; l < r->geometry.n_layers; ++l)
            assert_int_equal(rig_append(r, l, tokens, n_now), LK_OK);
        assert_int_equal(lk_step_commit(r->cache, NULL), LK_OK);
        done += n_now;
    }
}

static void scored_step(rig *r, lk_sequence id, const score_case *c, uint32_t chain) {
    const uint32_t place = total_tokens(c) - c->step_tokens;
    assert_int_equal(rig_step(r, id, chain, place, c->step_tokens, NULL), LK_OK);
}

static void compare(const rig *r, const score_case *c, uint32_t chain, const float *scores) {
    double wanted[MAX_CHUNKS];
    double bounds[MAX_CHUNKS];
    expected_scores(r, c, chain, wanted, bounds);
    double sum = 0;
    for (uint32_t i = 0; i < c->n_chunks; ++i) {
        if (!(fabs((double)scores[i] - wanted[i]) <= bounds[i]))
            fail_msg(
                "%s, %u chunks of %u tokens, %u query tokens: the score of chunk %u is %g, "
                "expected %g within %g",
                c->plan, c->n_chunks, c->chunk_tokens, c->query_tokens, i, (double)scores[i],
                wanted[i], bounds[i]);
        sum += (double)scores[i];
    }
    assert_true(fabs(sum - 1) <= 1e-4);
}

static void run_case(rig *r, const score_case *c, float *scores) {
    open_cache(r, c);
    const lk_sequence id = model_add(r);
    const lk_chunk_attention request = request_of(c);
    fill_before(r, id, c, 1);
    assert_int_equal(lk_chunks_score_attention(r->cache, id, &request), LK_OK);
    scored_step(r, id, c, 1);
    assert_int_equal(lk_chunks_attention_scores(r->cache, id, c->n_chunks, scores), LK_OK);
    if (strcmp(c->plan, "fp16") == 0 || strcmp(c->plan, "int8") == 0)
        compare(r, c, 1, scores);
    rig_drop_cache(r);
}

static void scores_are_as_defined(void **state) {
    (void)state;
    rig r;
    open_model(&r, rig_default());
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
        float scores[MAX_CHUNKS];
        float again[MAX_CHUNKS];
        run_case(&r, &kCases[i], scores);
        run_case(&r, &kCases[i], again);
        assert_memory_equal(scores, again, kCases[i].n_chunks * sizeof *scores);
    }
    rig_close(&r);
}

// More units than the partial results hold at once.
static void work_tiles_go_in_batches(void **state) {
    (void)state;
    static const score_case many = {"fp16", 64, 8, MAX_CHUNKS, 0, 448, 448};
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, 2, 16, 16, 32);
    rig_open(&r);
    rig_preset(&r, many.plan);
    rig_recent(&r, many.page_tokens, SINKS, 0);
    assert_int_equal(rig_cache(&r, 1, 512, 512u << 20), LK_OK);
    const lk_sequence id = model_add(&r);
    lk_chunk_attention request = request_of(&many);
    const uint32_t layer = 1;
    request.layers = &layer;
    request.n_layers = 1;
    const uint64_t before = rig_stats(&r).table_bytes;
    assert_int_equal(lk_chunks_score_attention(r.cache, id, &request), LK_OK);
    const uint64_t bytes = rig_stats(&r).table_bytes - before;
    assert_true(bytes <= (16u << 20) + 4096 && bytes < 16 * 7 * (MAX_CHUNKS + 1) * 512);
    assert_int_equal(lk_chunks_score_attention(r.cache, id, NULL), LK_OK);
    assert_int_equal(rig_stats(&r).table_bytes, before);
    fill_before(&r, id, &many, 1);
    assert_int_equal(lk_chunks_score_attention(r.cache, id, &request), LK_OK);
    scored_step(&r, id, &many, 1);
    float scores[MAX_CHUNKS];
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, MAX_CHUNKS, scores), LK_OK);

    double sum = 0;
    for (uint32_t i = 0; i < MAX_CHUNKS; ++i) {
        assert_true(scores[i] > 0.2f / MAX_CHUNKS && scores[i] < 5.0f / MAX_CHUNKS);
        sum += (double)scores[i];
    }
    assert_true(fabs(sum - 1) <= 1e-4);
    rig_close(&r);
}

// Both devices hold the same packed pages, and differ by the rounding of queries.
static void packed_pages_score_as_on_the_cpu(void **state) {
    (void)state;
    static const char *const plans[] = {"kivi4", "kivi2", "kitty", "kitty-pro"};
    rig r;
    rig host;
    open_model(&r, rig_default());
    open_model(&host, rig_host());
    for (size_t p = 0; p < sizeof plans / sizeof *plans; ++p) {
        const score_case c = {plans[p], 128, 32, 13, 20, 30, 30};
        float scores[MAX_CHUNKS];
        float wanted[MAX_CHUNKS];
        run_case(&r, &c, scores);
        run_case(&host, &c, wanted);
        // |q| is 0.5 and |k| at most 20 in the mean of 64 channels: 2^-11 * 10 * 8 of a logit.
        for (uint32_t i = 0; i < c.n_chunks; ++i)
            assert_true(fabsf(scores[i] - wanted[i]) <= 0.08f * wanted[i]);
    }
    rig_close(&r);
    rig_close(&host);
}

static void sequences_are_scored_apart(void **state) {
    (void)state;
    static const score_case a = {"fp16", 64, 32, 9, 5, 7, 7};
    static const score_case b = {"fp16", 64, 24, 12, 0, 3, 9};
    rig r;
    open_rig(&r, &a);
    const lk_sequence ids[3] = {model_add(&r), model_add(&r), model_add(&r)};
    fill_before(&r, ids[0], &a, 1);
    fill_before(&r, ids[1], &b, 2);
    assert_int_equal(rig_step(&r, ids[2], 3, 0, 100, NULL), LK_OK);
    const lk_chunk_attention first = request_of(&a);
    const lk_chunk_attention second = request_of(&b);
    assert_int_equal(lk_chunks_score_attention(r.cache, ids[0], &first), LK_OK);
    assert_int_equal(lk_chunks_score_attention(r.cache, ids[1], &second), LK_OK);
    const lk_sequence order[3] = {ids[2], ids[1], ids[0]};
    const uint32_t counts[3] = {80, b.step_tokens, a.step_tokens};
    rig_token tokens[96];
    for (uint32_t t = 0; t < 80; ++t)
        tokens[t] = (rig_token){3, 100 + t};
    for (uint32_t t = 0; t < b.step_tokens; ++t)
        tokens[80 + t] = (rig_token){2, total_tokens(&b) - b.step_tokens + t};
    for (uint32_t t = 0; t < a.step_tokens; ++t)
        tokens[80 + b.step_tokens + t] = (rig_token){1, total_tokens(&a) - a.step_tokens + t};
    assert_int_equal(rig_begin(&r, 3, order, counts, NULL), LK_OK);
    assert_int_equal(rig_layers(&r, tokens, 80 + b.step_tokens + a.step_tokens, NULL), LK_OK);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_OK);
    float scores[MAX_CHUNKS];
    assert_int_equal(lk_chunks_attention_scores(r.cache, ids[0], a.n_chunks, scores), LK_OK);
    compare(&r, &a, 1, scores);
    assert_int_equal(lk_chunks_attention_scores(r.cache, ids[1], b.n_chunks, scores), LK_OK);
    compare(&r, &b, 2, scores);
    assert_int_equal(lk_chunks_attention_scores(r.cache, ids[2], 1, scores), LK_E_STATE);
    // Later steps leave them alone.
    assert_int_equal(rig_step(&r, ids[1], 2, 900, 20, NULL), LK_OK);
    assert_int_equal(lk_chunks_attention_scores(r.cache, ids[1], b.n_chunks, scores), LK_OK);
    compare(&r, &b, 2, scores);
    rig_close(&r);
}

static void a_discarded_step_is_forgotten(void **state) {
    (void)state;
    const score_case *c = &kCases[0];
    rig r;
    float wanted[MAX_CHUNKS];
    float scores[MAX_CHUNKS];
    open_model(&r, rig_default());
    run_case(&r, c, wanted);
    open_cache(&r, c);
    const lk_sequence id = model_add(&r);
    const lk_chunk_attention request = request_of(c);
    fill_before(&r, id, c, 1);
    assert_int_equal(lk_chunks_score_attention(r.cache, id, &request), LK_OK);
    const uint32_t none = 0;
    for (uint32_t run = 0; run < 2; ++run) {
        rig_token tokens[7];
        for (uint32_t t = 0; t < 7; ++t)
            tokens[t] = (rig_token){9, t};
        assert_int_equal(rig_begin(&r, 1, &id, &c->step_tokens, NULL), LK_OK);
        assert_int_equal(lk_chunks_attention_scores(r.cache, id, c->n_chunks, scores), LK_E_BUSY);
        assert_int_equal(lk_chunks_score_attention(r.cache, id, NULL), LK_E_BUSY);
        assert_int_equal(rig_layers(&r, tokens, 7, NULL), LK_OK);
        assert_int_equal(run ? lk_step_commit(r.cache, &none) : lk_step_discard(r.cache), LK_OK);
        assert_int_equal(lk_chunks_attention_scores(r.cache, id, c->n_chunks, scores), LK_E_STATE);
        rig_sentence("no step was committed");
    }
    scored_step(&r, id, c, 1);
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, c->n_chunks, scores), LK_OK);
    assert_memory_equal(scores, wanted, c->n_chunks * sizeof *scores);

    // A sequence keeps its scores when it grows, is forked, or is cut after the context.
    lk_sequence child;
    assert_int_equal(lk_sequence_fork(r.cache, id, LK_ALL_TOKENS, &child), LK_OK);
    assert_int_equal(lk_chunks_attention_scores(r.cache, child, c->n_chunks, scores), LK_E_STATE);
    const uint32_t end = SINKS + c->chunk_tokens * c->n_chunks;
    assert_int_equal(lk_sequence_truncate(r.cache, id, end), LK_OK);
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, c->n_chunks, scores), LK_OK);
    const uint64_t before = rig_stats(&r).table_bytes;
    assert_int_equal(lk_sequence_truncate(r.cache, id, end - 1), LK_OK);
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, c->n_chunks, scores), LK_E_STATE);
    assert_true(rig_stats(&r).table_bytes < before);
    rig_close(&r);
}

static void steps_that_do_not_fit_are_refused(void **state) {
    (void)state;
    const score_case *c = &kCases[0];
    rig r;
    open_rig(&r, c);
    const lk_sequence id = model_add(&r);
    const lk_chunk_attention request = request_of(c);
    fill_before(&r, id, c, 1);
    assert_int_equal(lk_chunks_score_attention(r.cache, id, &request), LK_OK);
    uint32_t n = c->query_tokens - 1;
    assert_int_equal(rig_begin(&r, 1, &id, &n, NULL), LK_E_ARGUMENT);
    rig_sentence("has 6 new tokens");
    const int32_t parents[7] = {-1, 0, 1, 2, 3, 4, 5};
    n = c->query_tokens;
    assert_int_equal(rig_begin(&r, 1, &id, &n, parents), LK_E_ARGUMENT);
    rig_sentence("draft tree");
    assert_int_equal(lk_sequence_truncate(r.cache, id, 200), LK_OK);
    assert_int_equal(rig_begin(&r, 1, &id, &n, NULL), LK_E_ARGUMENT);
    rig_sentence("before the end of the scored context at 304");
    // The request still holds, and so does the sequence.
    uint64_t length = 0;
    assert_int_equal(lk_sequence_length(r.cache, id, &length), LK_OK);
    assert_int_equal(length, 200);
    assert_int_equal(rig_step(&r, id, 1, 200, 120, NULL), LK_OK);
    float scores[MAX_CHUNKS];
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, c->n_chunks, scores), LK_OK);
    rig_close(&r);
}

static void expect_refusal(rig *r, lk_sequence id, const lk_chunk_attention *request,
                           lk_status status, const char *n_now) {
    const lk_cache_stats before = rig_stats(r);
    assert_int_equal(lk_chunks_score_attention(r->cache, id, request), status);
    rig_sentence(n_now);
    const lk_cache_stats after = rig_stats(r);
    assert_memory_equal(&before, &after, sizeof before);
}

static void wrong_requests_are_refused(void **state) {
    (void)state;
    const score_case *c = &kCases[0];
    rig r;
    open_rig(&r, c);
    const lk_sequence id = model_add(&r);
    const lk_chunk_attention good = request_of(c);
    lk_chunk_attention w = good;
    assert_int_equal(lk_chunk_attention_init(NULL, sizeof w), LK_E_ARGUMENT);
    assert_int_equal(lk_chunks_score_attention(NULL, id, &good), LK_E_ARGUMENT);
    expect_refusal(&r, 99, &good, LK_E_NOT_FOUND, "no sequence 99");
    w.size = 8;
    expect_refusal(&r, id, &w, LK_E_ARGUMENT, "chunk_attention.size");
    w = good;
    w.n_query_tokens = 0;
    expect_refusal(&r, id, &w, LK_E_ARGUMENT, "chunk_attention.n_query_tokens is 0");
    w.n_query_tokens = 513;
    expect_refusal(&r, id, &w, LK_E_ARGUMENT, "max_step_tokens, 512");
    for (uint32_t tokens = 7; tokens <= 257; tokens += 250) {
        w = good;
        w.chunk_tokens = tokens;
        expect_refusal(&r, id, &w, LK_E_ARGUMENT, "chunk_attention.chunk_tokens");
    }
    w = good;
    w.n_chunks = 0;
    expect_refusal(&r, id, &w, LK_E_ARGUMENT, "chunk_attention.n_chunks is 0");
    w.n_chunks = 1u << 28;
    expect_refusal(&r, id, &w, LK_E_ARGUMENT, "chunk_attention.n_chunks");
    w.n_chunks = 200000;
    expect_refusal(&r, id, &w, LK_E_BUDGET, "scoring 200000 chunks needs 1032");
    w = good;
    w.reserved = 1;
    expect_refusal(&r, id, &w, LK_E_ARGUMENT, "chunk_attention.reserved");
    const uint32_t wrong[][2] = {{0, 0}, {2, 0}, {0, 1}, {0, 3}};
    const lk_status statuses[] = {LK_E_ARGUMENT, LK_E_ARGUMENT, LK_E_UNSUPPORTED, LK_E_NOT_FOUND};
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; ++i) {
        w = good;
        w.n_layers = 2;
        w.layers = wrong[i];
        expect_refusal(&r, id, &w, statuses[i], "chunk_attention.layers[1]");
    }
    w.layers = NULL;
    expect_refusal(&r, id, &w, LK_E_ARGUMENT, "chunk_attention.layers is NULL");

    float scores[MAX_CHUNKS];
    assert_int_equal(lk_chunks_attention_scores(NULL, id, 1, scores), LK_E_ARGUMENT);
    assert_int_equal(lk_chunks_attention_scores(r.cache, 99, 1, scores), LK_E_NOT_FOUND);
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, 1, scores), LK_E_STATE);
    fill_before(&r, id, c, 1);
    assert_int_equal(lk_chunks_score_attention(r.cache, id, &good), LK_OK);
    scored_step(&r, id, c, 1);
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, c->n_chunks + 1, scores),
                     LK_E_ARGUMENT);
    rig_sentence("n_chunks is 10 and not 9");
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, c->n_chunks, NULL), LK_E_ARGUMENT);
    rig_close(&r);
}

static void models_of_windows_alone_are_refused(void **state) {
    (void)state;
    const score_case *c = &kCases[0];
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, 2, 4, 2, 64);
    r.layers[0].window_tokens = r.layers[1].window_tokens = 150;
    rig_open(&r);
    rig_preset(&r, "fp16");
    assert_int_equal(rig_cache(&r, 4, 512, BUDGET), LK_OK);
    const lk_chunk_attention request = request_of(c);
    expect_refusal(&r, model_add(&r), &request, LK_E_UNSUPPORTED,
                   "every layer has a sliding window");
    rig_close(&r);
}

// A query that is not finite.
static void wild_queries_are_reported(void **state) {
    (void)state;
    const score_case *c = &kCases[1];
    rig r;
    open_rig(&r, c);
    const lk_sequence id = model_add(&r);
    const lk_chunk_attention request = request_of(c);
    fill_before(&r, id, c, 1);
    assert_int_equal(lk_chunks_score_attention(r.cache, id, &request), LK_OK);
    const uint32_t one = 1;
    const rig_token token = {1, total_tokens(c) - 1};
    assert_int_equal(rig_begin(&r, 1, &id, &one, NULL), LK_OK);
    for (uint32_t l = 0; l < 3; ++l) {
        const lk_layer *own = &r.layers[l];
        const uint32_t n = own->n_query_heads * own->head_dim;
        float q[10 * 128];
        rig_values(&r, l, RIG_Q, &token, 1, q);
        q[n - 3] = l == 2 ? NAN : q[n - 3];
        lk_tensor tensor;
        lk_tensor out;
        rig_tensor(&r, &tensor, rig_place(&r, q, n * sizeof *q), own->n_query_heads, own->head_dim);
        rig_tensor(&r, &out, rig_place(&r, NULL, n * sizeof *q), own->n_query_heads, own->head_dim);
        assert_int_equal(rig_append(&r, l, &token, 1), LK_OK);
        assert_int_equal(lk_attend(r.cache, l, &tensor, &out, NULL), LK_OK);
    }
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_OK);
    float scores[MAX_CHUNKS];
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, c->n_chunks, scores), LK_E_DATA);
    rig_sentence("the score of chunk 0 is not finite");
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_as_defined),
        cmocka_unit_test(work_tiles_go_in_batches),
        cmocka_unit_test(packed_pages_score_as_on_the_cpu),
        cmocka_unit_test(sequences_are_scored_apart),
        cmocka_unit_test(a_discarded_step_is_forgotten),
        cmocka_unit_test(steps_that_do_not_fit_are_refused),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(models_of_windows_alone_are_refused),
        cmocka_unit_test(wild_queries_are_reported),
    };
    return cmocka_run_group_tests_name("attention scores", tests, NULL, NULL);
}
