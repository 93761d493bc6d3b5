// Attention of many columns: from products of queries and keys to weights.
//
// A warp has kSlices slices of 8 columns; in its fragments of products tokens are the rows. A lane
// has two columns of a slice, 2 (lane % 4) and the next, and keeps a reference and a part of the
// sum of weights for each. A weight is a power of two relative to the reference, which lies kBelow
// under the highest logit and is raised once a logit passes it by kHeadroom: most rounds leave the
// accumulators alone, and small weights keep their bits in FP16.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_WEIGHTS_CUH
#define LK_CUDA_PREFILL_WEIGHTS_CUH

#include "cuda/prefill/load.cuh"

namespace lk {
namespace cuda {

constexpr float kBelow = 6;
constexpr float kHeadroom = 15;  // 2^15 is a number of FP16, 2^16 is not
constexpr float kNoReference = -1e30f;
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// Output of a warp's columns, not yet divided by the sum of weights.
template <int kStrips>
struct Accumulators {
    static constexpr int kSlices = tile_slices(kStrips);
    float out[kStrips][kSlices][4];
    float reference[kSlices][2];
    float sum[kSlices][2];
};

template <int kSlices>
using Products = float[kRoundTiles<kSlices>][kSlices][4];

// Position of element i of a fragment: token of the round, column of the warp.
__device__ __forceinline__ uint32_t token_of(uint32_t tile, uint32_t i) {
    return tile * LK_TILE_TOKENS + threadIdx.x % kWarp / 4 + 8 * (i / 2);
}
__device__ __forceinline__ uint32_t column_of(uint32_t slice, uint32_t i) {
    return 8 * slice + 2 * (threadIdx.x % 4) + i % 2;
}

struct WarpColumns {
    uint32_t first;           // of the block
    uint32_t n;               // that exist; with 0 the warp only helps with the pages
    uint32_t first_position;  // as Mask's
    uint32_t last_position;
    uint32_t linear_end;  // tokens before this one are visible by position alone
};

__device__ inline WarpColumns find_columns(const TileArgs &args, const Mask &mask,
                                           uint32_t n_columns) {
    const SequenceInfo &sequence = mask.sequence;
    WarpColumns warp;
    warp.first = threadIdx.x / kWarp * n_columns;
    warp.n = warp.first < mask.n_columns ? min(n_columns, mask.n_columns - warp.first) : 0;
    warp.first_position = mask.first_position;
    warp.last_position = mask.last_position;
    warp.linear_end = sequence.has_tree ? sequence.n_history : ~0u;
    if (warp.n && !sequence.has_tree) {
        const uint32_t column = mask.first_column + warp.first;
        warp.first_position = sequence.n_history + column / mask.group_size;
        warp.last_position = find_reach(args, sequence, (column + warp.n - 1) / mask.group_size);
    }
    return warp;
}

// Tokens that are multiplied together, and where their tiles of a side lie.
struct Round {
    uint32_t first_token;  // position
    uint32_t n_tokens;
    uint32_t tiles[2];  // keys, values; shared address
    bool shapes;        // logits take more than a factor
    bool hides;         // some tokens are hidden from some columns
};

// How many tokens of the stage come before the last column of the warp?
__device__ __forceinline__ uint32_t seen_tokens(const WarpColumns &warp, const Stage &stage) {
    const uint32_t end = warp.n ? warp.last_position + 1 : 0;
    return stage.first_token < end ? min(stage.n_tokens, end - stage.first_token) : 0;
}
// Are all tokens of its rounds visible to all columns?
__device__ __forceinline__ bool all_are_visible(const LayerArg &layer, const WarpColumns &warp,
                                                const Stage &stage, uint32_t round_tokens) {
    const uint32_t end = stage.first_token + stage.n_tokens;
    return stage.n_tokens % round_tokens == 0 && end <= warp.linear_end &&
           end <= warp.first_position + 1 &&
           (!layer.window_tokens || stage.first_token + layer.window_tokens > warp.last_position ||
            end <= layer.window_sink_tokens);
}

template <class Tables>
__device__ __forceinline__ bool is_visible(const TileArgs &args, const Tables &tables,
                                           uint32_t column, uint32_t token) {
    const SequenceInfo &sequence = tables.mask.sequence;
    const uint32_t query = tables.positions[column];
    uint32_t key = token;
    if (sequence.has_tree && token >= sequence.n_history) {
        const uint32_t i = token - sequence.n_history;
        if (!(tables.ancestors[column] >> i & 1))
            return false;
        key = args.step.positions[sequence.first_new + i];
    }
    const LayerArg &layer = args.layer;
    return key <= tables.reaches[column] &&
           (!layer.window_tokens || key + layer.window_tokens > query ||
            key < layer.window_sink_tokens);
}

template <int kSlices>
__device__ __forceinline__ void hide(const TileArgs &args, const ColumnTables &tables,
                                     const WarpColumns &warp, const Round &round,
                                     Products<kSlices> &products) {
    uint32_t seen = 0;  // a bit for each product; the loop stays one, to need few registers
#pragma unroll 1
    for (uint32_t bit = 0; bit < 4 * kRoundTiles<kSlices> * kSlices; ++bit) {
        const uint32_t token = token_of(bit / 4 % kRoundTiles<kSlices>, bit % 4);
        const uint32_t column = warp.first + column_of(bit / 4 / kRoundTiles<kSlices>, bit % 4);
        if (token < round.n_tokens && is_visible(args, tables, column, round.first_token + token))
            seen |= 1u << bit;
    }
#pragma unroll
    for (uint32_t slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (uint32_t tile = 0; tile < kRoundTiles<kSlices>; ++tile)
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i)
                if (!(seen >> (4 * (kRoundTiles<kSlices> * slice + tile) + i) & 1))
                    products[tile][slice][i] = -INFINITY;
}

// The factor that makes a product a logit to base 2; with a soft-cap shape_logits() does so.
__device__ __forceinline__ float logit_factor(const LayerArg &layer) {
    return layer.soft_cap > 0 ? 1.0f : fabsf(layer.scale) * kLog2E;
}

// The rest: the cap.
__device__ __forceinline__ float shape_logit(const LayerArg &layer, float x) {
    const float cap = layer.soft_cap;
    if (!(cap > 0))
        return x;
    const float power = exp2_fast(x * (2 * kLog2E * fabsf(layer.scale) / cap));
    return cap * kLog2E * (1 - __fdividef(2, power + 1));  // of tanh
}

// Queries that FP16 could not hold undivided, centers of keys, and the cap.
template <int kSlices>
__device__ __forceinline__ void shape_logits(const LayerArg &layer, const ColumnTables &tables,
                                             const WarpColumns &warp, Products<kSlices> &products) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int tile = 0; tile < static_cast<int>(kRoundTiles<kSlices>); ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t column = warp.first + column_of(slice, i);
                products[tile][slice][i] = shape_logit(
                    layer,
                    fmaf(products[tile][slice][i], tables.factors[column], tables.offsets[column]));
            }
}

template <int kSlices>
__device__ __forceinline__ float highest(const Products<kSlices> &products, int slice, int column) {
    float high = -INFINITY;
#pragma unroll
    for (int tile = 0; tile < static_cast<int>(kRoundTiles<kSlices>); ++tile)
        high = fmaxf(high, fmaxf(products[tile][slice][column], products[tile][slice][column + 2]));
    return high;
}

template <int kStrips, int kSlices>
__device__ __forceinline__ void raise_references(const Products<kSlices> &products, float factor,
                                                 Accumulators<kStrips> &acc) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int column = 0; column < 2; ++column) {
            float high = highest<kSlices>(products, slice, column);
            for (int step = 4; step < static_cast<int>(kWarp); step *= 2)
                high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, step));
            const float old = acc.reference[slice][column];
            const float raised = fmaxf(old, high * factor - kBelow);
            const float shrink = exp2_fast(old - raised);
            acc.reference[slice][column] = raised;
            acc.sum[slice][column] *= shrink;
#pragma unroll
            for (int strip = 0; strip < kStrips; ++strip) {
                acc.out[strip][slice][column] *= shrink;
                acc.out[strip][slice][column + 2] *= shrink;
            }
        }
}

// Is the highest logit of a column, unless all are hidden, beyond kFar?
template <int kSlices>
__device__ __forceinline__ bool is_any_far(const Products<kSlices> &products, float factor) {
    bool is_far = false;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int column = 0; column < 2; ++column) {
            const float high = fabsf(highest<kSlices>(products, slice, column)) * factor;
            is_far = is_far || (high > kFar && high < INFINITY);
        }
    return __any_sync(kAllLanes, is_far);
}

// Products become logits, rounded: those are never above a reference that one of them became.
template <int kSlices>
__device__ __forceinline__ void round_logits(float factor, Products<kSlices> &products) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int tile = 0; tile < static_cast<int>(kRoundTiles<kSlices>); ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                products[tile][slice][i] = __fmul_rn(products[tile][slice][i], factor);
}

// Weights as B fragments, tokens as k.
template <int kStrips, int kSlices>
__device__ __forceinline__ void weigh(Products<kSlices> &products, float factor,
                                      Accumulators<kStrips> &acc,
                                      uint32_t (&weights)[kRoundTiles<kSlices>][kSlices][2]) {
    float over = -INFINITY;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int column = 0; column < 2; ++column)
            over = fmaxf(over, highest<kSlices>(products, slice, column) * factor -
                                   acc.reference[slice][column]);
    if (__any_sync(kAllLanes, over > kHeadroom)) {
        if (is_any_far<kSlices>(products, factor)) {
            round_logits<kSlices>(factor, products);
            factor = 1;
        }
        raise_references<kStrips, kSlices>(products, factor, acc);
    }
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int tile = 0; tile < static_cast<int>(kRoundTiles<kSlices>); ++tile) {
            float w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                w[i] =
                    exp2_fast(fmaf(products[tile][slice][i], factor, -acc.reference[slice][i % 2]));
            acc.sum[slice][0] += w[0] + w[2];
            acc.sum[slice][1] += w[1] + w[3];
            weights[tile][slice][0] = transpose(pack_f16(w[0], w[1]));
            weights[tile][slice][1] = transpose(pack_f16(w[2], w[3]));
        }
}

}  // namespace cuda
}  // namespace lk

#endif
