// Decode of up to four query columns over pages with several groups: weights and values. See
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
template <int kStrips, DecodeKind kKind>
struct SplitKAccumulator {
    // Channel groups are counted in fours: rows of a fragment.
    static constexpr int kLows = kHasAllFormats<kKind> ? 2 : 1;

    float o[kStrips][1][4];
    // Of the lane's split-k column and its row's channel group: weights times minima.
    float low[kLows];
    float row_max;
    float row_sum;
    float output_scale;

    __device__ __forceinline__ void clear() {
        row_sum = 0;
#pragma unroll
        for (int i = 0; i < kLows; ++i)
            low[i] = 0;
        row_max = kNothing;
        output_scale = 1;
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                o[s][0][i] = 0;
    }
    // As Accumulator::raise(). x: the highest of the lanes' logits.
    __device__ __forceinline__ void raise(float x, float wanted, float slack) {
        x = column_row_max(x);
        if (!__any_sync(kAllLanes, wanted != output_scale || x > row_max + slack))
            return;
        const float raised = fmaxf(row_max, x);
        const float factor = exp2_fast(row_max - raised);
        const float change = factor * __fdividef(output_scale, wanted);
        output_scale = wanted;
        row_max = raised;
#pragma unroll
        for (int i = 0; i < kLows; ++i)
            low[i] *= factor;
        row_sum *= factor;
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                o[s][0][i] *= change;
    }
};

// Weights are this many powers of two above exp(logit - row_max).
template <DecodeKind kKind>
constexpr int kSplitKUp = kUp + kParameterShift<kKind>;
template <DecodeKind kKind>
constexpr float kSplitKScale = 1.0f / (1 << kSplitKUp<kKind>);

// Logits of tokens g and g + 8 of kCount tiles to weights: the pairs of both split-k columns.
// offset: powers of two to add.
template <int kCount>
__device__ __forceinline__ void make_split_k_weights(const float (&x)[kCount * 2], float offset,
                                                     uint32_t (&pairs)[kCount]) {
#pragma unroll
    for (int t = 0; t < kCount; ++t)
        pairs[t] =
            transpose(pack_f16(exp2_fast(x[2 * t] + offset), exp2_fast(x[2 * t + 1] + offset)));
}

// As finish_logits(), out of line: pages that are neither masked nor capped, which are most, then
// have their code close together. A copy goes there, so that logits stay in registers elsewhere.
template <int kCount>
struct PageLogits {
    float x[kCount];
};
template <int kCount>
__device__ __noinline__ void finish_page(PageLogits<kCount> *page, const LogitRules *rules,
                                         bool is_masked, uint32_t token, uint32_t column) {
    finish_logits<false>(page->x, *rules, is_masked, token, column);
}
template <int kCount>
__device__ __forceinline__ void finish_page_apart(float (&x)[kCount], const LogitRules &rules,
                                                  bool is_masked, uint32_t token, uint32_t column) {
    PageLogits<kCount> page;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        page.x[i] = x[i];
    finish_page(&page, &rules, is_masked, token, column);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        x[i] = page.x[i];
}

// Products of a packed page become logits.
template <class Team, int kStrips, DecodeKind kKind>
__device__ __forceinline__ void finish_split_k(const Keys &keys, uint32_t kv_tile,
                                               const Work<1, kTilesOf<kKind>> &work,
                                               uint32_t first_token, const ByteLane &lane,
                                               const LogitRules &rules,
                                               float (&x)[kTilesOf<kKind> * 2]) {
    constexpr int kTokenTiles = kTilesOf<kKind>;
    const uint32_t end2 =
        kHasBitKeys<kKind> ? load_shared_byte(kv_tile + kEnd2Offset) : uint32_t{kStrips};
    const LogitScales scales = page_scales<Team, kStrips, kKind>(keys, end2);
    const Column &column = rules.mask.columns[lane.t()];
    const float even = column.factor * scales.all;
    const float odd = even * scales.odd;
    const float low_factor = column.factor * kParameterScale<kKind>;
    const float lows =
        fmaf(split_k_sum(split_k_low(work.midpoint[0], lane.lane)), low_factor, column.offset);
    const uint32_t n_groups = kHasAnyGroups<kKind> ? keys.n_groups : kF8Groups;
    float tile_lows[kTokenTiles];
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2)
        tile_lows[t] = tile_lows[t + 1] =
            split_k_sum_of(lows, (t * n_groups / kTokenTiles) & (kF8Groups - 1), lane.lane);
    if (kHasAllFormats<kKind> && n_groups == kTokenTiles) {
        float more = lows;
        if (kTokenTiles > 4)
            more = fmaf(split_k_sum(split_k_low<true>(work.midpoint[0], lane.lane)), low_factor,
                        column.offset);
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t)
            tile_lows[t] = split_k_sum_of(t < 4 ? lows : more, t % 4, lane.lane);
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
        const float(&s)[4] = work.s[t][0];
        const float second = kHasBitKeys<kKind> && t / 2 % 2 ? scales.second : 1.0f;
        const float factor = (t % 2 ? odd : even) * second;
        const float low = tile_lows[t];
        x[2 * t] = fmaf(s[0] + s[1], factor, low);
        x[2 * t + 1] = fmaf(s[2] + s[3], factor, low);
    }
    const bool is_masked = rules.mask.hides(first_token, first_token + kTokenTiles * 16);
    if (is_masked || rules.cap > 0)
        finish_page_apart(x, rules, is_masked, first_token + (lane.lane >> 2), lane.t());
}

// The sum of the weights, and their products with the minima: rows 0-3 of the first split-k
// column's tokens, rows 4-7 of the second's, ones below.
template <int kStrips, DecodeKind kKind>
__device__ __forceinline__ void add_split_k_minima(const uint32_t (&pairs)[kTilesOf<kKind>],
                                                   const Values &values, uint32_t metadata,
                                                   float weight_scale, const ByteLane &lane,
                                                   SplitKAccumulator<kStrips, kKind> &g) {
    constexpr int kTokenTiles = kTilesOf<kKind>;
    constexpr uint32_t kTileBytes = 16 * kParameterBytes<kKind>;
    const uint32_t last_group = values_groups<kStrips, kKind>(values) - 1;
    const auto minima_of = [&](uint32_t first_group) {
        return metadata + values.minima_offset +
               min(first_group + split_k_group(lane.lane), last_group) * kTokenTiles * kTileBytes;
    };
    const uint32_t minima = minima_of(0);
    const float factor = weight_scale * kParameterScale<kKind>;
    float c[4] = {};
    if (values.bits == 16) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; t += 2)
            mma(c, 0, kOnes, 0, kOnes, pairs[t], pairs[t + 1]);
    } else {
#pragma unroll
        for (int t = 0; t < kTokenTiles; t += 2)
            mma(c, split_k_minima<kKind>(minima + t * kTileBytes, lane.lane), kOnes,
                split_k_minima<kKind>(minima + (t + 1) * kTileBytes, lane.lane), kOnes, pairs[t],
                pairs[t + 1]);
        if (kHasAllFormats<kKind> && last_group >= 4) {
            const uint32_t more = minima_of(4);
            float sums[4] = {};
#pragma unroll
            for (int t = 0; t < kTokenTiles; t += 2)
                mma(sums, split_k_minima<kKind>(more + t * kTileBytes, lane.lane), 0,
                    split_k_minima<kKind>(more + (t + 1) * kTileBytes, lane.lane), 0, pairs[t],
                    pairs[t + 1]);
            float &low = g.low[SplitKAccumulator<kStrips, kKind>::kLows - 1];
            low = fmaf(split_k_low(sums, lane.lane), factor, low);
        }
    }
    g.low[0] = fmaf(split_k_low(c, lane.lane), factor, g.low[0]);
    g.row_sum = fmaf(c[2] + c[3], weight_scale, g.row_sum);
}

// The pairs as B fragments, times the factors of the codes' positions.
template <DecodeKind kKind>
__device__ __forceinline__ void spread_split_k(const uint32_t (&pairs)[kTilesOf<kKind>],
                                               uint32_t bits, const ByteLane &lane,
                                               Work<1, kTilesOf<kKind>> &work) {
    constexpr bool kHasOneBit = kHasAnyGroups<kKind>;
    const bool is_upper = lane.is_upper();
    const uint32_t even = is_upper && bits < 8 ? 0x2C002C00u : kOnes;  // 2^-4
    const uint32_t up = is_upper ? 0x24002400u : 0x34003400u;          // 2^-6, 2^-2
    const uint32_t odd = bits == 2 || (kHasOneBit && bits == 1) ? up : even;
    const uint32_t low[2] = {is_upper ? 0 : even, is_upper ? 0 : odd};
    const uint32_t high[2] = {is_upper ? even : 0, is_upper ? odd : 0};
    // Every second two tiles of 1 bit lie a bit higher.
    const uint32_t second = kHasOneBit && bits == 1 ? 0x38003800u : kOnes;
#pragma unroll
    for (int t = 0; t < kTilesOf<kKind>; ++t) {
        const uint32_t pair = kHasOneBit && t / 2 % 2 ? multiply_f16(pairs[t], second) : pairs[t];
        work.set(t, 0, 0, multiply_f16(pair, low[t % 2]), multiply_f16(pair, high[t % 2]));
    }
}

// Values of a packed page.
template <int kStrips, DecodeKind kKind, class Team>
__device__ __forceinline__ void multiply_split_k_values(Ring<Team> &ring, const Values &values,
                                                        uint32_t metadata,
                                                        const uint32_t (&pairs)[kTilesOf<kKind>],
                                                        const ByteLane &lane,
                                                        Work<1, kTilesOf<kKind>> &work,
                                                        SplitKAccumulator<kStrips, kKind> &g) {
    constexpr int kTokenTiles = kTilesOf<kKind>;
    constexpr uint32_t kTileBytes = 16 * kParameterBytes<kKind>;
    spread_split_k<kKind>(pairs, values.bits, lane, work);
    multiply_values<kStrips, 1, kKind>(ring, values, lane.lane, work, g.o, [&](uint32_t group) {
        const uint32_t ranges = metadata + group * kTokenTiles * kTileBytes;
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
            const uint32_t r = split_k_ranges<kKind>(ranges + t * kTileBytes, lane.lane);
            work.set(t, 0, 1, multiply_f16(work.get(t, 0, 0, 0), r),
                     multiply_f16(work.get(t, 0, 0, 1), r));
        }
    });
}

// Values of a tile of a raw block; x: its logits.
template <int kStrips, DecodeKind kKind, class Team>
__device__ __forceinline__ void accumulate_raw_split_k(Ring<Team> &ring, const Position &position,
                                                       const ByteLane &lane, uint32_t n_tokens,
                                                       const float (&x)[2],
                                                       SplitKAccumulator<kStrips, kKind> &g) {
    g.raise(fmaxf(x[0], x[1]), kSplitKScale<kKind>, kSlack);
    uint32_t pairs[1];
    make_split_k_weights<1>(x, static_cast<float>(kSplitKUp<kKind>) - g.row_max, pairs);
    const SplitKQuery b = split_k_query(pairs[0], lane.lane);
    float sums[4] = {};
    mma(sums, kOnes, kOnes, kOnes, kOnes, b.b0, b.b1);
    g.row_sum = fmaf(sums[0] + sums[1], kSplitKScale<kKind>, g.row_sum);
    const uint32_t fragment[1][2] = {{b.b0, b.b1}};
    multiply_raw_values<kStrips, 1>(ring, position, lane.lane, n_tokens, fragment, g.o);
}

}  // namespace cuda
}  // namespace lk

#endif
