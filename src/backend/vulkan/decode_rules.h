// How decode of each layer is cut and which steps it takes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_DECODE_RULES_H
#define LK_BACKEND_VULKAN_DECODE_RULES_H

#include "backend/gpu/split.h"
#include "backend/vulkan/features.h"
#include "shaders/decode/limits.h"

namespace lk {
namespace vulkan {

// The one shape of all packed pages of a layer: its widths as
// shaders/decode/attend_decode_matrix.comp wants them.
struct PageForm {
    bool is_one;  // there is no other
    uint32_t key_end8;
    uint32_t key_end4;
    uint32_t value_bits;
    uint32_t permutation;  // LK_PERMUTATION_*
    uint32_t permutation_bytes;
};

class DecodeRules final : public gpu::SplitRules {
  public:
    DecodeRules(const Allocator &allocator, const Traits &traits)
        : traits_(traits), layers_(allocator) {}

    // False without memory.
    bool open(const CacheLayout &layout);

    gpu::SplitLimits limits() const override;
    gpu::SplitShape shape(uint32_t layer, uint32_t n_work_tiles, uint32_t n_columns) const override;

    // Can decode take steps of a layer, and such whose sequences have at most max_new new tokens?
    bool takes(uint32_t layer) const { return layers_[layer].is_native; }
    bool takes(uint32_t layer, uint32_t max_new) const;
    // Has a page format of the layer FP8 numbers or several groups in a page?
    bool is_grouped(uint32_t layer) const { return layers_[layer].is_grouped; }
    // Of the layer's page formats: the most groups of tokens that keys have, and the most pairs of
    // strips of values when no pair is in two groups.
    uint32_t key_groups(uint32_t layer) const { return layers_[layer].key_groups; }
    uint32_t value_steps(uint32_t layer) const { return layers_[layer].value_steps; }
    DecodeArithmetic arithmetic(uint32_t layer) const;
    // The constants of pipelines of matrices, where unit() chooses them.
    const PageForm &form(uint32_t layer) const { return layers_[layer].form; }
    // Columns of an item, and threads of its workgroup, where work tiles have n_columns. There are
    // two shapes for a layer: that of one new token and that of more.
    uint32_t tile_columns(uint32_t layer, uint32_t n_columns) const;
    uint32_t threads(uint32_t layer, uint32_t tile_columns) const;

  private:
    struct Layer {
        uint32_t group;
        uint32_t head_dim;
        bool is_native;
        bool is_grouped;
        uint32_t key_groups;
        uint32_t value_steps;
        PageForm form;
    };

    const Traits &traits_;
    Array<Layer> layers_;
};

}  // namespace vulkan
}  // namespace lk

#endif
