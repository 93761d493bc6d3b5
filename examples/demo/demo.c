/* demo: the project's own model hosted in C. model.c computes all but attention; keys and values
 * stay in a cache of lowkey's. A text hides codes, and the model answers for each in a fork of the
 * sequence that has read it. Ends with 1 when an answer is wrong.
 *
 *   demo MODEL [cpu | vulkan] [PLAN]
 *
 * Tensors are in host memory, where model.c computes; Vulkan takes those too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <lowkey/lowkey.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

typedef struct codes {
    const char *name, *code;
} codes;
static const codes hidden[] = {
    {"amber", "314159"}, {"cedar", "271828"}, {"delta", "141421"}, {"ivory", "161803"}};
enum { N_HIDDEN = sizeof hidden / sizeof *hidden, CODE_BYTES = 6 };

static void fail(const char *sentence) {
    fprintf(stderr, "demo: %s\n", sentence);
    exit(2);
}

static void check(lk_status status) {
    char sentence[512];
    if (status == LK_OK)
        return;
    if (lk_last_error(sentence, sizeof sentence, NULL) != LK_OK)
        fail(lk_status_text(status));
    fail(sentence);
}

static lk_context *open_context(const char *backend) {
    lk_context_desc desc;
    lk_context *context;
    check(lk_context_desc_init(&desc, sizeof desc));
    if (strcmp(backend, "vulkan") == 0)
        desc.backend = LK_BACKEND_VULKAN;
    else if (strcmp(backend, "cpu") != 0)
        fail("the backend is cpu or vulkan");
    check(lk_context_open(&desc, LK_ABI_VERSION, &context));
    return context;
}

static lk_cache *open_cache(lk_context *context, const char *preset) {
    lk_layer layers[N_LAYERS];
    lk_geometry geometry;
    lk_plan *plan;
    lk_cache_desc desc;
    lk_cache *cache;
    for (int l = 0; l < N_LAYERS; ++l) {
        check(lk_layer_init(&layers[l], sizeof layers[l]));
        layers[l].n_query_heads = N_QUERY_HEADS;
        layers[l].n_kv_heads = N_KV_HEADS;
        layers[l].head_dim = HEAD_DIM;
    }
    check(lk_geometry_init(&geometry, sizeof geometry));
    geometry.n_layers = N_LAYERS;
    geometry.layers = layers;
    check(lk_plan_preset(preset, &geometry, &plan));
    check(lk_cache_desc_init(&desc, sizeof desc));
    desc.max_sequences = 2; /* the text and a fork */
    desc.max_step_tokens = MAX_TOKENS;
    desc.budget_bytes = 64u << 20;
    check(lk_cache_create(context, &geometry, plan, &desc, &cache));
    lk_plan_destroy(&plan);
    return cache;
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

static void attend(void *user, uint32_t layer, float *q, float *k, float *v, float *out) {
    lk_cache *cache = user;
    const lk_tensor queries = tensor(q, N_QUERY_HEADS), outputs = tensor(out, N_QUERY_HEADS);
    const lk_tensor keys = tensor(k, N_KV_HEADS), values = tensor(v, N_KV_HEADS);
    check(lk_append(cache, layer, &keys, &values));
    check(lk_attend(cache, layer, &queries, &outputs, NULL));
}

/* A prompt or one decoded token, which are the same calls; the token that follows. */
static char step(lk_cache *cache, lk_sequence id, const char *tokens, size_t n_tokens) {
    const uint32_t n = (uint32_t)n_tokens;
    uint64_t first;
    check(lk_sequence_length(cache, id, &first));
    check(lk_step_begin(cache, NULL, 1, &id, &n, NULL));
    const char next =
        (char)model_run((const unsigned char *)tokens, n_tokens, first, attend, cache);
    check(lk_step_commit(cache, NULL));
    return next;
}

static int retrieves(lk_cache *cache, lk_sequence text, const codes *one) {
    char question[64], answer[CODE_BYTES + 1] = "";
    lk_sequence fork;
    snprintf(question, sizeof question, "\nThe code of %s is ", one->name);
    check(lk_sequence_fork(cache, text, LK_ALL_TOKENS, &fork));
    answer[0] = step(cache, fork, question, strlen(question));
    for (int i = 1; i < CODE_BYTES; ++i)
        answer[i] = step(cache, fork, answer + i - 1, 1);
    check(lk_sequence_remove(cache, fork));
    printf("%s: %s\n", one->name, answer);
    return strcmp(answer, one->code) == 0;
}

int main(int argc, char **argv) {
    char text[MAX_TOKENS] = ""; /* the model knows the beginning of a text by a byte 0 */
    size_t n = 1;
    int n_right = 0;
    lk_sequence sequence;
    lk_cache_stats stats;
    if (argc < 2 || argc > 4)
        fail("usage: demo MODEL [cpu | vulkan] [PLAN]");
    const char *failure = model_load(argv[1]);
    if (failure)
        fail(failure);
    lk_context *context = open_context(argc > 2 ? argv[2] : "cpu");
    lk_cache *cache = open_cache(context, argc > 3 ? argv[3] : "kitty-pro");
    for (int i = 0; i < N_HIDDEN; ++i)
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "The river ran slow below the old mill, and nobody spoke of the "
                              "winter that was to come. The lamps were lit before the rain. "
                              "The code of %s is %s. ",
                              hidden[i].name, hidden[i].code);
    check(lk_sequence_add(cache, &sequence));
    (void)step(cache, sequence, text, n);
    for (int i = 0; i < N_HIDDEN; ++i)
        n_right += retrieves(cache, sequence, &hidden[i]);
    check(lk_cache_stats_init(&stats, sizeof stats));
    check(lk_cache_get_stats(cache, &stats));
    printf("%d of %d right; %llu tokens, %llu pages packed\n", n_right, (int)N_HIDDEN,
           (unsigned long long)stats.n_tokens, (unsigned long long)stats.pages_packed);
    lk_cache_destroy(&cache);
    check(lk_context_close(&context));
    return n_right == N_HIDDEN && stats.pages_packed > 0 ? 0 : 1;
}
