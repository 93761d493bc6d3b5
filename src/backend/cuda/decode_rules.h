// How decode of each layer is launched: the needs of its page formats, and the limits of the
// device.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_DECODE_RULES_H
#define LK_BACKEND_CUDA_DECODE_RULES_H

#include "backend/gpu/split.h"
#include "cuda/launch.h"

namespace lk {
namespace cuda {

class DecodeRules final : public gpu::SplitRules {
  public:
    explicit DecodeRules(const Allocator &allocator) : layers_(allocator) {}

    // shared_bytes: that a thread block can have. False without memory.
    bool open(const CacheLayout &layout, uint32_t n_sms, uint32_t shared_bytes);

    gpu::SplitLimits limits() const override;
    gpu::SplitShape shape(uint32_t layer, uint32_t n_work_tiles, uint32_t n_columns) const override;

    // Does decode take a step whose sequences have at most max_new new tokens?
    bool takes(uint32_t layer, uint32_t max_new) const;
    // Are all pages of the layer 16-bit pages?
    bool is_raw(uint32_t layer) const { return layers_[layer].is_raw; }
    // Are its values of another dim than its keys, or channels of them?
    bool is_uneven(uint32_t layer) const { return layers_[layer].is_uneven; }
    // Of an uneven layer.
    RowsPages rows_pages(uint32_t layer) const { return layers_[layer].rows_pages; }
    // Write how a layer's items are launched.
    void fill(uint32_t layer, const gpu::Split &split, DecodeArgs *args) const;

  private:
    struct Layer {
        uint32_t group;
        uint32_t head_dim;
        uint32_t kind;  // DecodeKind
        uint32_t key_metadata_bytes;
        uint32_t value_metadata_bytes;
        uint32_t own_bytes;
        RowsPages rows_pages;
        bool is_uneven;  // of another dim of values than of keys, or latent
        bool is_raw;
        bool is_narrow;  // items of 16 columns are of kDecodePlainNarrow
    };

    static void share_metadata(bool shares_slots, bool permutes, Layer *layer);

    // Query columns of a work item at most, where a KV head has n_columns.
    static uint32_t tile_columns(const Layer &of, uint32_t n_columns);
    static uint32_t kind_of(const Layer &of, uint32_t columns);

    uint32_t warps(const Layer &of, uint32_t columns, const DecodeShape &blocks) const;

    Array<Layer> layers_;
    uint32_t n_sms_ = 0;
    uint32_t shared_bytes_ = 0;
};

}  // namespace cuda
}  // namespace lk

#endif
