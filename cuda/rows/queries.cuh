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

// A lane's channels of a query, 32 apart and at once in flight: of the sign of the layer's scale,
// the last one again after it.
constexpr uint32_t kLaneChannels = LK_MAX_HEAD_DIM / kWarp;
__device__ __forceinline__ void load_channels(const LayerArg &layer, const TensorArg &q,
                                              int64_t offset, float (&x)[kLaneChannels]) {
    const uint32_t lane = threadIdx.x % kWarp;
    const bool is_wide = q.dtype == kF32;
    const auto *wide = static_cast<const uint32_t *>(q.data) + offset;
    const auto *narrow = static_cast<const uint16_t *>(q.data) + offset;
    // Without a condition, so that all loads are under way at once.
    uint32_t bits[kLaneChannels];
    if (is_wide) {
#pragma unroll
        for (uint32_t i = 0; i < kLaneChannels; ++i)
            bits[i] = wide[min(lane + kWarp * i, layer.head_dim - 1)];
    } else {
#pragma unroll
        for (uint32_t i = 0; i < kLaneChannels; ++i)
            bits[i] = narrow[min(lane + kWarp * i, layer.head_dim - 1)];
    }
    const uint32_t shift = is_wide ? 0 : 16;
    const uint32_t sign = layer.scale < 0 ? 0x80000000u : 0;
#pragma unroll
    for (uint32_t i = 0; i < kLaneChannels; ++i)
        x[i] = __uint_as_float(
            sign ^ (q.dtype == kF16 ? __float_as_uint(half_to_float(bits[i])) : bits[i] << shift));
}

__device__ __forceinline__ float warp_max(float x) {
    return reduce_column<kWarp>(x, [](float a, float b) { return fmaxf(a, b); });
}
__device__ __forceinline__ float warp_sum(float x) {
    return reduce_column<kWarp>(x, [](float a, float b) { return a + b; });
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
        float x[kLaneChannels];
        load_channels(layer, args.q, from, x);
        bool is_beyond = false;
#pragma unroll
        for (const float channel : x)
            is_beyond |= is_beyond_limit(layer, channel);
        is_beyond = __any_sync(kAllLanes, is_beyond);
        const float offset = change_query(change, x);
        float most = 0;
#pragma unroll
        for (uint32_t i = 0; i < kLaneChannels; ++i)
            if (lane + kWarp * i < layer.head_dim)
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
#pragma unroll
        for (uint32_t i = 0; i < kLaneChannels; ++i)
            if (lane + kWarp * i < layer.head_dim)
                *reinterpret_cast<__half *>(operand + i * 2 * strip_bytes) =
                    __float2half_rn(is_beyond ? 0.0f : x[i] * factor);
    }
}

}  // namespace cuda
}  // namespace lk

#endif
