// Decode: weights times values. Channels are mma rows, tokens k.
//
// Ranges are multiplied into the weights (and so are the factors of the codes' positions, see
// decode/keys.cuh), which rounds them; a value counts as midpoint - range / 2 + code * step, as
// keys do: the sum of the folded weights, for -1/2 of the range, comes from a product of its own.
// With a range for every 32 channels of a token a value counts as minimum + code * step.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_VALUES_CUH
#define LK_CUDA_DECODE_VALUES_CUH

#include "cuda/decode/weights.cuh"

namespace lk {
namespace cuda {

// 2^n, twice.
__device__ __forceinline__ uint32_t powers_of_two(int n) {
    return static_cast<uint32_t>(15 + n) << 10 | static_cast<uint32_t>(15 + n) << 26;
}
// Weights times the factors of the codes' positions, where ranges follow for each channel group.
template <int kTiles>
__device__ __forceinline__ void fold_positions(const Values &values, Work<kTiles> &work) {
    if (values.bits >= 8)
        return;
    const bool is2 = values.bits == 2;
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t)
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
            const uint32_t low = work.get(t, c, 0, 0);
            const uint32_t high = work.get(t, c, 0, 1);
            // 2^-4; in odd tiles of 2 bits 2^-2 and 2^-6.
            if (t % 2 && is2)
                work.set(t, c, 0, multiply_f16(low, 0x34003400u), multiply_f16(high, 0x24002400u));
            else
                work.set(t, c, 0, low, multiply_f16(high, 0x2C002C00u));
        }
}

// Weights that fold_positions() went over, times the ranges of a channel group.
template <int kTiles>
__device__ __forceinline__ void fold_f8_ranges(uint32_t metadata, uint32_t group, uint32_t lane,
                                               Work<kTiles> &work) {
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        const uint2 r =
            load_ranges<kDecodeF8By32>(metadata, group * 128 + t * 16 + (lane & 3u) * 4);
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
            work.set(t, c, 1, multiply_f16(work.get(t, c, 0, 0), r.x),
                     multiply_f16(work.get(t, c, 0, 1), r.y));
    }
}

// Weights times the ranges, and times the factors of the codes' positions; their sum times -1/2
// joins the midpoints.
template <bool kHasBit, int kStrips, int kTiles>
__device__ __forceinline__ void fold_ranges(const Values &values, uint32_t metadata, uint32_t lane,
                                            Work<kTiles> &work, Accumulator<kStrips, kTiles> &g) {
    const int upper = values.bits == 8 ? 0 : 4;  // bits that codes of k 8-15 lie higher
    float sums[kTiles][4] = {};
#pragma unroll
    for (int t = 0; t < kPageTiles; ++t) {
        const uint2 r = load_ranges<kDecodePlain>(metadata, t * 16 + (lane & 3u) * 4);
        const int position = bit_position(values.bits, t);
        const bool is_first = t % 2 == 0 && (t / 2 % 2 == 0 || !kHasBit);
        const uint32_t r0 = is_first ? r.x : multiply_f16(r.x, powers_of_two(-position));
        const uint32_t r1 = multiply_f16(r.y, powers_of_two(-position - upper));
        // The same the other way, for the sum.
        const uint32_t a0 = powers_of_two(position);
        const uint32_t a2 = powers_of_two(position + upper);
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
            const uint32_t b0 = multiply_f16(work.get(t, c, 0, 0), r0);
            const uint32_t b1 = multiply_f16(work.get(t, c, 0, 1), r1);
            work.set(t, c, 1, b0, b1);
            mma(sums[c], a0, 0, a2, 0, b0, b1);
        }
    }
    const float factor = -0.5f * __fdividef(g.output_scale, code_scale(values.bits));
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            g.midpoint[c][i] = fmaf(sums[c][i], factor, g.midpoint[c][i]);
}

template <int kTiles, int kTokenTiles>
__device__ __forceinline__ void weights_of(const Work<kTiles, kTokenTiles> &work, int t,
                                           int fragment, uint32_t (&b)[kTiles][2]) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
        b[c][0] = work.get(t, c, fragment, 0);
        b[c][1] = work.get(t, c, fragment, 1);
    }
}

// One strip of packed values.
template <int kBits, int kTiles, int kTokenTiles>
__device__ __forceinline__ void multiply_strip(float (&o)[kTiles][4], uint32_t words,
                                               const Work<kTiles, kTokenTiles> &work) {
    constexpr int kEach = kVectorTiles<kBits, kTokenTiles>;
#pragma unroll
    for (int v = 0; v < kLaneVectors<kBits, kTokenTiles>; ++v) {
        const uint4 w = load_vector<kBits, kTokenTiles>(words + v * 512);
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            uint32_t b[kTiles][2];
            weights_of(work, v * kEach + i, kBits == 16 ? 0 : 1, b);
            if (kBits == 16)
                multiply_f16_tile(o, w, b);
            else if (kBits == 8)
                multiply_byte_tile(o, word[2 * i], word[2 * i + 1], b);
            else if (kBits == 4)
                multiply_tile(o, word[i], kMask4, b);
            else
                multiply_tile(o, word[i / 2], mask2_of(i), b);
        }
    }
}

// One strip at 1 bit: a word has four tiles.
template <int kTiles, int kTokenTiles>
__device__ __forceinline__ void multiply_bit_strip(float (&o)[kTiles][4], uint32_t words,
                                                   const Work<kTiles, kTokenTiles> &work) {
    const uint4 w = load_vector<1, kTokenTiles>(words);
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
        uint32_t b[kTiles][2];
        weights_of(work, t, 1, b);
        multiply_tile(o, t < 4 ? w.x : w.y, kMask1 << bit_position(1, t), b);
    }
}

// Strips [from, to), a chunk. Ranges are folded in, by fold(group), where a channel group begins.
template <int kBits, int kStrips, int kTiles, DecodeKind kKind, class Fold>
__device__ __forceinline__ void multiply_chunk(const Values &values, uint32_t from, uint32_t to,
                                               uint32_t words,
                                               const Work<kTiles, kTilesOf<kKind>> &work,
                                               float (&o)[kStrips][kTiles][4], Fold fold) {
    constexpr uint32_t kBytes = kStripBytes<kBits, kTilesOf<kKind>>;
    constexpr bool kWhole = kStrips * kBytes <= kValueChunkBytes;  // a chunk holds all strips
    uint32_t group = 0;
    uint32_t next_group = 0;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
        // Groups of 16 channels begin with odd strips too.
        const bool can_begin =
            !kIsPlain<kKind> && kBits < 16 && (s % 2 == 0 || kHasAllFormats<kKind>);
        const bool begins = can_begin && s == next_group;
        if (begins)
            next_group += group_strips<kKind>(values);
        if (kWhole || (s >= from && s < to)) {
            if (begins)
                fold(group);
            if constexpr (kBits == 1)
                multiply_bit_strip(o[s], words, work);
            else
                multiply_strip<kBits>(o[s], words, work);
            words += kBytes;
        }
        if (begins)
            ++group;
    }
}

template <int kBits>
struct Width {
    static constexpr int value = kBits;
};

// Values of a packed page, to which fold(group) folds ranges into the weights.
template <int kStrips, int kTiles, DecodeKind kKind, class Fold, class Team>
__device__ __forceinline__ void multiply_values(Ring<Team> &ring, const Values &values,
                                                uint32_t lane,
                                                const Work<kTiles, kTilesOf<kKind>> &work,
                                                float (&o)[kStrips][kTiles][4], Fold fold) {
    constexpr int kTokenTiles = kTilesOf<kKind>;
    constexpr uint32_t kMore = kPageTiles / kTokenTiles;  // strips of shorter pages
    static_assert(kValueChunkBytes == 4096, "16 bits of strips");
    constexpr bool kHasWideValues = kKind != kDecodeF8Narrow;  // of 4 and 8 bits
    constexpr bool kHasBit = kHasBitValues<kKind> && kTokenTiles > 2;
    const uint32_t each = values.bits == 1   ? 16 * kMore
                          : values.bits == 2 ? 8 * kMore
                          : values.bits == 4 ? 4 * kMore
                          : values.bits == 8 ? 2 * kMore
                                             : kMore;
    if (kIsPlain<kKind> && values.bits < 16)
        fold(0);
    uint32_t from = 0;
#pragma unroll 1
    while (true) {
        const uint32_t chunk = ring.wait();
        const uint32_t words = chunk + lane * 16;
        const uint32_t to = min(from + each, uint32_t{kStrips});
        const auto multiply = [&](auto bits) {
            constexpr int kBits = decltype(bits)::value;
            constexpr uint32_t kBytes = kLaneBytes<kBits, kTokenTiles>;
            multiply_chunk<kBits, kStrips, kTiles, kKind>(
                values, from, to, kBytes == 16 ? words : chunk + lane * kBytes, work, o, fold);
        };
        if (kHasBit && values.bits == 1)
            multiply(Width<1>{});
        else if (values.bits == 2)
            multiply(Width<2>{});
        else if (kHasWideValues && values.bits == 4)
            multiply(Width<4>{});
        else if (kHasWideValues && values.bits == 8)
            multiply(Width<8>{});
        else
            multiply(Width<16>{});
        ring.next();
        from = to;
        if (from == kStrips)
            return;
    }
}

// The same, through FP16 products.
template <int kStrips, int kTiles, DecodeKind kKind, class Team>
__device__ __forceinline__ void multiply_f16_values(Ring<Team> &ring, const Values &values,
                                                    uint32_t metadata, uint32_t lane,
                                                    Work<kTiles> &work,
                                                    Accumulator<kStrips, kTiles> &g) {
    if constexpr (kKind == kDecodeF8By32) {
        fold_positions(values, work);
        multiply_values<kStrips, kTiles, kKind>(ring, values, lane, work, g.o, [&](uint32_t group) {
            fold_f8_ranges(metadata, group, lane, work);
        });
    } else {
        multiply_values<kStrips, kTiles, kKind>(ring, values, lane, work, g.o, [&](uint32_t) {
            fold_ranges<kHasBitValues<kKind>>(values, metadata, lane, work, g);
        });
    }
}

// Values of missing tokens need not be numbers: make them 0.
__device__ __forceinline__ uint32_t keep_tokens(uint32_t word, uint32_t token, uint32_t n_tokens) {
    return token + 1 < n_tokens ? word : token < n_tokens ? word & 0xFFFFu : 0u;
}

// Values of a tile of a raw block: calls multiply(strip, the lane's words) for each strip, with
// zeros for tokens that do not exist.
template <int kStrips, class Team, class Multiply>
__device__ __forceinline__ void for_raw_values(Ring<Team> &ring, const Position &position,
                                               uint32_t lane, uint32_t n_tokens,
                                               const Multiply &multiply) {
    const uint32_t token = position.first_token + position.tile * 16u + (lane & 3u) * 2;
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
            multiply(s, w);
        }
        ring.next();
    }
}

template <int kStrips, int kTiles, class Team>
__device__ __forceinline__ void multiply_raw_values(Ring<Team> &ring, const Position &position,
                                                    uint32_t lane, uint32_t n_tokens,
                                                    const uint32_t (&b)[kTiles][2],
                                                    float (&o)[kStrips][kTiles][4]) {
    for_raw_values<kStrips>(ring, position, lane, n_tokens,
                            [&](int s, const uint4 &w) { multiply_f16_tile(o[s], w, b); });
}

}  // namespace cuda
}  // namespace lk

#endif
