/* Decoding from a captured CUDA graph: append and attend of all layers are captured in the first
 * step and launched as one in all later ones, while the sequence grows over many pages. The cost
 * of a step is printed with and without the graph.
 *
 * A host captures its own kernels (projections, RoPE, MLP) between the calls of lowkey; here the
 * new token's Q, K and V are copied in before each launch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <lowkey/lowkey.h>

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    N_LAYERS = 16,
    N_QUERY_HEADS = 32,
    N_KV_HEADS = 8,
    HEAD_DIM = 128,
    PROMPT_TOKENS = 512,
    DECODED_TOKENS = 1000
};

typedef struct host {
    cudaStream_t stream;
    lk_queue queue;
    lk_cache *cache;
    lk_tensor q, k, v, out; /* one new token's, the same memory in every step and layer */
    lk_tensor long_q, long_k, long_v, long_out; /* the prompt's */
    float *values;                              /* host memory of the longest of them */
} host;

static void check(lk_status status) {
    char sentence[512];
    if (status == LK_OK)
        return;
    if (lk_last_error(sentence, sizeof sentence, NULL) != LK_OK)
        sentence[0] = '\0';
    fprintf(stderr, "graph: %s (%s)\n", sentence, lk_status_name(status));
    exit(1);
}

static void cuda(cudaError_t error) {
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "graph: %s\n", cudaGetErrorString(error));
    exit(1);
}

static lk_tensor tensor(size_t n_tokens, size_t n_heads) {
    lk_tensor t;
    check(lk_tensor_init(&t, sizeof t));
    t.dtype = LK_F32;
    t.memory = LK_MEMORY_CUDA;
    cuda(cudaMalloc(&t.data, n_tokens * n_heads * HEAD_DIM * sizeof(float)));
    t.token_stride = (int64_t)n_heads * HEAD_DIM;
    t.head_stride = HEAD_DIM;
    return t;
}

/* What the model's projections would write. */
static void fill(host *h, const lk_tensor *t, size_t n_tokens, unsigned seed) {
    const size_t n = n_tokens * (size_t)t->token_stride;
    for (size_t i = 0; i < n; ++i) {
        seed = seed * 1664525u + 1013904223u;
        h->values[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
    }
    cuda(cudaMemcpyAsync(t->data, h->values, n * sizeof(float), cudaMemcpyHostToDevice, h->stream));
}

static void layers(host *h, const lk_tensor *q, const lk_tensor *k, const lk_tensor *v,
                   const lk_tensor *out) {
    for (uint32_t layer = 0; layer < N_LAYERS; ++layer) {
        check(lk_append(h->cache, layer, k, v));
        check(lk_attend(h->cache, layer, q, out, NULL));
    }
}

static void open_host(host *h, lk_context **context) {
    cuda(cudaStreamCreateWithFlags(&h->stream, cudaStreamNonBlocking));
    check(lk_queue_init(&h->queue, sizeof h->queue));
    h->queue.kind = LK_QUEUE_CUDA_STREAM;
    h->queue.handle = h->stream;

    lk_context_desc device;
    check(lk_context_desc_init(&device, sizeof device));
    device.backend = LK_BACKEND_CUDA;
    check(lk_context_open(&device, LK_ABI_VERSION, context));

    lk_layer model[N_LAYERS];
    for (int i = 0; i < N_LAYERS; ++i) {
        check(lk_layer_init(&model[i], sizeof model[i]));
        model[i].n_query_heads = N_QUERY_HEADS;
        model[i].n_kv_heads = N_KV_HEADS;
        model[i].head_dim = HEAD_DIM;
    }
    lk_geometry geometry;
    check(lk_geometry_init(&geometry, sizeof geometry));
    geometry.n_layers = N_LAYERS;
    geometry.layers = model;
    lk_plan *plan = NULL;
    check(lk_plan_preset("kitty-pro", &geometry, &plan));
    lk_cache_desc desc;
    check(lk_cache_desc_init(&desc, sizeof desc));
    desc.max_step_tokens = PROMPT_TOKENS;
    desc.budget_bytes = 512u << 20;
    check(lk_cache_create(*context, &geometry, plan, &desc, &h->cache));
    lk_plan_destroy(&plan);

    h->values = malloc((size_t)PROMPT_TOKENS * N_QUERY_HEADS * HEAD_DIM * sizeof(float));
    if (h->values == NULL)
        exit(1);
    h->q = tensor(1, N_QUERY_HEADS), h->out = tensor(1, N_QUERY_HEADS);
    h->k = tensor(1, N_KV_HEADS), h->v = tensor(1, N_KV_HEADS);
    h->long_q = tensor(PROMPT_TOKENS, N_QUERY_HEADS);
    h->long_out = tensor(PROMPT_TOKENS, N_QUERY_HEADS);
    h->long_k = tensor(PROMPT_TOKENS, N_KV_HEADS);
    h->long_v = tensor(PROMPT_TOKENS, N_KV_HEADS);
}

static void prompt(host *h, lk_sequence id) {
    const uint32_t n_tokens = PROMPT_TOKENS;
    fill(h, &h->long_q, n_tokens, 1), fill(h, &h->long_k, n_tokens, 2);
    fill(h, &h->long_v, n_tokens, 3);
    check(lk_step_begin(h->cache, &h->queue, 1, &id, &n_tokens, NULL));
    layers(h, &h->long_q, &h->long_k, &h->long_v, &h->long_out);
    check(lk_step_commit(h->cache, NULL));
}

/* The open step's layers, captured. */
static cudaGraphExec_t capture(host *h) {
    cudaGraph_t graph;
    cudaGraphExec_t work;
    cuda(cudaStreamBeginCapture(h->stream, cudaStreamCaptureModeGlobal));
    layers(h, &h->q, &h->k, &h->v, &h->out);
    cuda(cudaStreamEndCapture(h->stream, &graph));
    cuda(cudaGraphInstantiate(&work, graph, 0));
    cuda(cudaGraphDestroy(graph));
    return work;
}

/* Decode tokens, from a graph or not; the first output channel after the last. */
static float decode(host *h, lk_sequence id, int from_graph) {
    const uint32_t one = 1;
    cudaGraphExec_t work = NULL;
    struct timespec begin, end;
    cuda(cudaStreamSynchronize(h->stream));
    timespec_get(&begin, TIME_UTC);
    for (unsigned i = 0; i < DECODED_TOKENS; ++i) {
        fill(h, &h->q, 1, 3 * i), fill(h, &h->k, 1, 3 * i + 1), fill(h, &h->v, 1, 3 * i + 2);
        check(lk_step_begin(h->cache, &h->queue, 1, &id, &one, NULL)); /* plans, packs, reserves */
        if (!from_graph)
            layers(h, &h->q, &h->k, &h->v, &h->out);
        else if (work != NULL)
            check(lk_step_replay(h->cache));
        else
            work = capture(h);
        if (work != NULL)
            cuda(cudaGraphLaunch(work, h->stream));
        check(lk_step_commit(h->cache, NULL));
    }
    cuda(cudaStreamSynchronize(h->stream));
    timespec_get(&end, TIME_UTC);
    const double us =
        (double)(end.tv_sec - begin.tv_sec) * 1e6 + (double)(end.tv_nsec - begin.tv_nsec) / 1e3;
    printf("%s: %.1f us a token, %d layers\n", from_graph ? "from a graph" : "call by call",
           us / DECODED_TOKENS, N_LAYERS);
    if (work != NULL)
        cuda(cudaGraphExecDestroy(work));
    float first;
    cuda(cudaMemcpy(&first, h->out.data, sizeof first, cudaMemcpyDeviceToHost));
    return first;
}

int main(void) {
    host h = {0};
    lk_context *context = NULL;
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        puts("skipped: no GPU");
        return 77;
    }
    open_host(&h, &context);
    float outputs[2];
    for (int from_graph = 0; from_graph < 2; ++from_graph) {
        lk_sequence id = 0;
        check(lk_sequence_add(h.cache, &id));
        prompt(&h, id);
        outputs[from_graph] = decode(&h, id, from_graph);
        check(lk_sequence_remove(h.cache, id));
    }
    lk_cache_destroy(&h.cache);
    check(lk_context_close(&context));
    free(h.values);
    printf("outputs are %s\n", outputs[0] == outputs[1] ? "equal" : "not equal");
    return outputs[0] != outputs[1];
}
