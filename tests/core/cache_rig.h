// A cache on a device that does no work, for tests of one concept of it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CORE_CACHE_RIG_H
#define LK_TESTS_CORE_CACHE_RIG_H

#include "core/cache.h"
#include "fake_device.h"
#include "suite.h"

#include <functional>

// Two layers of one KV head and 32 channels; pages of 32 tokens, 16 sinks, 32 recent tokens.
struct CacheRig {
    static constexpr uint32_t kLayers = 2;
    static constexpr uint32_t kHeadDim = 32;

    explicit CacheRig(const char *preset = "kivi2", uint64_t budget_bytes = 16u << 20,
                      const std::function<void(lk_plan *)> &change = {},
                      const std::function<void(lk_layer *)> &change_layer = {})
        : context(lk::default_allocator()) {
        context.backend = &backend;
        lk_layer layers[kLayers];
        for (lk_layer &layer : layers) {
            assert_int_equal(lk_layer_init(&layer, sizeof layer), LK_OK);
            layer.n_query_heads = layer.n_kv_heads = 1;
            layer.head_dim = kHeadDim;
            if (change_layer)
                change_layer(&layer);
        }
        lk_geometry geometry;
        assert_int_equal(lk_geometry_init(&geometry, sizeof geometry), LK_OK);
        geometry.n_layers = kLayers;
        geometry.layers = layers;
        lk_plan *plan;
        assert_int_equal(lk_plan_preset(preset, &geometry, &plan), LK_OK);
        assert_int_equal(lk_plan_set_pages(plan, 32), LK_OK);
        assert_int_equal(lk_plan_set_recent(plan, 16, 32), LK_OK);
        if (change)
            change(plan);
        lk_cache_desc desc;
        assert_int_equal(lk_cache_desc_init(&desc, sizeof desc), LK_OK);
        desc.max_sequences = 4;
        desc.budget_bytes = budget_bytes;
        desc.slab_bytes = LK_EXTENT_BYTES;
        assert_int_equal(lk_cache_create(&context, &geometry, plan, &desc, &cache), LK_OK);
        lk_plan_destroy(&plan);
        assert_int_equal(lk_queue_init(&queue, sizeof queue), LK_OK);
        queue.kind = LK_QUEUE_CUDA_STREAM;
    }
    ~CacheRig() {
        lk_cache_destroy(&cache);
        assert_int_equal(backend.n_rows_at_close, 0);
    }
    CacheRig(const CacheRig &) = delete;
    CacheRig &operator=(const CacheRig &) = delete;

    FakeDevice &device() { return *backend.device; }
    const lk_cache_stats &counts() const { return cache->statistics.counts; }
    const lk::Plan &plan() const { return cache->plan.model; }

    lk::Sequence *add() {
        lk_sequence id = 0;
        assert_int_equal(lk_sequence_add(cache, &id), LK_OK);
        return cache->sequences.find(id);
    }
    lk_status begin(lk::Sequence *sequence, uint32_t n) {
        return lk_step_begin(cache, &queue, 1, &sequence->id, &n, nullptr);
    }
    void append(uint32_t layer) {
        const lk_tensor kv = tensor(0);
        assert_int_equal(lk_append(cache, layer, &kv, &kv), LK_OK);
    }
    void attend(uint32_t layer) {
        const lk_tensor q = tensor(0);
        const lk_tensor out = tensor(sizeof backend.tensors / 2);
        assert_int_equal(lk_attend(cache, layer, &q, &out, nullptr), LK_OK);
    }
    void run_layers() {
        for (uint32_t l = 0; l < kLayers; ++l) {
            append(l);
            attend(l);
        }
    }
    void step(lk::Sequence *sequence, uint32_t n) {
        assert_int_equal(begin(sequence, n), LK_OK);
        run_layers();
        assert_int_equal(lk_step_commit(cache, nullptr), LK_OK);
    }
    // In short steps, which leave all their blocks at 16 bits.
    void grow(lk::Sequence *sequence, uint32_t n) {
        for (; n > LK_DRAFT_TOKENS; n -= LK_DRAFT_TOKENS)
            step(sequence, LK_DRAFT_TOKENS);
        step(sequence, n);
    }
    lk_tensor tensor(size_t offset_bytes) {
        lk_tensor made;
        assert_int_equal(lk_tensor_init(&made, sizeof made), LK_OK);
        made.dtype = LK_F16;
        made.memory = LK_MEMORY_CUDA;
        made.data = backend.tensors + offset_bytes;
        made.token_stride = made.head_stride = kHeadDim;
        return made;
    }

    FakeDeviceBackend backend;
    lk_context context;
    lk_cache *cache = nullptr;
    lk_queue queue;
};

inline void sentence_has(const char *text) {
    if (!std::strstr(lk::last_sentence(), text))
        fail_msg("\"%s\" does not hold \"%s\"", lk::last_sentence(), text);
}

#endif
