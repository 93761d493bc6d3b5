/* Decoding on a Vulkan device of the program's own: lowkey opens on it, and all layers of a step
 * are recorded into the program's command buffer, between its own copies, and submitted by it once.
 *
 * A program records its own dispatches (projections, RoPE, MLP) between the calls of lowkey; here
 * Q, K and V are made up. The same steps run on the CPU, and the program fails when the answers
 * differ. The other files open the device.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "vulkan/host.h"

#include <lowkey/lowkey.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    N_LAYERS = 2,
    N_QUERY_HEADS = 8,
    N_KV_HEADS = 2,
    HEAD_DIM = 64,
    PROMPT_TOKENS = 300,
    DECODED_TOKENS = 40,
    Q_VALUES = N_QUERY_HEADS * HEAD_DIM, /* of a token and layer; of an output too */
    KV_VALUES = N_KV_HEADS * HEAD_DIM,
    IN_VALUES = N_LAYERS * (Q_VALUES + 2 * KV_VALUES),
    OUT_VALUES = N_LAYERS * Q_VALUES,
    TOKEN_VALUES = IN_VALUES + OUT_VALUES
};
/* Both sides have the same packed bytes and round Q, weights and sums to FP16 at most: 2^-11 each,
 * of values up to 1. */
#define LIMIT 4e-3f

/* A cache with one sequence, and where its tensors lie. */
typedef struct side {
    lk_context *context;
    lk_cache *cache;
    lk_sequence sequence;
    lk_tensor place; /* of the first value of all */
} side;

static void check(lk_status status) {
    char sentence[512];
    if (status == LK_OK)
        return;
    if (lk_last_error(sentence, sizeof sentence, NULL) != LK_OK)
        sentence[0] = '\0';
    fprintf(stderr, "decode: %s (%s)\n", sentence, lk_status_name(status));
    exit(1);
}

static void vulkan(vulkan_failure failure) {
    if (failure == NULL)
        return;
    fprintf(stderr, "decode: %s\n", failure);
    exit(1);
}

static void open_side(side *s, const lk_context_desc *desc) {
    lk_layer layers[N_LAYERS];
    lk_geometry geometry;
    lk_cache_desc cache;
    lk_plan *plan;
    for (int i = 0; i < N_LAYERS; ++i) {
        check(lk_layer_init(&layers[i], sizeof layers[i]));
        layers[i].n_query_heads = N_QUERY_HEADS;
        layers[i].n_kv_heads = N_KV_HEADS;
        layers[i].head_dim = HEAD_DIM;
    }
    check(lk_geometry_init(&geometry, sizeof geometry));
    geometry.n_layers = N_LAYERS;
    geometry.layers = layers;
    check(lk_plan_preset("kitty-pro", &geometry, &plan));
    check(lk_cache_desc_init(&cache, sizeof cache));
    cache.budget_bytes = 64u << 20;
    check(lk_context_open(desc, LK_ABI_VERSION, &s->context));
    check(lk_cache_create(s->context, &geometry, plan, &cache, &s->cache));
    check(lk_sequence_add(s->cache, &s->sequence));
    check(lk_tensor_init(&s->place, sizeof s->place));
    s->place.dtype = LK_F32;
    s->place.head_stride = HEAD_DIM;
    lk_plan_destroy(&plan);
}

static void close_side(side *s) {
    lk_cache_destroy(&s->cache);
    check(lk_context_close(&s->context));
}

/* A tensor of n_heads heads that begins at a value of the side's memory. */
static lk_tensor tensor_at(const side *s, uint64_t first, int n_heads) {
    lk_tensor t = s->place;
    t.token_stride = (int64_t)n_heads * HEAD_DIM;
    if (t.memory == LK_MEMORY_HOST)
        t.data = (float *)t.data + first;
    else
        t.offset_bytes = first * sizeof(float);
    return t;
}

/* All layers of n new tokens: Q, K and V lie layer by layer, the outputs after all of them. */
static void run_layers(side *s, const lk_queue *queue, uint32_t n) {
    check(lk_step_begin(s->cache, queue, 1, &s->sequence, &n, NULL));
    for (uint32_t layer = 0; layer < N_LAYERS; ++layer) {
        const uint64_t first = (uint64_t)n * layer * (Q_VALUES + 2 * KV_VALUES);
        const lk_tensor q = tensor_at(s, first, N_QUERY_HEADS);
        const lk_tensor k = tensor_at(s, first + (uint64_t)n * Q_VALUES, N_KV_HEADS);
        const lk_tensor v = tensor_at(s, first + (uint64_t)n * (Q_VALUES + KV_VALUES), N_KV_HEADS);
        const lk_tensor out =
            tensor_at(s, (uint64_t)n * (IN_VALUES + layer * Q_VALUES), N_QUERY_HEADS);
        check(lk_append(s->cache, layer, &k, &v));
        check(lk_attend(s->cache, layer, &q, &out, NULL));
    }
}

/* The step in the program's command buffer, between a copy to the device's memory and one back. */
static void run_recorded(vulkan_host *host, side *s, const vulkan_buffer *mapped,
                         const vulkan_buffer *own, uint32_t n) {
    const VkBufferCopy in = {.size = (uint64_t)n * IN_VALUES * sizeof(float)};
    const VkBufferCopy out = {.srcOffset = in.size,
                              .dstOffset = in.size,
                              .size = (uint64_t)n * OUT_VALUES * sizeof(float)};
    lk_queue queue;
    check(lk_queue_init(&queue, sizeof queue));
    queue.kind = LK_QUEUE_VULKAN_RECORD;
    queue.handle = host->commands;
    vulkan(vulkan_host_record(host));
    host->vk.CmdCopyBuffer(host->commands, mapped->handle, own->handle, 1, &in);
    run_layers(s, &queue, n); /* brings its own barriers */
    host->vk.CmdCopyBuffer(host->commands, own->handle, mapped->handle, 1, &out);
    vulkan(vulkan_host_submit(host));
    check(lk_step_commit(s->cache, NULL));
}

static void make_up(float *values, size_t n, uint32_t *seed) {
    for (size_t i = 0; i < n; ++i) {
        *seed = *seed * 1664525u + 1013904223u;
        values[i] = (float)(*seed >> 8) / (float)(1 << 23) - 1.0f;
    }
}

int main(void) {
    static float values[PROMPT_TOKENS * TOKEN_VALUES];
    const uint64_t bytes = sizeof values;
    vulkan_host_options options = {0};
    vulkan_host host;
    vulkan_buffer mapped, own;
    lk_vulkan_desc device;
    lk_context_desc desc;
    side gpu, cpu;
    uint32_t seed = 1;
    float largest = 0;
    const vulkan_failure failure = vulkan_host_open(&options, &host);
    if (failure) {
        printf("skipped: %s\n", failure);
        vulkan_host_close(&host);
        return 77; /* tests that are skipped end so */
    }
    check(lk_vulkan_desc_init(&device, sizeof device));
    vulkan_host_describe(&host, &device);
    check(lk_context_desc_init(&desc, sizeof desc));
    open_side(&cpu, &desc);
    cpu.place.memory = LK_MEMORY_HOST;
    cpu.place.data = values;
    desc.backend = LK_BACKEND_VULKAN;
    desc.vulkan = &device;
    open_side(&gpu, &desc);
    vulkan(vulkan_buffer_create(&host, bytes, VULKAN_BUFFER_USAGE, 1, &mapped));
    vulkan(vulkan_buffer_create(&host, bytes, VULKAN_BUFFER_USAGE, 0, &own));
    check(lk_vulkan_buffer_add(gpu.context, (uint64_t)own.handle, bytes, own.usage));
    gpu.place.memory = LK_MEMORY_VULKAN;
    gpu.place.buffer = (uint64_t)own.handle;

    for (int step = 0; step <= DECODED_TOKENS; ++step) {
        const uint32_t n = step == 0 ? PROMPT_TOKENS : 1;
        make_up(values, (size_t)n * IN_VALUES, &seed);
        for (size_t i = 0; i < (size_t)n * IN_VALUES; ++i)
            ((float *)mapped.mapped)[i] = values[i];
        run_recorded(&host, &gpu, &mapped, &own, n);
        run_layers(&cpu, NULL, n);
        check(lk_step_commit(cpu.cache, NULL));
        for (size_t i = (size_t)n * IN_VALUES; i < (size_t)n * TOKEN_VALUES; ++i)
            largest = fmaxf(largest, fabsf(((const float *)mapped.mapped)[i] - values[i]));
    }
    printf("%d tokens on %s: the CPU's answers differ by %.1e at most\n",
           PROMPT_TOKENS + DECODED_TOKENS, host.properties.deviceName, (double)largest);
    close_side(&gpu); /* before the buffers and the device go */
    close_side(&cpu);
    vulkan_buffer_destroy(&host, &own);
    vulkan_buffer_destroy(&host, &mapped);
    vulkan_host_close(&host);
    return largest <= LIMIT ? 0 : 1;
}
