// Decode of up to four query columns over FP8 pages: weights and values. See
// decode/split_k_keys.cuh for split-k columns; here k are tokens.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_SPLIT_K_VALUES_CUH
#define LK_CUDA_DECODE_SPLIT_K_VALUES_CUH

#include "cuda/decode/byte_values.cuh"
#include "cuda/decode/split_k_keys.cuh"

namespace lk {
namespace cuda {

// A warp's accumulator of query column lane % 4, relative to exp2(-row_max): outputs are the sums
// of both split-k columns times output_scale, the rest is as it is.
template <int kStrips>
struct SplitKAccumulator {
    float o[kStrips][1][4];
    float low;  // of the lane's split-k column and its row's channel group: weights times minima
    float row_max;
    float row_sum;
    float output_scale;

    __device__ __forceinline__ void clear() {
        low = row_sum = 0;
        row_max = kNothing;
        output_scale = 1;
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                o[s][0][i] = 0;
    }
    // As Accumulator::raise(). x: the highest of the lanes' logits.
    __device__ __forceinline__ void raise(float x, float wanted) {
        x = column_row_max(x);
        if (!__any_sync(kAllLanes, wanted != output_scale || x > row_max + kSlack))
            return;
        const float raised = fmaxf(row_max, x);
        const float factor = exp2_fast(row_max - raised);
        const float change = factor * __fdividef(output_scale, wanted);
        output_scale = wanted;
        row_max = raised;
        low *= factor;
        row_sum *= factor;
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                o[s][0][i] *= change;
    }
};

// Weights are this many powers of two above exp(logit - row_max).
constexpr int kSplitKUp = kUp + kParameterShift<kDecodeF8By32>;
constexpr float kSplitKScale = 1.0f / (1 << kSplitKUp);

// Logits of tokens g and g + 8 of kCount tiles to weights: the pairs of both split-k columns.
template <int kCount>
__device__ __forceinline__ void make_split_k_weights(const float (&x)[kCount * 2], float row_max,
                                                     uint32_t (&pairs)[kCount]) {
    const float offset = static_cast<float>(kSplitKUp) - row_max;
#pragma unroll
    for (int t = 0; t < kCount; ++t)
        pairs[t] =
            transpose(pack_f16(exp2_fast(x[2 * t] + offset), exp2_fast(x[2 * t + 1] + offset)));
}

// Products of a packed page become logits.
template <int kStrips>
__device__ __forceinline__ void finish_split_k(const Keys &keys, const Work<1> &work,
                                               uint32_t first_token, const ByteLane &lane,
                                               const LogitRules &rules,
                                               float (&x)[kPageTiles * 2]) {
    const LogitScales scales = logit_scales<kStrips, kDecodeF8By32>(keys);
    const Column &column = rules.mask.columns[lane.t()];
    const float even = column.factor * scales.all;
    const float odd = even * scales.odd;
    const float lows = fmaf(split_k_sum(split_k_low(work.midpoint[0], lane.lane)),
                            column.factor * kParameterScale<kDecodeF8By32>, column.offset);
    float group_lows[kF8Groups];
#pragma unroll
    for (uint32_t group = 0; group < kF8Groups; ++group)
        group_lows[group] = split_k_sum_of(lows, group, lane.lane);
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        const float(&s)[4] = work.s[t][0];
        const float factor = t % 2 ? odd : even;
        const float low = group_lows[t / 2];
        x[2 * t] = fmaf(s[0] + s[1], factor, low);
        x[2 * t + 1] = fmaf(s[2] + s[3], factor, low);
    }
    const bool is_masked = rules.mask.hides(first_token, first_token + 128);
    if (is_masked || rules.cap > 0)
        finish_logits<false>(x, rules, is_masked, first_token + (lane.lane >> 2), lane.t());
}

// The sum of the weights, and their products with the minima: rows 0-3 of the first split-k
// column's tokens, rows 4-7 of the second's, ones below.
template <int kStrips>
__device__ __forceinline__ void add_split_k_minima(const uint32_t (&pairs)[kPageTiles],
                                                   const Values &values, uint32_t metadata,
                                                   const ByteLane &lane,
                                                   SplitKAccumulator<kStrips> &g) {
    constexpr uint32_t kGroups = (kStrips + kF8GroupStrips - 1) / kF8GroupStrips;
    static_assert(kGroups <= 4, "rows of one fragment");
    const uint32_t minima =
        metadata + values.minima_offset + min(split_k_group(lane.lane), kGroups - 1) * 128;
    float c[4] = {};
    if (values.bits == 16) {
#pragma unroll
        for (int t = 0; t < kPageTiles; t += 2)
            mma(c, 0, kOnes, 0, kOnes, pairs[t], pairs[t + 1]);
    } else {
#pragma unroll
        for (int t = 0; t < kPageTiles; t += 2)
            mma(c, split_k_minima(minima + t * 16, lane.lane), kOnes,
                split_k_minima(minima + t * 16 + 16, lane.lane), kOnes, pairs[t], pairs[t + 1]);
    }
    g.low = fmaf(split_k_low(c, lane.lane), kSplitKScale * kParameterScale<kDecodeF8By32>, g.low);
    g.row_sum = fmaf(c[2] + c[3], kSplitKScale, g.row_sum);
}

// The pairs as B fragments, times the factors of the codes' positions.
__device__ __forceinline__ void spread_split_k(const uint32_t (&pairs)[kPageTiles], uint32_t bits,
                                               const ByteLane &lane, Work<1> &work) {
    const bool is_upper = lane.is_upper();
    const uint32_t even = is_upper && bits < 8 ? 0x2C002C00u : kOnes;                // 2^-4
    const uint32_t odd = bits == 2 ? (is_upper ? 0x24002400u : 0x34003400u) : even;  // 2^-6, 2^-2
    const uint32_t low[2] = {is_upper ? 0 : even, is_upper ? 0 : odd};
    const uint32_t high[2] = {is_upper ? even : 0, is_upper ? odd : 0};
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t)
        work.set(t, 0, 0, multiply_f16(pairs[t], low[t % 2]), multiply_f16(pairs[t], high[t % 2]));
}

// Values of a packed page.
template <int kStrips>
__device__ __forceinline__ void multiply_split_k_values(Ring &ring, const Values &values,
                                                        const uint32_t (&pairs)[kPageTiles],
                                                        const ByteLane &lane, Work<1> &work,
                                                        SplitKAccumulator<kStrips> &g) {
    const uint32_t metadata = ring.value_metadata();
    spread_split_k(pairs, values.bits, lane, work);
    multiply_values<kStrips, 1, kDecodeF8By32>(
        ring, values, lane.lane, work, g.o, [&](uint32_t group) {
#pragma unroll
            for (int t = 0; t < kPageTiles; ++t) {
                const uint32_t r = split_k_ranges(metadata + group * 128 + t * 16, lane.lane);
                work.set(t, 0, 1, multiply_f16(work.get(t, 0, 0, 0), r),
                         multiply_f16(work.get(t, 0, 0, 1), r));
            }
        });
}

// Values of a tile of a raw block; x: its logits.
template <int kStrips>
__device__ __forceinline__ void accumulate_raw_split_k(Ring &ring, const Position &position,
                                                       const ByteLane &lane, uint32_t n_tokens,
                                                       const float (&x)[2],
                                                       SplitKAccumulator<kStrips> &g) {
    g.raise(fmaxf(x[0], x[1]), kSplitKScale);
    uint32_t pairs[1];
    make_split_k_weights<1>(x, g.row_max, pairs);
    const SplitKQuery b = split_k_query(pairs[0], lane.lane);
    float sums[4] = {};
    mma(sums, kOnes, kOnes, kOnes, kOnes, b.b0, b.b1);
    g.row_sum = fmaf(sums[0] + sums[1], kSplitKScale, g.row_sum);
    const uint32_t fragment[1][2] = {{b.b0, b.b1}};
    multiply_raw_values<kStrips, 1>(ring, position, lane.lane, n_tokens, fragment, g.o);
}

}  // namespace cuda
}  // namespace lk

#endif
