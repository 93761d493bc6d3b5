// Decode: from logits to weights, and weights times values. Channels are mma rows, tokens k.
//
// Weights are 2^up times exp(logit - top). Ranges are multiplied into them (and what the codes'
// positions differ by, see decode_keys.cuh), which rounds them; a value counts as middle - range /
// 2 + code * step, as keys do. Middles and the sum of weights come from one product per tile, whose
// rows 0-7 are the middles of the channel groups and whose rows 8-15 are ones; the sum of the
// folded weights, for -1/2 of the range, from another one.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_VALUES_CUH
#define LK_CUDA_DECODE_VALUES_CUH

#include "decode_keys.cuh"

namespace lk {
namespace cuda {

constexpr float kNothing = -1e30f;  // the top before any logit
constexpr float kHidden = -__builtin_huge_valf();
constexpr float kSlack = 3.0f;          // tops are raised when logits pass them by more
constexpr int kUp = 3;                  // keeps small weights out of FP16's subnormal numbers
constexpr float kLargeRange = 1000.0f;  // above it weights stay below 1: range * 2^(kUp + kSlack)
                                        // would overflow
constexpr uint32_t kOnes = 0x3C003C00u;

// Highest over the lanes of a column.
__device__ __forceinline__ float column_top(float x) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2)
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
    return x;
}

// What a warp has gathered, relative to exp2(-top): outputs are o * unit, the rest is as it is.
template <int kStrips, int kTiles>
struct Gathered {
    float o[kStrips][kTiles][4];
    float middle[kTiles][2];  // lane 4g + i: of channel group g
    float top[kTiles][2];
    float sum[kTiles][2];
    float unit;

    __device__ __forceinline__ void clear() {
        unit = 1;
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                middle[c][i] = 0;
                sum[c][i] = 0;
                top[c][i] = kNothing;
            }
#pragma unroll
            for (int s = 0; s < kStrips; ++s)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    o[s][c][i] = 0;
        }
    }
    // Raise the tops to what the warp's lanes found together, and change the outputs' unit.
    __device__ __forceinline__ void raise(float (&x)[kTiles][2], float wanted, float slack) {
        bool changes = wanted != unit;
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                x[c][i] = column_top(x[c][i]);
                changes = changes || x[c][i] > top[c][i] + slack;
            }
        if (!__any_sync(kAllLanes, changes))
            return;
        const float change = __fdividef(unit, wanted);
        unit = wanted;
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float raised = fmaxf(top[c][i], x[c][i]);
                const float factor = exp2_fast(top[c][i] - raised);
                top[c][i] = raised;
                middle[c][i] *= factor;
                sum[c][i] *= factor;
#pragma unroll
                for (int s = 0; s < kStrips; ++s) {
                    o[s][c][i] *= factor * change;
                    o[s][c][2 + i] *= factor * change;
                }
            }
    }
};

// A query column: whose it is, which new tokens it sees, and the factor from its products to logits
// in powers of two.
struct alignas(16) Column {
    uint64_t ancestors;
    uint32_t position;
    float factor;
    uint32_t token;  // of the batch
    uint32_t head;
};
// Which keys columns see.
struct Sight {
    const Column *columns;      // shared
    const uint32_t *positions;  // of the new tokens, global; null: they follow each other
    uint32_t n_history;
    uint32_t n_new;
    uint32_t latest;  // position of all columns
    uint32_t window_tokens;
    uint32_t window_sink_tokens;

    __device__ __forceinline__ bool in_window(uint32_t column, uint32_t at) const {
        return !window_tokens || at + window_tokens > columns[column].position ||
               at < window_sink_tokens;
    }
    __device__ __forceinline__ bool sees(uint32_t column, uint32_t token) const {
        uint32_t at = token;
        if (token >= n_history) {
            const uint32_t i = token - n_history;
            if (i >= n_new || !(columns[column].ancestors >> i & 1u))
                return false;
            at = positions ? positions[i] : token;
        }
        return in_window(column, at);
    }
    // Is any token of [first, end) hidden from any column?
    __device__ __forceinline__ bool hides(uint32_t first, uint32_t end) const {
        if (end > n_history + (n_new == 1))
            return true;
        return window_tokens && end > window_sink_tokens && first + window_tokens <= latest;
    }
};

struct LogitRules {
    Sight sight;
    float cap;         // in powers of two, 0 = off
    float cap_factor;  // 2 / soft-cap: from powers of two to those of tanh
};
__device__ __forceinline__ float capped(float x, const LogitRules &rules) {
    return rules.cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_fast(x * rules.cap_factor)));
}

// A logit capped, or hidden where its column does not see the token.
template <bool kRaw>
__device__ __forceinline__ float finished(float x, const LogitRules &rules, bool is_masked,
                                          uint32_t column, uint32_t token) {
    if (is_masked &&
        !(kRaw ? rules.sight.sees(column, token) : rules.sight.in_window(column, token)))
        return kHidden;
    return rules.cap > 0 ? capped(x, rules) : x;
}

// The logits of a tile; first_token is the tile's.
template <bool kRaw, int kTiles>
__device__ __forceinline__ void finish_tile(float (&s)[kTiles][4], const LogitRules &rules,
                                            bool is_masked, uint32_t first_token, uint32_t lane) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t column = c * 8 + (lane & 3u) * 2 + (i & 1);
            const uint32_t token = first_token + (lane >> 2) + (i >> 1) * 8;
            s[c][i] = finished<kRaw>(s[c][i], rules, is_masked, column, token);
        }
}

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
            const uint32_t low = pack_halves(exp2_fast(fmaf(s[0], f0, offset[c][0])),
                                             exp2_fast(fmaf(s[1], f1, offset[c][1])));
            const uint32_t high = pack_halves(exp2_fast(fmaf(s[2], f0, offset[c][0])),
                                              exp2_fast(fmaf(s[3], f1, offset[c][1])));
            work.set(t, c, 0, transpose(low), transpose(high));
        }
}

// Values are codes, as FP16 subnormals, times ranges times this.
__device__ __forceinline__ float code_unit(uint32_t bits) {
    return bits == 2   ? 0x1p24f * kStepFactor<2>
           : bits == 4 ? 0x1p24f * kStepFactor<4>
           : bits == 8 ? 0x1p24f * kStepFactor<8>
                       : 1.0f;
}

// Logits of a packed page to weights: the tops are raised first.
template <int kStrips, int kTiles, bool kGrouped>
__device__ __forceinline__ void weigh_packed(const Keys &keys, const Values &values,
                                             uint32_t metadata, uint32_t first_token, uint32_t lane,
                                             const LogitRules &rules, Work<kTiles> &work,
                                             Gathered<kStrips, kTiles> &g) {
    const LogitUnits units = logit_units<kStrips>(keys);
    const bool is_masked = rules.sight.hides(first_token, first_token + 128);
    const bool finishes = kGrouped || is_masked || rules.cap > 0;
    float factor[kTiles][2], offset[kTiles][2], top[kTiles][2], odd = units.odd;
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float f = rules.sight.columns[c * 8 + (lane & 3u) * 2 + i].factor;
            factor[c][i] = f * units.all;
            offset[c][i] = work.middle[c][i] * f;
        }
    if (finishes) {
#pragma unroll
        for (int t = 0; t < kPageTiles; ++t) {
            const uint32_t from = (t * keys.n_groups >> 3) * 4 + (lane & 3u);
            const float scale = t % 2 ? odd : 1.0f;
#pragma unroll
            for (int c = 0; c < kTiles; ++c)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float low =
                        kGrouped ? __shfl_sync(kAllLanes, offset[c][i], from) : offset[c][i];
                    work.s[t][c][i] = fmaf(work.s[t][c][i], factor[c][i] * scale, low);
                    work.s[t][c][2 + i] = fmaf(work.s[t][c][2 + i], factor[c][i] * scale, low);
                }
            finish_tile<false>(work.s[t], rules, is_masked, first_token + t * 16, lane);
        }
        odd = 1.0f;
    }
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (finishes) {
                factor[c][i] = 1.0f;
                offset[c][i] = 0.0f;
            }
            float most[2] = {kHidden, kHidden};
#pragma unroll
            for (int t = 0; t < kPageTiles; ++t)
                most[t % 2] = fmaxf(most[t % 2], fmaxf(work.s[t][c][i], work.s[t][c][2 + i]));
            top[c][i] = fmaf(fmaxf(most[0], most[1] * odd), factor[c][i], offset[c][i]);
        }
    bool is_large = false;
    if (values.bits < 16) {
        for (uint32_t i = 0; i < (kGrouped ? values.n_groups : 1u); ++i) {
            const uint2 r = load_numbers<kGrouped>(metadata, i * 128 + lane * 4, values.is_f8);
            const __half2 most = __hmax2(as_half2(r.x), as_half2(r.y));
            is_large =
                is_large || __low2float(most) > kLargeRange || __high2float(most) > kLargeRange;
        }
        is_large = __any_sync(kAllLanes, is_large);
    }
    const float up = is_large ? 0.0f : static_cast<float>(kUp);
    const float unit = is_large ? 1.0f : 1.0f / (1 << kUp);
    g.raise(top, unit * code_unit(values.bits), is_large ? 0.0f : kSlack);
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            offset[c][i] += up - g.top[c][i];
    make_weights<kPageTiles>(work, odd, factor, offset);
    // The sum of the weights, and their products with the middles.
    float sums[kTiles][4] = {};
    const uint32_t group = kGrouped ? min(lane >> 2, values.n_groups - 1u) : 0;
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        uint2 z = make_uint2(0, 0);
        if (values.bits < 16) {
            const uint32_t index = group * 128 + t * 16 + (lane & 3u) * 4;
            const uint2 r = load_numbers<kGrouped>(metadata, index, values.is_f8);
            z = load_numbers<kGrouped>(metadata + values.minima_offset, index, values.is_f8);
            z = make_uint2(middle_of(r.x, z.x), middle_of(r.y, z.y));
        }
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
            mma(sums[c], z.x, kOnes, z.y, kOnes, work.get(t, c, 0, 0), work.get(t, c, 0, 1));
    }
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            g.middle[c][i] = fmaf(sums[c][i], unit, g.middle[c][i]);
            g.sum[c][i] = fmaf(sums[c][2 + i], unit, g.sum[c][i]);
        }
}

// Weights times the ranges of a channel group, and times what the codes' positions differ by; their
// sum times -1/2 joins the group's middles.
template <int kStrips, int kTiles, bool kGrouped>
__device__ __forceinline__ void fold_ranges(const Values &values, uint32_t metadata, uint32_t group,
                                            uint32_t lane, Work<kTiles> &work,
                                            Gathered<kStrips, kTiles> &g) {
    const bool is2 = values.bits == 2;
    const uint32_t even1 = values.bits == 8 ? kOnes : 0x2C002C00u;  // 1, 2^-4
    const uint32_t odd0 = is2 ? 0x34003400u : kOnes;                // 2^-2
    const uint32_t odd1 = is2 ? 0x24002400u : even1;                // 2^-6
    // The same the other way, for the sum.
    const uint32_t up_even1 = values.bits == 8 ? kOnes : 0x4C004C00u;
    const uint32_t up_odd0 = is2 ? 0x44004400u : kOnes;
    const uint32_t up_odd1 = is2 ? 0x54005400u : up_even1;
    float sums[kTiles][4] = {};
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        const uint2 r =
            load_numbers<kGrouped>(metadata, group * 128 + t * 16 + (lane & 3u) * 4, values.is_f8);
        const uint32_t r0 = t % 2 ? multiply_halves(r.x, odd0) : r.x;
        const uint32_t r1 = multiply_halves(r.y, t % 2 ? odd1 : even1);
        const uint32_t a0 = t % 2 ? up_odd0 : kOnes;
        const uint32_t a2 = t % 2 ? up_odd1 : up_even1;
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
            const uint32_t b0 = multiply_halves(work.get(t, c, 0, 0), r0);
            const uint32_t b1 = multiply_halves(work.get(t, c, 0, 1), r1);
            work.set(t, c, 1, b0, b1);
            mma(sums[c], a0, 0, a2, 0, b0, b1);
        }
    }
    const float factor = -0.5f * __fdividef(g.unit, code_unit(values.bits));
    if (!kGrouped || (lane >> 2) == group)
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                g.middle[c][i] = fmaf(sums[c][i], factor, g.middle[c][i]);
}

template <int kTiles>
__device__ __forceinline__ void weights_of(const Work<kTiles> &work, int t, int fragment,
                                           uint32_t (&b)[kTiles][2]) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
        b[c][0] = work.get(t, c, fragment, 0);
        b[c][1] = work.get(t, c, fragment, 1);
    }
}

// One strip of packed values.
template <int kBits, int kTiles>
__device__ __forceinline__ void multiply_strip(float (&o)[kTiles][4], uint32_t words,
                                               const Work<kTiles> &work) {
    constexpr int kVectors = kBits / 2;  // of four words
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
        const uint4 w = load_shared4(words + v * 512);
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 16 / kBits; ++i) {
            uint32_t b[kTiles][2];
            weights_of(work, v * 16 / kBits + i, kBits == 16 ? 0 : 1, b);
            if (kBits == 16)
                multiply_half_tile(o, w, b);
            else if (kBits == 8)
                multiply_byte_tile(o, word[2 * i], word[2 * i + 1], b);
            else if (kBits == 4)
                multiply_tile<4>(o, word[i], 0, b);
            else
                multiply_tile<2>(o, word[i / 2], i % 2 * 2, b);
        }
    }
}

// Strips [from, to), a chunk. Ranges are folded in where a channel group begins.
template <int kBits, int kStrips, int kTiles, bool kGrouped>
__device__ __forceinline__ void multiply_chunk(const Values &values, uint32_t metadata,
                                               uint32_t from, uint32_t to, uint32_t lane,
                                               uint32_t words, Work<kTiles> &work,
                                               Gathered<kStrips, kTiles> &g) {
    constexpr bool kWhole = kStrips * kBits * 256 <= kValueChunkBytes;  // a chunk holds all strips
    uint32_t group = 0;
    uint32_t next_group = 0;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
        const bool begins = kGrouped && kBits < 16 && s == next_group;
        if (begins)
            next_group += values.group_strips;
        if (kWhole || (s >= from && s < to)) {
            if (begins)
                fold_ranges<kStrips, kTiles, kGrouped>(values, metadata, group, lane, work, g);
            multiply_strip<kBits>(g.o[s], words, work);
            words += kBits * 256;
        }
        if (begins)
            ++group;
    }
}

// Values of a packed page.
template <int kStrips, int kTiles, bool kGrouped>
__device__ __forceinline__ void multiply_values(Ring &ring, const Values &values, uint32_t lane,
                                                Work<kTiles> &work, Gathered<kStrips, kTiles> &g) {
    const uint32_t metadata = ring.value_metadata();
    const uint32_t each = kValueChunkBytes / (values.bits * 256);
    if (!kGrouped && values.bits < 16)
        fold_ranges<kStrips, kTiles, kGrouped>(values, metadata, 0, lane, work, g);
    uint32_t from = 0;
#pragma unroll 1
    while (true) {
        const uint32_t words = ring.wait() + lane * 16;
        const uint32_t to = min(from + each, uint32_t{kStrips});
        if (values.bits == 2)
            multiply_chunk<2, kStrips, kTiles, kGrouped>(values, metadata, from, to, lane, words,
                                                         work, g);
        else if (values.bits == 4)
            multiply_chunk<4, kStrips, kTiles, kGrouped>(values, metadata, from, to, lane, words,
                                                         work, g);
        else if (values.bits == 8)
            multiply_chunk<8, kStrips, kTiles, kGrouped>(values, metadata, from, to, lane, words,
                                                         work, g);
        else
            multiply_chunk<16, kStrips, kTiles, kGrouped>(values, metadata, from, to, lane, words,
                                                          work, g);
        ring.next();
        from = to;
        if (from == kStrips)
            return;
    }
}

// Logits of a tile of a raw row to weights.
template <int kStrips, int kTiles>
__device__ __forceinline__ void weigh_raw(const Place &place, uint32_t lane,
                                          const LogitRules &rules, Work<kTiles> &work,
                                          Gathered<kStrips, kTiles> &g) {
    const uint32_t first = place.first_token + place.tile * 16u;
    const bool is_masked = rules.sight.hides(first, first + 16);
    float factor[kTiles][2], offset[kTiles][2], top[kTiles][2];
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            work.s[0][c][i] *= rules.sight.columns[c * 8 + (lane & 3u) * 2 + (i & 1)].factor;
    if (is_masked || rules.cap > 0)
        finish_tile<true>(work.s[0], rules, is_masked, first, lane);
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            top[c][i] = fmaxf(work.s[0][c][i], work.s[0][c][2 + i]);
    g.raise(top, 1.0f / (1 << kUp), kSlack);
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            factor[c][i] = 1.0f;
            offset[c][i] = static_cast<float>(kUp) - g.top[c][i];
        }
    make_weights<1>(work, 1.0f, factor, offset);
    float sums[kTiles][4] = {};
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
        mma(sums[c], kOnes, kOnes, kOnes, kOnes, work.get(0, c, 0, 0), work.get(0, c, 0, 1));
#pragma unroll
        for (int i = 0; i < 2; ++i)
            g.sum[c][i] = fmaf(sums[c][i], 1.0f / (1 << kUp), g.sum[c][i]);
    }
}

// Halves of tokens that are not there need not be numbers: make them 0.
__device__ __forceinline__ uint32_t keep_tokens(uint32_t word, uint32_t token, uint32_t n_tokens) {
    return token + 1 < n_tokens ? word : token < n_tokens ? word & 0xFFFFu : 0u;
}

// Values of a tile of a raw row.
template <int kStrips, int kTiles>
__device__ __forceinline__ void multiply_raw_values(Ring &ring, const Place &place, uint32_t lane,
                                                    uint32_t n_tokens, const Work<kTiles> &work,
                                                    Gathered<kStrips, kTiles> &g) {
    const uint32_t token = place.first_token + place.tile * 16u + (lane & 3u) * 2;
    uint32_t b[kTiles][2];
    weights_of(work, 0, 0, b);
#pragma unroll 1
    for (uint32_t from = 0; from < kStrips; from += kRawStrips) {
        const uint32_t words = ring.wait() + lane * 16;
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
            if (s < from || s >= from + kRawStrips)
                continue;
            uint4 w = load_shared4(words + (s - from) * 512);
            w.x = keep_tokens(w.x, token, n_tokens);
            w.y = keep_tokens(w.y, token, n_tokens);
            w.z = keep_tokens(w.z, token + 8, n_tokens);
            w.w = keep_tokens(w.w, token + 8, n_tokens);
            multiply_half_tile(g.o[s], w, b);
        }
        ring.next();
    }
}

}  // namespace cuda
}  // namespace lk

#endif
