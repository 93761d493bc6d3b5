// Decode: logits of a KV tile. Tokens are mma rows, channels k, query columns n.
//
// A code is one AND away from the tensor core: at its bit position it is an exact FP16 subnormal,
// code * 2^(bit - 24). The differences of the positions are corrected elsewhere: R2 and R3 (k 8-15)
// lie 4 bits higher than R0 and R1, so their queries are divided by 16; odd tiles of 2 bits lie 2
// bits higher, so their logits are divided by 4. R1 and R3 come from the word shifted by 8.
//
// Ranges are multiplied into the queries, which rounds them: q'. Where a query column has two
// columns of the fragment, the second one has what the rounding left, and a key counts as minimum
// + code * step: minima are rows of an A tile of their own, times the plain queries. Other columns
// have the error, so that it is to meet codes around their midpoint only: there a key counts as
// midpoint - range / 2 + code * step. Midpoints are such rows, too, and so is -1/2, times q'; both
// are added to the logits of their tokens. Where ranges change every 32 tokens, a key counts as
// minimum + code * step in any case, which saves half of the products next to codes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_KEYS_CUH
#define LK_CUDA_DECODE_KEYS_CUH

#include "cuda/decode/parameters.cuh"
#include "format/rules.h"

namespace lk {
namespace cuda {

constexpr int kPageTiles = 8;  // of a page of 128 tokens
// A strip of kBits of a page of kTokenTiles tiles: its bytes, and its words in a lane. Four words
// or more lie in vectors of four, [vector][lane][4], fewer next to each other, [lane][words].
template <int kBits, int kTokenTiles>
constexpr uint32_t kStripBytes = kBits *kTokenTiles * 32;
template <int kBits, int kTokenTiles>
constexpr int kLaneWords = kBits *kTokenTiles / 4;
template <int kBits, int kTokenTiles>
constexpr int kLaneVectors =
    kLaneWords<kBits, kTokenTiles> < 4 ? 1 : kLaneWords<kBits, kTokenTiles> / 4;
template <int kBits, int kTokenTiles>
constexpr int kVectorTiles = kTokenTiles / kLaneVectors<kBits, kTokenTiles>;
// From lane to lane.
template <int kBits, int kTokenTiles>
constexpr uint32_t kLaneBytes =
    kLaneWords<kBits, kTokenTiles> < 4 ? kLaneWords<kBits, kTokenTiles> * 4 : 16;
template <int kBits, int kTokenTiles>
__device__ __forceinline__ uint4 load_vector(uint32_t address) {
    if (kLaneWords<kBits, kTokenTiles> == 1)
        return make_uint4(load_shared1(address), 0, 0, 0);
    if (kLaneWords<kBits, kTokenTiles> == 2) {
        const uint2 w = load_shared2(address);
        return make_uint4(w.x, w.y, 0, 0);
    }
    return load_shared4(address);
}
// Copies of the queries in shared memory, [copy][column tile][channel][8 columns] FP16 numbers: as
// they are, and divided by 16 for k 8-15 of codes below 8 bits.
enum QueryCopy : uint32_t { kPlain, kSixteenth };
static_assert(kSixteenth + 1 == kQueryCopies, "the host sizes shared memory by it");

// The step of a code is its range times this.
template <int kBits>
constexpr float kStepFactor = 1.0f / static_cast<float>((1 << kBits) - 1);

struct Queries {
    uint32_t address;     // shared, of the first copy
    uint32_t tile_bytes;  // of a column tile of a copy: head_dim * 16
    uint32_t pairs = 0;   // the same of column pairs, of split-k kernels
};

// A tile at 4 bits or fewer from its word; the mask has the bits of R0's codes.
template <int kTiles>
__device__ __forceinline__ void multiply_tile(float (&s)[kTiles][4], uint32_t word, uint32_t mask,
                                              const uint32_t (&b)[kTiles][2]) {
    const uint32_t high = word >> 8;
    const uint32_t a0 = word & mask;
    const uint32_t a1 = high & mask;
    const uint32_t a2 = word & (mask << 4);
    const uint32_t a3 = high & (mask << 4);
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
        mma(s[c], a0, a1, a2, a3, b[c][0], b[c][1]);
}
// Of tile t of a vector of words.
constexpr uint32_t kMask4 = 0x000F000Fu;
constexpr uint32_t kMask2 = 0x00030003u;
constexpr uint32_t kMask1 = 0x00010001u;
__device__ __forceinline__ uint32_t mask2_of(int t) { return t % 2 ? kMask2 << 2 : kMask2; }
// Bits that the codes of tile t lie above those of the first tile of their word.
__device__ __forceinline__ int bit_position(uint32_t bits, int t) {
    return bits == 1 ? 2 * (t % 2) + t / 2 % 2 : bits == 2 ? 2 * (t % 2) : 0;
}
template <int kTiles>
__device__ __forceinline__ void multiply_byte_tile(float (&s)[kTiles][4], uint32_t low,
                                                   uint32_t high, const uint32_t (&b)[kTiles][2]) {
    constexpr uint32_t kMask = 0x00FF00FFu;
    const uint32_t a1 = low >> 8 & kMask;
    const uint32_t a3 = high >> 8 & kMask;
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
        mma(s[c], low & kMask, a1, high & kMask, a3, b[c][0], b[c][1]);
}
template <int kTiles>
__device__ __forceinline__ void multiply_f16_tile(float (&s)[kTiles][4], const uint4 &w,
                                                  const uint32_t (&b)[kTiles][2]) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
        mma(s[c], w.x, w.y, w.z, w.w, b[c][0], b[c][1]);
}

// The state of a KV tile: first the logits of its tokens, then their weights in the same registers.
template <int kTiles, int kTokenTiles = kPageTiles>
struct Work {
    float s[kTokenTiles][kTiles][4];  // products of codes and ranges, without the midpoints
    float midpoint[kTiles][4];        // row g: of token group g

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                midpoint[c][i] = 0;
#pragma unroll
                for (int t = 0; t < kTokenTiles; ++t)
                    s[t][c][i] = 0;
            }
    }
    __device__ __forceinline__ void scale(float even, float odd) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
            for (int c = 0; c < kTiles; ++c)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    s[t][c][i] *= t % 2 ? odd : even;
    }
    // The weights of a tile as a B fragment, plain or with the ranges folded in.
    __device__ __forceinline__ void set(int t, int c, int fragment, uint32_t b0, uint32_t b1) {
        s[t][c][2 * fragment] = __uint_as_float(b0);
        s[t][c][2 * fragment + 1] = __uint_as_float(b1);
    }
    __device__ __forceinline__ uint32_t get(int t, int c, int fragment, int i) const {
        return __float_as_uint(s[t][c][2 * fragment + i]);
    }
};

// Queries times ranges, or in the second fragment column of a query what their rounding leaves.
// sign: what the column adds of the rounded product, 0 or -1, twice.
__device__ __forceinline__ uint32_t pair_sign(uint32_t lane) {
    return lane & 4u ? 0xBC00BC00u : 0u;
}
__device__ __forceinline__ uint32_t multiply_pair(uint32_t queries, uint32_t ranges,
                                                  uint32_t sign) {
    return fused(queries, ranges, multiply_f16(multiply_f16(queries, sign), ranges));
}

// kCount strips of packed keys of one width at once: their queries, and the product of each tile.
// kPaired: fragment columns 2h and 2h + 1 are query column h.
template <int kBits, int kCount, int kTiles, DecodeKind kKind, bool kPaired>
class KeyStrips {
  public:
    // metadata: ranges, then minima.
    template <class SlotsOf>
    __device__ __forceinline__ KeyStrips(const Keys &keys, const Queries &queries,
                                         uint32_t metadata, const SlotsOf &slots, uint32_t strip,
                                         uint32_t lane)
        : keys_(keys), metadata_(metadata), strip_(strip), lane_(lane) {
        uint32_t channel[kCount];
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            channel[n] = slots.channel(strip * 16 + (lane & 15u) + n * 16);
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            load_queries(queries, channel[n], n);
        // Codes of 16 bits are numbers: one column is enough.
        if (kPaired && kBits == 16 && is_second())
#pragma unroll
            for (int n = 0; n < kCount; ++n)
#pragma unroll
                for (int c = 0; c < kTiles; ++c)
                    queries_[n][c][0] = queries_[n][c][1] = 0;
    }

    __device__ __forceinline__ void multiply(Work<kTiles> &out, uint32_t words) {
        if (kBits < 16) {
            add_lows<kCentred>(out);
            fold_ranges<kCentred>(0, out);
        }
#pragma unroll
        for (int v = 0; v < kBits / 2; ++v) {
            uint4 w[kCount];
#pragma unroll
            for (int n = 0; n < kCount; ++n)
                w[n] = load_shared4(words + n * kBits * 256 + v * 512);
            multiply_vector(out, v, w);
        }
    }

  protected:
    static constexpr bool kCentred = !kPaired && kKind != kDecodeF8By32;

    __device__ __forceinline__ bool is_second() const { return lane_ & 4u; }
    __device__ __forceinline__ uint32_t n_groups() const { return kIsPlain<kKind> ? 1 : kF8Groups; }
    // Those of the channels that lanes give, of k lane % 16. Matrices: k 0-7, k 8-15 to be folded,
    // k 0-7 again, k 8-15 as they are.
    __device__ __forceinline__ void load_queries(const Queries &queries, uint32_t channel, int n) {
        const uint32_t copy = kBits < 8 && lane_ >> 3 == 1 ? kSixteenth : kPlain;
        const uint32_t address = queries.address + copy * kTiles * queries.tile_bytes;
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
            uint32_t r[4];
            load_matrices_transposed(r, address + channel * 16 + c * queries.tile_bytes);
            queries_[n][c][0] = r[0];
            queries_[n][c][1] = r[1];
            plain_high_[n][c] = r[3];
        }
    }
    // Does a token group begin with this tile?
    __device__ __forceinline__ bool begins_group(uint32_t tile) const {
        return kIsPlain<kKind> ? tile == 0 : !(tile * n_groups() & 7u);
    }
    __device__ __forceinline__ uint32_t group_of(uint32_t tile) const {
        return tile * n_groups() >> 3;
    }
    // The products of the minima, or of the midpoints: rows of all groups.
    template <bool kMidpoints>
    __device__ __forceinline__ void add_lows(Work<kTiles> &out) {
        const uint32_t group = kIsPlain<kKind> ? 0 : min(lane_ >> 2, n_groups() - 1u);
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
            uint2 low =
                load_minima<kKind>(metadata_ + keys_.minima_offset, parameter_offset(n, group));
            if (kMidpoints) {
                const uint2 r = load_ranges<kKind>(metadata_, parameter_offset(n, group));
                low = make_uint2(midpoint_of(r.x, low.x), midpoint_of(r.y, low.y));
            }
#pragma unroll
            for (int c = 0; c < kTiles; ++c)
                mma(out.midpoint[c], low.x, 0, low.y, 0, queries_[n][c][0], plain_high_[n][c]);
        }
    }
    // Where a token group begins with this tile: its ranges into folded_.
    template <bool kMidpoints>
    __device__ __forceinline__ void fold_ranges(uint32_t tile, Work<kTiles> &out) {
        if (!begins_group(tile))
            return;
        const uint32_t group = group_of(tile);
        // -1/2, and 16 times as much where the queries are divided by 16.
        const bool is_row = kIsPlain<kKind> || (lane_ >> 2) == group;
        const uint32_t low = is_row ? 0xB800B800u : 0;
        const uint32_t high = !is_row ? 0 : kBits == 8 ? 0xB800B800u : 0xC800C800u;
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
            const uint2 r = load_ranges<kKind>(metadata_, parameter_offset(n, group));
#pragma unroll
            for (int c = 0; c < kTiles; ++c) {
                folded_[n][c][0] = kPaired ? multiply_pair(queries_[n][c][0], r.x, pair_sign(lane_))
                                           : multiply_f16(queries_[n][c][0], r.x);
                folded_[n][c][1] = kPaired ? multiply_pair(queries_[n][c][1], r.y, pair_sign(lane_))
                                           : multiply_f16(queries_[n][c][1], r.y);
                if (kMidpoints)
                    mma(out.midpoint[c], low, 0, high, 0, folded_[n][c][0], folded_[n][c][1]);
            }
        }
    }

    const Keys &keys_;
    const uint32_t metadata_;
    const uint32_t strip_;
    const uint32_t lane_;
    uint32_t queries_[kCount][kTiles][2];
    uint32_t plain_high_[kCount][kTiles];
    uint32_t folded_[kCount][kTiles][2];

  private:
    __device__ __forceinline__ void multiply_vector(Work<kTiles> &out, int v,
                                                    const uint4 (&w)[kCount]) {
#pragma unroll
        for (int i = 0; i < 16 / kBits; ++i) {
            const int t = v * 16 / kBits + i;
            if (!kIsPlain<kKind> && kBits < 16 && t)
                fold_ranges<kCentred>(t, out);
#pragma unroll
            for (int n = 0; n < kCount; ++n) {
                const uint32_t word[4] = {w[n].x, w[n].y, w[n].z, w[n].w};
                if (kBits == 16)
                    multiply_f16_tile(out.s[t], w[n], queries_[n]);
                else if (kBits == 8)
                    multiply_byte_tile(out.s[t], word[2 * i], word[2 * i + 1], folded_[n]);
                else if (kBits == 4)
                    multiply_tile(out.s[t], word[i], kMask4, folded_[n]);
                else
                    multiply_tile(out.s[t], word[i / 2], mask2_of(i), folded_[n]);
            }
        }
    }
    // The offset of a lane's four parameters of (strip, group) in the ranges or in the minima.
    __device__ __forceinline__ uint32_t parameter_offset(int n, uint32_t group) const {
        return ((strip_ + n) * n_groups() + group) * 16 + (lane_ & 3u) * 4;
    }
};

// Products with codes of a width, summed, are logits of their columns times 1 / this.
template <DecodeKind kKind, int kBits>
constexpr float kKeyScale =
    kBits == 16 ? 1.0f : 0x1p24f * kParameterScale<kKind> *kStepFactor<kBits>;

// A packed page's products are logits of its columns times 1 / all; odd tiles are 1 / odd times as
// large as the others, every second two tiles 1 / second times. The factors of the last width
// count: the sums change with the width.
struct LogitScales {
    float all;
    float odd;
    float second = 1.0f;
};
template <int kStrips, DecodeKind kKind>
__device__ __forceinline__ LogitScales logit_scales(const Keys &keys, uint32_t end2 = kStrips) {
    if (kHasBitKeys<kKind> && end2 < kStrips)
        return {kKeyScale<kKind, 1>, 0.25f, 0.5f};
    if (keys.end4 < kStrips)
        return {kKeyScale<kKind, 2>, 0.25f};
    if (keys.end8 < kStrips)
        return {kKeyScale<kKind, 4>, 1.0f};
    return {keys.end16 < kStrips ? kKeyScale<kKind, 8> : kKeyScale<kKind, 16>, 1.0f};
}

// Those of the sums that are weighed: a team's count as logits, since members end with different
// widths.
template <class Team, int kStrips, DecodeKind kKind>
__device__ __forceinline__ LogitScales page_scales(const Keys &keys, uint32_t end2 = kStrips) {
    return Team::kIsTeam ? LogitScales{1.0f, 1.0f} : logit_scales<kStrips, kKind>(keys, end2);
}

}  // namespace cuda
}  // namespace lk

#endif
