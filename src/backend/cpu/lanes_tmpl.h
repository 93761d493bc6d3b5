// How the lanes of a strip hold its codes (docs/FORMAT.md).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_LANES_TMPL_H
#define LK_BACKEND_CPU_LANES_TMPL_H

#include "backend/cpu/simd.h"

namespace lk {
namespace cpu {
namespace {

// Each 16-bit half of a word has 16 / kBits codes, fields. The bits of a field's number are a row,
// a half of k and tiles.
template <uint32_t kBits>
struct Fields {
    static constexpr uint32_t kSteps = kBits == 8 ? 1 : kBits == 4 ? 2 : kBits == 2 ? 3 : 4;
    static constexpr uint32_t kCount = 16 / kBits;
    // Without the row's bit (the highest) and, below 8 bits, without the bit of k + 8 below it.
    static constexpr uint32_t kRowBit = kCount / 2;
    static constexpr uint32_t kKBit = kBits == 8 ? 0 : kCount / 4;
    static constexpr uint32_t kTileBits = kBits <= 2 ? 4 / kBits : 1;  // values of what remains
    static constexpr uint32_t kSums = 2 * kTileBits;                   // [row bit][tile bits]
    static constexpr uint32_t kFactorFields = kCount / 2;              // [k bit][tile bits]

    // The field, of the first 8 channels, whose products a sum gets.
    static constexpr uint32_t field_of(uint32_t sum) {
        return (sum / kTileBits ? kRowBit : 0) | sum % kTileBits;
    }
};

// Call `call` with the words that a lane has in a chunk as a constant: 4, or all of its words.
// Pages have 32 to 128 tokens, from 64 on at 1 bit.
template <uint32_t kBits, class Call>
LK_INLINE void with_lane_words(uint32_t page_tokens, Call call) {
    const uint32_t n = page_tokens * kBits / 64;
    if constexpr (kBits != 1)
        if (n >= 4)
            return call(std::integral_constant<uint32_t, 4>());
    if constexpr (kBits <= 2)
        if (n == 1)
            return call(std::integral_constant<uint32_t, 1>());
    if constexpr (kBits < 8)
        call(std::integral_constant<uint32_t, 2>());
}

// Call `call` with a plane's bits, 1, 2, 4 or 8, as a constant.
template <class Call>
LK_INLINE void with_width(uint32_t bits, Call call) {
    if (bits == 1)
        call(std::integral_constant<uint32_t, 1>());
    else if (bits == 2)
        call(std::integral_constant<uint32_t, 2>());
    else if (bits == 4)
        call(std::integral_constant<uint32_t, 4>());
    else
        call(std::integral_constant<uint32_t, 8>());
}

// The tile of a word's field, whose bits below that of k are in reverse order.
template <uint32_t kBits>
constexpr uint32_t tile_of(uint32_t word, uint32_t tile_bits) {
    return kBits == 1   ? 4 * word + 2 * (tile_bits & 1u) + tile_bits / 2
           : kBits == 2 ? 2 * word + tile_bits
           : kBits == 4 ? word
                        : word / 2;
}

// 4 * tile + register of field f of word w.
LK_INLINE uint32_t unfold(uint32_t word, uint32_t field, uint32_t steps) {
    uint32_t low = 0;
    for (uint32_t s = 0; s < steps; ++s)
        low |= ((field >> (steps - 1 - s)) & 1u) << s;
    return (word << steps) | low;
}

// value = minimum + code * step, with a step for each k: of a strip of keys its channels in each
// group of tokens, of values their tokens.
struct StripScale {
    alignas(64) float steps[LK_MAX_PAGE_TOKENS];
    alignas(64) float minima[LK_MAX_PAGE_TOKENS];
    uint32_t first[LK_MAX_PAGE_TOKENS / 16];  // of a tile's 16 k
};

// Where the elements of a strip go.
struct StripTarget {
    float *data;  // element (0, 0) of tile 0
    int64_t row_stride;
    int64_t tile_stride;
};

// The words of the 4 lanes of one g, from [t][word] to [word][t].
template <uint32_t kWords>
LK_INLINE void load_lane_words(const uint8_t *lanes, Vu4 *words) {
    for (uint32_t i = 0; i < kWords; ++i)
        words[i] = load<Vu4>(lanes + 16 * i);
    if constexpr (kWords == 4)
        transpose4(words);
    if constexpr (kWords == 2) {
        const Vu4 low = __builtin_shufflevector(words[0], words[1], 0, 2, 4, 6);
        words[1] = __builtin_shufflevector(words[0], words[1], 1, 3, 5, 7);
        words[0] = low;
    }
}

// The reverse, for each row of a chunk: [row][t][word].
template <uint32_t kWords>
LK_INLINE void store_lane_words(Vu4 *words, uint32_t *lanes) {
    if constexpr (kWords == 4)
        transpose4(words);
    if constexpr (kWords == 2) {
        const Vu4 low = __builtin_shufflevector(words[0], words[1], 0, 4, 1, 5);
        words[1] = __builtin_shufflevector(words[0], words[1], 2, 6, 3, 7);
        words[0] = low;
    }
    for (uint32_t i = 0; i < 4; ++i)
        store(lanes + 4 * i, words[i % kWords]);
}

// A row's 16 k: two integers of 16 bits in each word, k 0 to 7 and k 8 to 15.
struct RowWords {
    Vu4 low;
    Vu4 high;
};

// Integers of 16 bits, without sign, as floats.
LK_INLINE void convert_row_words(const RowWords &row, Vf *out) {
#if LK_SIMD_WIDTH == 4
    const RowWords even = {row.low & 0xFFFFu, row.high & 0xFFFFu};
    const RowWords odd = {row.low >> 16, row.high >> 16};
    out[0] = to_floats(__builtin_shufflevector(even.low, odd.low, 0, 4, 1, 5));
    out[1] = to_floats(__builtin_shufflevector(even.low, odd.low, 2, 6, 3, 7));
    out[2] = to_floats(__builtin_shufflevector(even.high, odd.high, 0, 4, 1, 5));
    out[3] = to_floats(__builtin_shufflevector(even.high, odd.high, 2, 6, 3, 7));
#elif LK_SIMD_WIDTH == 8
    out[0] = to_floats(__builtin_convertvector(Vh(row.low), Vu));
    out[1] = to_floats(__builtin_convertvector(Vh(row.high), Vu));
#else
    // One vector of both in registers: a load from two stores would wait for them.
    const Vh all = Vh(__builtin_shufflevector(row.low, row.high, 0, 1, 2, 3, 4, 5, 6, 7));
    out[0] = to_floats(__builtin_convertvector(all, Vu));
#endif
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
