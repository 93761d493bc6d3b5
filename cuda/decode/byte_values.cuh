// Decode by bytes: from logits to weights, and weights times values.
//
// Weights of a page are relative to the page's own row_max. The factor to the accumulator's row_max
// is multiplied in when the page's sums become FP32.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_BYTE_VALUES_CUH
#define LK_CUDA_DECODE_BYTE_VALUES_CUH

#include "cuda/decode/bytes.cuh"

namespace lk {
namespace cuda {

// A warp's accumulator of query column lane % 4, relative to exp2(-row_max).
template <int kStrips>
struct ByteAccumulator {
    float o[kStrips][2];  // channels g and g + 8
    float midpoint;       // lanes of g and g ^ 4 together: weights times midpoints
    float below;          // weights times range / 2
    float row_max;
    float row_sum;

    __device__ __forceinline__ void clear() {
        midpoint = below = row_sum = 0;
        row_max = kNothing;
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
            o[s][0] = o[s][1] = 0;
    }
    // The first strip becomes the last one.
    __device__ __forceinline__ void rotate() {
        const float first[2] = {o[0][0], o[0][1]};
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                o[s][i] = s + 1 < kStrips ? o[s + 1 < kStrips ? s + 1 : s][i] : first[i];
    }
    // The factor of weights that are relative to `top_of_page`.
    __device__ __forceinline__ float weight_of(float page_row_max) {
        // FP32 has headroom: row_max is raised when a page passes it by much.
        constexpr float kHeadroom = 16.0f;
        if (__any_sync(kAllLanes, page_row_max > row_max + kHeadroom)) {
            const float raised = fmaxf(row_max, page_row_max);
            const float factor = exp2_fast(row_max - raised);
            row_max = raised;
            midpoint *= factor;
            below *= factor;
            row_sum *= factor;
#pragma unroll
            for (int s = 0; s < kStrips; ++s) {
                o[s][0] *= factor;
                o[s][1] *= factor;
            }
        }
        return exp2_fast(page_row_max - row_max);
    }
};

// The logits of tokens token, token + 8, ... and of the lane's column.
template <bool kRaw, int kCount>
__device__ __forceinline__ void finish_logits(float (&x)[kCount], const LogitRules &rules,
                                              bool is_masked, uint32_t token, uint32_t column) {
    const auto token_of = [&](uint32_t i) { return token + i * 8; };
    const uint32_t hidden = is_masked ? hidden_bits<kRaw, kCount>(rules, column, token_of) : 0u;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        x[i] = finished(x[i], rules, hidden >> i & 1u);
}

// Weights of a page, [tile]: FP16 weights of tokens g and g + 8, transposed. Afterwards a lane has
// tokens 2t and 2t + 1; a lane of an upper column has those of the upper eight tokens.
struct PageWeights {
    uint32_t tiles[kPageTiles];
    float weight;  // their factor relative to the accumulator
};

// Logits are x * even + offset, in odd tiles x * odd + offset.
template <int kStrips>
__device__ __forceinline__ void weigh_page(float (&x)[kPageTiles * 2], float even, float odd,
                                           float offset, uint32_t first_token, const ByteLane &lane,
                                           const LogitRules &rules, ByteAccumulator<kStrips> &g,
                                           PageWeights &weights) {
    const bool is_masked = rules.mask.hides(first_token, first_token + 128);
    if (is_masked || rules.cap > 0) {
#pragma unroll
        for (int i = 0; i < kPageTiles * 2; ++i)
            x[i] = fmaf(x[i], i / 2 % 2 ? odd : even, offset);
        finish_logits<false>(x, rules, is_masked, first_token + (lane.lane >> 2), lane.t());
        even = odd = 1;
        offset = 0;
    }
    float most[2] = {kHidden, kHidden};
#pragma unroll
    for (int i = 0; i < kPageTiles * 2; ++i)
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], x[i]);
    const float row_max = fmaxf(column_row_max(fmaxf(most[0] * even, most[1] * odd)), kNothing);
    weights.weight = g.weight_of(row_max + offset);
    if (__builtin_expect(__any_sync(kAllLanes, fabsf(row_max) > kFar), 0)) {
#pragma unroll
        for (int i = 0; i < kPageTiles * 2; ++i)
            x[i] = __fmul_rn(x[i], i / 2 % 2 ? odd : even);
        even = odd = 1;
    }
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        const float factor = t % 2 ? odd : even;
        const float low = exp2_fast(fmaf(x[2 * t], factor, -row_max));
        const float high = exp2_fast(fmaf(x[2 * t + 1], factor, -row_max));
        weights.tiles[t] = transpose(pack_f16(low, high));
    }
}

// The sum of the weights, and their products with the midpoints of ranges. ranges 0: the page has
// none.
template <int kStrips>
__device__ __forceinline__ void add_midpoints(const PageWeights &weights,
                                              const F16Parameters &parameters, const ByteLane &lane,
                                              ByteAccumulator<kStrips> &g) {
    // Rows 0-3 are the midpoints of the lower eight tokens of each tile, rows 4-7 of the upper
    // ones.
    const uint32_t from = parameters.ranges + (lane.t() * 4 + (lane.lane >> 4) * 2) * 2;
    uint32_t midpoints[kPageTiles] = {};
    if (parameters.ranges)
#pragma unroll
        for (int t = 0; t < kPageTiles; ++t)
            midpoints[t] = midpoint_of(load_shared1(from + t * 32),
                                       load_shared1(from + parameters.minima_offset + t * 32));
    float c[4] = {};
#pragma unroll
    for (int t = 0; t < kPageTiles; t += 2)
        mma(c, midpoints[t], kOnes, midpoints[t + 1], kOnes, weights.tiles[t],
            weights.tiles[t + 1]);
    g.midpoint = fmaf(lane.lane >> 4 ? c[1] : c[0], weights.weight, g.midpoint);
    g.row_sum = fmaf(c[2] + c[3], weights.weight, g.row_sum);
}

// Weights times ranges as B fragments: [tile][k 0-7, k 8-15].
struct ByteWeights {
    uint32_t high[kPageTiles][2];
    uint32_t low[kPageTiles][2];
};

__device__ __forceinline__ void split_weights(const PageWeights &weights, uint32_t ranges,
                                              const RangeScale &scale, const ByteLane &lane,
                                              ByteWeights &out) {
    ranges += (lane.t() * 4 + (lane.is_upper() ? 2 : 0)) * 2;
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        const uint32_t range = multiply_f16(load_shared1(ranges + t * 32), scale.power_f16x2);
        const Bytes bytes = split_product(weights.tiles[t], range);
        const uint32_t mine = __byte_perm(bytes.high, bytes.low, 0x6240);
        const uint32_t other = __shfl_xor_sync(kAllLanes, mine, 4);
        const uint32_t lower = lane.is_upper() ? other : mine;
        const uint32_t upper = lane.is_upper() ? mine : other;
        out.high[t][0] = __byte_perm(lower, 0, lane.high);
        out.high[t][1] = __byte_perm(upper, 0, lane.high);
        out.low[t][0] = __byte_perm(lower, 0, lane.low);
        out.low[t][1] = __byte_perm(upper, 0, lane.low);
    }
}

// Tile t of two strips, 32 channels, as an A fragment.
template <int kBits>
using StripWords = uint4[kLaneVectors<kBits, kPageTiles>];
template <int kBits>
__device__ __forceinline__ void value_fragment(const StripWords<kBits> &first,
                                               const StripWords<kBits> &second, int t,
                                               uint32_t (&a)[4]) {
    const auto word = [](const StripWords<kBits> &w, int i) {
        const uint4 &v = w[i / 4];
        return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
    };
    if (kBits == 8) {
        a[0] = word(first, 2 * t);
        a[1] = word(second, 2 * t);
        a[2] = word(first, 2 * t + 1);
        a[3] = word(second, 2 * t + 1);
        return;
    }
    const uint32_t mask = (kBits == 4   ? 0x0F0F0F0Fu
                           : kBits == 2 ? 0x03030303u
                                        : 0x01010101u)
                          << bit_position(kBits, t);
    const int i = t * kBits / 4;
    a[0] = word(first, i) & mask;
    a[1] = word(second, i) & mask;
    a[2] = word(first, i) >> 4 & mask;
    a[3] = word(second, i) >> 4 & mask;
}

// Where the codes of a word's tiles lie in its bytes.
template <int kBits>
constexpr int kCodePositions = kBits < 4 ? 4 / kBits : 1;

// Two strips of values, the second of which may be missing.
template <int kBits, bool kHasSecond>
__device__ __forceinline__ void multiply_value_strips(uint32_t words, const ByteWeights &weights,
                                                      float step_scale, float (&first)[2],
                                                      float (&second)[2]) {
    int32_t high[4] = {};
    int32_t low[4] = {};
    StripWords<kBits> first_words, second_words;
#pragma unroll
    for (int v = 0; v < kLaneVectors<kBits, kPageTiles>; ++v) {
        first_words[v] = load_vector<kBits, kPageTiles>(words + v * 512);
        second_words[v] = kHasSecond ? load_vector<kBits, kPageTiles>(words + kBits * 256 + v * 512)
                                     : make_uint4(0, 0, 0, 0);
    }
    // Codes of 2 bits count four times as much in odd tiles, those of 1 bit 1, 2, 4 and 8 times as
    // much, so those that count least go first.
#pragma unroll
    for (int turn = 0; turn < kCodePositions<kBits>; ++turn) {
#pragma unroll
        for (int i = 0; turn && i < 4; ++i) {
            high[i] *= 1 << kBits;
            low[i] *= 1 << kBits;
        }
#pragma unroll
        for (int t = 0; t < kPageTiles; ++t) {
            if (bit_position(kBits, t) != turn * kBits)
                continue;
            uint32_t a[4];
            value_fragment<kBits>(first_words, second_words, t, a);
            mma_high_bytes(high, a[0], a[1], a[2], a[3], weights.high[t][0], weights.high[t][1]);
            mma_low_bytes(low, a[0], a[1], a[2], a[3], weights.low[t][0], weights.low[t][1]);
        }
    }
#pragma unroll
    for (int i = 0; i < (kHasSecond ? 4 : 2); ++i) {
        float &o = i < 2 ? first[i] : second[i - 2];
        o = fmaf(static_cast<float>(high[i] * kLowScale + low[i]), step_scale, o);
    }
}

// The sum of all factors of the lane's column, in units of 1 / 252.
__device__ __forceinline__ int32_t sum_of(const ByteWeights &weights) {
    constexpr uint32_t kOne = 0x01010101u;
    int32_t high[4] = {};
    int32_t low[4] = {};
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        mma_high_bytes(high, kOne, kOne, kOne, kOne, weights.high[t][0], weights.high[t][1]);
        mma_low_bytes(low, kOne, kOne, kOne, kOne, weights.low[t][0], weights.low[t][1]);
    }
    return high[0] * kLowScale + low[0];
}

// Values of a packed page. A value counts as midpoint - range / 2 + code * step, so that errors of
// the factors are multiplied by codes measured from their midpoint.
template <int kBits, int kStrips, class Team>
__device__ __forceinline__ void multiply_byte_values(Ring<Team> &ring, const PageWeights &weights,
                                                     uint32_t ranges, const ByteLane &lane,
                                                     ByteAccumulator<kStrips> &g) {
    constexpr int kEach = kValueChunkBytes / (kBits * 256);
    const RangeScale scale = RangeScale::of_page(ranges, lane.lane);
    const float range_scale = scale.step_scale * weights.weight;
    // The last position counts most.
    constexpr float kDown = 1.0f / (1 << (kCodePositions<kBits> - 1) * kBits);
    const float step_scale = range_scale * kStepFactor<kBits> * kDown;
    ByteWeights bytes;
    split_weights(weights, ranges, scale, lane, bytes);
    g.below = fmaf(static_cast<float>(sum_of(bytes)), 0.5f * range_scale, g.below);
#pragma unroll
    for (int first = 0; first < kStrips; first += kEach) {
        const uint32_t words = ring.wait() + lane.lane * kLaneBytes<kBits, kPageTiles>;
#pragma unroll
        for (int s = first; s < first + kEach && s < kStrips; s += 2) {
            constexpr int kLast = kStrips - 1;
            if (s < kLast)
                multiply_value_strips<kBits, true>(words + (s - first) * kBits * 256, bytes,
                                                   step_scale, g.o[s], g.o[s < kLast ? s + 1 : s]);
            else
                multiply_value_strips<kBits, false>(words + (s - first) * kBits * 256, bytes,
                                                    step_scale, g.o[s], g.o[s]);
        }
        if (kStrips > kEach)
            ring.next_apart();
        else
            ring.next();
    }
}

// Weights of a tile as a B fragment of FP16 numbers, the same for both columns of a query column.
__device__ __forceinline__ void f16_fragment(uint32_t mine, const ByteLane &lane,
                                             uint32_t (&b)[2]) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, mine, 4);
    b[0] = lane.is_upper() ? other : mine;
    b[1] = lane.is_upper() ? mine : other;
}

// Values of a page at 16 bits: a strip is a chunk. Strips take turns in the registers of the first
// one, since such pages are few and code for each strip would be a sixth of the kernel.
template <int kStrips, class Team>
__device__ __forceinline__ void multiply_raw_page_values(Ring<Team> &ring,
                                                         const PageWeights &weights,
                                                         const ByteLane &lane,
                                                         ByteAccumulator<kStrips> &g) {
    uint32_t b[kPageTiles][2];
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t)
        f16_fragment(weights.tiles[t], lane, b[t]);
#pragma unroll 1
    for (int s = 0; s < kStrips; ++s) {
        const uint32_t words = ring.wait() + lane.lane * 16;
        float c[4] = {};
#pragma unroll
        for (int t = 0; t < kPageTiles; ++t) {
            const uint4 w = load_shared4(words + t * 512);
            mma(c, w.x, w.y, w.z, w.w, b[t][0], b[t][1]);
        }
        g.o[0][0] = fmaf(c[0], weights.weight, g.o[0][0]);
        g.o[0][1] = fmaf(c[2], weights.weight, g.o[0][1]);
        g.rotate();
        ring.next();
    }
}

// A tile of a 16-bit page: logits to weights, as a B fragment.
template <int kStrips>
__device__ __forceinline__ float weigh_raw_tile(float (&x)[2], uint32_t first, const ByteLane &lane,
                                                const LogitRules &rules, float factor,
                                                ByteAccumulator<kStrips> &g, uint32_t (&b)[2]) {
    const bool is_masked = rules.mask.hides(first, first + 16);
    const float offset = rules.mask.columns[lane.t()].offset;
    x[0] = fmaf(x[0], factor, offset);
    x[1] = fmaf(x[1], factor, offset);
    if (is_masked || rules.cap > 0)
        finish_logits<true>(x, rules, is_masked, first + (lane.lane >> 2), lane.t());
    const float row_max = fmaxf(column_row_max(fmaxf(x[0], x[1])), kNothing);
    const float weight = g.weight_of(row_max);
    f16_fragment(transpose(pack_f16(exp2_fast(x[0] - row_max), exp2_fast(x[1] - row_max))), lane,
                 b);
    float sums[4] = {};
    mma(sums, kOnes, kOnes, kOnes, kOnes, b[0], b[1]);
    g.row_sum = fmaf(sums[0], weight, g.row_sum);
    return weight;
}

template <int kStrips, class Team>
__device__ __forceinline__ void multiply_raw_tile_values(Ring<Team> &ring, const Position &position,
                                                         const ByteLane &lane, uint32_t n_tokens,
                                                         const uint32_t (&b)[2], float weight,
                                                         ByteAccumulator<kStrips> &g) {
    for_raw_values<kStrips>(ring, position, lane.lane, n_tokens, [&](int s, const uint4 &w) {
        float c[4] = {};
        mma(c, w.x, w.y, w.z, w.w, b[0], b[1]);
        g.o[s][0] = fmaf(c[0], weight, g.o[s][0]);
        g.o[s][1] = fmaf(c[2], weight, g.o[s][1]);
    });
}

}  // namespace cuda
}  // namespace lk

#endif
