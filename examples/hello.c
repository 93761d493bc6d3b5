/* hello: a cache, a prompt and a few decoded tokens, with synthetic data.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <lowkey/lowkey.h>

#include <stdio.h>
#include <stdlib.h>

enum {
    N_LAYERS = 2,
    N_QUERY_HEADS = 8,
    N_KV_HEADS = 2,
    HEAD_DIM = 128,
    PROMPT_TOKENS = 1024,
    DECODED_TOKENS = 8
};

static void check(lk_status status) {
    char sentence[512];
    if (status == LK_OK)
        return;
    if (lk_last_error(sentence, sizeof sentence, NULL) != LK_OK)
        sentence[0] = '\0';
    fprintf(stderr, "hello: %s (%s)\n", sentence, lk_status_name(status));
    exit(1);
}

static float *floats(size_t count) {
    float *data = malloc(count * sizeof *data);
    if (data == NULL) {
        fputs("hello: out of memory\n", stderr);
        exit(1);
    }
    for (size_t i = 0; i < count; ++i) {
        data[i] = (float)rand() / (float)RAND_MAX - 0.5f; /* a model would compute these */
    }
    return data;
}

static lk_tensor tensor(float *data, int64_t n_heads) {
    lk_tensor t;
    check(lk_tensor_init(&t, sizeof t));
    t.dtype = LK_F32;
    t.memory = LK_MEMORY_HOST;
    t.data = data;
    t.token_stride = n_heads * HEAD_DIM;
    t.head_stride = HEAD_DIM;
    return t;
}

/* One step: a prompt, or one decoded token. */
static void step(lk_cache *cache, lk_sequence id, uint32_t n_tokens) {
    const size_t n_kv = (size_t)n_tokens * N_KV_HEADS * HEAD_DIM;
    const size_t n_q = (size_t)n_tokens * N_QUERY_HEADS * HEAD_DIM;
    float *q_data = floats(n_q), *k_data = floats(n_kv), *v_data = floats(n_kv);
    float *out_data = floats(n_q);
    const lk_tensor q = tensor(q_data, N_QUERY_HEADS), out = tensor(out_data, N_QUERY_HEADS);
    const lk_tensor k = tensor(k_data, N_KV_HEADS), v = tensor(v_data, N_KV_HEADS);

    check(lk_step_begin(cache, NULL, 1, &id, &n_tokens, NULL));
    for (uint32_t layer = 0; layer < N_LAYERS; ++layer) {
        check(lk_append(cache, layer, &k, &v));
        check(lk_attend(cache, layer, &q, &out, NULL));
    }
    check(lk_step_commit(cache, NULL));

    free(q_data);
    free(k_data);
    free(v_data);
    free(out_data);
}

int main(void) {
    lk_context *context = NULL;
    check(lk_context_open(NULL, LK_ABI_VERSION, &context));

    lk_layer layers[N_LAYERS];
    for (int i = 0; i < N_LAYERS; ++i) {
        check(lk_layer_init(&layers[i], sizeof layers[i]));
        layers[i].n_query_heads = N_QUERY_HEADS;
        layers[i].n_kv_heads = N_KV_HEADS;
        layers[i].head_dim = HEAD_DIM;
    }
    lk_geometry geometry;
    check(lk_geometry_init(&geometry, sizeof geometry));
    geometry.n_layers = N_LAYERS;
    geometry.layers = layers;

    lk_plan *plan = NULL;
    check(lk_plan_preset("kitty-pro", &geometry, &plan));
    lk_plan_size bytes;
    check(lk_plan_size_init(&bytes, sizeof bytes));
    check(lk_plan_bytes(plan, PROMPT_TOKENS + DECODED_TOKENS, 1, PROMPT_TOKENS, &bytes));

    lk_cache_desc desc;
    check(lk_cache_desc_init(&desc, sizeof desc));
    desc.max_step_tokens = PROMPT_TOKENS;
    desc.budget_bytes = bytes.cache_bytes;
    lk_cache *cache = NULL;
    check(lk_cache_create(context, &geometry, plan, &desc, &cache));

    lk_sequence id = 0;
    check(lk_sequence_add(cache, &id));
    step(cache, id, PROMPT_TOKENS);
    for (int i = 0; i < DECODED_TOKENS; ++i)
        step(cache, id, 1);

    lk_cache_stats stats;
    check(lk_cache_stats_init(&stats, sizeof stats));
    check(lk_cache_get_stats(cache, &stats));
    printf("%llu tokens: %llu bytes packed, %llu bytes recent, %llu bytes at 16 bits\n",
           (unsigned long long)stats.n_tokens,
           (unsigned long long)(stats.payload_bytes + stats.metadata_bytes),
           (unsigned long long)stats.recent_bytes, (unsigned long long)bytes.fp16_bytes);

    lk_cache_destroy(&cache);
    lk_plan_destroy(&plan);
    check(lk_context_close(&context));
    return 0;
}
