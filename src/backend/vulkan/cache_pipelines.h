// The pipelines that a cache needs; those of its plan go with it. The kernels that most caches run
// are made when the cache is opened, the others at the first step or verb that runs them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_CACHE_PIPELINES_H
#define LK_BACKEND_VULKAN_CACHE_PIPELINES_H

#include "backend/backend.h"
#include "backend/vulkan/decode_rules.h"
#include "backend/vulkan/pipelines.h"

namespace lk {
namespace vulkan {

// A kernel of attention and the one that merges its splits, null until they are made.
struct AttendPipelines {
    uint32_t columns;     // of a workgroup
    uint32_t first_form;  // of decode: in the kernels of all forms
    VkPipeline attend;    // of prefill
    VkPipeline merge;
};

// Those of prefill over slots, likewise, and whether a layer can have such steps.
struct SlotPipelines {
    VkPipeline unpack;
    VkPipeline attend;
    VkPipeline merge;
};
bool has_slot_pipelines(const Traits &traits, const LayerView &layer);

// Columns of a workgroup of prefill, where the longest sequence has n_columns of a KV head.
uint32_t prefill_columns(const Traits &traits, const LayerView &layer, uint32_t n_columns);

// The kernels of ChunkAttention.
struct AttentionScoresPipelines {
    VkPipeline partials = VK_NULL_HANDLE;
    VkPipeline totals = VK_NULL_HANDLE;
    VkPipeline scores = VK_NULL_HANDLE;
};

// Kernels that no plan changes.
enum FixedKernel : uint32_t {
    kAppendKernel,
    kAppendRotatedKernel,
    kAppendLatentKernel,
    kPackKernel,
    kDequantizeKernel,
    kMoveKernel,
    kShrinkKernel,
    kRotateQueriesKernel,
    kSumQueriesKernel,
    kAddStatsKernel,
    kFixedKernels
};

// The kernel that appends to a layer.
inline FixedKernel append_kernel(const LayerView &layer) {
    return layer.is_latent      ? kAppendLatentKernel
           : layer.key_rotation ? kAppendRotatedKernel
                                : kAppendKernel;
}

class CachePipelines {
  public:
    explicit CachePipelines(const Allocator &allocator)
        : layers_(allocator),
          forms_(allocator),
          wanted_(allocator),
          specs_(allocator),
          made_(allocator),
          taken_(allocator) {}
    ~CachePipelines();  // work of the cache has run
    CachePipelines(const CachePipelines &) = delete;
    CachePipelines &operator=(const CachePipelines &) = delete;

    // What is passed lives as long. Makes the kernels that append, pack and rotate, those that
    // decode one new token, and those of long steps over slots.
    lk_status open(const CacheLayout &layout, const DecodeRules &rules, const Traits &traits,
                   Pipelines *pipelines);

    // Made at the first use.
    lk_status fixed(FixedKernel kernel, VkPipeline *out);
    // Made by open() where a layer's keys are rotated.
    VkPipeline rotate_queries() const { return fixed_[kRotateQueriesKernel]; }
    // Made at the first use: most caches never score chunks by attention.
    lk_status score_attention(AttentionScoresPipelines *out) const;

    // Pipelines of attention that a step runs, as accessors below name them: each want_...() notes
    // those that are not there yet, and make_wanted() makes all of these.
    bool want_decode(uint32_t layer, uint32_t columns, uint32_t form, uint32_t variant);
    bool want_tile(uint32_t layer, uint32_t columns);
    bool want_slots(uint32_t layer);
    lk_status make_wanted();

    // columns: as DecodeRules::tile_columns() and prefill_columns() give them.
    const AttendPipelines &decode(uint32_t layer, uint32_t columns) const {
        return layers_[layer].decode[size_of(layers_[layer].decode, columns)];
    }
    // The kernel of a form of the layer's packed pages, in a variant of DecodeRules.
    VkPipeline attend(uint32_t layer, uint32_t columns, uint32_t form, uint32_t variant) const {
        return forms_[form_index(layer, decode(layer, columns), form, variant)];
    }
    const AttendPipelines &tile(uint32_t layer, uint32_t columns) const {
        return layers_[layer].tile[size_of(layers_[layer].tile, columns)];
    }
    const SlotPipelines &slots(uint32_t layer) const { return layers_[layer].slots; }
    // Made by open(), for caches with long steps; null where pages have too many channels or the
    // device too little shared memory.
    VkPipeline append_pages(uint32_t layer) const { return layers_[layer].append_pages; }

  private:
    struct Layer {
        AttendPipelines decode[2];
        AttendPipelines tile[2];
        SlotPipelines slots;
        VkPipeline append_pages;
    };
    struct Wanted {
        PipelineSpec spec;
        VkPipeline *out;
    };
    bool want(const PipelineSpec &spec, VkPipeline *out);
    PipelineSpec fixed_spec(FixedKernel kernel) const;
    PipelineSpec decode_spec(uint32_t layer, uint32_t columns, uint32_t form,
                             uint32_t variant) const;
    uint32_t form_index(uint32_t layer, const AttendPipelines &decode, uint32_t form,
                        uint32_t variant) const {
        return decode.first_form + variant * rules_->n_forms(layer) + form;
    }
    PipelineSpec tile_spec(const LayerView &layer, uint32_t columns) const;
    lk_status check_device() const;
    bool place_layer(uint32_t layer);
    bool want_first(uint32_t layer);
    bool want_append_pages(uint32_t layer);
    uint32_t most_entries(uint32_t head_dim) const;
    static uint32_t size_of(const AttendPipelines (&sizes)[2], uint32_t columns) {
        return sizes[0].columns == columns ? 0 : 1;
    }

    const CacheLayout *layout_ = nullptr;
    const DecodeRules *rules_ = nullptr;
    const Traits *traits_ = nullptr;
    Pipelines *pipelines_ = nullptr;
    uint32_t most_channels_ = 0;  // of a head, for which pages are packed
    VkPipeline fixed_[kFixedKernels] = {};
    Array<Layer> layers_;
    Array<VkPipeline> forms_;  // of all layers' decode
    Array<Wanted> wanted_;
    Array<PipelineSpec> specs_;  // of wanted_, and their pipelines
    Array<VkPipeline> made_;
    Array<VkPipeline> taken_;
};

}  // namespace vulkan
}  // namespace lk

#endif
