// What reader and writer of statistics agree on (docs/CALIBRATION.md).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_FILE_FORMAT_H
#define LK_STATS_FILE_FORMAT_H

#include <cstddef>
#include <cstdint>

#include "stats/calibrator.h"

namespace lk {

constexpr uint64_t kLengthBytes = 8;  // of the header, in front of it
constexpr uint64_t kHeaderAlign = 8;  // every tensor begins at a multiple of this
constexpr uint64_t kMaxHeaderBytes = 4u << 20;
constexpr const char *kStatsFormat = "lowkey-statistics";
constexpr const char *kStatsVersion = "1";

// Columns of "geometry", I64 [n_layers][kGeometryColumns]: query heads, KV heads, head_dim, window,
// window sinks; of "geometry_real", F64: scale, soft-cap; of "counts", I64: key tokens, query
// tokens, probe queries, tokens of gradients of keys and of values, tokens of attention.
constexpr uint64_t kGeometryColumns = 5;
constexpr uint64_t kRealColumns = 2;
constexpr uint64_t kCountColumns = 6;
// Of "scale_search", I64, there when a layer was searched: tokens, pairing, channels that turn,
// bits of keys and of values.
constexpr uint64_t kSearchColumns = 5;
constexpr const char *kSearchName = "scale_search";
// I64 [n_layers], there when a layer reads another one's keys and values: each layer's KV layer.
constexpr const char *kKvLayerName = "kv_layer";

// Tensors of a layer, "layer.N." before the name.
enum class LayerTensor {
    kKeySum,
    kKeyAbsSum,
    kKeyMin,
    kKeyMax,
    kQueryAbsSum,
    kRetrievalSum,
    kKeyGradientSum,
    kValueGradientSum,
    kOutputErrorSum,
    kOutputSquareSum,
    kPairMax,
    kScaleErrorSum,
    kCost,
    kClipCost,
    kSinks
};
constexpr size_t kLayerTensors = 15;
enum class StatsShape {
    kChannels,      // [n_kv_heads][head_dim]
    kPerWidth,      // [n_kv_heads][kWidths]
    kBothPerWidth,  // [n_kv_heads][2 * kWidths]: of keys, of values
    kKvHeads,       // [n_kv_heads]
    kHalves,        // [n_kv_heads][2]: of keys, of values
    kHalvesClips,   // [n_kv_heads][2 * LK_COST_CLIPS]: likewise
    kPerExponent,   // [kExponents]
    kQueryHeads     // [n_query_heads]
};
struct LayerTensorInfo {
    const char *name;
    const char *dtype;
    uint32_t element_bytes;
    StatsShape shape;
};
constexpr LayerTensorInfo kLayerTensorInfo[kLayerTensors] = {
    {"key_sum", "F64", 8, StatsShape::kChannels},
    {"key_abs_sum", "F64", 8, StatsShape::kChannels},
    {"key_min", "F16", 2, StatsShape::kChannels},
    {"key_max", "F16", 2, StatsShape::kChannels},
    {"query_abs_sum", "F64", 8, StatsShape::kChannels},
    {"retrieval_sum", "F64", 8, StatsShape::kQueryHeads},
    {"key_gradient_sum", "F64", 8, StatsShape::kPerWidth},
    {"value_gradient_sum", "F64", 8, StatsShape::kPerWidth},
    {"output_error_sum", "F64", 8, StatsShape::kBothPerWidth},
    {"output_square_sum", "F64", 8, StatsShape::kKvHeads},
    {"pair_max", "F16", 2, StatsShape::kChannels},
    {"scale_error_sum", "F64", 8, StatsShape::kPerExponent},
    {"cost", "F64", 8, StatsShape::kHalves},
    {"clip_cost", "F64", 8, StatsShape::kHalvesClips},
    {"sink_logits", "F64", 8, StatsShape::kQueryHeads},
};

// Rows and columns of a layer's tensor; columns 0 = one dimension.
struct Extents {
    uint64_t rows, columns;
    uint64_t count() const { return rows * (columns ? columns : 1); }
};
inline Extents extents_of(StatsShape shape, const lk_layer &layer) {
    switch (shape) {
        case StatsShape::kChannels: return {layer.n_kv_heads, layer.head_dim};
        case StatsShape::kPerWidth: return {layer.n_kv_heads, kWidths};
        case StatsShape::kBothPerWidth: return {layer.n_kv_heads, 2 * kWidths};
        case StatsShape::kKvHeads: return {layer.n_kv_heads, 0};
        case StatsShape::kHalves: return {layer.n_kv_heads, 2};
        case StatsShape::kHalvesClips: return {layer.n_kv_heads, 2 * LK_COST_CLIPS};
        case StatsShape::kPerExponent: return {kExponents, 0};
        default: return {layer.n_query_heads, 0};
    }
}

}  // namespace lk

#endif
