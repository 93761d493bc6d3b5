// Attention of many columns: codes of a packed page in shared memory become FP16 tiles.
//
// Strips of the common kinds have a path of their own: codes are FP16 subnormals as they lie, so a
// value takes a mask, a conversion and one multiply-add, shared by the columns of the thread block.
// dequantize.cuh does the others.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_UNPACK_CUH
#define LK_CUDA_PREFILL_UNPACK_CUH

#include "cuda/fragment.cuh"
#include "cuda/prefill/pages.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kMaxStrips = LK_MAX_PLAIN_DIM / LK_STRIP_CHANNELS;

// A strip of the page under way. Offsets are bytes into the thread block's copy of the page.
struct alignas(16) StripInfo {
    StripPosition position;
    uint32_t is_plain;  // copied; 2, 4 or 8 bits, no shared slots, ranges along k
    uint32_t words;
    uint32_t n_words;  // of a lane
    uint32_t parameter_bytes;
    uint32_t ranges;
    uint32_t minima;
    uint32_t parameter_shift;  // log2 of the tiles that share their ranges
    uint32_t reserved;
};

__device__ inline bool is_plain(const FormatInfo &c, uint32_t bits) {
    const bool by_row = c.is_token_axis && !c.is_value;
    return (bits == 8 || bits == 4 || (bits == 2 && !c.n_shared)) && !by_row;
}

__device__ inline StripInfo describe_strip(const PageView &page, uint32_t strip) {
    const FormatInfo &c = page.info;
    StripInfo info = {};
    if (page.source == Source::kStaged)
        return info;
    info.position = find_strip(c, strip);
    info.is_plain = page.source == Source::kCopied && is_plain(c, info.position.bits);
    info.words = page.copy_offset + info.position.offset;
    info.n_words = lane_words(c.page_tokens, info.position.bits);
    info.parameter_bytes = c.parameter_bytes;
    const uint32_t first_parameter = c.is_token_axis
                                         ? strip * LK_STRIP_CHANNELS / c.group * c.page_tokens
                                         : strip * c.n_groups * LK_STRIP_CHANNELS;
    info.ranges = page.copy_offset + c.payload_bytes + first_parameter * c.parameter_bytes;
    info.minima = info.ranges + c.minima_offset;
    while (!c.is_token_axis && LK_TILE_TOKENS << info.parameter_shift < c.group)
        ++info.parameter_shift;
    return info;
}

// Values of two codes; a register holds both as FP16 numbers code * 2^-24.
__device__ __forceinline__ uint32_t scale_pair(uint32_t codes, float low_step, float high_step,
                                               float low_minimum, float high_minimum) {
    const __half2 pair = as_half2(codes);
    const __half2 values = __floats2half2_rn(fmaf(__low2float(pair), low_step, low_minimum),
                                             fmaf(__high2float(pair), high_step, high_minimum));
    return as_word(__hmin2(values, as_half2(0x7BFF7BFFu)));
}

// A lane's words of a round of tiles lie together.
template <uint32_t kBits, uint32_t kRoundTiles>
__device__ __forceinline__ void load_round_words(const StripInfo &info, const uint8_t *page,
                                                 uint32_t first_tile,
                                                 uint32_t (&words)[kRoundTiles * 2]) {
    const uint32_t word = first_tile * kBits / 4;
    const uint32_t lane = threadIdx.x % kWarp;
    // strip_word_index(), from parts that compilers keep between rounds.
    const uint32_t index = info.n_words < LK_VECTOR_WORDS
                               ? lane * info.n_words + word
                               : word / LK_VECTOR_WORDS * (LK_LANES * LK_VECTOR_WORDS) +
                                     lane * LK_VECTOR_WORDS + word % LK_VECTOR_WORDS;
    const uint8_t *at = page + info.words + 4 * index;
    if constexpr (kRoundTiles == 1) {
        words[0] = words[1] = *reinterpret_cast<const uint32_t *>(at);
        if (kBits == 8)
            words[1] = *reinterpret_cast<const uint32_t *>(at + 4);
    } else if (kBits == 8) {
        const uint4 four = *reinterpret_cast<const uint4 *>(at);
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
    } else if (kBits == 4) {
        const uint2 two = *reinterpret_cast<const uint2 *>(at);
        words[0] = words[1] = two.x;
        words[2] = words[3] = two.y;
    } else {
        words[0] = words[1] = words[2] = words[3] = *reinterpret_cast<const uint32_t *>(at);
    }
}

struct PlainScale {
    float steps[4];  // of codes that lie 2^-24 times their value, at bit 0
    float minima[4];
};

template <uint32_t kBits>
__device__ __forceinline__ PlainScale load_plain_scale(const StripInfo &info, const uint8_t *page,
                                                       uint32_t tile) {
    const uint32_t index =
        (tile >> info.parameter_shift) * LK_STRIP_CHANNELS + threadIdx.x % kWarp % 4 * 4;
    PlainScale scale;
    load_parameters(page + info.ranges, info.parameter_bytes, index, scale.steps);
    load_parameters(page + info.minima, info.parameter_bytes, index, scale.minima);
#pragma unroll
    for (float &step : scale.steps)
        step *= code_step(kBits) * 0x1p24f;
    return scale;
}

// low has the codes of R0 and R1, high those of R2 and R3: in bytes of 8 bits, else in fields of
// the same word, from `bit` and from bit + 4 on.
template <uint32_t kBits>
__device__ __forceinline__ void unpack_plain(const PlainScale &scale, uint32_t low, uint32_t high,
                                             uint32_t bit, uint32_t (&a)[4]) {
    constexpr uint32_t kUpper = kBits == 8 ? 0 : 4;
    const uint32_t mask = ((1u << kBits) - 1) * 0x10001u << bit;
    const float lower = 1.0f / (1 << bit);
    const float upper = lower / (1 << kUpper);
    const float *steps = scale.steps;
    const float *minima = scale.minima;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
        a[i] = scale_pair(low >> 8 * i & mask, steps[0] * lower, steps[1] * lower, minima[0],
                          minima[1]);
        a[2 + i] = scale_pair(high >> 8 * i & mask << kUpper, steps[2] * upper, steps[3] * upper,
                              minima[2], minima[3]);
    }
}

__device__ __forceinline__ void store_tile(uint8_t *to, uint32_t lane, const uint32_t (&a)[4]) {
    *reinterpret_cast<uint4 *>(to + 16 * lane) = make_uint4(a[0], a[1], a[2], a[3]);
}

// All tiles are made before one is stored, so that their loads wait together.
template <uint32_t kRoundTiles, class F>
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

// codes, parameters: what the offsets of a strip count from.
template <uint32_t kBits, uint32_t kRoundTiles>
__device__ __forceinline__ void make_plain_round(const StripInfo &info, const uint8_t *codes,
                                                 const uint8_t *parameters, uint32_t first_tile,
                                                 uint32_t (&a)[kRoundTiles][4]) {
    uint32_t words[2 * kRoundTiles];
    load_round_words<kBits, kRoundTiles>(info, codes, first_tile, words);
    PlainScale scale = load_plain_scale<kBits>(info, parameters, first_tile);
#pragma unroll
    for (uint32_t t = 0; t < kRoundTiles; ++t) {
        if (t && !info.parameter_shift)
            scale = load_plain_scale<kBits>(info, parameters, first_tile + t);
        const uint32_t half = kRoundTiles == 1 ? first_tile % 2 : t;  // of a word of 2 bits
        unpack_plain<kBits>(scale, words[2 * t], words[2 * t + 1], kBits == 2 ? 2 * half : 0, a[t]);
    }
}

// A round of tiles of a plain strip.
template <uint32_t kRoundTiles>
__device__ __forceinline__ void make_plain_round(const StripInfo &info, const uint8_t *codes,
                                                 const uint8_t *parameters, uint32_t first_tile,
                                                 uint32_t (&a)[kRoundTiles][4]) {
    if (info.position.bits == 2)
        make_plain_round<2, kRoundTiles>(info, codes, parameters, first_tile, a);
    else if (info.position.bits == 4)
        make_plain_round<4, kRoundTiles>(info, codes, parameters, first_tile, a);
    else
        make_plain_round<8, kRoundTiles>(info, codes, parameters, first_tile, a);
}

// Any strip, also one that is read from where the page lies.
template <bool kIsValue, uint32_t kRoundTiles>
__device__ __forceinline__ void unpack_any_round(const PageView &page, const StripInfo &info,
                                                 const uint8_t *payload, const uint8_t *metadata,
                                                 uint32_t strip, uint32_t first_tile, uint8_t *to) {
    for (uint32_t t = 0; t < kRoundTiles; ++t) {
        const uint32_t lane = threadIdx.x % kWarp;
        uint32_t a[4];
        load_values<kIsValue>(page.info, info.position, payload, metadata, strip, first_tile + t,
                              lane, a);
        store_tile(to + t * kTileBytes, lane, a);
    }
}

// A round of tiles of a strip. page: the thread block's copy of packed pages.
template <uint32_t kRoundTiles>
__device__ __forceinline__ void unpack_plain_strip(const StripInfo &info, const uint8_t *page,
                                                   uint32_t first_tile, uint8_t *to) {
    const uint32_t lane = threadIdx.x % kWarp;
    uint32_t a[kRoundTiles][4];
    make_plain_round(info, page, page, first_tile, a);
#pragma unroll
    for (uint32_t t = 0; t < kRoundTiles; ++t)
        store_tile(to + t * kTileBytes, lane, a[t]);
}

template <bool kIsValue, uint32_t kRoundTiles>
__device__ __forceinline__ void unpack_strip(const PageView &page, const StripInfo &info,
                                             const uint8_t *copies, uint32_t strip,
                                             uint32_t first_tile, uint8_t *to) {
    const uint8_t *payload = copies + page.copy_offset;
    const bool is_distant = page.source == Source::kDistant;
    unpack_any_round<kIsValue, kRoundTiles>(
        page, info, is_distant ? page.payload : payload,
        is_distant ? page.metadata : payload + page.info.payload_bytes, strip, first_tile, to);
}

}  // namespace cuda
}  // namespace lk

#endif
