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

// A lane's next channels of a query, 32 apart and at once in flight: of the sign of the layer's
// scale, the last one again after it.
constexpr uint32_t kLaneChannels = 6;
constexpr uint32_t kRunChannels = kLaneChannels * kWarp;
constexpr uint32_t kRotatedRuns = 3;  // of a rotated query, which no latent layer has
static_assert(kRotatedRuns * kRunChannels >= LK_MAX_PLAIN_DIM, "all of its channels");
struct QueryRun {
    float x[kLaneChannels];

    __device__ __forceinline__ QueryRun(const LayerArg &layer, const TensorArg &q, int64_t offset,
                                        uint32_t channel) {
        const bool is_wide = q.dtype == kF32;
        const auto *wide = static_cast<const uint32_t *>(q.data) + offset;
        const auto *narrow = static_cast<const uint16_t *>(q.data) + offset;
        // Without a condition, so that all loads are under way at once.
        uint32_t bits[kLaneChannels];
        if (is_wide) {
#pragma unroll
            for (uint32_t i = 0; i < kLaneChannels; ++i)
                bits[i] = wide[min(channel + kWarp * i, layer.head_dim - 1)];
        } else {
#pragma unroll
            for (uint32_t i = 0; i < kLaneChannels; ++i)
                bits[i] = narrow[min(channel + kWarp * i, layer.head_dim - 1)];
        }
        const uint32_t shift = is_wide ? 0 : 16;
#pragma unroll
        for (uint32_t i = 0; i < kLaneChannels; ++i)
            x[i] = q.dtype == kF16 ? half_to_float(bits[i]) : __uint_as_float(bits[i] << shift);
        if (layer.scale < 0)
#pragma unroll
            for (uint32_t i = 0; i < kLaneChannels; ++i)
                x[i] = -x[i];
    }
    // f(channel, its number), of channels that exist.
    template <class F>
    __device__ __forceinline__ void each(uint32_t channel, uint32_t head_dim, F f) {
#pragma unroll
        for (uint32_t i = 0; i < kLaneChannels; ++i)
            if (channel + kWarp * i < head_dim)
                f(channel + kWarp * i, x[i]);
    }
    __device__ __forceinline__ void scale(const float *scales, uint32_t channel,
                                          uint32_t head_dim) {
        if (scales)
            each(channel, head_dim, [=](uint32_t c, float &number) { number *= scales[c]; });
    }
};

__device__ __forceinline__ float warp_max(float x) {
    return reduce_column<kWarp>(x, [](float a, float b) { return fmaxf(a, b); });
}
__device__ __forceinline__ float warp_sum(float x) {
    return reduce_column<kWarp>(x, [](float a, float b) { return a + b; });
}

// Where a warp puts a column's query, as FP16 numbers below 1: a power of two brings its channels
// there, so that their products with ranges are numbers of FP16.
struct RoundedColumn {
    uint8_t *operand;
    uint32_t strip_bytes;
    float factor;
    bool is_beyond;

    __device__ __forceinline__ RoundedColumn(const RowsBlock &block, uint32_t column, bool beyond,
                                             float most, float offset)
        : strip_bytes(block.query_strip_bytes()), is_beyond(beyond) {
        const uint32_t lane = threadIdx.x % kWarp;
        const uint32_t exponent = beyond ? 127 : min(max(__float_as_uint(most) >> 23, 1u), 252u);
        factor = __uint_as_float((253 - exponent) << 23);
        if (lane == 0) {
            block.tables->factors[column] = __uint_as_float((exponent + 1) << 23);
            block.tables->offsets[column] = beyond ? __uint_as_float(kNanBits) : offset;
        }
        operand = block.queries + column / 16 * kTileBytes + 64 * (column % 8) +
                  8 * (column / 8 % 2) + lane / 16 * strip_bytes + lane % 8 / 2 * 16 +
                  lane / 8 % 2 * 4 + lane % 2 * 2;
    }
    // Channel kWarp x i + lane.
    __device__ __forceinline__ void put(uint32_t i, float x) const {
        *reinterpret_cast<__half *>(operand + i * 2 * strip_bytes) =
            __float2half_rn(is_beyond ? 0.0f : x * factor);
    }
};

// A warp rounds the queries of a column to FP16 numbers, which lie as B operands; columns that do
// not exist repeat the last one. A query beyond its layer's limit counts as zeros, its logits are
// NaN by their offset.
__device__ __noinline__ void load_query_columns(const TileArgs &args, const RowsBlock block) {
    const Mask &mask = block.tables->mask;
    const LayerArg &layer = args.layer;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t first_key = mask.kv_head * layer.head_dim;
    const float *centers = layer.key_centers ? layer.key_centers + first_key : nullptr;
    const float *scales = layer.key_scales ? layer.key_scales + first_key : nullptr;
#pragma unroll 1
    for (uint32_t column = threadIdx.x / kWarp; column < block.n_columns; column += kRowsWarps) {
        const QueryColumn query = query_column(mask.sequence, mask.kv_head, mask.group_size,
                                               mask.first_column + min(column, mask.n_columns - 1));
        const int64_t from = row_offset(args.q, query.token, query.head);
        bool is_beyond = false;
        float offset = 0;
        float most = 0;
#pragma unroll 1
        for (uint32_t c = lane; c < layer.head_dim; c += kRunChannels) {
            QueryRun q(layer, args.q, from, c);
            q.each(c, layer.head_dim,
                   [&](uint32_t, float x) { is_beyond |= is_beyond_limit(layer, x); });
            if (centers)
                q.each(c, layer.head_dim, [&](uint32_t channel, float x) {
                    offset = fmaf(x, centers[channel], offset);
                });
            q.scale(scales, c, layer.head_dim);
            q.each(c, layer.head_dim, [&](uint32_t, float x) { most = fmaxf(most, fabsf(x)); });
        }
        is_beyond = __any_sync(kAllLanes, is_beyond);
        const RoundedColumn rounded(block, column, is_beyond, warp_max(most), warp_sum(offset));
#pragma unroll 1
        for (uint32_t c = lane; c < layer.head_dim; c += kRunChannels) {
            QueryRun q(layer, args.q, from, c);
            q.scale(scales, c, layer.head_dim);
            q.each(c, layer.head_dim,
                   [&](uint32_t channel, float x) { rounded.put(channel / kWarp, x); });
        }
    }
}

// As load_query_columns(), of a layer that rotates keys: a lane has all of its channels at once.
__device__ __noinline__ void load_rotated_columns(const TileArgs &args, const RowsBlock block) {
    const Mask &mask = block.tables->mask;
    const LayerArg &layer = args.layer;
    const uint32_t lane = threadIdx.x % kWarp;
    const QueryChange change(layer, mask.kv_head);
#pragma unroll 1
    for (uint32_t column = threadIdx.x / kWarp; column < block.n_columns; column += kRowsWarps) {
        const QueryColumn query = query_column(mask.sequence, mask.kv_head, mask.group_size,
                                               mask.first_column + min(column, mask.n_columns - 1));
        const int64_t from = row_offset(args.q, query.token, query.head);
        float x[kRotatedRuns * kLaneChannels];
        bool is_beyond = false;
#pragma unroll
        for (uint32_t run = 0; run < kRotatedRuns; ++run) {
            const QueryRun q(layer, args.q, from, lane + run * kRunChannels);
#pragma unroll
            for (uint32_t i = 0; i < kLaneChannels; ++i) {
                x[run * kLaneChannels + i] = q.x[i];
                is_beyond |= is_beyond_limit(layer, q.x[i]);
            }
        }
        is_beyond = __any_sync(kAllLanes, is_beyond);
        const float offset = change_query(change, x);
        float most = 0;
#pragma unroll
        for (uint32_t i = 0; i < kRotatedRuns * kLaneChannels; ++i)
            if (lane + kWarp * i < layer.head_dim)
                most = fmaxf(most, fabsf(x[i]));
        const RoundedColumn rounded(block, column, is_beyond, warp_max(most), offset);
#pragma unroll
        for (uint32_t i = 0; i < kRotatedRuns * kLaneChannels; ++i)
            if (lane + kWarp * i < layer.head_dim)
                rounded.put(i, x[i]);
    }
}

}  // namespace cuda
}  // namespace lk

#endif
