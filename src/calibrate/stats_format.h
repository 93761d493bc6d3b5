// What reader and writer of statistics agree on (docs/CALIBRATION.md).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CALIBRATE_STATS_FORMAT_H
#define LK_CALIBRATE_STATS_FORMAT_H

#include <cstddef>
#include <cstdint>

namespace lk {

constexpr uint64_t kLengthBytes = 8;  // of the header, in front of it
constexpr uint64_t kHeaderAlign = 8;  // every tensor begins at a multiple of this
constexpr uint64_t kMaxHeaderBytes = 4u << 20;
constexpr const char *kStatsFormat = "lowkey-statistics";
constexpr const char *kStatsVersion = "1";

// Columns of "geometry", I64 [n_layers][kGeometryColumns]: query heads, KV heads, head_dim, window,
// window sinks; of "geometry_real", F64: scale, soft-cap; of "counts", I64: key tokens, query
// tokens, probe rows.
constexpr uint64_t kGeometryColumns = 5;
constexpr uint64_t kRealColumns = 2;
constexpr uint64_t kCountColumns = 3;

// Tensors of a layer, "layer.N." before the name.
enum class LayerTensor {
    kKeySum,
    kKeyAbsSum,
    kKeyMin,
    kKeyMax,
    kQueryAbsSum,
    kRetrievalSum,
    kSinks
};
constexpr size_t kLayerTensors = 7;
struct LayerTensorInfo {
    const char *name;
    const char *dtype;
    uint32_t element_bytes;
    bool is_per_channel;  // [n_kv_heads][head_dim], else [n_query_heads]
};
constexpr LayerTensorInfo kLayerTensorInfo[kLayerTensors] = {
    {"key_sum", "F64", 8, true},       {"key_abs_sum", "F64", 8, true},
    {"key_min", "F16", 2, true},       {"key_max", "F16", 2, true},
    {"query_abs_sum", "F64", 8, true}, {"retrieval_sum", "F64", 8, false},
    {"sink_logits", "F64", 8, false},
};

}  // namespace lk

#endif
