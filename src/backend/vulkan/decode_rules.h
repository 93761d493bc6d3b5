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

// How pages are packed that one dispatch of shaders/decode/attend_matrix.comp reads.
struct PageForm {
    // Constants of the pipeline.
    uint32_t key_folds;
    uint32_t key_end8;  // 0 where `form` has the widths
    uint32_t key_end4;
    uint32_t value_bits;
    uint32_t permutation;  // LK_PERMUTATION_*
    uint32_t parameter_bytes;
    uint32_t high_slots;  // LK_SPEC_HIGH_SLOTS, of all forms of as many key_folds
    uint32_t passes;      // LK_SPEC_PASSES
    uint32_t only_form;   // LK_SPEC_FORM
    // Pushed: LK_FORM_*, and FormatInfo.form of keys and, in the upper half, of values.
    uint32_t form;
    uint32_t formats;
};
// Workgroups of a kernel of decode.
struct DecodeVariant {
    uint32_t threads;
    uint32_t page_parts;  // LK_SPEC_PAGE_PARTS
};
// Can a pipeline take pages of both?
bool has_same_pipeline(const PageForm &a, const PageForm &b);

class DecodeRules final : public gpu::SplitRules {
  public:
    DecodeRules(const Allocator &allocator, const Traits &traits)
        : traits_(traits),
          layers_(allocator),
          forms_(allocator),
          format_forms_(allocator),
          shapes_(allocator) {}
    // The rules keep a reference, so the traits outlive them.
    DecodeRules(const Allocator &, const Traits &&) = delete;

    // False without memory.
    bool open(const CacheLayout &layout);

    gpu::SplitLimits limits() const override;
    gpu::SplitShape shape(uint32_t layer, uint32_t n_work_tiles, uint32_t n_columns) const override;
    // 1 without matrices.
    uint32_t n_forms(uint32_t layer) const override { return layers_[layer].n_forms; }
    uint32_t form_of(uint32_t layer, uint16_t key_format, uint16_t value_format) const override;
    // Those that pages of the layer get for certain: where formats change, of 16-bit pages alone.
    uint32_t n_certain_forms(uint32_t layer) const {
        return layers_[layer].max_forms > kFormsOfTile ? 1 : layers_[layer].n_forms;
    }
    const uint16_t *format_forms() const override { return format_forms_.data(); }

    // Can decode take steps of a layer, and such whose sequences have at most max_new new tokens?
    bool takes(uint32_t layer) const { return layers_[layer].is_native; }
    bool takes(uint32_t layer, uint32_t max_new) const;
    // Has a page format of the layer FP8 numbers or several groups in a page?
    bool is_grouped(uint32_t layer) const { return layers_[layer].is_grouped; }
    // Have the layer's keys pairs of shared stored channels?
    bool has_shared(uint32_t layer) const { return layers_[layer].has_shared; }
    // LK_SPEC_KEY_FOLDS without matrices; 0 of layers that are not grouped.
    uint32_t vector_folds(uint32_t layer) const;
    // LK_SPEC_PARAMETER_BYTES without matrices.
    uint32_t parameter_bytes(uint32_t layer) const { return layers_[layer].parameter_bytes; }
    // LK_SPEC_WIDTHS: of all layers, which share pipelines.
    uint32_t widths() const { return widths_; }
    // Of the layer's page formats: the most groups of tokens that keys have, and the most pairs of
    // strips of values when no pair is in two groups.
    uint32_t key_groups(uint32_t layer) const { return layers_[layer].key_groups; }
    uint32_t value_steps(uint32_t layer) const { return layers_[layer].value_steps; }
    DecodeArithmetic arithmetic(uint32_t layer) const;
    // Of layers with matrices: have they forms, pushed or as constants, or is there a plain one?
    bool has_pushed_forms(uint32_t layer) const { return layers_[layer].key_folds != 0; }
    const PageForm &form(uint32_t layer, uint32_t i) const {
        return forms_[layers_[layer].first_form + i];
    }
    // Split.variant: how workgroups of a layer's kernels take pages, of each of which it has
    // pipelines.
    uint32_t n_variants(uint32_t layer, uint32_t tile_columns) const;
    DecodeVariant variant(uint32_t layer, uint32_t tile_columns, uint32_t i) const;
    // Columns of an item, and threads of its workgroup, where work tiles have n_columns. There are
    // two shapes for a layer: that of one new token and that of more.
    uint32_t tile_columns(uint32_t layer, uint32_t n_columns) const;
    uint32_t threads(uint32_t layer, uint32_t tile_columns) const;
    // LK_SPEC_PAGE_TEAMS
    uint32_t page_teams(uint32_t layer, uint32_t tile_columns) const;

  private:
    struct Layer {
        uint32_t group;
        DecodeDims dims;
        bool is_native;
        bool has_shared;  // stored channels
        bool is_grouped;
        bool has_matrices;
        uint32_t key_groups;
        uint32_t value_steps;
        uint32_t parameter_bytes;  // 0: packed pages have either
        uint32_t widths;           // LK_SPEC_WIDTHS
        uint32_t key_folds;
        uint32_t first_form;
        uint32_t n_forms;
        uint32_t max_forms;  // of a work tile's pages, 16-bit ones among them included
    };
    static constexpr uint32_t kFormsOfTile = 2;  // where pages keep theirs: packed and 16-bit ones

    bool number_formats(const CacheLayout &layout);
    bool can_have_matrices(const LayerView &view) const;
    Layer make_layer(const CacheLayout &layout, uint32_t index) const;
    bool add_forms(const CacheLayout &layout, uint32_t index, Layer *layer);
    bool add_form(const CacheLayout &layout, uint16_t key_format, uint16_t value_format,
                  Layer *layer);
    void make_plain(uint32_t head_dim, PageForm *form) const;
    void find_high_slots();
    void find_constants();
    bool has_room(uint32_t layer) const;
    uint32_t wanted_shared_bytes(uint32_t layer) const;
    uint32_t threads_in(uint32_t layer, uint32_t tile_columns, uint32_t shared_bytes) const;
    bool has_wide_workgroups(uint32_t layer, uint32_t tile_columns) const;
    uint32_t folds(uint32_t layer) const;
    uint32_t higher_slots(uint32_t layer) const;
    uint32_t core_workers(uint32_t layer, uint32_t tile_columns) const;
    uint32_t formats_of(uint16_t key_format, uint16_t value_format) const {
        return uint32_t{format_forms_[key_format]} | uint32_t{format_forms_[value_format]} << 16;
    }

    const Traits &traits_;
    Array<Layer> layers_;
    Array<PageForm> forms_;         // [layers][n_forms]
    Array<uint16_t> format_forms_;  // [formats]
    Array<uint64_t> shapes_;        // of formats, by their number less 1
    uint32_t widths_ = 0;
    uint32_t max_forms_ = 1;        // of a work tile's pages, in any layer
    uint32_t most_folds_ = 0;       // of any form, in a pass
    uint32_t most_high_slots_ = 0;  // likewise
    bool has_few_forms_ = false;
    bool has_single_fold_ = false;  // has a pushed form keys of one token group?
};

}  // namespace vulkan
}  // namespace lk

#endif
