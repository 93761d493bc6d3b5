// Attention of uneven layers: queries of a thread block, as B operands in shared memory.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_QUERIES_CUH
#define LK_CUDA_ROWS_QUERIES_CUH

#include "cuda/query_change.cuh"
#include "cuda/rows/load.cuh"

namespace lk {
namespace cuda {

template <uint32_t kThreads, class F>
__device__ __forceinline__ float reduce_column(float x, F f) {
#pragma unroll
    for (uint32_t step = 1; step < kThreads; step *= 2)
        x = f(x, __shfl_xor_sync(kAllLanes, x, step));
    return x;
}

// A lane's channels of a query lie 32 apart; runs of them are at once in flight.
constexpr int kRunChannels = 6;
constexpr uint32_t kLaneChannels =
    (LK_MAX_HEAD_DIM / kWarp + kRunChannels - 1) / kRunChannels * kRunChannels;
// A run from `channel` on: of the sign of the layer's scale, the query's last channel again after
// it.
__device__ __forceinline__ void load_channels(const LayerArg &layer, const TensorArg &q,
                                              int64_t offset, uint32_t channel,
                                              float (&x)[kRunChannels]) {
    const bool is_wide = q.dtype == kF32;
    const auto *wide = static_cast<const uint32_t *>(q.data) + offset;
    const auto *narrow = static_cast<const uint16_t *>(q.data) + offset;
    // Without a condition, so that all loads are under way at once.
    uint32_t bits[kRunChannels];
    if (is_wide) {
#pragma unroll
        for (uint32_t i = 0; i < kRunChannels; ++i)
            bits[i] = wide[min(channel + kWarp * i, layer.head_dim - 1)];
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kRunChannels; ++i)
            bits[i] = narrow[min(channel + kWarp * i, layer.head_dim - 1)];
    }
    const uint32_t shift = is_wide ? 0 : 16;
    const uint32_t sign = layer.scale < 0 ? 0x80000000u : 0;
#pragma unroll
    for (uint32_t i = 0; i < kRunChannels; ++i)
        x[i] = __uint_as_float(
            sign ^ (q.dtype == kF16 ? __float_as_uint(half_to_float(bits[i])) : bits[i] << shift));
}

__device__ __forceinline__ float warp_max(float x) {
    return reduce_column<kWarp>(x, [](float a, float b) { return fmaxf(a, b); });
}
__device__ __forceinline__ float warp_sum(float x) {
    return reduce_column<kWarp>(x, [](float a, float b) { return a + b; });
}

// change_query() of a run of channels, up to the stages of the rotation that mix a lane's own.
// Returns the lane's part of the product with centers, after that of earlier runs.
__device__ __forceinline__ float change_run(const QueryChange &change, uint32_t channel,
                                            float product, float (&x)[kRunChannels]) {
    if (change.centers)
#pragma unroll
        for (uint32_t i = 0; i < kRunChannels; ++i)
            if (channel + kWarp * i < change.head_dim)
                product = fmaf(x[i], change.centers[channel + kWarp * i], product);
    if (change.scales)
#pragma unroll
        for (uint32_t i = 0; i < kRunChannels; ++i)
            if (channel + kWarp * i < change.head_dim)
                x[i] *= change.scales[channel + kWarp * i];
    rotate_across_lanes(min(change.rotation, kWarp), x);
    return product;
}
// Those stages, and the scale of the rotation.
__device__ __forceinline__ void rotate_own(const QueryChange &change, float (&x)[kLaneChannels]) {
    if (!change.rotation)
        return;
#pragma unroll 1
    for (uint32_t distance = 1; distance * kWarp < change.rotation; distance *= 2)
#pragma unroll 1
        for (uint32_t i = 0; i < change.head_dim / kWarp / 2; ++i) {
            float *pair = x + 2 * i - (i & (distance - 1));
            const float low = pair[0];
            const float high = pair[distance];
            pair[0] = __fadd_rn(low, high);
            pair[distance] = __fsub_rn(low, high);
        }
    const float factor = __frsqrt_rn(static_cast<float>(change.rotation));
#pragma unroll 1
    for (uint32_t i = 0; i * kWarp < change.head_dim; ++i)
        x[i] = __fmul_rn(x[i], factor);
}

// A warp rounds the queries of a column to FP16 numbers, which lie as B operands; columns that do
// not exist repeat the last one. A power of two brings a query's channels below 1, so that their
// products with ranges are numbers of FP16. A query beyond its layer's limit counts as zeros, its
// logits are NaN by their offset.
__device__ __noinline__ void load_query_columns(const TileArgs &args, const RowsBlock block) {
    RowsTables &tables = *block.tables;
    const Mask &mask = tables.mask;
    const LayerArg &layer = args.layer;
    const uint32_t lane = threadIdx.x % kWarp;
    const QueryChange change(layer, mask.kv_head);
    const uint32_t strip_bytes = block.query_strip_bytes();
#pragma unroll 1
    for (uint32_t column = threadIdx.x / kWarp; column < block.n_columns; column += kRowsWarps) {
        const QueryColumn query = query_column(mask.sequence, mask.kv_head, mask.group_size,
                                               mask.first_column + min(column, mask.n_columns - 1));
        const int64_t from = row_offset(args.q, query.token, query.head);
        float x[kLaneChannels];  // in local memory: loops stay loops, to be short
        bool is_beyond = false;
        float offset = 0;
#pragma unroll 1
        for (uint32_t i = 0; i * kWarp < layer.head_dim; i += kRunChannels) {
            float run[kRunChannels];
            load_channels(layer, args.q, from, lane + kWarp * i, run);
#pragma unroll
            for (const float channel : run)
                is_beyond |= is_beyond_limit(layer, channel);
            offset = change_run(change, lane + kWarp * i, offset, run);
#pragma unroll
            for (uint32_t j = 0; j < kRunChannels; ++j)
                x[i + j] = run[j];
        }
        is_beyond = __any_sync(kAllLanes, is_beyond);
        if (change.centers)
#pragma unroll
            for (uint32_t distance = kWarp / 2; distance; distance /= 2)
                offset += __shfl_xor_sync(kAllLanes, offset, distance);
        rotate_own(change, x);
        float most = 0;
#pragma unroll 4
        for (uint32_t i = 0; lane + kWarp * i < layer.head_dim; ++i)
            most = fmaxf(most, fabsf(x[i]));
        const uint32_t exponent =
            is_beyond ? 127 : min(max(__float_as_uint(warp_max(most)) >> 23, 1u), 252u);
        const float factor = __uint_as_float((253 - exponent) << 23);
        if (lane == 0) {
            tables.factors[column] = __uint_as_float((exponent + 1) << 23);
            tables.offsets[column] = is_beyond ? __uint_as_float(kNanBits) : offset;
        }
        uint8_t *operand = block.queries + column / 16 * kTileBytes + 64 * (column % 8) +
                           8 * (column / 8 % 2) + lane / 16 * strip_bytes + lane % 8 / 2 * 16 +
                           lane / 8 % 2 * 4 + lane % 2 * 2;
#pragma unroll 4
        for (uint32_t i = 0; lane + kWarp * i < layer.head_dim; ++i)
            *reinterpret_cast<__half *>(operand + i * 2 * strip_bytes) =
                __float2half_rn(is_beyond ? 0.0f : x[i] * factor);
    }
}

}  // namespace cuda
}  // namespace lk

#endif
