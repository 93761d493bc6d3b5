// Decode: from logits to weights, and a warp's accumulator.
//
// Weights are 2^up times exp(logit - row_max). The midpoints of values (their minima, see
// decode/keys.cuh) and the sum of weights come from one product per tile, whose rows 0-7 are the
// midpoints of the channel groups and whose rows 8-15 are ones.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_WEIGHTS_CUH
#define LK_CUDA_DECODE_WEIGHTS_CUH

#include "cuda/decode/logits.cuh"

namespace lk {
namespace cuda {

constexpr float kSlack = 3.0f;          // row_max is raised when a logit passes it by more
constexpr int kUp = 3;                  // keeps small weights out of FP16's subnormal numbers
constexpr float kLargeRange = 1000.0f;  // above it weights stay below 1: range * 2^(kUp + kSlack)
                                        // would overflow
constexpr uint32_t kOnes = 0x3C003C00u;

// Highest over the lanes of a column.
__device__ __forceinline__ float column_row_max(float x) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2)
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
    return x;
}

// A warp's accumulator, relative to exp2(-row_max): outputs are o * output_scale, the rest is as it
// is.
template <int kStrips, int kTiles>
struct Accumulator {
    float o[kStrips][kTiles][4];
    float midpoint[kTiles][2];  // lane 4g + i: of channel group g
    float row_max[kTiles][2];
    float row_sum[kTiles][2];
    float output_scale;

    __device__ __forceinline__ void clear() {
        output_scale = 1;
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                midpoint[c][i] = 0;
                row_sum[c][i] = 0;
                row_max[c][i] = kNothing;
            }
#pragma unroll
            for (int s = 0; s < kStrips; ++s)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    o[s][c][i] = 0;
        }
    }
    // Raise row_max to the highest of the warp's lanes, and change the scale of the outputs.
    __device__ __forceinline__ void raise(float (&x)[kTiles][2], float wanted, float slack) {
        bool changes = wanted != output_scale;
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                x[c][i] = column_row_max(x[c][i]);
                changes = changes || x[c][i] > row_max[c][i] + slack;
            }
        if (!__any_sync(kAllLanes, changes))
            return;
        const float change = __fdividef(output_scale, wanted);
        output_scale = wanted;
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float raised = fmaxf(row_max[c][i], x[c][i]);
                const float factor = exp2_fast(row_max[c][i] - raised);
                row_max[c][i] = raised;
                midpoint[c][i] *= factor;
                row_sum[c][i] *= factor;
#pragma unroll
                for (int s = 0; s < kStrips; ++s) {
                    o[s][c][i] *= factor * change;
                    o[s][c][2 + i] *= factor * change;
                }
            }
    }
};

// Logits of the first kCount tiles become weights. x = product * factor + offset.
template <int kCount, int kTiles>
__device__ __forceinline__ void make_weights(Work<kTiles> &work, float odd,
                                             const float (&factor)[kTiles][2],
                                             const float (&offset)[kTiles][2]) {
#pragma unroll
    for (int t = 0; t < kCount; ++t)
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
            const float(&s)[4] = work.s[t][c];
            const float f0 = t % 2 ? factor[c][0] * odd : factor[c][0];
            const float f1 = t % 2 ? factor[c][1] * odd : factor[c][1];
            const uint32_t low = pack_f16(exp2_fast(fmaf(s[0], f0, offset[c][0])),
                                          exp2_fast(fmaf(s[1], f1, offset[c][1])));
            const uint32_t high = pack_f16(exp2_fast(fmaf(s[2], f0, offset[c][0])),
                                           exp2_fast(fmaf(s[3], f1, offset[c][1])));
            work.set(t, c, 0, transpose(low), transpose(high));
        }
}

// Channel groups of a packed page.
template <DecodeKind kKind>
__device__ __forceinline__ uint32_t group_strips(const Values &values) {
    return kKind == kDecodeF8By32 ? kF8GroupStrips : values.group_strips;
}
template <int kStrips, DecodeKind kKind>
__device__ __forceinline__ uint32_t values_groups(const Values &values) {
    constexpr uint32_t kF8 = (kStrips + kF8GroupStrips - 1) / kF8GroupStrips;
    return kKind == kDecodeF8By32 ? kF8 : values.n_groups;
}

// Values are codes, as FP16 subnormals, times ranges times this.
__device__ __forceinline__ float code_scale(uint32_t bits) {
    return bits == 1   ? 0x1p24f * kStepFactor<1>
           : bits == 2 ? 0x1p24f * kStepFactor<2>
           : bits == 4 ? 0x1p24f * kStepFactor<4>
           : bits == 8 ? 0x1p24f * kStepFactor<8>
                       : 1.0f;
}

// Are weights to stay below 1? Ranges of FP8 are never that large.
template <DecodeKind kKind>
__device__ __forceinline__ bool has_large_ranges(const Values &values, uint32_t metadata,
                                                 uint32_t lane) {
    if (kHasF8<kKind> || values.bits == 16)
        return false;
    bool is_large = false;
    constexpr uint32_t kTokens = decode_page_tokens(kKind);
    constexpr uint32_t kEach = kWarp * 4 / kTokens;  // groups that the lanes take at once
    const uint32_t n_groups = kHasAnyGroups<kKind> ? values.n_groups : 1u;
    for (uint32_t i = 0; i < (n_groups + kEach - 1) / kEach; ++i) {
        const uint32_t at = i * 128 + lane * 4;
        const uint2 r =
            load_ranges<kKind>(metadata, kEach == 1 ? at : min(at, n_groups * kTokens - 4));
        const __half2 most = __hmax2(as_half2(r.x), as_half2(r.y));
        is_large = is_large || __low2float(most) > kLargeRange || __high2float(most) > kLargeRange;
    }
    return __any_sync(kAllLanes, is_large);
}

// Products become logits. Lows (offset) of a token group are in the lanes of its row.
template <int kTiles, DecodeKind kKind>
__device__ __forceinline__ void add_lows(const float (&factor)[kTiles][2],
                                         const float (&offset)[kTiles][2], float odd, uint32_t lane,
                                         Work<kTiles> &work) {
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        const uint32_t from = (t * kF8Groups >> 3) * 4 + (lane & 3u);
        const float scale = t % 2 ? odd : 1.0f;
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float low =
                    kIsPlain<kKind> ? offset[c][i] : __shfl_sync(kAllLanes, offset[c][i], from);
                work.s[t][c][i] = fmaf(work.s[t][c][i], factor[c][i] * scale, low);
                work.s[t][c][2 + i] = fmaf(work.s[t][c][2 + i], factor[c][i] * scale, low);
            }
    }
}

// Highest product of a column among the lane's rows of a page.
template <int kTiles>
__device__ __forceinline__ float highest_of_page(const Work<kTiles> &work, int c, int i,
                                                 float odd) {
    float most[2] = {kHidden, kHidden};
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t)
        most[t % 2] = fmaxf(most[t % 2], fmaxf(work.s[t][c][i], work.s[t][c][2 + i]));
    return fmaxf(most[0], most[1] * odd);
}

// Logits of a packed page to weights: row_max is raised first.
template <class Team, int kStrips, int kTiles, DecodeKind kKind>
__device__ __forceinline__ void weigh_packed(const Keys &keys, const Values &values,
                                             uint32_t metadata, uint32_t first_token, uint32_t lane,
                                             const LogitRules &rules, Work<kTiles> &work,
                                             Accumulator<kStrips, kTiles> &g) {
    const LogitScales scales = page_scales<Team, kStrips, kKind>(keys);
    const bool is_masked = rules.mask.hides(first_token, first_token + 128);
    const bool finishes = is_masked || rules.cap > 0;
    float factor[kTiles][2], offset[kTiles][2], row_max[kTiles][2], odd = scales.odd;
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const Column &column = rules.mask.columns[c * 8 + (lane & 3u) * 2 + i];
            factor[c][i] = column.factor * scales.all;
            offset[c][i] =
                fmaf(work.midpoint[c][i], column.factor * kParameterScale<kKind>, column.offset);
        }
    const auto round_logits = [&] {
        add_lows<kTiles, kKind>(factor, offset, odd, lane, work);
        odd = 1.0f;
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                factor[c][i] = 1.0f;
                offset[c][i] = 0.0f;
            }
    };
    const bool are_rounded = !kIsPlain<kKind> || finishes;
    if (are_rounded)
        round_logits();
    if (finishes)
#pragma unroll
        for (int t = 0; t < kPageTiles; ++t)
            finish_tile<false>(work.s[t], rules, is_masked, first_token + t * 16, lane);
    bool is_far = false;
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            row_max[c][i] = fmaf(highest_of_page(work, c, i, odd), factor[c][i], offset[c][i]);
            is_far = is_far || fmaxf(fabsf(row_max[c][i]), fabsf(offset[c][i])) > kFar;
        }
    if (!are_rounded && __builtin_expect(__any_sync(kAllLanes, is_far), 0)) {
        round_logits();
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                row_max[c][i] = highest_of_page(work, c, i, odd);
    }
    const bool is_large = has_large_ranges<kKind>(values, metadata, lane);
    const int most_up = kUp + kParameterShift<kKind>;
    const float up = is_large ? 0.0f : static_cast<float>(most_up);
    const float output_scale = is_large ? 1.0f : 1.0f / (1 << most_up);
    const float parameter_scale = output_scale * kParameterScale<kKind>;
    g.raise(row_max, values.bits == 16 ? output_scale : parameter_scale * code_scale(values.bits),
            is_large ? 0.0f : kSlack);
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            offset[c][i] += up - g.row_max[c][i];
    make_weights<kPageTiles>(work, odd, factor, offset);
    // The sum of the weights, and their products with the midpoints, or the minima.
    float sums[kTiles][4] = {};
    const uint32_t group =
        kIsPlain<kKind> ? 0 : min(lane >> 2, values_groups<kStrips, kKind>(values) - 1u);
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        uint2 z = make_uint2(0, 0);
        if (values.bits < 16) {
            const uint32_t index = group * 128 + t * 16 + (lane & 3u) * 4;
            z = load_minima<kKind>(metadata + values.minima_offset, index);
            if (kIsPlain<kKind>) {
                const uint2 r = load_ranges<kKind>(metadata, index);
                z = make_uint2(midpoint_of(r.x, z.x), midpoint_of(r.y, z.y));
            }
        }
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
            mma(sums[c], z.x, kOnes, z.y, kOnes, work.get(t, c, 0, 0), work.get(t, c, 0, 1));
    }
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            g.midpoint[c][i] = fmaf(sums[c][i], parameter_scale, g.midpoint[c][i]);
            g.row_sum[c][i] = fmaf(sums[c][2 + i], output_scale, g.row_sum[c][i]);
        }
}

// Logits of a tile of a raw block to weights.
template <int kStrips, int kTiles>
__device__ __forceinline__ void weigh_raw(const Position &position, uint32_t lane,
                                          const LogitRules &rules, Work<kTiles> &work,
                                          Accumulator<kStrips, kTiles> &g) {
    const uint32_t first = position.first_token + position.tile * 16u;
    const bool is_masked = rules.mask.hides(first, first + 16);
    float factor[kTiles][2], offset[kTiles][2], row_max[kTiles][2];
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Column &column = rules.mask.columns[c * 8 + (lane & 3u) * 2 + (i & 1)];
            work.s[0][c][i] = fmaf(work.s[0][c][i], column.factor, column.offset);
        }
    if (is_masked || rules.cap > 0)
        finish_tile<true>(work.s[0], rules, is_masked, first, lane);
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            row_max[c][i] = fmaxf(work.s[0][c][i], work.s[0][c][2 + i]);
    g.raise(row_max, 1.0f / (1 << kUp), kSlack);
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            factor[c][i] = 1.0f;
            offset[c][i] = static_cast<float>(kUp) - g.row_max[c][i];
        }
    make_weights<1>(work, 1.0f, factor, offset);
    float sums[kTiles][4] = {};
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
        mma(sums[c], kOnes, kOnes, kOnes, kOnes, work.get(0, c, 0, 0), work.get(0, c, 0, 1));
#pragma unroll
        for (int i = 0; i < 2; ++i)
            g.row_sum[c][i] = fmaf(sums[c][i], 1.0f / (1 << kUp), g.row_sum[c][i]);
    }
}

}  // namespace cuda
}  // namespace lk

#endif
