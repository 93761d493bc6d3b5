// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#include <math.h>

void *rig_alloc(void *user, size_t bytes, size_t alignment) {
    rig_memory *memory = user;
    if (++memory->n_calls == memory->fail_at)
        return NULL;
    // aligned_alloc() takes whole multiples of the alignment.
    void *pointer = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (!pointer)
        return NULL;
    memory->live_bytes += (int64_t)bytes;
    if (memory->most_bytes < memory->live_bytes)
        memory->most_bytes = memory->live_bytes;
    return pointer;
}

void rig_free(void *user, void *pointer, size_t bytes, size_t alignment) {
    (void)alignment;
    rig_memory *memory = user;
    memory->live_bytes -= (int64_t)bytes;
    free(pointer);
}

void rig_geometry(rig *r, uint32_t n_layers, uint32_t n_query_heads, uint32_t n_kv_heads,
                  uint32_t head_dim) {
    for (uint32_t l = 0; l < n_layers; ++l) {
        assert_int_equal(lk_layer_init(&r->layers[l], sizeof r->layers[l]), LK_OK);
        r->layers[l].n_query_heads = n_query_heads;
        r->layers[l].n_kv_heads = n_kv_heads;
        r->layers[l].head_dim = head_dim;
    }
    assert_int_equal(lk_geometry_init(&r->geometry, sizeof r->geometry), LK_OK);
    r->geometry.n_layers = n_layers;
    r->geometry.layers = r->layers;
}

static const rig_device *g_device;

const rig_device *rig_named(const char *name) {
    if (!strcmp(name, "cuda"))
        return rig_cuda();
    if (!strcmp(name, "vulkan"))
        return rig_vulkan();
    if (!strcmp(name, "vulkan-buffers"))
        return rig_vulkan_buffers();
    return rig_host();
}

void rig_arguments(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; ++i)
        if (!strcmp(argv[i], "--device"))
            g_device = rig_named(argv[i + 1]);
        else if (!strcmp(argv[i], "--mask"))
            rig_vulkan_mask(argv[i + 1]);
        else if (!strcmp(argv[i], "--only"))
            cmocka_set_test_filter(argv[i + 1]);
}

const rig_device *rig_default(void) { return g_device ? g_device : rig_host(); }

lk_memory_kind rig_other_memory(void) {
    return rig_default()->backend == LK_BACKEND_VULKAN ? LK_MEMORY_CUDA : LK_MEMORY_VULKAN;
}

lk_queue_kind rig_other_queue(void) {
    return rig_default()->backend == LK_BACKEND_CUDA ? LK_QUEUE_VULKAN_SUBMIT
                                                     : LK_QUEUE_CUDA_STREAM;
}

float rig_tolerance(void) { return rig_default()->backend == LK_BACKEND_CPU ? 1e-5f : 2e-2f; }

float rig_distance(const float *x, const float *y, size_t n) {
    float most = 0;
    for (size_t i = 0; i < n; ++i) {
        const float distance = x[i] > y[i] ? x[i] - y[i] : y[i] - x[i];
        if (!(distance <= most))
            most = distance == distance ? distance : HUGE_VALF;
    }
    return most;
}

void rig_context_desc(rig *r, lk_context_desc *desc) {
    if (!r->device)
        r->device = rig_default();
    assert_int_equal(lk_context_desc_init(desc, sizeof *desc), LK_OK);
    desc->backend = r->device->backend;
    desc->n_threads = 1;
    desc->cpu_mask = r->cpu_mask;
    desc->alloc = rig_alloc;
    desc->free = rig_free;
    desc->alloc_user = &r->memory;
    if (r->device->describe)
        r->device->describe(desc);
}

void rig_open(rig *r) {
    lk_context_desc desc;
    rig_context_desc(r, &desc);
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &r->context), LK_OK);
}

void rig_drop_cache(rig *r) {
    for (uint32_t l = 0; l < RIG_LAYERS; ++l)
        for (int kind = 0; kind < RIG_BUFFERS; ++kind)
            if (r->buffers[l][kind].data)
                r->device->release(r->buffers[l][kind].data);
    memset(r->buffers, 0, sizeof r->buffers);
    while (r->n_placed)
        r->device->release(r->placed[--r->n_placed]);
    lk_cache_destroy(&r->cache);
    lk_plan_destroy(&r->plan);
}

void rig_close(rig *r) {
    rig_drop_cache(r);
    assert_int_equal(lk_context_close(&r->context), LK_OK);
    assert_int_equal(r->memory.live_bytes, 0);
}

void rig_preset(rig *r, const char *name) {
    lk_plan_destroy(&r->plan);
    assert_int_equal(lk_plan_preset(name, &r->geometry, &r->plan), LK_OK);
}

void rig_recent(rig *r, uint32_t page_tokens, uint32_t sink_tokens, uint32_t recent_tokens) {
    assert_int_equal(lk_plan_set_pages(r->plan, page_tokens), LK_OK);
    assert_int_equal(lk_plan_set_recent(r->plan, sink_tokens, recent_tokens), LK_OK);
}

void rig_query_ranking(rig *r) {
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    assert_int_equal(lk_plan_get_key(r->plan, 0, 0, &rule), LK_OK);
    rule.boost_ranking = LK_RANKING_QUERY_RANGE;
    assert_int_equal(lk_plan_set_key(r->plan, LK_ALL, LK_ALL, &rule), LK_OK);
}

lk_status rig_cache(rig *r, uint32_t max_sequences, uint32_t max_step_tokens,
                    uint64_t budget_bytes) {
    lk_cache_desc desc;
    assert_int_equal(lk_cache_desc_init(&desc, sizeof desc), LK_OK);
    desc.max_sequences = max_sequences;
    desc.max_step_tokens = max_step_tokens;
    desc.budget_bytes = budget_bytes;
    desc.slab_bytes = 1u << 20;
    r->max_step_tokens = max_step_tokens;
    return lk_cache_create(r->context, &r->geometry, r->plan, &desc, &r->cache);
}

uint32_t rig_value_dim(const lk_layer *layer) {
    return layer->value_dim ? layer->value_dim : layer->head_dim;
}

uint32_t rig_width(const rig *r) {
    uint32_t width = 0;
    for (uint32_t l = 0; l < r->geometry.n_layers; ++l)
        width += r->layers[l].n_query_heads * rig_value_dim(&r->layers[l]);
    return width;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static void fill(float *out, rig_token token, uint32_t layer, uint32_t kind, uint32_t n) {
    uint64_t seed =
        mix(((uint64_t)token.chain << 40) + ((uint64_t)token.place << 8) + layer * 4 + kind + 1);
    for (uint32_t i = 0; i < n; ++i) {
        seed = mix(seed + 0x9E3779B97F4A7C15u);
        const float unit = (float)(int32_t)(seed >> 40) / 8388608.0f - 1.0f;
        out[i] = unit * (kind == RIG_K ? 1.0f + (float)(i % 7) : 1.0f);
    }
}

static uint32_t channels_of(const lk_layer *layer, uint32_t kind) {
    return kind == RIG_V || kind == RIG_OUT ? rig_value_dim(layer) : layer->head_dim;
}

// Values that are the first channels of the keys.
static void take_keys(const rig *r, uint32_t layer, const rig_token *tokens, uint32_t n,
                      float *out) {
    const lk_layer *own = &r->layers[layer];
    const uint32_t n_values = rig_value_dim(own);
    float *keys = malloc((size_t)n * own->n_kv_heads * own->head_dim * sizeof *keys);
    assert_non_null(keys);
    rig_values(r, layer, RIG_K, tokens, n, keys);
    for (size_t row = 0; row < (size_t)n * own->n_kv_heads; ++row)
        memcpy(out + row * n_values, keys + row * own->head_dim, n_values * sizeof *out);
    free(keys);
}

void rig_values(const rig *r, uint32_t layer, uint32_t kind, const rig_token *tokens, uint32_t n,
                float *out) {
    const lk_layer *own = &r->layers[layer];
    const uint32_t n_heads = kind == RIG_Q ? own->n_query_heads : own->n_kv_heads;
    if (kind == RIG_V && r->has_keys_as_values[layer]) {
        take_keys(r, layer, tokens, n, out);
        return;
    }
    const size_t width = (size_t)n_heads * channels_of(own, kind);
    const uint32_t from = kind == RIG_Q                ? layer
                          : r->copied_kv[layer]        ? r->copied_kv[layer] - 1
                          : own->kv_layer == LK_OWN_KV ? layer
                                                       : own->kv_layer;
    for (uint32_t t = 0; t < n; ++t)
        fill(out + t * width, tokens[t], from, kind, (uint32_t)width);
}

void *rig_place(rig *r, const void *from, size_t bytes) {
    assert_true(r->n_placed < RIG_PLACED);
    void *memory = r->device->alloc(bytes);
    assert_non_null(memory);
    if (from)
        r->device->put(memory, from, bytes);
    r->placed[r->n_placed++] = memory;
    return memory;
}

// FP16 or BF16.
static uint16_t short_bits(float f, lk_dtype dtype) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (dtype == LK_BF16)
        return (uint16_t)(bits >> 16);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (f != f)
        return 0x7E00;
    return f == 0 ? sign
                  : (uint16_t)(sign | (((bits >> 23 & 0xFFu) - 112) << 10) | (bits >> 13 & 0x3FFu));
}

void *rig_place_values(rig *r, const float *values, size_t n, lk_dtype dtype) {
    if (dtype == LK_F32)
        return rig_place(r, values, n * sizeof *values);
    uint16_t *words = malloc(n * sizeof *words);
    assert_non_null(words);
    for (size_t i = 0; i < n; ++i)
        words[i] = short_bits(values[i], dtype);
    void *place = rig_place(r, words, n * sizeof *words);
    free(words);
    return place;
}

void rig_tensor(const rig *r, lk_tensor *tensor, void *data, uint32_t n_heads, uint32_t head_dim) {
    assert_int_equal(lk_tensor_init(tensor, sizeof *tensor), LK_OK);
    tensor->dtype = LK_F32;
    tensor->memory = r->device->memory;
    rig_point(r, tensor, data);
    tensor->token_stride = (int64_t)n_heads * head_dim;
    tensor->head_stride = head_dim;
}

void rig_point(const rig *r, lk_tensor *tensor, void *first) {
    if (r->device->point)
        r->device->point(r->context, tensor, first);
    else
        tensor->data = first;
}

void *rig_first(const rig *r, const lk_tensor *tensor) {
    return r->device->first ? r->device->first(tensor) : tensor->data;
}

static void *allocate(size_t n) {
    void *out = calloc(n ? n : 1, sizeof(float));
    assert_non_null(out);
    return out;
}

static void *buffer(rig *r, uint32_t layer, uint32_t kind, size_t bytes) {
    rig_buffer *own = &r->buffers[layer][kind];
    if (own->bytes != bytes) {
        if (own->data)
            r->device->release(own->data);
        own->data = r->device->alloc(bytes);
        assert_non_null(own->data);
        own->bytes = bytes;
    }
    return own->data;
}

// The tokens' values in the layer's buffer.
static void fill_tensor(rig *r, uint32_t layer, uint32_t kind, uint32_t n_heads,
                        const rig_token *tokens, uint32_t n, lk_tensor *tensor) {
    const uint32_t n_channels = channels_of(&r->layers[layer], kind);
    const uint32_t width = n_heads * n_channels;
    const size_t bytes = (size_t)n * width * sizeof(float);
    float *values = allocate((size_t)n * width);
    rig_values(r, layer, kind, tokens, n, values);
    void *data = buffer(r, layer, kind, bytes);
    r->device->put(data, values, bytes);
    free(values);
    rig_tensor(r, tensor, data, n_heads, n_channels);
}

lk_status rig_append(rig *r, uint32_t layer, const rig_token *tokens, uint32_t n) {
    lk_tensor k, v;
    fill_tensor(r, layer, RIG_K, r->layers[layer].n_kv_heads, tokens, n, &k);
    if (r->layers[layer].flags & LK_LAYER_LATENT)
        return lk_append(r->cache, layer, &k, NULL);
    fill_tensor(r, layer, RIG_V, r->layers[layer].n_kv_heads, tokens, n, &v);
    return lk_append(r->cache, layer, &k, &v);
}

lk_status rig_attend(rig *r, uint32_t layer, const rig_token *tokens, uint32_t n, float *out) {
    const lk_layer *own = &r->layers[layer];
    const uint32_t width = own->n_query_heads * rig_value_dim(own);
    const size_t bytes = (size_t)n * width * sizeof(float);
    lk_tensor q, o;
    fill_tensor(r, layer, RIG_Q, own->n_query_heads, tokens, n, &q);
    rig_tensor(r, &o, buffer(r, layer, RIG_OUT, bytes), own->n_query_heads, rig_value_dim(own));
    const lk_status status = lk_attend(r->cache, layer, &q, &o, NULL);
    if (!out || status)
        return status;
    float *values = allocate((size_t)n * width);
    r->device->get(values, rig_first(r, &o), bytes);
    uint32_t before = 0;
    for (uint32_t l = 0; l < layer; ++l)
        before += r->layers[l].n_query_heads * rig_value_dim(&r->layers[l]);
    for (uint32_t t = 0; t < n; ++t)
        memcpy(out + (size_t)t * rig_width(r) + before, values + (size_t)t * width,
               width * sizeof *values);
    free(values);
    return LK_OK;
}

lk_status rig_layer(rig *r, uint32_t layer, const rig_token *tokens, uint32_t n, float *out) {
    const lk_status status =
        r->layers[layer].kv_layer == LK_OWN_KV ? rig_append(r, layer, tokens, n) : LK_OK;
    return status ? status : rig_attend(r, layer, tokens, n, out);
}

lk_status rig_layers(rig *r, const rig_token *tokens, uint32_t n, float *out) {
    lk_status status = LK_OK;
    for (uint32_t l = 0; !status && l < r->geometry.n_layers; ++l)
        status = rig_layer(r, l, tokens, n, out);
    return status;
}

lk_status rig_begin(rig *r, uint32_t n_sequences, const lk_sequence *ids, const uint32_t *n_tokens,
                    const int32_t *parent) {
    return lk_step_begin(r->cache, r->device->queue, n_sequences, ids, n_tokens, parent);
}

lk_status rig_step(rig *r, lk_sequence id, uint32_t chain, uint32_t place, uint32_t n, float *out) {
    lk_status status = rig_begin(r, 1, &id, &n, NULL);
    if (status)
        return status;
    rig_token *tokens = allocate(n * 2);
    for (uint32_t t = 0; t < n; ++t)
        tokens[t] = (rig_token){chain, place + t};
    status = rig_layers(r, tokens, n, out);
    free(tokens);
    if (!status)
        status = lk_step_commit(r->cache, NULL);
    if (status)
        assert_int_equal(lk_step_discard(r->cache), LK_OK);
    return status;
}

lk_status rig_append_tokens(rig *r, lk_sequence id, const rig_token *tokens, uint32_t n) {
    const lk_status status = rig_begin(r, 1, &id, &n, NULL);
    if (status)
        return status;
    for (uint32_t l = 0; l < r->geometry.n_layers; ++l)
        if (r->layers[l].kv_layer == LK_OWN_KV)
            assert_int_equal(rig_append(r, l, tokens, n), LK_OK);
    return lk_step_commit(r->cache, NULL);
}

lk_status rig_append_step(rig *r, lk_sequence id, uint32_t chain, uint32_t place, uint32_t n) {
    rig_token *tokens = allocate(n * 2);
    for (uint32_t t = 0; t < n; ++t)
        tokens[t] = (rig_token){chain, place + t};
    const lk_status status = rig_append_tokens(r, id, tokens, n);
    free(tokens);
    return status;
}

lk_status rig_fill(rig *r, lk_sequence id, uint32_t chain, uint32_t place, uint32_t n,
                   uint32_t chunk, float *out) {
    lk_status status = LK_OK;
    for (uint32_t done = 0; !status && done < n;) {
        const uint32_t n_now = n - done < chunk ? n - done : chunk;
        float *to = out ? out + (size_t)done * rig_width(r) : NULL;
        status = rig_step(r, id, chain, place + done, n_now, to);
        done += n_now;
    }
    return status;
}

lk_cache_stats rig_stats(const rig *r) {
    lk_cache_stats stats;
    assert_int_equal(lk_cache_stats_init(&stats, sizeof stats), LK_OK);
    assert_int_equal(lk_cache_get_stats(r->cache, &stats), LK_OK);
    return stats;
}

void rig_sentence(const char *text) {
    char sentence[512];
    assert_int_equal(lk_last_error(sentence, sizeof sentence, NULL), LK_OK);
    if (!strstr(sentence, text))
        fail_msg("\"%s\" does not hold \"%s\"", sentence, text);
}

void rig_is_ok(lk_status status) {
    char sentence[512];
    if (!status)
        return;
    lk_last_error(sentence, sizeof sentence, NULL);
    fail_msg("%s: %s", lk_status_name(status), sentence);
}
