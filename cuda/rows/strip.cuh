// Attention of uneven layers: a strip of a packed page, of any format, becomes FP16 values in the
// registers of a warp.
//
// Pages were copied to shared memory before. Codes become FP16 numbers where they lie in a word:
// below the 1024 of a mantissa, which a multiply-add takes away with their place. A second one
// makes values, of four tiles at once.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_STRIP_CUH
#define LK_CUDA_ROWS_STRIP_CUH

#include "cuda/fragment.cuh"
#include "cuda/prefill/pages.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kQuadTiles = 4;  // that a warp unpacks at once
// A lane's registers of a quad, of tiles in the order of A fragments.
using Quad = uint32_t[kQuadTiles][4];

// What a strip of a packed page has next to its width, in StripCodes::kind.
enum StripKind : uint32_t {
    kStripBits = 0x1F,       // the width
    kStripShares = 0x20,     // pairs share stored channels
    kStripF8 = 0x40,         // FP8 parameters
    kStripChanges = 0x80,    // tiles of a quad have parameters of their own
    kStripByRow = 0x100,     // parameters change with the row of a tile
    kStripIsShort = 0x200,   // the page has two tiles
    kStripByteOrder = 0x400  // channels take a byte each
};
constexpr uint32_t kStripShift = 16;  // where log2 of the tiles that share their parameters begins
// A strip of the page under way; addresses are shared.
struct alignas(16) StripCodes {
    uint32_t kind;
    uint32_t words;       // of lane 0: of low bits, of a split plane
    uint32_t lane_bytes;  // from a lane's words to the next one's
    uint32_t more;        // words of the highest of 3 bits; of pairs that share, the first channel
                          // of the strip in its plane
    uint32_t ranges;
    uint32_t minima;
    uint32_t step;   // code_step_f16()
    uint32_t order;  // channels of its stored ones, or 0
};

// 1 / (2^bits - 1) as an FP16 number; in the upper half what that is short of it.
__device__ __forceinline__ uint32_t code_step_f16(uint32_t bits) {
    return bits == 8   ? 0x00011C04u
           : bits == 4 ? 0x01112C44u
           : bits == 3 ? 0x02493092u
           : bits == 2 ? 0x05553555u
                       : 0x00003C00u;
}

// copy: of the page; order: of its permutation, which lies after the metadata, or 0.
__device__ inline StripCodes describe_codes(const FormatInfo &c, uint32_t copy, uint32_t order,
                                            uint32_t strip) {
    const StripPosition position = find_strip(c, strip);
    const uint32_t bits = position.bits;
    uint32_t shift = 0;  // log2 of the tiles that share their parameters
    while (!c.is_token_axis && LK_TILE_TOKENS << shift < c.group)
        ++shift;
    const uint32_t n_tiles = min(c.page_tokens / LK_TILE_TOKENS, kQuadTiles);
    const uint32_t in_plane = position.in_plane * LK_STRIP_CHANNELS;
    const bool shares = !c.is_value && bits == 2 && in_plane < 2u * c.n_shared;
    const uint32_t first_parameter = c.is_token_axis
                                         ? strip * LK_STRIP_CHANNELS / c.group * c.page_tokens
                                         : strip * c.n_groups * LK_STRIP_CHANNELS;
    const uint32_t channel_bytes = bytes_of_channel(c.head_dim);
    StripCodes codes;
    codes.kind = bits | (shares ? kStripShares : 0) |
                 (c.parameter_bytes == bytes_of_parameter(Metadata::kF8) ? kStripF8 : 0) |
                 (1u << shift < n_tiles ? kStripChanges : 0) |
                 (c.is_token_axis && !c.is_value ? kStripByRow : 0) |
                 (n_tiles < kQuadTiles ? kStripIsShort : 0) |
                 (channel_bytes == 1 ? kStripByteOrder : 0) | shift << kStripShift;
    codes.words = copy + position.offset;
    codes.lane_bytes = 4 * min(lane_words(c.page_tokens, LK_LOW_BITS(bits)), LK_VECTOR_WORDS);
    codes.more = shares ? in_plane : copy + position.high_offset;
    codes.ranges = copy + c.payload_bytes + first_parameter * c.parameter_bytes;
    codes.minima = codes.ranges + c.minima_offset;
    codes.step = code_step_f16(bits);
    codes.order = order ? order + strip * LK_STRIP_CHANNELS * channel_bytes : 0;
    return codes;
}

// 2^exponent, twice as an FP16 number.
__device__ __forceinline__ constexpr uint32_t two_powers(int exponent) {
    return static_cast<uint32_t>(15 + exponent) * 0x04000400u;
}
constexpr uint32_t kTwo1024 = 0x64006400u;

// (word & mask) | more, in one operation.
__device__ __forceinline__ uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t more) {
    uint32_t x;
    asm("lop3.b32 %0,%1,%2,%3,0xEA;" : "=r"(x) : "r"(word), "r"(mask), "r"(more));
    return x;
}
// The FP16 numbers of two codes that lie at `bit` of a word's two 16 bits, which are above 1024.
__device__ __forceinline__ uint32_t lowered(uint32_t above_1024, uint32_t bit) {
    const int down = -static_cast<int>(bit);
    return fused(above_1024, two_powers(down), two_powers(10 + down) | 0x80008000u);
}
// The FP16 numbers of the codes at `bit` of a word's two 16 bits. All but the word is known to the
// compiler.
__device__ __forceinline__ uint32_t codes_at(uint32_t word, uint32_t bits, uint32_t bit) {
    return lowered(masked_or(word, ((1u << bits) - 1) * 0x10001u << bit, kTwo1024), bit);
}
// Codes of 3 bits: of two in one word, the highest in another.
__device__ __forceinline__ uint32_t codes_at(uint32_t low, uint32_t low_bit, uint32_t high,
                                             uint32_t high_bit) {
    const int down = -static_cast<int>(low_bit);
    const int up = 2 - static_cast<int>(high_bit);
    // -(2^a + 2^b), which is exact: what both numbers have too much.
    const uint32_t over =
        as_word(__hadd2(as_half2(two_powers(10 + down)), as_half2(two_powers(10 + up))));
    const uint32_t top =
        fused(masked_or(high, 0x10001u << high_bit, kTwo1024), two_powers(up), over ^ 0x80008000u);
    return fused(masked_or(low, 0x30003u << low_bit, kTwo1024), two_powers(down), top);
}

// The first bit of a tile in a word of 4 / bits tiles.
__device__ __forceinline__ uint32_t first_bit(uint32_t bits, uint32_t tile) {
    return bits == 2 ? 2 * (tile % 2) : bits == 1 ? tile % 2 * 2 | tile / 2 % 2 : 0;
}

// A lane's words of a quad: one for each bit of the width. at: its first word of the strip; those
// of a page lie in vectors. A page of two tiles has half of them.
template <uint32_t kBits>
__device__ __forceinline__ void load_words(uint32_t at, uint32_t quad, bool is_short,
                                           uint32_t (&words)[kBits]) {
    constexpr uint32_t kVectorBytes = 4 * LK_VECTOR_WORDS * LK_LANES;
    if constexpr (kBits >= 4) {
        uint4 four = {};
        at += quad * (kBits / 4) * kVectorBytes;
        if (kBits == 8 || !is_short) {
            four = load_shared4(at);
        } else {
            const uint2 two = load_shared2(at);
            four.x = two.x, four.y = two.y;
        }
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else if constexpr (kBits == 2) {
        at += 8 * quad;
        uint2 two = {};
        if (is_short)
            two.x = load_shared1(at);
        else
            two = load_shared2(at);
        words[0] = two.x, words[1] = two.y;
    } else {
        words[0] = load_shared1(at + 4 * quad);
    }
    if constexpr (kBits == 8) {
        uint4 four = {};
        if (!is_short)
            four = load_shared4(at + kVectorBytes);
        words[4] = four.x, words[5] = four.y, words[6] = four.z, words[7] = four.w;
    }
}

// The codes of a quad as FP16 numbers.
template <uint32_t kBits>
__device__ __forceinline__ void load_codes(const StripCodes &strip, uint32_t quad, Quad &a) {
    constexpr uint32_t kLowBits = LK_LOW_BITS(kBits);
    const uint32_t own = threadIdx.x % kWarp * strip.lane_bytes;
    const bool is_short = strip.kind & kStripIsShort;
    uint32_t words[kLowBits];
    load_words<kLowBits>(strip.words + own, quad, is_short, words);
    uint32_t tops[1];
    if constexpr (kBits == 3)
        load_words<1>(strip.more + own / 2, quad, false, tops);
#pragma unroll
    for (uint32_t t = 0; t < kQuadTiles; ++t)
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r) {
            if constexpr (kBits == 8) {
                // Bytes 0 and 2 of a word, or 1 and 3, below the upper bytes of 1024.
                const uint32_t raised =
                    __byte_perm(words[2 * t + r / 2], kTwo1024, r % 2 ? 0x5351u : 0x5250u);
                a[t][r] = as_word(__hsub2(as_half2(raised), as_half2(kTwo1024)));
            } else {
                const uint32_t word = words[t * kLowBits / 4] >> 8 * (r % 2);
                const uint32_t bit = first_bit(kLowBits, t) + r / 2 * 4;
                if constexpr (kBits == 3)
                    a[t][r] =
                        codes_at(word, bit, tops[0] >> 8 * (r % 2), first_bit(1, t) + r / 2 * 4);
                else
                    a[t][r] = codes_at(word, kBits, bit);
            }
        }
}

// Two FP16 numbers each: of the lower and the upper 8 of k, or of the two rows of a tile.
struct TileParameters {
    uint2 steps;
    uint2 minima;
};

// A lane's four parameters from an address on.
__device__ __forceinline__ uint2 load_four(uint32_t at, bool is_f8) {
    return is_f8 ? widened_f8(load_shared1(at)) : load_shared2(at);
}
// What two codes are worth, rounded once more; no value that one makes lies beyond the numbers of
// FP16. step, rest: what code_step_f16() has, twice each.
__device__ __forceinline__ uint32_t find_step(uint32_t step, uint32_t rest, uint32_t range,
                                              uint32_t minimum) {
    constexpr uint32_t kTop = 0x7BFD7BFDu;  // 65440
    const __half2 cut = __hmin2(as_half2(range), __hsub2(as_half2(kTop), as_half2(minimum)));
    return fused(as_word(cut), step, as_word(__hmul2(cut, as_half2(rest))));
}
// Their ranges take the place of steps.
__device__ __forceinline__ TileParameters load_ranges(const StripCodes &strip, uint32_t tile) {
    const uint32_t lane = threadIdx.x % kWarp;
    const bool is_f8 = strip.kind & kStripF8;
    const bool by_row = strip.kind & kStripByRow;
    const uint32_t first = (tile >> (strip.kind >> kStripShift)) * LK_TILE_TOKENS;
    const uint32_t index = first + (by_row ? lane / 8 * 4 : lane % 4 * 4);
    const uint32_t offset = is_f8 ? index : 2 * index;
    uint2 ranges = load_four(strip.ranges + offset, is_f8);
    uint2 minima = load_four(strip.minima + offset, is_f8);
    if (by_row) {
        const uint32_t range = lane / 4 % 2 ? ranges.y : ranges.x;
        const uint32_t minimum = lane / 4 % 2 ? minima.y : minima.x;
        ranges = make_uint2(__byte_perm(range, 0, 0x1010), __byte_perm(range, 0, 0x3232));
        minima = make_uint2(__byte_perm(minimum, 0, 0x1010), __byte_perm(minimum, 0, 0x3232));
    }
    return {ranges, minima};
}
__device__ __forceinline__ TileParameters load_parameters(const StripCodes &strip, uint32_t tile) {
    TileParameters parameters = load_ranges(strip, tile);
    const uint32_t step = __byte_perm(strip.step, 0, 0x1010);
    const uint32_t rest = __byte_perm(strip.step, 0, 0x3232);
    parameters.steps.x = find_step(step, rest, parameters.steps.x, parameters.minima.x);
    parameters.steps.y = find_step(step, rest, parameters.steps.y, parameters.minima.y);
    return parameters;
}
template <bool kByRow>
__device__ __forceinline__ void scale_tile(const TileParameters &by, uint32_t (&a)[4]) {
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) {
        const bool is_second = kByRow ? r % 2 : r / 2;
        a[r] =
            fused(a[r], is_second ? by.steps.y : by.steps.x, is_second ? by.minima.y : by.minima.x);
    }
}
// Codes become values where each tile has parameters of its own.
__device__ __forceinline__ void scale_tiles(const StripCodes &strip, uint32_t first_tile, Quad &a) {
    const uint32_t last = strip.kind & kStripIsShort ? 1 : kQuadTiles - 1;
    const bool in_pairs = strip.kind >> kStripShift;  // of tiles that share their parameters
    TileParameters parameters;
#pragma unroll
    for (uint32_t t = 0; t < kQuadTiles; ++t) {
        if (t % 2 == 0 || !in_pairs)
            parameters = load_parameters(strip, first_tile + min(t, last));
        if (strip.kind & kStripByRow)
            scale_tile<true>(parameters, a[t]);
        else
            scale_tile<false>(parameters, a[t]);
    }
}

// The values of a quad of a strip without pairs that share. Tiles that the page does not have are
// of no use. parameters: of the quad, where its tiles share them.
__device__ __forceinline__ void unpack_quad(const StripCodes &strip, uint32_t quad,
                                            const TileParameters &parameters, Quad &a) {
    const uint32_t bits = strip.kind & kStripBits;
    if (bits == 16) {
        const uint32_t last = strip.kind & kStripIsShort ? 1 : kQuadTiles - 1;
        const uint32_t first = strip.words + 16 * (threadIdx.x % kWarp);
#pragma unroll
        for (uint32_t t = 0; t < kQuadTiles; ++t) {
            const uint4 four =
                load_shared4(first + (quad * kQuadTiles + min(t, last)) * kTileBytes);
            a[t][0] = four.x, a[t][1] = four.y, a[t][2] = four.z, a[t][3] = four.w;
        }
        return;
    }
    if (bits == 2)
        load_codes<2>(strip, quad, a);
    else if (bits == 4)
        load_codes<4>(strip, quad, a);
    else if (bits == 8)
        load_codes<8>(strip, quad, a);
    else if (bits == 3)
        load_codes<3>(strip, quad, a);
    else
        load_codes<1>(strip, quad, a);
    if (strip.kind & kStripChanges) {
        scale_tiles(strip, quad * kQuadTiles, a);
        return;
    }
#pragma unroll
    for (uint32_t t = 0; t < kQuadTiles; ++t)
        scale_tile<false>(parameters, a[t]);
}

// A lane's channels of a strip with pairs that share a stored channel: two of the lower and two of
// the upper half. A partner has one bit, and the highest of an outlier's three lies with its
// partner.
struct SharedChannels {
    uint32_t masks[2];  // of the codes of two channels, at bit 0
    uint32_t steps[2];
    uint32_t rests[2];
    uint32_t tops[2];      // where two channels have a third bit, at bits of a word of codes
    uint32_t partners[4];  // of the outliers: the shared address of their words
    uint32_t shifts[4];    // down to the highest bits

    __device__ __forceinline__ SharedChannels(const StripCodes &strip, uint32_t n_shared,
                                              uint32_t page_tokens) {
        const uint32_t lane = threadIdx.x % kWarp;
        const uint32_t bytes = strip_bytes(page_tokens, 2);
        const uint32_t plane = strip.words - strip.more / LK_STRIP_CHANNELS * bytes;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t slot = strip.more + LK_TILE_K(lane, i / 2 * 2) + i % 2;
            const bool is_partner = slot < n_shared;
            const bool is_outlier = !is_partner && slot < 2 * n_shared;
            const uint32_t step = code_step_f16(is_partner ? 1 : is_outlier ? 3 : 2);
            const uint32_t partner = is_outlier ? slot - n_shared : 0;
            const uint32_t k = partner % LK_STRIP_CHANNELS;
            put(i, is_partner ? 1 : 3, masks);
            put(i, step & 0xFFFFu, steps);
            put(i, step >> 16, rests);
            put(i, is_outlier ? 0x0505u : 0, tops);
            partners[i] = plane + partner / LK_STRIP_CHANNELS * bytes +
                          strip.lane_bytes * LK_TILE_LANE(lane / 4, k);
            shifts[i] = 16 * LK_TILE_HALF(k) + k / 8 * 4 + 1;
        }
    }

  private:
    static __device__ __forceinline__ void put(uint32_t i, uint32_t x, uint32_t (&to)[2]) {
        to[i / 2] = i % 2 ? to[i / 2] | x << 16 : x;
    }
};

// The values of a quad of such a strip.
__device__ __forceinline__ void unpack_shared_quad(const StripCodes &strip,
                                                   const SharedChannels &lane, uint32_t quad,
                                                   Quad &a) {
    const bool is_short = strip.kind & kStripIsShort;
    const bool by_row = strip.kind & kStripByRow;
    uint32_t words[2];
    load_words<2>(strip.words + threadIdx.x % kWarp * strip.lane_bytes, quad, is_short, words);
    uint32_t partners[4][2];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
        load_words<2>(lane.partners[i], quad, is_short, partners[i]);
    uint32_t steps[4];  // of the registers of a tile
    uint32_t minima[4];
#pragma unroll
    for (uint32_t t = 0; t < kQuadTiles; ++t) {
        if (t == 0 || strip.kind & kStripChanges) {
            const TileParameters of_tile =
                load_ranges(strip, quad * kQuadTiles + (is_short ? min(t, 1u) : t));
#pragma unroll
            for (uint32_t r = 0; r < 4; ++r) {
                const bool is_second = by_row ? r % 2 : r / 2;
                minima[r] = is_second ? of_tile.minima.y : of_tile.minima.x;
                steps[r] = find_step(lane.steps[r / 2], lane.rests[r / 2],
                                     is_second ? of_tile.steps.y : of_tile.steps.x, minima[r]);
            }
        }
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r) {
            const uint32_t pair = r / 2;
            const uint32_t bit = first_bit(2, t) + 8 * (r % 2);
            // The highest bits of two channels, where codes of both have theirs.
            const uint32_t top =
                __byte_perm(partners[2 * pair][t / 2] >> lane.shifts[2 * pair],
                            partners[2 * pair + 1][t / 2] >> lane.shifts[2 * pair + 1], 0x5410) &
                lane.tops[pair];
            const uint32_t code =
                masked_or(words[t / 2] >> (4 * pair + bit), lane.masks[pair], kTwo1024);
            const uint32_t above = masked_or(top << 2 >> bit, 0x40004u, code);
            a[t][r] = fused(lowered(above, 0), steps[r], minima[r]);
        }
    }
}

}  // namespace cuda
}  // namespace lk

#endif
