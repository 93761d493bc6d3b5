// Decode of 16 query columns over pages of few bits: weights and values. See
// decode/sixteen_keys.cuh; query columns are mma rows here, too, tokens k, channels n.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_SIXTEEN_VALUES_CUH
#define LK_CUDA_DECODE_SIXTEEN_VALUES_CUH

#include "cuda/decode/sixteen_keys.cuh"
#include "cuda/decode/split_k_values.cuh"

namespace lk {
namespace cuda {

// Weights times ranges of a page: A operands of its tiles.
using SixteenWeights = uint32_t[kPageTiles][4];

// A warp's accumulator of the lane's rows, relative to exp2(-row_max): outputs are o *
// output_scale, sums times weight_scale, for each row, the sum of the weights times midpoints less
// half ranges, and the sum of the weights.
template <int kStrips>
struct SixteenAccumulator {
    float o[kStrips][2][4];
    float sums[4];
    float row_max[kRowsOfLane];
    float output_scale;
    float weight_scale;

    __device__ __forceinline__ void clear() {
        output_scale = weight_scale = 1;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            sums[i] = 0;
#pragma unroll
        for (int r = 0; r < kRowsOfLane; ++r)
            row_max[r] = kNothing;
#pragma unroll
        for (int i = 0; i < kStrips * 8; ++i)
            o[i / 8][i / 4 % 2][i % 4] = 0;
    }
    // As Accumulator::raise(). kWeights: tiles of the page whose weights are there already.
    template <int kWeights>
    __device__ __forceinline__ void raise(float (&x)[kRowsOfLane], float wanted, float of_codes,
                                          float slack, SixteenWeights &weights) {
        bool changes = wanted * of_codes != output_scale || wanted != weight_scale;
#pragma unroll
        for (int r = 0; r < kRowsOfLane; ++r) {
            x[r] = fmaxf(x[r], __shfl_xor_sync(kAllLanes, x[r], 1));
            x[r] = fmaxf(x[r], __shfl_xor_sync(kAllLanes, x[r], 2));
            changes = changes || x[r] > row_max[r] + slack;
        }
        if (!__any_sync(kAllLanes, changes))
            return;
        const float change = __fdividef(output_scale, wanted * of_codes);
        const float weight_change = __fdividef(weight_scale, wanted);
        output_scale = wanted * of_codes;
        weight_scale = wanted;
#pragma unroll
        for (int r = 0; r < kRowsOfLane; ++r) {
            const float raised = fmaxf(row_max[r], x[r]);
            const float factor = exp2_fast(row_max[r] - raised);
            row_max[r] = raised;
            sums[r * 2] *= factor * weight_change;
            sums[r * 2 + 1] *= factor * weight_change;
#pragma unroll
            for (int i = 0; i < kStrips * 4; ++i)
                o[i / 4][i / 2 % 2][r * 2 + i % 2] *= factor * change;
            const uint32_t pair = pack_f16(factor, factor);
#pragma unroll
            for (int t = 0; t < kWeights; ++t) {
                weights[t][r] = multiply_f16(weights[t][r], pair);
                weights[t][2 + r] = multiply_f16(weights[t][2 + r], pair);
            }
        }
    }
};

// Logits capped or hidden, out of line, see finish_page().
struct FinishedLogits {
    PassLogits s;
};
template <bool kRaw, int kTiles>
__device__ __forceinline__ void finish_sixteen(float (&s)[kTiles][2][4], const LogitRules &rules,
                                               bool is_masked, uint32_t first_token,
                                               uint32_t lane) {
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
        const auto token_of = [&](uint32_t i) {
            return first_token + i / 2 * 8 + (lane & 3u) * 2 + i % 2;
        };
        const uint32_t hidden =
            is_masked ? hidden_bits<kRaw, kTiles * 4>(rules, (lane >> 2) + r * 8, token_of) : 0u;
#pragma unroll
        for (int i = 0; i < kTiles * 4; ++i) {
            float &x = s[i / 4][i / 2 % 2][r * 2 + i % 2];
            x = finished(x, rules, hidden >> i & 1u);
        }
    }
}
static __device__ __noinline__ void finish_pass(FinishedLogits *logits, const LogitRules *rules,
                                                bool is_masked, uint32_t first_token,
                                                uint32_t lane) {
    finish_sixteen<false>(logits->s, *rules, is_masked, first_token, lane);
}
__device__ __forceinline__ void finish_pass_apart(PassLogits &s, const LogitRules &rules,
                                                  bool is_masked, uint32_t first_token,
                                                  uint32_t lane) {
    FinishedLogits logits;
#pragma unroll
    for (int i = 0; i < kPassTiles * 8; ++i)
        logits.s[i / 8][i / 4 % 2][i % 4] = s[i / 8][i / 4 % 2][i % 4];
    finish_pass(&logits, &rules, is_masked, first_token, lane);
#pragma unroll
    for (int i = 0; i < kPassTiles * 8; ++i)
        s[i / 8][i / 4 % 2][i % 4] = logits.s[i / 8][i / 4 % 2][i % 4];
}

// Products become logits: x * factor + offset.
struct RowScales {
    float factor[kRowsOfLane];
    float offset[kRowsOfLane];
    float odd;  // of odd tiles, times factor

    __device__ __forceinline__ float factor_of(int t, int r) const {
        return t % 2 ? factor[r] * odd : factor[r];
    }
    __device__ __forceinline__ void round(PassLogits &s) {
#pragma unroll
        for (int i = 0; i < kPassTiles * 8; ++i) {
            float &x = s[i / 8][i / 4 % 2][i % 4];
            x = fmaf(x, factor_of(i / 8, i / 2 % 2), offset[i / 2 % 2]);
        }
        odd = 1.0f;
#pragma unroll
        for (int r = 0; r < kRowsOfLane; ++r) {
            factor[r] = 1.0f;
            offset[r] = 0.0f;
        }
    }
    // The highest logit of a row among the lane's.
    __device__ __forceinline__ float highest(const PassLogits &s, int r) const {
        float most[2] = {kHidden, kHidden};
#pragma unroll
        for (int i = 0; i < kPassTiles * 4; ++i)
            most[i / 4 % 2] = fmaxf(most[i / 4 % 2], s[i / 4][i / 2 % 2][r * 2 + i % 2]);
        return fmaf(fmaxf(most[0], most[1] * odd), factor[r], offset[r]);
    }
};

// Weights of a tile as an A operand.
__device__ __forceinline__ void weigh_tile(const float (&s)[2][4], const RowScales &scales, int t,
                                           uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int r = i % 2;
        const float factor = scales.factor_of(t, r);
        const float *x = s[i / 2] + r * 2;
        a[i] = pack_f16(exp2_fast(fmaf(x[0], factor, scales.offset[r])),
                        exp2_fast(fmaf(x[1], factor, scales.offset[r])));
    }
}

// What the passes of a page have in common.
struct SixteenPage {
    const Keys &keys;
    const Values &values;
    uint32_t metadata;  // of the values
    uint32_t first_token;
    bool is_large;  // has_large_ranges()
};

// Logits of a pass to weights times ranges, see weigh_packed() and fold_ranges(). Of the columns of
// a product of weights, the even ones have the midpoints, the odd ones the sum.
template <int kPass, int kStrips>
__device__ __forceinline__ void weigh_pass(const SixteenPage &page, uint32_t lane,
                                           const LogitRules &rules, const float (&midpoint)[4],
                                           PassLogits &s, SixteenWeights &weights,
                                           SixteenAccumulator<kStrips> &g) {
    const LogitScales all = logit_scales<kStrips, kDecodePlain>(page.keys);
    const uint32_t first_token = page.first_token + kPass * kPassTiles * 16;
    const bool is_masked = rules.mask.hides(first_token, first_token + kPassTiles * 16);
    RowScales scales;
    scales.odd = all.odd;
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
        const Column &column = rules.mask.columns[(lane >> 2) + r * 8];
        scales.factor[r] = column.factor * all.all;
        scales.offset[r] = fmaf(midpoint[r * 2], column.factor, column.offset);
    }
    if (is_masked || rules.cap > 0) {
        scales.round(s);
        finish_pass_apart(s, rules, is_masked, first_token, lane);
    }
    float row_max[kRowsOfLane];
    bool is_far = false;
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
        row_max[r] = scales.highest(s, r);
        is_far = is_far || fmaxf(fabsf(row_max[r]), fabsf(scales.offset[r])) > kFar;
    }
    if (__builtin_expect(__any_sync(kAllLanes, is_far), 0)) {
        scales.round(s);
#pragma unroll
        for (int r = 0; r < kRowsOfLane; ++r)
            row_max[r] = scales.highest(s, r);
    }
    const uint32_t bits = page.values.bits;
    const float up = page.is_large ? 0.0f : static_cast<float>(kUp);
    g.template raise<kPass * kPassTiles>(row_max, page.is_large ? 1.0f : 1.0f / (1 << kUp),
                                         code_scale(bits), page.is_large ? 0.0f : kSlack, weights);
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r)
        scales.offset[r] += up - g.row_max[r];
    const bool is_sum = lane & 4u;
#pragma unroll
    for (int t = 0; t < kPassTiles; ++t) {
        const int tile = kPass * kPassTiles + t;
        const uint32_t index = tile * 16 + (lane & 3u) * 4;
        const uint2 r = load_ranges<kDecodePlain>(page.metadata, index);
        const uint2 low =
            load_minima<kDecodePlain>(page.metadata + page.values.minima_offset, index);
        uint32_t a[4];
        weigh_tile(s[t], scales, t, a);
        mma(g.sums, a[0], a[1], a[2], a[3], is_sum ? kOnes : midpoint_of(r.x, low.x),
            is_sum ? kOnes : midpoint_of(r.y, low.y));
        const int position = bit_position(bits, t);
        const uint32_t r0 = t % 2 == 0 ? r.x : multiply_f16(r.x, powers_of_two(-position));
        const uint32_t r1 = multiply_f16(r.y, powers_of_two(-position - 4));
        uint32_t(&w)[4] = weights[tile];
        w[0] = multiply_f16(a[0], r0);
        w[1] = multiply_f16(a[1], r0);
        w[2] = multiply_f16(a[2], r1);
        w[3] = multiply_f16(a[3], r1);
        // -1/2 of the ranges.
        constexpr uint32_t kMinus = 0x80008000u;
        mma(g.sums, w[0], w[1], w[2], w[3], is_sum ? 0 : kMinus | powers_of_two(position - 1),
            is_sum ? 0 : kMinus | powers_of_two(position + 3));
    }
}

// Two strips of values, the second of which may be missing.
template <int kBits, bool kHasSecond>
__device__ __forceinline__ void multiply_sixteen_strips(uint32_t words,
                                                        const SixteenWeights &weights,
                                                        float (&first)[2][4],
                                                        float (&second)[2][4]) {
#pragma unroll
    for (int v = 0; v < kBits / 2; ++v) {
        const uint4 a = load_shared4(words + v * 512);
        const uint4 b =
            kHasSecond ? load_shared4(words + kBits * 256 + v * 512) : make_uint4(0, 0, 0, 0);
        const uint32_t first_words[4] = {a.x, a.y, a.z, a.w};
        const uint32_t second_words[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 16 / kBits; ++i) {
            const int t = v * 16 / kBits + i;
            const int word = kBits == 4 ? i : i / 2;
            const uint32_t mask = kBits == 4 ? kMask4 : mask2_of(i);
            multiply_codes(first, weights[t], first_words[word], mask);
            if (kHasSecond)
                multiply_codes(second, weights[t], second_words[word], mask);
        }
    }
}

// Values of a packed page.
template <int kBits, int kStrips, class Team>
__device__ __forceinline__ void multiply_sixteen_values(Ring<Team> &ring, uint32_t lane,
                                                        const SixteenWeights &weights,
                                                        float (&o)[kStrips][2][4]) {
    constexpr int kEach = kValueChunkBytes / (kBits * 256);
    constexpr int kLast = kStrips - 1;
#pragma unroll
    for (int first = 0; first < kStrips; first += kEach) {
        const uint32_t words = ring.wait() + lane * 16;
#pragma unroll
        for (int s = first; s < first + kEach && s < kStrips; s += 2)
            multiply_sixteen_strips<kBits, true>(words + (s - first) * kBits * 256, weights, o[s],
                                                 o[s < kLast ? s + 1 : s]);
        ring.next();
    }
}

// A tile of a raw block: logits to weights.
template <int kStrips>
__device__ __forceinline__ void weigh_raw_sixteen(const Position &position, uint32_t lane,
                                                  const LogitRules &rules, float (&s)[2][4],
                                                  uint32_t (&a)[4],
                                                  SixteenAccumulator<kStrips> &g) {
    const uint32_t first = position.first_token + position.tile * 16u;
    const bool is_masked = rules.mask.hides(first, first + 16);
    float tile[1][2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const Column &column = rules.mask.columns[(lane >> 2) + i / 2 % 2 * 8];
        tile[0][i / 4][i % 4] = fmaf(s[i / 4][i % 4], column.factor, column.offset);
    }
    if (is_masked || rules.cap > 0)
        finish_sixteen<true>(tile, rules, is_masked, first, lane);
    float row_max[kRowsOfLane];
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r)
        row_max[r] = fmaxf(fmaxf(tile[0][0][r * 2], tile[0][0][r * 2 + 1]),
                           fmaxf(tile[0][1][r * 2], tile[0][1][r * 2 + 1]));
    SixteenWeights none;
    g.template raise<0>(row_max, 1.0f / (1 << kUp), 1.0f, kSlack, none);
    RowScales scales = {{1.0f, 1.0f}, {}, 1.0f};
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r)
        scales.offset[r] = static_cast<float>(kUp) - g.row_max[r];
    weigh_tile(tile[0], scales, 0, a);
    const uint32_t ones = lane & 4u ? kOnes : 0;
    mma(g.sums, a[0], a[1], a[2], a[3], ones, ones);
}

// Values of a tile of a raw block.
template <int kStrips, class Team>
__device__ __forceinline__ void multiply_raw_sixteen_values(Ring<Team> &ring,
                                                            const Position &position, uint32_t lane,
                                                            uint32_t n_tokens,
                                                            const uint32_t (&a)[4],
                                                            float (&o)[kStrips][2][4]) {
    for_raw_values<kStrips>(ring, position, lane, n_tokens,
                            [&](int s, const uint4 &w) { multiply_f16_codes(o[s], a, w); });
}

}  // namespace cuda
}  // namespace lk

#endif
