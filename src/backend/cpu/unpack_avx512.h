// Codes of long strips as FP32, by AVX-512.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_UNPACK_AVX512_H
#define LK_BACKEND_CPU_UNPACK_AVX512_H

#include "backend/cpu/lanes_tmpl.h"

#if defined(__AVX512BW__)

namespace lk {
namespace cpu {
namespace {

// Registers of 4 lanes (one g) to 16 k of row g, then 16 k of row g + 8.
LK_INLINE __m512i raw_order() {
    alignas(64) uint16_t index[32];
    for (uint32_t j = 0; j < 32; ++j) {
        const uint32_t k = j & 15u;
        index[j] =
            static_cast<uint16_t>(((k & 7u) >> 1) * 8 + ((k >> 3) * 2 + (j >> 4)) * 2 + (k & 1u));
    }
    return _mm512_load_si512(index);
}

// 16 codes of 2 bits and more, as [t][word], to [word][t].
LK_INLINE __m512 codes_by_word(__m512i codes) {
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_cvtepi32_ps(_mm512_permutexvar_epi32(order, codes));
}

// Four vectors [word][t] of (k part, odd) to one vector of 16 k for each word.
LK_INLINE void gather_words(const __m512 *v, __m512 *rows) {
    const __m512 ab_low = _mm512_unpacklo_ps(v[0], v[1]);   // even, odd of k 0..7: t 0, 1
    const __m512 ab_high = _mm512_unpackhi_ps(v[0], v[1]);  // t 2, 3
    const __m512 cd_low = _mm512_unpacklo_ps(v[2], v[3]);
    const __m512 cd_high = _mm512_unpackhi_ps(v[2], v[3]);
    const __m512 ab01 = _mm512_shuffle_f32x4(ab_low, ab_high, 0x44);  // w0 w1 | w0 w1
    const __m512 ab23 = _mm512_shuffle_f32x4(ab_low, ab_high, 0xEE);
    const __m512 cd01 = _mm512_shuffle_f32x4(cd_low, cd_high, 0x44);
    const __m512 cd23 = _mm512_shuffle_f32x4(cd_low, cd_high, 0xEE);
    rows[0] = _mm512_shuffle_f32x4(ab01, cd01, 0x88);
    rows[1] = _mm512_shuffle_f32x4(ab01, cd01, 0xDD);
    rows[2] = _mm512_shuffle_f32x4(ab23, cd23, 0x88);
    rows[3] = _mm512_shuffle_f32x4(ab23, cd23, 0xDD);
}

// Bytes [t][word][field, field of k + 1] of 4 lanes of one g to 16 k of four rows, [word /
// 2][field]: those of a row into four words, the words to the row, and k in order.
LK_INLINE __m512i rows_of_bytes(__m512i words) {
    const __m512i fields =
        _mm512_broadcast_i32x4(_mm_set_epi8(15, 13, 11, 9, 14, 12, 10, 8, 7, 5, 3, 1, 6, 4, 2, 0));
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i k_order =
        _mm512_broadcast_i32x4(_mm_set_epi8(15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0));
    const __m512i by_row = _mm512_permutexvar_epi32(order, _mm512_shuffle_epi8(words, fields));
    return _mm512_shuffle_epi8(by_row, k_order);
}

// As unpack_wide_strip(), of 8 bits.
inline void unpack_byte_strip(const uint8_t *strip, uint32_t page_tokens, const StripScale &scale,
                              const StripTarget &to) {
    const __m512 steps = _mm512_load_ps(scale.steps);
    const __m512 minima = _mm512_load_ps(scale.minima);
    for (uint32_t v = 0; v < page_tokens / 32; ++v)
        for (uint32_t g = 0; g < 8; ++g) {
            const __m512i rows = rows_of_bytes(_mm512_loadu_si512(strip + (v * 8 + g) * 64));
            const __m128i bytes[4] = {
                _mm512_castsi512_si128(rows), _mm512_extracti32x4_epi32(rows, 1),
                _mm512_extracti32x4_epi32(rows, 2), _mm512_extracti32x4_epi32(rows, 3)};
            for (uint32_t i = 0; i < 4; ++i) {
                const __m512 codes = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes[i]));
                _mm512_storeu_ps(
                    to.data + (2 * v + i / 2) * to.tile_stride + (g + 8 * (i & 1u)) * to.row_stride,
                    _mm512_fmadd_ps(codes, steps, minima));
            }
        }
}

// A strip whose lanes have 4 words or more: 4 words of the 4 lanes of one g at a time.
template <uint32_t kBits>
inline void unpack_wide_strip(const uint8_t *strip, uint32_t page_tokens, const StripScale &scale,
                              const StripTarget &to) {
    constexpr uint32_t kSteps = kBits == 4 ? 2 : 3;
    constexpr uint32_t kFields = 16 / kBits;
    constexpr uint32_t kHigh = 1u << (kSteps - 2);
    const uint32_t n_vectors = page_tokens * kBits / 256;
    const __m512i mask = _mm512_set1_epi32((1 << kBits) - 1);
    const __m512 steps = _mm512_load_ps(scale.steps);
    const __m512 minima = _mm512_load_ps(scale.minima);
    for (uint32_t v = 0; v < n_vectors; ++v)
        for (uint32_t g = 0; g < 8; ++g) {
            const __m512i words = _mm512_loadu_si512(strip + (v * 8 + g) * 64);
            // Fields in pairs of equal row: register bit 1 (k + 8) is field bit kSteps - 2.
            for (uint32_t field = 0; field < kFields; ++field) {
                if (field & kHigh)
                    continue;
                const auto low = static_cast<uint32_t>(kBits * field);
                const auto high = static_cast<uint32_t>(kBits * (field | kHigh));
                __m512 part[4];
                __m512 rows[4];
                part[0] = codes_by_word(_mm512_and_si512(_mm512_srli_epi32(words, low), mask));
                part[1] = codes_by_word(_mm512_and_si512(_mm512_srli_epi32(words, low + 16), mask));
                part[2] = codes_by_word(_mm512_and_si512(_mm512_srli_epi32(words, high), mask));
                part[3] =
                    codes_by_word(_mm512_and_si512(_mm512_srli_epi32(words, high + 16), mask));
                gather_words(part, rows);
                for (uint32_t w = 0; w < 4; ++w) {
                    const uint32_t position = unfold(4 * v + w, field, kSteps);
                    float *at = to.data + (position >> 2) * to.tile_stride +
                                (g + 8 * (position & 1u)) * to.row_stride;
                    _mm512_storeu_ps(at, _mm512_fmadd_ps(rows[w], steps, minima));
                }
            }
        }
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif

#endif
