// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/decode_rules.h"

#include <algorithm>

#include "backend/gpu/cache_tables.h"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kMaxBlocks = 2;       // of a multiprocessor
constexpr uint32_t kMaxColumns = 64;     // of a KV head that decode takes
constexpr uint32_t kItemBytes = 131072;  // that a thread block reads while an item begins and ends
constexpr uint32_t kStaticBytes =
    2048;  // of a thread block's shared memory, in addition to decode_shared_bytes()

uint32_t rounded_metadata(const PageLayout &shape) {
    return shape.is_raw() ? 0 : static_cast<uint32_t>(round_up(metadata_bytes(shape), 16));
}

uint32_t kind_of_format(const PageFormat &format) {
    const FormatInfo info = gpu::format_info(format, format.permutation ? 1 : 0);
    if (!info.is_native)
        return kDecodeNone;
    if (info.strips[kPlane1])
        return kDecodeGrouped;
    if (info.is_raw || (info.parameter_bytes == bytes_of_parameter(Metadata::kF16) &&
                        info.n_groups == 1 && !info.n_shared))
        return kDecodePlain;
    const bool is_f8_by_32 = info.parameter_bytes == bytes_of_parameter(Metadata::kF8) &&
                             info.group == 32 && !info.permutes;
    return is_f8_by_32 ? kDecodeF8By32 : kDecodeGrouped;
}

// Query columns of a work item at most, where a KV head has n_columns.
uint32_t tile_columns(uint32_t kind, uint32_t head_dim, uint32_t n_columns) {
    if (kind == kDecodeF8By32 && n_columns <= 4 && has_split_k(head_dim))
        return 4;
    if (kind != kDecodePlain)
        return 8;
    return n_columns <= 4 ? 4 : n_columns <= 8 ? 8 : 16;
}

bool has_many_work_tiles(uint32_t n_work_tiles, uint32_t n_sms) { return n_work_tiles >= n_sms; }

}  // namespace

// A layer is run as the kind that all of its heads can be run as.
bool DecodeRules::open(const CacheLayout &layout, uint32_t n_sms, uint32_t shared_bytes) {
    n_sms_ = n_sms;
    shared_bytes_ = shared_bytes;
    if (!layers_.resize(layout.n_layers))
        return false;
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        const LayerView &view = layout.layers[l];
        Layer layer = {view.n_query_heads / view.n_kv_heads, view.head_dim, kDecodePlain, 0, 0};
        for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
            const EntryFormats &entry = layout.entry_formats[layout.first_entries[l] + head];
            const PageFormat &key = layout.formats[entry.packed_key];
            const PageFormat &value = layout.formats[entry.packed_value];
            // A work item reads one order of channels for all pages that have none of their own.
            const uint32_t order = entry.ordered_key == kNoFormat ? kDecodeNone : kDecodePlain;
            layer.kind = std::max({layer.kind, kind_of_format(key), kind_of_format(value), order});
            layer.key_metadata_bytes =
                std::max(layer.key_metadata_bytes, rounded_metadata(key.layout));
            layer.value_metadata_bytes =
                std::max(layer.value_metadata_bytes, rounded_metadata(value.layout));
        }
        const LayerFormats more =
            layout.layer_formats ? layout.layer_formats[l] : LayerFormats{nullptr, 0, 0};
        for (uint32_t c = 0; c < more.n_formats; ++c) {
            const PageFormat &format = layout.formats[more.formats[c]];
            uint32_t &metadata = format.layout.side == Side::kKey ? layer.key_metadata_bytes
                                                                  : layer.value_metadata_bytes;
            layer.kind = std::max(layer.kind, kind_of_format(format));
            metadata = std::max(metadata, rounded_metadata(format.layout));
        }
        // Split-k columns lay out queries for one page format of keys: pages of several formats
        // with FP8 numbers go through prefill, which reads each page by its own format.
        for (uint32_t c = 0; c < more.n_formats; ++c)
            if (layout.formats[more.formats[c]].layout.metadata == Metadata::kF8)
                layer.kind = kDecodeNone;
        layers_[l] = layer;
    }
    return true;
}

gpu::SplitLimits DecodeRules::limits() const {
    return {n_sms_, kMaxBlocks * n_sms_, kMaxColumns, kMaxColumns / 8, 16, kMaxBlocks * n_sms_};
}

gpu::SplitShape DecodeRules::shape(uint32_t layer, uint32_t n_work_tiles,
                                   uint32_t n_columns) const {
    const Layer &of = layers_[layer];
    const uint32_t columns = tile_columns(of.kind, of.head_dim, n_columns);
    const DecodeShape blocks =
        decode_shape(of.head_dim, columns, of.kind, has_many_work_tiles(n_work_tiles, n_sms_));
    return {n_sms_ * blocks.n_blocks, blocks.n_warps, columns, kItemBytes, false};
}

bool DecodeRules::takes(uint32_t layer, uint32_t max_new) const {
    const Layer &of = layers_[layer];
    return of.kind != kDecodeNone && decode_has_instance(of.head_dim) &&
           max_new * of.group <= kMaxColumns;
}

void DecodeRules::fill(uint32_t layer, const gpu::Split &split, DecodeArgs *args) const {
    const Layer &of = layers_[layer];
    const uint32_t metadata_bytes = of.key_metadata_bytes + of.value_metadata_bytes;
    const uint32_t columns = split.shape.tile_columns;
    const uint32_t shared_bytes = shared_bytes_ / (split.shape.n_workers / n_sms_) - kStaticBytes;
    args->n_warps = split.shape.n_readers;
    while (args->n_warps > 1 &&
           decode_shared_bytes(of.head_dim, columns, args->n_warps, metadata_bytes) > shared_bytes)
        --args->n_warps;
    args->n_blocks = split.shape.n_workers;
    args->tile_columns = columns;
    args->key_metadata_bytes = of.key_metadata_bytes;
    args->value_metadata_bytes = of.value_metadata_bytes;
    args->kind = of.kind;
    args->has_many_work_tiles = has_many_work_tiles(split.n_work_tiles, n_sms_);
}

}  // namespace cuda
}  // namespace lk
