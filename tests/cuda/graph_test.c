// Decode steps captured once and replayed: the same bits as calls that are not captured, while
// sequences grow across pages and the cache does other work between replays.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "api/model.h"

#define MAX_TOKENS 8

// Append and attention for n tokens of all layers but the first n_live, and all layers' tensors.
typedef struct graph {
    cudaGraphExec_t work;
    uint32_t n, n_live;
    lk_tensor q[RIG_LAYERS], k[RIG_LAYERS], v[RIG_LAYERS], out[RIG_LAYERS];
} graph;

static void cuda(cudaError_t error) {
    if (error != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(error));
}

static cudaStream_t stream_of(const rig *r) { return r->device->queue->handle; }

static void place(rig *r, lk_tensor *tensor, uint32_t n, uint32_t n_heads, uint32_t head_dim) {
    rig_tensor(r, tensor, rig_place(r, NULL, (size_t)n * n_heads * head_dim * sizeof(float)),
               n_heads, head_dim);
}

static void open_graph(rig *r, graph *g, uint32_t n) {
    memset(g, 0, sizeof *g);
    g->n = n;
    for (uint32_t l = 0; l < r->geometry.n_layers; ++l) {
        const lk_layer *layer = &r->layers[l];
        place(r, &g->q[l], n, layer->n_query_heads, layer->head_dim);
        place(r, &g->k[l], n, layer->n_kv_heads, layer->head_dim);
        place(r, &g->v[l], n, layer->n_kv_heads, layer->head_dim);
        place(r, &g->out[l], n, layer->n_query_heads, layer->head_dim);
    }
}

static void put(rig *r, const lk_tensor *tensor, uint32_t layer, uint32_t kind,
                const rig_token *tokens, uint32_t n) {
    float values[MAX_TOKENS * 4 * 128];
    assert_true((size_t)n * (size_t)tensor->token_stride <= sizeof values / sizeof *values);
    rig_values(r, layer, kind, tokens, n, values);
    r->device->put(tensor->data, values, (size_t)n * (size_t)tensor->token_stride * sizeof(float));
}

static void put_tokens(rig *r, const graph *g, const rig_token *tokens) {
    for (uint32_t l = 0; l < r->geometry.n_layers; ++l) {
        put(r, &g->q[l], l, RIG_Q, tokens, g->n);
        put(r, &g->k[l], l, RIG_K, tokens, g->n);
        put(r, &g->v[l], l, RIG_V, tokens, g->n);
    }
}

static void get_outputs(const rig *r, const graph *g, float *out) {
    for (uint32_t l = 0; l < r->geometry.n_layers; ++l) {
        const size_t n = g->n * (size_t)g->out[l].token_stride;
        r->device->get(out, g->out[l].data, n * sizeof *out);
        out += n;
    }
}

static void call_layers(rig *r, const graph *g, uint32_t first, uint32_t end) {
    for (uint32_t l = first; l < end; ++l) {
        assert_int_equal(lk_append(r->cache, l, &g->k[l], &g->v[l]), LK_OK);
        assert_int_equal(lk_attend(r->cache, l, &g->q[l], &g->out[l], NULL), LK_OK);
    }
}

// Global mode: no call of this process may allocate or wait.
static void capture(rig *r, graph *g) {
    cudaGraph_t recorded;
    cuda(cudaStreamBeginCapture(stream_of(r), cudaStreamCaptureModeGlobal));
    call_layers(r, g, g->n_live, r->geometry.n_layers);
    cuda(cudaStreamEndCapture(stream_of(r), &recorded));
    cuda(cudaGraphInstantiate(&g->work, recorded, 0));
    cuda(cudaGraphDestroy(recorded));
}

// The open step's layers, from the graph when there is one, which is declared before its launch or,
// where some layers are live, after it.
static void run_layers(rig *r, graph *g, const rig_token *tokens, float *out) {
    const bool is_replay = g->work != NULL;
    put_tokens(r, g, tokens);
    call_layers(r, g, 0, g->n_live);
    if (!is_replay)
        capture(r, g);
    if (is_replay && g->n_live == 0)
        assert_int_equal(lk_step_replay(r->cache), LK_OK);
    cuda(cudaGraphLaunch(g->work, stream_of(r)));
    if (is_replay && g->n_live > 0)
        assert_int_equal(lk_step_replay(r->cache), LK_OK);
    get_outputs(r, g, out);
}

// The layers run without a capture.
static void run_plainly(rig *r, const graph *g, const rig_token *tokens, float *out) {
    put_tokens(r, g, tokens);
    call_layers(r, g, 0, r->geometry.n_layers);
    get_outputs(r, g, out);
}

// Two caches that do the same, one of them from a graph.
typedef struct split_k {
    rig replayed, plain;
    graph graph, tensors;
    lk_sequence ids[2];  // the same in both
    uint64_t hash;       // of all outputs
} split_k;

static void open_split_k(split_k *t, const char *plan, uint32_t n_tokens) {
    memset(t, 0, sizeof *t);
    model_open(&t->replayed, rig_cuda(), plan);
    model_open(&t->plain, rig_cuda(), plan);
    open_graph(&t->replayed, &t->graph, n_tokens);
    open_graph(&t->plain, &t->tensors, n_tokens);
    const uint32_t lengths[] = {200, 33};
    for (uint32_t i = 0; i < 2; ++i) {
        t->ids[i] = model_add(&t->replayed);
        assert_int_equal(model_add(&t->plain), t->ids[i]);
        assert_int_equal(rig_fill(&t->replayed, t->ids[i], i, 0, lengths[i], 150, NULL), LK_OK);
        assert_int_equal(rig_fill(&t->plain, t->ids[i], i, 0, lengths[i], 150, NULL), LK_OK);
    }
}

static void close_split_k(split_k *t) {
    if (t->graph.work)
        cuda(cudaGraphExecDestroy(t->graph.work));
    rig_close(&t->replayed);
    rig_close(&t->plain);
}

// A step of the first n_sequences sequences in both caches, left open. Their outputs are equal.
static void same_step(split_k *t, uint32_t n_sequences, const uint32_t *counts,
                      const int32_t *parent, const rig_token *tokens) {
    static float x[MAX_TOKENS * 3 * 640], y[MAX_TOKENS * 3 * 640];
    const size_t n = (size_t)t->graph.n * rig_width(&t->replayed);
    assert_true(n <= sizeof x / sizeof *x);
    assert_int_equal(rig_begin(&t->replayed, n_sequences, t->ids, counts, parent), LK_OK);
    assert_int_equal(rig_begin(&t->plain, n_sequences, t->ids, counts, parent), LK_OK);
    run_layers(&t->replayed, &t->graph, tokens, x);
    run_plainly(&t->plain, &t->tensors, tokens, y);
    assert_memory_equal(x, y, n * sizeof *x);
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        t->hash = (t->hash ^ bits) * 1099511628211u;
    }
}

// A third sequence comes, is prefilled and decoded without a capture, and goes.
static void other_work(rig *r, uint32_t i) {
    const lk_sequence id = model_add(r);
    assert_int_equal(rig_fill(r, id, 7, 0, 70 + i % 300, 90, NULL), LK_OK);
    assert_int_equal(rig_fill(r, id, 7, 70 + i % 300, 4, 1, NULL), LK_OK);
    assert_int_equal(lk_sequence_remove(r->cache, id), LK_OK);
}

// A thousand decode steps; the hash of their outputs.
static uint64_t decode(const char *plan) {
    static const uint32_t counts[] = {1, 1};
    split_k t;
    open_split_k(&t, plan, 2);
    for (uint32_t i = 0; i < 1000; ++i) {
        const rig_token tokens[] = {{0, 200 + i}, {1, 33 + i}};
        if (i % 29 == 5) {
            other_work(&t.replayed, i);
            other_work(&t.plain, i);
        }
        if (i % 13 == 7) {
            const rig_token dropped[] = {{5, i}, {6, i}};
            same_step(&t, 2, counts, NULL, dropped);
            assert_int_equal(lk_step_discard(t.replayed.cache), LK_OK);
            assert_int_equal(lk_step_discard(t.plain.cache), LK_OK);
        }
        same_step(&t, 2, counts, NULL, tokens);
        assert_int_equal(lk_step_commit(t.replayed.cache, NULL), LK_OK);
        assert_int_equal(lk_step_commit(t.plain.cache, NULL), LK_OK);
    }
    uint64_t length = 0;
    assert_int_equal(lk_sequence_length(t.replayed.cache, t.ids[0], &length), LK_OK);
    assert_int_equal(length, 1200);
    const uint64_t hash = t.hash;
    close_split_k(&t);
    return hash;
}

static void replays_equal_calls(void **state) {
    (void)state;
    assert_int_equal(decode("kitty-pro"), decode("kitty-pro"));
    assert_int_equal(decode("mixed"), decode("mixed"));
    assert_int_equal(decode("queries"), decode("queries"));
    (void)decode("fp16");
}

// Drafts of five tokens: chains and trees by turns from one graph, kept in part, with truncations
// between them.
static void replay_drafts(const char *plan) {
    static const int32_t trees[][5] = {
        {-1, 0, 1, 2, 3}, {-1, 0, 0, 1, 2}, {-1, -1, -1, -1, -1}, {-1, 0, 1, 1, 3}};
    const uint32_t n = 5;
    split_k t;
    open_split_k(&t, plan, n);
    uint32_t length = 200;
    for (uint32_t i = 0; i < 150; ++i) {
        rig_token tokens[5];
        for (uint32_t k = 0; k < n; ++k)
            tokens[k] = (rig_token){i % 3, length + k};
        const int32_t *parent = trees[i % 4];
        same_step(&t, 1, &n, i % 4 ? parent : NULL, tokens);
        uint32_t keep = 0;
        while (keep < n && keep < i % 7 && parent[keep] == (int32_t)keep - 1)
            ++keep;
        assert_int_equal(lk_step_commit(t.replayed.cache, &keep), LK_OK);
        assert_int_equal(lk_step_commit(t.plain.cache, &keep), LK_OK);
        length += keep;
        if (i % 40 != 39)
            continue;
        length -= 75;
        assert_int_equal(lk_sequence_truncate(t.replayed.cache, t.ids[0], length), LK_OK);
        assert_int_equal(lk_sequence_truncate(t.plain.cache, t.ids[0], length), LK_OK);
    }
    close_split_k(&t);
}

static void drafts_are_replayed(void **state) {
    (void)state;
    replay_drafts("mixed");
    replay_drafts("queries");
}

static void captured_layers_replay_beside_calls(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 1};
    for (uint32_t n_live = 1; n_live < RIG_LAYERS; ++n_live) {
        split_k t;
        open_split_k(&t, "mixed", 2);
        t.graph.n_live = n_live;
        for (uint32_t i = 0; i < 150; ++i) {
            const rig_token tokens[] = {{0, 200 + i}, {1, 33 + i}};
            same_step(&t, 2, counts, NULL, tokens);
            assert_int_equal(lk_step_commit(t.replayed.cache, NULL), LK_OK);
            assert_int_equal(lk_step_commit(t.plain.cache, NULL), LK_OK);
        }
        close_split_k(&t);
    }
}

static void replay_needs_its_shape(void **state) {
    (void)state;
    static const uint32_t ones[] = {1, 1};
    static const uint32_t more[] = {2, 1};
    const rig_token tokens[] = {{0, 200}, {1, 33}};
    split_k t;
    open_split_k(&t, "kivi2", 2);
    rig *r = &t.replayed;
    assert_int_equal(lk_step_replay(NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_step_replay(r->cache), LK_E_STATE);
    assert_int_equal(rig_begin(r, 2, t.ids, ones, NULL), LK_OK);
    assert_int_equal(lk_step_replay(r->cache), LK_E_STATE);  // nothing was captured
    assert_int_equal(lk_step_discard(r->cache), LK_OK);
    same_step(&t, 2, ones, NULL, tokens);
    assert_int_equal(lk_step_commit(r->cache, NULL), LK_OK);
    assert_int_equal(lk_step_commit(t.plain.cache, NULL), LK_OK);

    assert_int_equal(rig_begin(r, 1, t.ids, ones, NULL), LK_OK);
    assert_int_equal(lk_step_replay(r->cache), LK_E_STATE);
    assert_int_equal(lk_step_discard(r->cache), LK_OK);
    assert_int_equal(rig_begin(r, 2, t.ids, more, NULL), LK_OK);
    assert_int_equal(lk_step_replay(r->cache), LK_E_STATE);
    assert_int_equal(lk_step_discard(r->cache), LK_OK);
    assert_int_equal(rig_begin(r, 2, t.ids, ones, NULL), LK_OK);
    assert_int_equal(rig_append(r, 0, tokens, 2), LK_OK);
    assert_int_equal(lk_step_replay(r->cache), LK_OK);  // of the calls that are left
    assert_int_equal(rig_append(r, 1, tokens, 2), LK_E_STATE);
    assert_int_equal(lk_step_discard(r->cache), LK_OK);

    // Launched where it does not belong, it poisons the step and leaves the cache alone.
    assert_int_equal(rig_begin(r, 1, t.ids, ones, NULL), LK_OK);
    cuda(cudaGraphLaunch(t.graph.work, stream_of(r)));
    r->device->wait();
    assert_int_equal(lk_cache_poll(r->cache), LK_E_DATA);
    rig_sentence("graph");
    assert_int_equal(lk_step_commit(r->cache, NULL), LK_E_DATA);
    assert_int_equal(lk_step_discard(r->cache), LK_OK);
    const rig_token next[] = {{0, 201}, {1, 34}};
    same_step(&t, 2, ones, NULL, next);
    assert_int_equal(lk_step_commit(r->cache, NULL), LK_OK);
    assert_int_equal(lk_step_commit(t.plain.cache, NULL), LK_OK);
    close_split_k(&t);
}

int main(void) {
    rig_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_equal_calls),
        cmocka_unit_test(drafts_are_replayed),
        cmocka_unit_test(captured_layers_replay_beside_calls),
        cmocka_unit_test(replay_needs_its_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
