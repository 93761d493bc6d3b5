// A cache on a device that does no work, for tests of one concept of it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CORE_CACHE_RIG_H
#define LK_TESTS_CORE_CACHE_RIG_H

#include "core/cache.h"
#include "counted_memory.h"
#include "fake_device.h"
#include "suite.h"

#include <functional>
#include <initializer_list>
#include <vector>

// What a call that fails leaves as it was.
struct Held {
    uint64_t table_bytes;
    uint64_t slot_bytes;
    uint64_t recent_bytes;
    uint64_t payload_bytes;
    uint64_t metadata_bytes;
    uint64_t n_tokens;
    size_t n_sequences;
    size_t n_blocks;
};

// Two layers of one KV head and 32 channels; pages of 32 tokens, 16 sinks, 32 recent tokens.
struct CacheRig {
    static constexpr uint32_t kLayers = 2;
    static constexpr uint32_t kHeadDim = 32;
    static constexpr uint32_t kSinks = 16;
    static constexpr uint32_t kPageTokens = 32;

    explicit CacheRig(const char *preset = "kivi2", uint64_t budget_bytes = 16u << 20,
                      const std::function<void(lk_plan *)> &change = {},
                      const std::function<void(lk_layer *)> &change_layer = {})
        : context(memory.hooks()) {
        context.backend = &backend;
        for (lk_layer &layer : layers) {
            assert_int_equal(lk_layer_init(&layer, sizeof layer), LK_OK);
            layer.n_query_heads = layer.n_kv_heads = 1;
            layer.head_dim = kHeadDim;
            if (change_layer)
                change_layer(&layer);
        }
        assert_int_equal(lk_geometry_init(&geometry, sizeof geometry), LK_OK);
        geometry.n_layers = kLayers;
        geometry.layers = layers;
        assert_int_equal(lk_plan_preset(preset, &geometry, &source), LK_OK);
        assert_int_equal(lk_plan_set_pages(source, kPageTokens), LK_OK);
        assert_int_equal(lk_plan_set_recent(source, kSinks, 32), LK_OK);
        if (change)
            change(source);
        assert_int_equal(lk_cache_desc_init(&desc, sizeof desc), LK_OK);
        desc.max_sequences = 4;
        desc.budget_bytes = budget_bytes;
        desc.slab_bytes = LK_EXTENT_BYTES;
        assert_int_equal(lk_queue_init(&queue, sizeof queue), LK_OK);
        queue.kind = LK_QUEUE_CUDA_STREAM;
        assert_int_equal(open(), LK_OK);
    }
    ~CacheRig() {
        lk_cache_destroy(&cache);
        lk_plan_destroy(&source);
        assert_int_equal(backend.n_blocks_at_close, 0);
        assert_int_equal(memory.n_live, 0);
        assert_int_equal(context.n_caches, 0);
    }
    CacheRig(const CacheRig &) = delete;
    CacheRig &operator=(const CacheRig &) = delete;

    // The cache, which was destroyed before.
    lk_status open() { return lk_cache_create(&context, &geometry, source, &desc, &cache); }

    FakeDevice &device() { return *backend.device; }
    const lk_cache_stats &counts() const { return cache->statistics.counts; }
    const lk::Plan &plan() const { return cache->plan.model; }
    Held held() const {
        return {cache->ledger.table_bytes, cache->slots.slot_bytes(),    counts().recent_bytes,
                counts().payload_bytes,    counts().metadata_bytes,      counts().n_tokens,
                cache->sequences.size(),   backend.device->blocks.size()};
    }
    void assert_held(const Held &before) const {
        const Held now = held();
        assert_int_equal(now.table_bytes, before.table_bytes);
        assert_int_equal(now.slot_bytes, before.slot_bytes);
        assert_int_equal(now.recent_bytes, before.recent_bytes);
        assert_int_equal(now.payload_bytes, before.payload_bytes);
        assert_int_equal(now.metadata_bytes, before.metadata_bytes);
        assert_int_equal(now.n_tokens, before.n_tokens);
        assert_int_equal(now.n_sequences, before.n_sequences);
        assert_int_equal(now.n_blocks, before.n_blocks);
    }

    // run() with memory for 0, 1, 2, ... allocations until it succeeds: how many times it failed,
    // each with LK_E_NOMEM and nothing changed.
    template <class Run>
    uint64_t run_out_of_memory(const Run &run) {
        const Held before = held();
        for (uint64_t n = 0;; ++n) {
            memory.give(n);
            const lk_status status = run();
            memory.give_all();
            if (!status)
                return n;
            assert_int_equal(status, LK_E_NOMEM);
            assert_held(before);
        }
    }

    lk::Sequence *add() {
        lk_sequence id = 0;
        assert_int_equal(lk_sequence_add(cache, &id), LK_OK);
        return cache->sequences.find(id);
    }
    lk::Sequence *fork(const lk::Sequence *parent, uint64_t n_tokens = LK_ALL_TOKENS) {
        lk_sequence id = 0;
        assert_int_equal(lk_sequence_fork(cache, parent->id, n_tokens, &id), LK_OK);
        return cache->sequences.find(id);
    }
    // New tokens of one sequence, or of several.
    struct NewTokens {
        const lk::Sequence *sequence;
        uint32_t n;
    };
    lk_status begin(std::initializer_list<NewTokens> members) {
        std::vector<lk_sequence> ids;
        std::vector<uint32_t> counts;
        for (const NewTokens &member : members) {
            ids.push_back(member.sequence->id);
            counts.push_back(member.n);
        }
        return lk_step_begin(cache, &queue, static_cast<uint32_t>(ids.size()), ids.data(),
                             counts.data(), nullptr);
    }
    lk_status begin(const lk::Sequence *sequence, uint32_t n) { return begin({{sequence, n}}); }
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
    void step(std::initializer_list<NewTokens> members) {
        assert_int_equal(begin(members), LK_OK);
        run_layers();
        assert_int_equal(lk_step_commit(cache, nullptr), LK_OK);
    }
    void step(const lk::Sequence *sequence, uint32_t n) { step({{sequence, n}}); }
    // In short steps, which leave all their blocks at 16 bits.
    void grow(const lk::Sequence *sequence, uint32_t n) {
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
    CountedMemory memory;
    lk_context context;
    lk_layer layers[kLayers];
    lk_geometry geometry;
    lk_plan *source = nullptr;
    lk_cache_desc desc;
    lk_cache *cache = nullptr;
    lk_queue queue;
};

// Changes of a plan: keys of all layers rank channels by queries;
inline void rank_by_queries(lk_plan *plan) {
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    rule.bits = 2;
    rule.boost_bits = 4;
    rule.boost_channels = 16;
    rule.boost_ranking = LK_RANKING_QUERY_RANGE;
    assert_int_equal(lk_plan_set_key(plan, LK_ALL, LK_ALL, &rule), LK_OK);
}
// all layers have the ladder 16, 8, 4, 2 and begin at 16;
inline void give_ladders(lk_plan *plan) {
    const uint8_t rungs[] = {16, 8, 4, 2};
    assert_int_equal(lk_plan_set_ladder(plan, LK_ALL, rungs, 4, 16), LK_OK);
}
// the plan has chunks at 2, 4 and 16 bits, and tokens after them held at 16 bits;
inline void set_chunks(lk_plan *plan, uint32_t chunk_tokens, bool reorder = true) {
    lk_chunk_rule rule;
    assert_int_equal(lk_chunk_rule_init(&rule, sizeof rule), LK_OK);
    rule.chunk_tokens = chunk_tokens;
    rule.reorder = reorder;
    assert_int_equal(lk_plan_set_chunks(plan, &rule), LK_OK);
}
// two of them in a block.
inline void chunk_by_16(lk_plan *plan) { set_chunks(plan, 16); }

inline void sentence_has(const char *text) {
    if (!std::strstr(lk::last_sentence(), text))
        fail_msg("\"%s\" does not hold \"%s\"", lk::last_sentence(), text);
}

#endif
