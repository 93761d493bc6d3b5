// The pipelines that a cache needs, all made when it is opened; those of its plan go with it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_CACHE_PIPELINES_H
#define LK_BACKEND_VULKAN_CACHE_PIPELINES_H

#include "backend/backend.h"
#include "backend/vulkan/decode_rules.h"
#include "backend/vulkan/pipelines.h"

namespace lk {
namespace vulkan {

// A kernel of attention and the one that merges its splits.
struct AttendPipelines {
    uint32_t columns;     // of a workgroup
    uint32_t first_form;  // of decode: in the kernels of all forms
    VkPipeline attend;
    VkPipeline merge;
};

// Those of prefill over slots, and whether a layer can have such steps.
struct SlotPipelines {
    VkPipeline unpack = VK_NULL_HANDLE;
    VkPipeline attend = VK_NULL_HANDLE;
    VkPipeline merge = VK_NULL_HANDLE;
};
bool has_slot_pipelines(const Traits &traits, const LayerView &layer);

// Columns of a workgroup of prefill, where the longest sequence has n_columns of a KV head.
uint32_t prefill_columns(const Traits &traits, uint32_t head_dim, uint32_t n_columns);

// The kernels of ChunkAttention.
struct AttentionScoresPipelines {
    VkPipeline partials = VK_NULL_HANDLE;
    VkPipeline totals = VK_NULL_HANDLE;
    VkPipeline scores = VK_NULL_HANDLE;
};

class CachePipelines {
  public:
    static constexpr uint32_t kAppendThreads = 64;

    explicit CachePipelines(const Allocator &allocator)
        : layers_(allocator), forms_(allocator), taken_(allocator) {}
    ~CachePipelines();  // work of the cache has run
    CachePipelines(const CachePipelines &) = delete;
    CachePipelines &operator=(const CachePipelines &) = delete;

    lk_status open(const CacheLayout &layout, const DecodeRules &rules, const Traits &traits,
                   Pipelines *pipelines);

    VkPipeline append() const { return append_; }
    VkPipeline pack() const { return pack_; }
    VkPipeline dequantize() const { return dequantize_; }
    VkPipeline move() const { return move_; }
    VkPipeline shrink() const { return shrink_; }
    // Null where no channels are ranked by queries.
    VkPipeline sum_queries() const { return query_stats_; }
    VkPipeline add_stats() const { return add_query_stats_; }
    // Made at the first use: most caches never score chunks by attention.
    lk_status score_attention(AttentionScoresPipelines *out) const;
    // Likewise: many caches have no step that is long enough.
    lk_status slots(uint32_t head_dim, const Traits &traits, SlotPipelines *out) const;
    // columns: as DecodeRules::tile_columns() and prefill_columns() give them.
    const AttendPipelines &decode(uint32_t layer, uint32_t columns) const {
        return of_columns(layers_[layer].decode, columns);
    }
    // The kernel of a form of the layer's packed pages.
    VkPipeline attend(const AttendPipelines &decode, uint32_t form) const {
        return forms_[decode.first_form + form];
    }
    const AttendPipelines &tile(uint32_t layer, uint32_t columns) const {
        return of_columns(layers_[layer].tile, columns);
    }

  private:
    struct Layer {
        AttendPipelines decode[2];  // null where decode takes no step
        AttendPipelines tile[2];
    };
    static constexpr uint32_t kMostOfLayer = 6;  // pipelines of Layer but those of forms
    lk_status take(const ShaderCode &shader, Constants constants, uint32_t subgroup_size,
                   VkPipeline *out);
    lk_status open_merge(const ShaderCode &shader, uint32_t head_dim, uint32_t columns,
                         AttendPipelines *out);
    lk_status open_decode(const DecodeRules &rules, uint32_t layer, const LayerView &view,
                          uint32_t columns, const Traits &traits, AttendPipelines *out);
    lk_status open_form(const DecodeRules &rules, uint32_t layer, uint32_t form,
                        const LayerView &view, uint32_t columns, const Traits &traits,
                        VkPipeline *out);
    lk_status open_tile(uint32_t head_dim, uint32_t columns, const Traits &traits,
                        AttendPipelines *out);
    lk_status open_layer(const DecodeRules &rules, uint32_t layer, const LayerView &view,
                         const Traits &traits);
    static const AttendPipelines &of_columns(const AttendPipelines (&sizes)[2], uint32_t columns) {
        return sizes[sizes[0].columns == columns ? 0 : 1];
    }

    VkPipeline append_ = VK_NULL_HANDLE;
    VkPipeline pack_ = VK_NULL_HANDLE;
    VkPipeline dequantize_ = VK_NULL_HANDLE;
    VkPipeline move_ = VK_NULL_HANDLE;
    VkPipeline shrink_ = VK_NULL_HANDLE;
    VkPipeline query_stats_ = VK_NULL_HANDLE;
    VkPipeline add_query_stats_ = VK_NULL_HANDLE;
    Array<Layer> layers_;
    Array<VkPipeline> forms_;
    Array<VkPipeline> taken_;
    Pipelines *pipelines_ = nullptr;
};

}  // namespace vulkan
}  // namespace lk

#endif
