// Attention of long steps: from products of queries and keys to weights.
//
// Columns are the rows of the products: a lane has four columns of the warp, lane / 4 and every
// eighth after it, and shares them with three lanes. The reference of a column is lazy as in
// prefill/weights.cuh, but raised by the column's own logits alone.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_PASS_WEIGHTS_CUH
#define LK_CUDA_PREFILL_PASS_WEIGHTS_CUH

#include "cuda/prefill/pass.cuh"
#include "cuda/prefill/weights.cuh"

namespace lk {
namespace cuda {

template <int kStrips>
struct PassShape {
    static constexpr int kRows = kStrips > 8 ? 1 : 2;   // tiles of 16 columns of a warp
    static constexpr int kTiles = kStrips > 8 ? 2 : 4;  // of 16 tokens of a stage
    static constexpr uint32_t kStageTokens = kTiles * LK_TILE_TOKENS;
    static constexpr uint32_t kSideBytes = kStrips * kTiles * kTileBytes;
};

// What 16 columns have summed up. Element i of a fragment is column lane / 4 + 8 (i / 2).
template <int kStrips>
struct RowSums {
    float out[2 * kStrips][4];  // of 8 channels each
    float reference[2];
    float sum[2];  // of the lane's tokens

    __device__ __forceinline__ void shrink(int half, float factor) {
#pragma unroll
        for (int n = 0; n < 2 * kStrips; ++n) {
            out[n][2 * half] *= factor;
            out[n][2 * half + 1] *= factor;
        }
    }
};

// Products of 16 columns and the tokens of a stage, 8 of them in a fragment.
template <int kTiles>
using RowProducts = float[2 * kTiles][4];

__device__ __forceinline__ uint32_t row_column(uint32_t row, uint32_t half) {
    return 16 * row + threadIdx.x % kWarp / 4 + 8 * half;
}
__device__ __forceinline__ uint32_t row_token(uint32_t fragment, uint32_t i) {
    return 8 * fragment + 2 * (threadIdx.x % 4) + i % 2;
}

template <int kTiles>
__device__ __forceinline__ void hide_rows(const TileArgs &args, const ColumnTables &tables,
                                          const WarpColumns &warp, const Stage &stage, uint32_t row,
                                          RowProducts<kTiles> &products) {
    uint32_t seen = 0;  // a bit for each product; the loop stays one, to need few registers
#pragma unroll 1
    for (uint32_t bit = 0; bit < 8 * kTiles; ++bit) {
        const uint32_t token = row_token(bit / 4, bit);
        const uint32_t column = warp.first + row_column(row, bit / 2 % 2);
        if (token < stage.n_tokens && is_visible(args, tables, column, stage.first_token + token))
            seen |= 1u << bit;
    }
#pragma unroll
    for (uint32_t n = 0; n < 2 * kTiles; ++n)
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i)
            if (!(seen >> (4 * n + i) & 1))
                products[n][i] = -INFINITY;
}

template <int kTiles>
__device__ __forceinline__ void shape_rows(const LayerArg &layer, const ColumnTables &tables,
                                           const WarpColumns &warp, uint32_t row,
                                           RowProducts<kTiles> &products) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint32_t column = warp.first + row_column(row, half);
        const float factor = tables.factors[column];
        const float offset = tables.offsets[column];
#pragma unroll
        for (int n = 0; n < 2 * kTiles; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i)
                products[n][i] = shape_logit(layer, fmaf(products[n][i], factor, offset));
    }
}

// Raise the reference of a column that has a logit beyond its headroom. Where the highest is beyond
// kFar, products become logits, rounded: those are never above a reference that one of them became.
// `out` is what shrinks with the sum, by shrink(half, factor).
template <int kStrips, int kTiles, class Out>
__device__ __forceinline__ void raise_row(RowProducts<kTiles> &products, int half, float *factor,
                                          RowSums<kStrips> &sums, Out &out) {
    float high = -INFINITY;
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n)
        high = fmaxf(high, fmaxf(products[n][2 * half], products[n][2 * half + 1]));
    for (int step = 1; step < 4; step *= 2)
        high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, step));
    high *= *factor;
    const float old = sums.reference[half];
    if (!(high - old > kHeadroom))
        return;
    if (fabsf(high) > kFar && high < INFINITY) {
#pragma unroll
        for (int n = 0; n < 2 * kTiles; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i)
                products[n][i] = __fmul_rn(products[n][i], *factor);
        *factor = 1;
    }
    const float raised = fmaxf(old, high - kBelow);
    const float shrink = exp2_fast(old - raised);
    sums.reference[half] = raised;
    sums.sum[half] *= shrink;
    out.shrink(half, shrink);
}

// Weights as A fragments, tokens as k. The sum of a lane's weights tells whether one of them may be
// too large for FP16, for less than their maximum would cost.
template <int kStrips, int kTiles, class Out>
__device__ __forceinline__ void weigh_rows(RowProducts<kTiles> &products, float factor,
                                           RowSums<kStrips> &sums, Out &out,
                                           uint32_t (&weights)[kTiles][4]) {
    constexpr float kMost = 1 << static_cast<int>(kHeadroom);
    float factors[2] = {factor, factor};
#pragma unroll 1
    for (bool is_raised = false;; is_raised = true) {
        float lane[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < 2 * kTiles; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float low =
                    exp2_fast(fmaf(products[n][2 * half], factors[half], -sums.reference[half]));
                const float high = exp2_fast(
                    fmaf(products[n][2 * half + 1], factors[half], -sums.reference[half]));
                lane[half] += low + high;
                weights[n / 2][n % 2 * 2 + half] = pack_f16(low, high);
            }
        if (is_raised || !__any_sync(kAllLanes, !(lane[0] <= kMost && lane[1] <= kMost))) {
            sums.sum[0] += lane[0];
            sums.sum[1] += lane[1];
            return;
        }
        raise_row<kStrips, kTiles>(products, 0, &factors[0], sums, out);
        raise_row<kStrips, kTiles>(products, 1, &factors[1], sums, out);
    }
}

}  // namespace cuda
}  // namespace lk

#endif
