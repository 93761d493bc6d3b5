// Attention of many columns: codes of a packed page in shared memory become FP16 tiles.
//
// Strips of the common kinds have a path of their own: codes are FP16 subnormals as they lie, so a
// value takes a mask, a conversion and one multiply-add, shared by the block's columns. values.cuh
// does the others.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_TILE_UNPACK_CUH
#define LK_CUDA_TILE_UNPACK_CUH

#include "fragment.cuh"
#include "tile_pages.cuh"

namespace lk {
namespace cuda {

// A strip of the page under way.
struct StripInfo {
    StripPlace place;
    uint32_t first_number;  // index of the range of the strip's first tile
    uint32_t number_shift;  // log2 of the tiles that share their ranges
    uint32_t is_plain;      // 2, 4 or 8 bits, no shared slots, ranges along k
};

__device__ inline StripInfo describe_strip(const ClassInfo &c, uint32_t strip) {
    StripInfo info;
    info.place = find_strip(c, strip);
    const uint32_t bits = info.place.bits;
    const bool by_row = c.is_token_axis && !c.is_value;
    info.is_plain = (bits == 8 || bits == 4 || (bits == 2 && !c.n_shared)) && !by_row;
    info.first_number = c.is_token_axis ? strip * LK_STRIP_CHANNELS / c.group * c.page_tokens
                                        : strip * c.n_groups * LK_STRIP_CHANNELS;
    info.number_shift = 0;
    while (!c.is_token_axis && LK_TILE_TOKENS << info.number_shift < c.group)
        ++info.number_shift;
    return info;
}

// Values of two codes, which lie `code` times 2^-24 in the halves of a register.
__device__ __forceinline__ uint32_t scale_pair(uint32_t codes, float low_step, float high_step,
                                               float low_minimum, float high_minimum) {
    const __half2 pair = as_half2(codes);
    const __half2 values = __floats2half2_rn(fmaf(__low2float(pair), low_step, low_minimum),
                                             fmaf(__high2float(pair), high_step, high_minimum));
    return as_word(__hmin2(values, as_half2(0x7BFF7BFFu)));
}

template <uint32_t kBits>
__device__ __forceinline__ void unpack_plain(const ClassInfo &c, const StripInfo &info,
                                             const uint8_t *payload, const uint8_t *metadata,
                                             uint32_t tile, uint32_t lane, uint32_t (&a)[4]) {
    const uint8_t *strip = payload + info.place.offset;
    const uint32_t index =
        info.first_number + (tile >> info.number_shift) * LK_STRIP_CHANNELS + 4 * (lane % 4);
    float steps[4];
    float minima[4];
    load_numbers(metadata, c.number_bytes, index, steps);
    load_numbers(metadata + c.minima_offset, c.number_bytes, index, minima);
    const uint32_t n_words = c.page_tokens * kBits / 64;
    // Fields of R0 and R1 begin at this bit of a byte; those of R2 and R3 of 8 bits too.
    const uint32_t bit = kBits == 2 ? 2 * (tile % 2) : 0;
    constexpr uint32_t kUpper = kBits == 8 ? 0 : 4;
    const float unit = code_step(kBits) * 0x1p24f;
    const float lower = kBits == 2 && bit ? unit * 0.25f : unit;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        steps[i] *= i < 2 ? lower : lower / (1 << kUpper);
    const uint32_t mask = ((1u << kBits) - 1) * 0x10001u << bit;
    uint32_t low;
    uint32_t high;
    if (kBits == 8) {
        low = load_word(strip, n_words, lane, 2 * tile);
        high = load_word(strip, n_words, lane, 2 * tile + 1);
    } else {
        low = load_word(strip, n_words, lane, tile * kBits / 4);
        high = low;
    }
    a[0] = scale_pair(low & mask, steps[0], steps[1], minima[0], minima[1]);
    a[1] = scale_pair(low >> 8 & mask, steps[0], steps[1], minima[0], minima[1]);
    a[2] = scale_pair(high & mask << kUpper, steps[2], steps[3], minima[2], minima[3]);
    a[3] = scale_pair(high >> 8 & mask << kUpper, steps[2], steps[3], minima[2], minima[3]);
}

__device__ __forceinline__ void store_tile(uint8_t *to, uint32_t lane, const uint32_t (&a)[4]) {
    *reinterpret_cast<uint4 *>(to + 16 * lane) = make_uint4(a[0], a[1], a[2], a[3]);
}

// Both tiles are made before one is stored, so that their loads wait together.
template <class F>
__device__ __forceinline__ void make_round(uint32_t first_tile, uint8_t *to, F make) {
    const uint32_t lane = threadIdx.x % kWarp;
    uint32_t a[kRoundTiles][4];
#pragma unroll
    for (uint32_t t = 0; t < kRoundTiles; ++t)
        make(first_tile + t, lane, a[t]);
#pragma unroll
    for (uint32_t t = 0; t < kRoundTiles; ++t)
        store_tile(to + t * kTileBytes, lane, a[t]);
}

template <uint32_t kBits>
__device__ __forceinline__ void unpack_plain_round(const HalfView &half, const StripInfo &info,
                                                   const uint8_t *payload, const uint8_t *metadata,
                                                   uint32_t first_tile, uint8_t *to) {
    make_round(first_tile, to, [&](uint32_t tile, uint32_t lane, uint32_t(&a)[4]) {
        unpack_plain<kBits>(half.info, info, payload, metadata, tile, lane, a);
    });
}

// Any strip, also one that is read from where the page lies.
template <bool kIsValue>
__device__ __forceinline__ void unpack_any_round(const HalfView &half, const StripInfo &info,
                                                 const uint8_t *payload, const uint8_t *metadata,
                                                 uint32_t strip, uint32_t first_tile, uint8_t *to) {
    for (uint32_t t = 0; t < kRoundTiles; ++t) {
        const uint32_t lane = threadIdx.x % kWarp;
        uint32_t a[4];
        load_values<kIsValue>(half.info, info.place, payload, metadata, strip, first_tile + t, lane,
                              a);
        store_tile(to + t * kTileBytes, lane, a);
    }
}

// Two tiles of a strip. page: the block's copy of packed pages.
template <bool kIsValue>
__device__ __forceinline__ void unpack_strip(const HalfView &half, const StripInfo &info,
                                             const uint8_t *page, uint32_t strip,
                                             uint32_t first_tile, uint8_t *to) {
    const uint8_t *payload = page + half.copy_offset;
    const uint8_t *metadata = payload + half.info.payload_bytes;
    const uint32_t bits = info.place.bits;
    const bool is_distant = half.source == Source::kDistant;
    if (is_distant || !info.is_plain)
        unpack_any_round<kIsValue>(half, info, is_distant ? half.payload : payload,
                                   is_distant ? half.metadata : metadata, strip, first_tile, to);
    else if (bits == 2)
        unpack_plain_round<2>(half, info, payload, metadata, first_tile, to);
    else if (bits == 4)
        unpack_plain_round<4>(half, info, payload, metadata, first_tile, to);
    else
        unpack_plain_round<8>(half, info, payload, metadata, first_tile, to);
}

}  // namespace cuda
}  // namespace lk

#endif
