// From a page to values: 16 x 16 tiles of FP16 values in the order of A fragments, of every page
// format.
//
// A tile's registers are R0 .. R3 of fragment.cuh: tokens are the rows of keys and channels their
// k, channels are the rows of values and tokens their k. Pointers may be global or shared.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DEQUANTIZE_CUH
#define LK_CUDA_DEQUANTIZE_CUH

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/types.h"
#include "format/rules.h"

#ifdef __CUDA_ARCH__
#define LK_UNROLL _Pragma("unroll")
#else
#define LK_UNROLL  // the host's compiler does not know it
#endif

namespace lk {
namespace cuda {

LK_BOTH Metadata metadata_of(const FormatInfo &c) {
    return c.parameter_bytes == bytes_of_parameter(Metadata::kF8) ? Metadata::kF8 : Metadata::kF16;
}

LK_BOTH uint32_t load_word(const uint8_t *strip, uint32_t n_words, uint32_t lane, uint32_t word) {
    return reinterpret_cast<const uint32_t *>(strip)[strip_word_index(n_words, lane, word)];
}

// A tile's codes of 1, 2, 4 or 8 bits, in the low bits of the two FP16 numbers of each register.
LK_BOTH void load_codes(const uint8_t *strip, uint32_t page_tokens, uint32_t bits, uint32_t tile,
                        uint32_t lane, uint32_t codes[4]) {
    const uint32_t n_words = lane_words(page_tokens, bits);
    const uint32_t mask = ((1u << bits) - 1) * 0x10001u;
    if (bits == 8) {
        const uint32_t low = load_word(strip, n_words, lane, 2 * tile);
        const uint32_t high = load_word(strip, n_words, lane, 2 * tile + 1);
        codes[0] = low & mask;
        codes[1] = (low >> 8) & mask;
        codes[2] = high & mask;
        codes[3] = (high >> 8) & mask;
        return;
    }
    // 4 / bits tiles share a word; this one's fields start here.
    const uint32_t first_bit = bits == 4   ? 0
                               : bits == 2 ? 2 * (tile & 1)
                                           : ((tile & 1) << 1) | ((tile >> 1) & 1);
    const uint32_t word = load_word(strip, n_words, lane, tile * bits / 4) >> first_bit;
    codes[0] = word & mask;
    codes[1] = (word >> 8) & mask;
    codes[2] = (word >> 4) & mask;
    codes[3] = (word >> 12) & mask;
}

// Parameters index .. index + 3 of an array of ranges or minima; index is a multiple of 4.
LK_BOTH void load_parameters(const uint8_t *array, uint32_t parameter_bytes, uint32_t index,
                             float parameters[4]) {
    if (parameter_bytes == bytes_of_parameter(Metadata::kF8)) {
        const uint32_t word = *reinterpret_cast<const uint32_t *>(array + index);
        LK_UNROLL
        for (uint32_t i = 0; i < 4; ++i)
            parameters[i] = f8_to_float((word >> (8 * i)) & 0xFFu);
        return;
    }
    const uint2 words = *reinterpret_cast<const uint2 *>(array + 2 * index);
    parameters[0] = half_to_float(words.x & 0xFFFFu);
    parameters[1] = half_to_float(words.x >> 16);
    parameters[2] = half_to_float(words.y & 0xFFFFu);
    parameters[3] = half_to_float(words.y >> 16);
}

// The parameters that a lane needs of a tile: [0], [1] for the lower, [2], [3] for the upper 8 of
// k. A range per token of keys changes with the row instead: [0] is row lane / 4, [1] is row + 8.
struct TileScale {
    float range[4];
    float minimum[4];
};

LK_BOTH bool scales_by_row(const FormatInfo &c, bool is_value) {
    return !is_value && c.is_token_axis;
}

LK_BOTH TileScale load_scale(const FormatInfo &c, bool is_value, const uint8_t *metadata,
                             uint32_t strip, uint32_t tile, uint32_t lane) {
    const uint32_t first =
        c.is_token_axis
            ? strip * LK_STRIP_CHANNELS / c.group * c.page_tokens + tile * LK_TILE_TOKENS
            : (strip * c.n_groups + tile * LK_TILE_TOKENS / c.group) * LK_STRIP_CHANNELS;
    const uint8_t *minima = metadata + c.minima_offset;
    TileScale scale;
    if (!scales_by_row(c, is_value)) {
        load_parameters(metadata, c.parameter_bytes, first + 4 * (lane % 4), scale.range);
        load_parameters(minima, c.parameter_bytes, first + 4 * (lane % 4), scale.minimum);
        return scale;
    }
    // Two rows' parameters lie together; a load of four has them in its lower or its upper half.
    const uint32_t index = first + 2 * (lane / 4);
    const uint32_t at = index % 4;
    load_parameters(metadata, c.parameter_bytes, index - at, scale.range);
    load_parameters(minima, c.parameter_bytes, index - at, scale.minimum);
    if (at) {
        LK_UNROLL
        for (uint32_t i = 0; i < 2; ++i) {
            scale.range[i] = scale.range[i + 2];
            scale.minimum[i] = scale.minimum[i + 2];
        }
    }
    return scale;
}

// The conversion of small integers by their position in a mantissa: an integer unit's, at full
// rate.
LK_BOTH float code_value(uint32_t code) {
    const uint32_t bits = 0x4B000000u | code;  // 2^23 + code
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits) - 8388608.0f;
#else
    return static_cast<float>(bits & 0xFFu);
#endif
}

LK_BOTH float dequantize(uint32_t code, float minimum, float step) {
    return minimum + multiply_exact(code_value(code), step);
}

// Values do not lie below their minimum, so that only the upper end of FP16 is in reach.
LK_BOTH uint32_t round_values(float low, float high) {
    const float top = 65504.0f;
    const __half2 pair = __floats2half2_rn(low < top ? low : top, high < top ? high : top);
    return static_cast<uint32_t>(__half_as_ushort(__low2half(pair))) |
           static_cast<uint32_t>(__half_as_ushort(__high2half(pair))) << 16;
}

// Registers of codes become registers of values.
template <bool kByRow>
LK_BOTH void scale_codes(const TileScale &scale, uint32_t bits, uint32_t codes[4]) {
    float steps[4];
    LK_UNROLL
    for (uint32_t i = 0; i < (kByRow ? 2 : 4); ++i)
        steps[i] = multiply_exact(scale.range[i], code_step(bits));
    LK_UNROLL
    for (uint32_t r = 0; r < 4; ++r) {
        const uint32_t low = kByRow ? r % 2 : r / 2 * 2;
        const uint32_t high = kByRow ? r % 2 : low + 1;
        codes[r] = round_values(dequantize(codes[r] & 0xFFFFu, scale.minimum[low], steps[low]),
                                dequantize(codes[r] >> 16, scale.minimum[high], steps[high]));
    }
}

// Shared slots: pairs of a 1-bit partner and a 3-bit outlier, whose highest bit lies with the
// partner. slot counts in the 2-bit plane, which starts at `plane`.
LK_BOTH uint32_t shared_bits(const FormatInfo &c, uint32_t slot) {
    return slot >= 2u * c.n_shared ? 2 : slot < c.n_shared ? 1 : 3;
}
LK_BOTH uint32_t shared_code(const FormatInfo &c, const uint8_t *plane, uint32_t slot,
                             uint32_t tile, uint32_t row, uint32_t field) {
    const uint32_t bits = shared_bits(c, slot);
    if (bits != 3)
        return bits == 1 ? field & 1u : field;
    const uint32_t partner = slot - c.n_shared;
    const uint32_t k = partner % LK_STRIP_CHANNELS;
    uint32_t codes[4];
    load_codes(plane + partner / LK_STRIP_CHANNELS * (4u * c.page_tokens), c.page_tokens, 2, tile,
               LK_TILE_LANE(row, k), codes);
    const uint32_t word = k < 8 ? (row < 8 ? codes[0] : codes[1]) : (row < 8 ? codes[2] : codes[3]);
    return field | (((word >> (16 * LK_TILE_HALF(k))) & 2u) << 1);
}

// A tile of keys in a 2-bit plane with shared slots; codes are the fields of two bits.
LK_BOTH void scale_shared(const FormatInfo &c, const uint8_t *payload,
                          const StripPosition &position, const TileScale &scale, uint32_t tile,
                          uint32_t lane, uint32_t codes[4]) {
    const uint8_t *plane = payload + position.offset - position.in_plane * (4u * c.page_tokens);
    LK_UNROLL
    for (uint32_t r = 0; r < 4; ++r) {
        float values[2];
        LK_UNROLL
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t slot = position.in_plane * LK_STRIP_CHANNELS + LK_TILE_K(lane, r) + half;
            const uint32_t code = shared_code(c, plane, slot, tile, LK_TILE_ROW(lane, r),
                                              codes[r] >> (16 * half) & 3u);
            const uint32_t by_channel = r / 2 * 2 + half;
            const float range = c.is_token_axis ? scale.range[r % 2] : scale.range[by_channel];
            const float minimum =
                c.is_token_axis ? scale.minimum[r % 2] : scale.minimum[by_channel];
            values[half] =
                dequantize(code, minimum, multiply_exact(range, code_step(shared_bits(c, slot))));
        }
        codes[r] = round_values(values[0], values[1]);
    }
}

// The A fragment of (strip, tile): the values of section 8 of docs/FORMAT.md, rounded to FP16 as a
// dequantized page has them. position is find_strip(c, strip).
LK_BOTH void load_values(const FormatInfo &c, bool is_value, const StripPosition &position,
                         const uint8_t *payload, const uint8_t *metadata, uint32_t strip,
                         uint32_t tile, uint32_t lane, uint32_t a[4]) {
    const uint8_t *words = payload + position.offset;
    if (position.bits == 16) {
        const uint4 registers = reinterpret_cast<const uint4 *>(words)[tile * LK_LANES + lane];
        a[0] = registers.x;
        a[1] = registers.y;
        a[2] = registers.z;
        a[3] = registers.w;
        return;
    }
    const TileScale scale = load_scale(c, is_value, metadata, strip, tile, lane);
    load_codes(words, c.page_tokens, LK_LOW_BITS(position.bits), tile, lane, a);
    if (!is_value && position.bits == 2 && c.n_shared) {
        scale_shared(c, payload, position, scale, tile, lane, a);
        return;
    }
    if (position.bits == 3) {
        uint32_t high[4];
        load_codes(payload + position.high_offset, c.page_tokens, 1, tile, lane, high);
        LK_UNROLL
        for (uint32_t r = 0; r < 4; ++r)
            a[r] |= high[r] << 2;
    }
    if (scales_by_row(c, is_value))
        scale_codes<true>(scale, position.bits, a);
    else
        scale_codes<false>(scale, position.bits, a);
}

template <bool kIsValue>
LK_BOTH void load_values(const FormatInfo &c, const StripPosition &position, const uint8_t *payload,
                         const uint8_t *metadata, uint32_t strip, uint32_t tile, uint32_t lane,
                         uint32_t a[4]) {
    load_values(c, kIsValue, position, payload, metadata, strip, tile, lane, a);
}
template <bool kIsValue>
LK_BOTH void load_values(const FormatInfo &c, const uint8_t *payload, const uint8_t *metadata,
                         uint32_t strip, uint32_t tile, uint32_t lane, uint32_t a[4]) {
    load_values(c, kIsValue, find_strip(c, strip), payload, metadata, strip, tile, lane, a);
}

}  // namespace cuda
}  // namespace lk

#endif
