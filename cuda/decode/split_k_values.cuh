// Decode of up to four query columns over FP8 pages: weights and values. See
// decode/split_k_keys.cuh for twins; here k are tokens.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_SPLIT_K_VALUES_CUH
#define LK_CUDA_DECODE_SPLIT_K_VALUES_CUH

#include "cuda/decode/byte_values.cuh"
#include "cuda/decode/split_k_keys.cuh"

namespace lk {
namespace cuda {

// What a warp has gathered of query column lane % 4, relative to exp2(-top): outputs are the sums
// of both twins times unit, the rest is as it is.
template <int kStrips>
struct TwinGathered {
    float o[kStrips][1][4];
    float low;  // of the lane's twin and its row's channel group: weights times minima
    float top;
    float sum;
    float unit;

    __device__ __forceinline__ void clear() {
        low = sum = 0;
        top = kNothing;
        unit = 1;
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                o[s][0][i] = 0;
    }
    // As Gathered::raise(). x: the highest of the lanes' logits.
    __device__ __forceinline__ void raise(float x, float wanted) {
        x = column_top(x);
        if (!__any_sync(kAllLanes, wanted != unit || x > top + kSlack))
            return;
        const float raised = fmaxf(top, x);
        const float factor = exp2_fast(top - raised);
        const float change = factor * __fdividef(unit, wanted);
        unit = wanted;
        top = raised;
        low *= factor;
        sum *= factor;
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                o[s][0][i] *= change;
    }
};

// Weights are this many powers of two above exp(logit - top).
constexpr int kTwinUp = kUp + kNumberShift<kDecodeF8By32>;
constexpr float kTwinUnit = 1.0f / (1 << kTwinUp);

// Logits of tokens g and g + 8 of kCount tiles to weights: the pairs of both twins.
template <int kCount>
__device__ __forceinline__ void make_twin_weights(const float (&x)[kCount * 2], float top,
                                                  uint32_t (&pairs)[kCount]) {
    const float offset = static_cast<float>(kTwinUp) - top;
#pragma unroll
    for (int t = 0; t < kCount; ++t)
        pairs[t] =
            transpose(pack_halves(exp2_fast(x[2 * t] + offset), exp2_fast(x[2 * t + 1] + offset)));
}

// Products of a packed page become logits.
template <int kStrips>
__device__ __forceinline__ void finish_twins(const Keys &keys, const Work<1> &work,
                                             uint32_t first_token, const ByteLane &lane,
                                             const LogitRules &rules, float (&x)[kPageTiles * 2]) {
    const LogitUnits units = logit_units<kStrips, kDecodeF8By32>(keys);
    const Column &column = rules.sight.columns[lane.t()];
    const float even = column.factor * units.all;
    const float odd = even * units.odd;
    const float lows = fmaf(twin_sum(twin_low(work.middle[0], lane.lane)),
                            column.factor * kNumberUnit<kDecodeF8By32>, column.offset);
    float group_lows[kF8Groups];
#pragma unroll
    for (uint32_t group = 0; group < kF8Groups; ++group)
        group_lows[group] = twin_sum_of(lows, group, lane.lane);
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        const float(&s)[4] = work.s[t][0];
        const float factor = t % 2 ? odd : even;
        const float low = group_lows[t / 2];
        x[2 * t] = fmaf(s[0] + s[1], factor, low);
        x[2 * t + 1] = fmaf(s[2] + s[3], factor, low);
    }
    const bool is_masked = rules.sight.hides(first_token, first_token + 128);
    if (is_masked || rules.cap > 0)
        finish_logits<false>(x, rules, is_masked, first_token + (lane.lane >> 2), lane.t());
}

// The sum of the weights, and their products with the minima: rows 0-3 of the first twin's tokens,
// rows 4-7 of the second's, ones below.
template <int kStrips>
__device__ __forceinline__ void add_twin_minima(const uint32_t (&pairs)[kPageTiles],
                                                const Values &values, uint32_t metadata,
                                                const ByteLane &lane, TwinGathered<kStrips> &g) {
    constexpr uint32_t kGroups = (kStrips + kF8GroupStrips - 1) / kF8GroupStrips;
    static_assert(kGroups <= 4, "rows of one fragment");
    const uint32_t minima =
        metadata + values.minima_offset + min(twin_group(lane.lane), kGroups - 1) * 128;
    float c[4] = {};
    if (values.bits == 16) {
#pragma unroll
        for (int t = 0; t < kPageTiles; t += 2)
            mma(c, 0, kOnes, 0, kOnes, pairs[t], pairs[t + 1]);
    } else {
#pragma unroll
        for (int t = 0; t < kPageTiles; t += 2)
            mma(c, twin_minima(minima + t * 16, lane.lane), kOnes,
                twin_minima(minima + t * 16 + 16, lane.lane), kOnes, pairs[t], pairs[t + 1]);
    }
    g.low = fmaf(twin_low(c, lane.lane), kTwinUnit * kNumberUnit<kDecodeF8By32>, g.low);
    g.sum = fmaf(c[2] + c[3], kTwinUnit, g.sum);
}

// The pairs as B fragments, times what the positions of codes differ by.
__device__ __forceinline__ void spread_twins(const uint32_t (&pairs)[kPageTiles], uint32_t bits,
                                             const ByteLane &lane, Work<1> &work) {
    const bool is_upper = lane.is_upper();
    const uint32_t even = is_upper && bits < 8 ? 0x2C002C00u : kOnes;                // 2^-4
    const uint32_t odd = bits == 2 ? (is_upper ? 0x24002400u : 0x34003400u) : even;  // 2^-6, 2^-2
    const uint32_t low[2] = {is_upper ? 0 : even, is_upper ? 0 : odd};
    const uint32_t high[2] = {is_upper ? even : 0, is_upper ? odd : 0};
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t)
        work.set(t, 0, 0, multiply_halves(pairs[t], low[t % 2]),
                 multiply_halves(pairs[t], high[t % 2]));
}

// Values of a packed page.
template <int kStrips>
__device__ __forceinline__ void multiply_twin_values(Ring &ring, const Values &values,
                                                     const uint32_t (&pairs)[kPageTiles],
                                                     const ByteLane &lane, Work<1> &work,
                                                     TwinGathered<kStrips> &g) {
    const uint32_t metadata = ring.value_metadata();
    spread_twins(pairs, values.bits, lane, work);
    multiply_values<kStrips, 1, kDecodeF8By32>(
        ring, values, lane.lane, work, g.o, [&](uint32_t group) {
#pragma unroll
            for (int t = 0; t < kPageTiles; ++t) {
                const uint32_t r = twin_ranges(metadata + group * 128 + t * 16, lane.lane);
                work.set(t, 0, 1, multiply_halves(work.get(t, 0, 0, 0), r),
                         multiply_halves(work.get(t, 0, 0, 1), r));
            }
        });
}

// Values of a tile of a raw row; x: its logits.
template <int kStrips>
__device__ __forceinline__ void gather_raw_twins(Ring &ring, const Place &place,
                                                 const ByteLane &lane, uint32_t n_tokens,
                                                 const float (&x)[2], TwinGathered<kStrips> &g) {
    g.raise(fmaxf(x[0], x[1]), kTwinUnit);
    uint32_t pairs[1];
    make_twin_weights<1>(x, g.top, pairs);
    const TwinQuery b = twin_query(pairs[0], lane.lane);
    float sums[4] = {};
    mma(sums, kOnes, kOnes, kOnes, kOnes, b.b0, b.b1);
    g.sum = fmaf(sums[0] + sums[1], kTwinUnit, g.sum);
    const uint32_t fragment[1][2] = {{b.b0, b.b1}};
    multiply_raw_values<kStrips, 1>(ring, place, lane.lane, n_tokens, fragment, g.o);
}

}  // namespace cuda
}  // namespace lk

#endif
