// Decode of 16 query columns over pages of few bits: keys.
//
// Query columns are mma rows, tokens n: the words that are an A operand for eight columns are B
// operands of two products, and logits lie as the weights' A operand wants them. A page's tokens
// take two passes of 64, so that logits and outputs fit into the registers of 12 warps, at head dim
// 64 of 16. The chunk with all of the page's keys stays in shared memory for both.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_SIXTEEN_KEYS_CUH
#define LK_CUDA_DECODE_SIXTEEN_KEYS_CUH

#include "cuda/decode/page_keys.cuh"

namespace lk {
namespace cuda {

constexpr int kPassTiles = 4;   // of 16 tokens
constexpr int kRowsOfLane = 2;  // query columns lane / 4 and lane / 4 + 8

// Logits of a pass: [tile][tokens 0-7, 8-15][row * 2 + token of two].
using PassLogits = float[kPassTiles][2][4];

// A tile at 4 or 2 bits from its word, see multiply_tile(): rows of the code are n here.
__device__ __forceinline__ void multiply_codes(float (&out)[2][4], const uint32_t (&a)[4],
                                               uint32_t word, uint32_t mask) {
    const uint32_t high = word >> 8;
    mma(out[0], a[0], a[1], a[2], a[3], word & mask, word & (mask << 4));
    mma(out[1], a[0], a[1], a[2], a[3], high & mask, high & (mask << 4));
}
__device__ __forceinline__ void multiply_f16_codes(float (&out)[2][4], const uint32_t (&a)[4],
                                                   const uint4 &w) {
    mma(out[0], a[0], a[1], a[2], a[3], w.x, w.z);
    mma(out[1], a[0], a[1], a[2], a[3], w.y, w.w);
}

// The k whose channel a lane gives to load the queries of 16 channels as an A operand.
__device__ __forceinline__ uint32_t query_k(uint32_t lane) { return (lane & 7u) + (lane >> 4) * 8; }
__device__ __forceinline__ void load_sixteen_queries(const Queries &queries, uint32_t channel,
                                                     uint32_t lane, uint32_t (&a)[4]) {
    load_matrices_transposed(
        a, queries.address + channel * 16 + (lane >> 3 & 1u) * queries.tile_bytes);
}

// kCount strips of one width at once, their tokens of one pass.
template <int kBits, int kCount>
class SixteenKeyStrips {
    static_assert(kBits == 4 || kBits == 2, "others do not fit a chunk");

  public:
    template <int kStrips>
    __device__ __forceinline__ SixteenKeyStrips(const Queries &queries, uint32_t metadata,
                                                const Slots<kStrips> &slots, uint32_t strip,
                                                uint32_t lane)
        : parameters_(metadata + (strip * 16 + (lane & 3u) * 4) * 2) {
        uint32_t channel[kCount];
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            channel[n] = slots.channel((strip + n) * 16 + query_k(lane));
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            load_sixteen_queries(queries, channel[n], lane, plain_[n]);
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            fold(n, load_shared2(parameters_ + n * 32));
    }

    // Products of midpoints, and of -1/2 with the ranges; in all columns alike.
    __device__ __forceinline__ void add_midpoints(uint32_t minima_offset,
                                                  float (&midpoint)[4]) const {
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
            const uint2 r = load_shared2(parameters_ + n * 32);
            const uint2 low = load_shared2(parameters_ + minima_offset + n * 32);
            const uint32_t(&q)[4] = plain_[n];
            const uint32_t(&f)[4] = folded_[n];
            mma(midpoint, q[0], q[1], q[2], q[3], midpoint_of(r.x, low.x), midpoint_of(r.y, low.y));
            mma(midpoint, f[0], f[1], f[2], f[3], 0xB800B800u, 0xC800C800u);
        }
    }

    template <int kPass>
    __device__ __forceinline__ void multiply(PassLogits &out, uint32_t words) const {
        uint32_t word[kCount][4];
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            load_words<kPass>(words + n * kBits * 256, word[n]);
#pragma unroll
        for (int t = 0; t < kPassTiles; ++t)
#pragma unroll
            for (int n = 0; n < kCount; ++n)
                multiply_codes(out[t], folded_[n], word[n][kBits == 4 ? t : t / 2],
                               kBits == 4 ? kMask4 : mask2_of(t));
    }

  private:
    template <int kPass>
    __device__ __forceinline__ void load_words(uint32_t address, uint32_t (&word)[4]) const {
        if (kBits == 4) {
            const uint4 w = load_shared4(address + kPass * 512);
            word[0] = w.x;
            word[1] = w.y;
            word[2] = w.z;
            word[3] = w.w;
            return;
        }
        const uint2 w = load_shared2(address + kPass * 8);
        word[0] = w.x;
        word[1] = w.y;
    }
    // Codes of k 8-15 lie 4 bits higher.
    __device__ __forceinline__ void fold(int n, const uint2 &r) {
        constexpr uint32_t kDown = 0x2C002C00u;
        folded_[n][0] = multiply_f16(plain_[n][0], r.x);
        folded_[n][1] = multiply_f16(plain_[n][1], r.x);
        folded_[n][2] = multiply_f16(multiply_f16(plain_[n][2], kDown), r.y);
        folded_[n][3] = multiply_f16(multiply_f16(plain_[n][3], kDown), r.y);
    }

    const uint32_t parameters_;
    uint32_t plain_[kCount][4];
    uint32_t folded_[kCount][4];
};

// Keys of a page's pass: products of codes and ranges. The first pass adds up the midpoints, too.
template <int kPass, int kStrips>
__device__ __forceinline__ void multiply_pass(const Keys &keys, const Queries &queries,
                                              uint32_t metadata, const Slots<kStrips> &slots,
                                              uint32_t chunk, uint32_t lane, PassLogits &s,
                                              float (&midpoint)[4]) {
#pragma unroll
    for (int i = 0; i < kPassTiles * 8; ++i)
        s[i / 8][i / 4 % 2][i % 4] = 0;
    uint32_t words = chunk + lane * 16;
    uint32_t strip = 0;
    const auto multiply = [&](const auto &strips) {
        if (kPass == 0)
            strips.add_midpoints(keys.minima_offset, midpoint);
        strips.template multiply<kPass>(s, words);
    };
#pragma unroll 1
    for (; strip < keys.end4; ++strip, words += kStripBytes<4, kPageTiles>)
        multiply(SixteenKeyStrips<4, 1>(queries, metadata, slots, strip, lane));
    if (strip && strip < kStrips) {
        constexpr float kEven = kKeyScale<kDecodePlain, 4> / kKeyScale<kDecodePlain, 2>;
#pragma unroll
        for (int i = 0; i < kPassTiles * 8; ++i)
            s[i / 8][i / 4 % 2][i % 4] *= i / 8 % 2 ? 4.0f * kEven : kEven;
    }
#pragma unroll 1
    for (; strip + 2 <= kStrips; strip += 2, words += 2 * kStripBytes<2, kPageTiles>)
        multiply(SixteenKeyStrips<2, 2>(queries, metadata, slots, strip, lane));
    if (strip < kStrips)
        multiply(SixteenKeyStrips<2, 1>(queries, metadata, slots, strip, lane));
}

// Keys of a tile of a raw block: [tokens 0-7, 8-15].
template <int kStrips, class Team>
__device__ __forceinline__ void multiply_raw_sixteen_keys(Ring<Team> &ring, const Queries &queries,
                                                          uint32_t lane, float (&s)[2][4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        s[i / 4][i % 4] = 0;
    uint32_t channel = query_k(lane);
    uint32_t strip = 0;
#pragma unroll 1
    while (true) {
        uint32_t words = ring.wait() + lane * 16;
        const uint32_t end = min(strip + kRawStrips, uint32_t{kStrips});
#pragma unroll 1
        for (; strip < end; ++strip, words += 512, channel += 16) {
            uint32_t a[4];
            load_sixteen_queries(queries, channel, lane, a);
            multiply_f16_codes(s, a, load_shared4(words));
        }
        ring.next();
        if (strip == kStrips)
            return;
    }
}

}  // namespace cuda
}  // namespace lk

#endif
