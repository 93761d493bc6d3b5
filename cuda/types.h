// The tables in device memory that kernels read, and the arguments of launches. Plain structs,
// shared by device code and by the host side in src/backend/cuda.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_TYPES_H
#define LK_CUDA_TYPES_H

#include <cstdint>

#include "format/tables.h"

namespace lk {
namespace cuda {

// Decode copies a packed page in chunks of whole strips, of at most this many bytes.
constexpr uint32_t kChunkBytes = 5120;
constexpr uint32_t kKvTileBytes = 96;  // of a KV tile as it is looked up
constexpr uint32_t kWarpKvTiles =
    12;  // of an item, for each warp of its thread block; a raw block has eight

// The first fault of a cache's steps and what was counted, in mapped host memory. Kernels lower
// first_bad with atomicMin and add to n_saturated.
struct Report {
    uint64_t first_bad;  // kNoFault, or fault_key()
    uint64_t n_saturated;
};

// Everything that the kernels of a step read, at addresses that do not change with the step, so
// that a captured graph finds the tables of each replay.
struct StepView {
    const StepHeader *header;
    const SequenceInfo *sequences;  // [n_sequences]
    const BlockInfo *blocks;
    const uint64_t *ancestors;  // [n_tokens] bit i: new token i of the sequence is visible; trees
    const uint32_t *positions;  // [n_tokens] of trees; with spans the last that a token attends to
    const FormatInfo *formats;
    Report *report;
};

struct TensorArg {
    void *data;
    uint32_t dtype;  // LK_F16 1, LK_BF16 2, LK_F32 3
    uint32_t reserved;
    int64_t token_stride;  // elements
    int64_t head_stride;
};

struct LayerArg {
    uint32_t layer;  // for reports
    uint32_t n_query_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t window_tokens;  // 0 = all
    uint32_t window_sink_tokens;
    uint32_t first_entry;
    float scale;
    float soft_cap;            // 0 = off
    const float *sink_logits;  // [n_query_heads] device, or null
    // [n_kv_heads][head_dim] device, or null
    const float *key_centers;
    const float *key_scales;
    const float *key_inverses;
    float query_limit;   // a query with a larger element, an infinity or a NaN has NaN for its rows
    uint32_t value_dim;  // of values and outputs
    uint32_t is_latent;  // values are the first value_dim channels of the keys
    uint32_t key_rotation;  // channels of a block that is rotated, or 0
};

// Channels of stored keys or values: a latent layer stores no values.
LK_BOTH uint32_t stored_dim(const LayerArg &layer, bool is_value) {
    return !is_value ? layer.head_dim : layer.is_latent ? 0 : layer.value_dim;
}
// Do values come from elsewhere, or in another dim, than attention of most layers has them?
LK_BOTH bool is_uneven(const LayerArg &layer) {
    return layer.is_latent || layer.value_dim != layer.head_dim;
}

// FP16 of a layer's new tokens: keys [n_kv_heads][n_tokens][head_dim], and values
// [n_kv_heads][n_tokens][value_dim], which a latent layer has none of.
struct StagingArg {
    uint16_t *k;
    uint16_t *v;
    uint32_t n_tokens;
    uint32_t reserved;
};

}  // namespace cuda
}  // namespace lk

#endif
