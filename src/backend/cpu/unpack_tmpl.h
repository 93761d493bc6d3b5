// A page as FP32: rows and k of its tiles, so keys as [token][stored] and values as
// [stored][token].
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_UNPACK_TMPL_H
#define LK_BACKEND_CPU_UNPACK_TMPL_H

#include "backend/cpu/simd.h"

namespace lk {
namespace cpu {
namespace {

// An unpacked page: element (row, k) at data[row * row_stride + k * k_stride].
struct Matrix {
    const float *data;
    int64_t row_stride;
    int64_t k_stride;
};

LK_INLINE float step_of(uint32_t bits) { return 1.0f / static_cast<float>((1u << bits) - 1); }
LK_INLINE uint32_t load_u32(const uint8_t *from) {
    uint32_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

// Parameters [n] as floats; n is a multiple of 16.
LK_INLINE void load_parameters(const PageView &view, const uint8_t *array, uint32_t first,
                               uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i += kWidth)
        store(out + i, view.parameter_bytes == 1
                           ? f8_to_floats(load<Vb>(array + first + i))
                           : halves_to_floats(load<Vh>(array + 2ull * (first + i))));
}

// The strip's 16 channels, natural order, of token group g (keys per channel).
inline void load_strip_parameters(const PageView &view, const uint8_t *array, uint32_t strip,
                                  uint32_t group, float *out) {
    float ordered[16];
    load_parameters(view, array, (strip * view.n_groups + group) * 16, 16, ordered);
    for (uint32_t k = 0; k < 16; ++k)
        out[k] = ordered[LK_K_ORDER(k)];
}

// All tokens of a channel group, natural order.
inline void load_token_parameters(const PageView &view, const uint8_t *array, uint32_t group,
                                  float *out) {
    float ordered[LK_MAX_PAGE_TOKENS];
    load_parameters(view, array, group * view.page_tokens, view.page_tokens, ordered);
    for (uint32_t t = 0; t < view.page_tokens; ++t)
        out[t] =
            ordered[(t & ~15u) + (view.is_value ? LK_K_ORDER(t & 15u) : LK_ROW_ORDER(t & 15u))];
}

// Of the channels of a strip: value = minimum + code * step.
struct StripScale {
    alignas(64) float steps[16];
    alignas(64) float minima[16];
};

// Are keys scaled strip by strip, most in registers? A page is more than the first cache holds, but
// where codes are unpacked one by one that does not matter.
#if defined(__AVX512F__)
constexpr bool kScalesStrips = true;
#else
constexpr bool kScalesStrips = false;
#endif

// Where the elements of a strip go.
struct StripTarget {
    float *data;  // element (0, 0) of tile 0
    int64_t row_stride;
    int64_t k_stride;
    int64_t tile_stride;
};

#if defined(__AVX512BW__)
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
#endif

inline void unpack_raw_tile(const uint8_t *tile, const StripTarget &to) {
#if defined(__AVX512BW__)
    const __m512i order = raw_order();
    for (uint32_t g = 0; g < 8; ++g) {
        const __m512i bits = _mm512_permutexvar_epi16(order, _mm512_loadu_si512(tile + 64 * g));
        _mm512_storeu_ps(to.data + g * to.row_stride,
                         _mm512_cvtph_ps(_mm512_castsi512_si256(bits)));
        _mm512_storeu_ps(to.data + (g + 8) * to.row_stride,
                         _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1)));
    }
#else
    alignas(64) float values[256];
    for (uint32_t i = 0; i < 256; i += kWidth)
        store(values + i, halves_to_floats(load<Vh>(tile + 2 * i)));
    for (uint32_t lane = 0; lane < LK_LANES; ++lane)
        for (uint32_t r = 0; r < LK_TILE_WORDS; ++r) {
            float *at = to.data + LK_TILE_ROW(lane, r) * to.row_stride + LK_TILE_K(lane, r);
            at[0] = values[lane * 8 + r * 2];
            at[1] = values[lane * 8 + r * 2 + 1];
        }
#endif
}

// 4 * tile + register of field f of word w.
LK_INLINE uint32_t unfold(uint32_t word, uint32_t field, uint32_t steps) {
    uint32_t low = 0;
    for (uint32_t s = 0; s < steps; ++s)
        low |= ((field >> (steps - 1 - s)) & 1u) << s;
    return (word << steps) | low;
}

#if defined(__AVX512F__)
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
#endif

// weight * code of every element of a strip, added to what is there when `add`.
inline void unpack_strip_words(const uint8_t *strip, uint32_t page_tokens, uint32_t bits,
                               float weight, bool add, const StripTarget &to) {
    const uint32_t n_words = page_tokens * bits / 64;
    const uint32_t steps = bits == 8 ? 1 : bits == 4 ? 2 : bits == 2 ? 3 : 4;
    const uint32_t mask = (1u << bits) - 1;
    for (uint32_t i = 0; i < n_words * LK_LANES; ++i) {
        const uint32_t lane = n_words < 4 ? i / n_words : i % 128 / 4;
        const uint32_t w = n_words < 4 ? i % n_words : i / 128 * 4 + i % 4;
        const uint32_t word = load_u32(strip + 4ull * i);
        for (uint32_t field = 0; field < 16 / bits; ++field) {
            const uint32_t position = unfold(w, field, steps);
            float *at = to.data + (position >> 2) * to.tile_stride +
                        LK_TILE_ROW(lane, position & 3u) * to.row_stride +
                        LK_TILE_K(lane, position & 3u);
            const float even = weight * static_cast<float>((word >> (bits * field)) & mask);
            const float odd = weight * static_cast<float>((word >> (16 + bits * field)) & mask);
            at[0] = add ? at[0] + even : even;
            at[1] = add ? at[1] + odd : odd;
        }
    }
}

// Returns whether the codes are scaled, or are left as they are.
inline bool unpack_strip_codes(const uint8_t *strip, uint32_t page_tokens, uint32_t bits,
                               const StripScale *scale, const StripTarget &to) {
#if defined(__AVX512F__)
    constexpr StripScale kNone = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {}};
    const StripScale &used = scale ? *scale : kNone;
    const bool is_wide = bits > 1 && page_tokens * bits >= 256;
    if (is_wide && bits == 2)
        unpack_wide_strip<2>(strip, page_tokens, used, to);
    else if (is_wide && bits == 4)
        unpack_wide_strip<4>(strip, page_tokens, used, to);
    else if (is_wide)
        unpack_byte_strip(strip, page_tokens, used, to);
    if (is_wide)
        return scale;
#endif
    (void)scale;
    unpack_strip_words(strip, page_tokens, bits, 1.0f, false, to);
    return false;
}

// Codes of a strip, scaled or not, which is returned; 16-bit strips become values.
inline bool unpack_strip(const PageBytes &page, uint32_t strip, uint32_t first_token,
                         uint32_t n_tiles, const StripScale *scale, const StripTarget &to) {
    const PageView &view = *page.view;
    const StripView &at = view.strips[strip];
    const uint8_t *bytes = page.payload + at.offset_bytes;
    if (at.bits == 16) {
        for (uint32_t tile = 0; tile < n_tiles; ++tile) {
            StripTarget tile_target = to;
            tile_target.data += tile * to.tile_stride;
            unpack_raw_tile(bytes + (first_token / 16 + tile) * 512ull, tile_target);
        }
        return false;
    }
    const uint32_t low_bits = LK_LOW_BITS(at.bits);
    if (at.bits == low_bits)
        return unpack_strip_codes(bytes, view.page_tokens, low_bits, scale, to);
    unpack_strip_codes(bytes, view.page_tokens, low_bits, nullptr, to);
    unpack_strip_words(page.payload + at.high_offset_bytes, view.page_tokens, at.bits - low_bits,
                       static_cast<float>(1u << low_bits), true, to);
    return false;
}

// Pairs of shared ordered hold a 1-bit code | high bit << 1, and the low bits of a 3-bit code.
inline void split_pairs(const PageView &view, float *keys) {
    for (uint32_t t = 0; t < view.page_tokens; ++t)
        for (uint32_t i = 0; i < view.n_shared; ++i) {
            float *partner =
                keys + static_cast<uint64_t>(t) * view.head_dim + view.shared_first + i;
            const bool high = *partner >= 2.0f;
            *partner -= high ? 2.0f : 0.0f;
            partner[view.n_shared] += high ? 4.0f : 0.0f;
        }
}

inline uint32_t bits_of_stored(const PageView &view, uint32_t stored) {
    if (stored >= view.shared_first && stored < view.shared_first + 2 * view.n_shared)
        return stored < view.shared_first + view.n_shared ? 1 : 3;
    return view.strips[stored / 16].bits;
}

// value = minimum + code * range * code_step(), along k and with one parameter for a row.
LK_INLINE void scale_run(float *values, const float *ranges, const float *minima, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i)
        values[i] = minima[i] + values[i] * ranges[i];
}

inline void load_strip_scale(const PageBytes &page, uint32_t strip, uint32_t group, float *steps,
                             float *minima) {
    const PageView &view = *page.view;
    load_strip_parameters(view, page.metadata, strip, group, steps);
    load_strip_parameters(view, page.metadata + view.minima_offset_bytes, strip, group, minima);
    for (uint32_t i = 0; i < 16; ++i) {
        const uint32_t bits = bits_of_stored(view, strip * 16 + i);
        steps[i] = bits == 16 ? 1.0f : steps[i] * step_of(bits);
        minima[i] = bits == 16 ? 0.0f : minima[i];
    }
}

inline void scale_strips(const PageBytes &page, uint32_t first, uint32_t end, float *keys) {
    const PageView &view = *page.view;
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        alignas(64) float steps[LK_MAX_HEAD_DIM];
        alignas(64) float minima[LK_MAX_HEAD_DIM];
        for (uint32_t strip = first; strip < end; ++strip)
            load_strip_scale(page, strip, group, steps + (strip - first) * 16,
                             minima + (strip - first) * 16);
        for (uint32_t t = group * view.group; t < (group + 1) * view.group; ++t)
            scale_run(keys + static_cast<uint64_t>(t) * view.head_dim + first * 16, steps, minima,
                      (end - first) * 16);
    }
}

inline void scale_keys_per_token(const PageBytes &page, float *keys) {
    const PageView &view = *page.view;
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        float ranges[LK_MAX_PAGE_TOKENS];
        float minima[LK_MAX_PAGE_TOKENS];
        load_token_parameters(view, page.metadata, group, ranges);
        load_token_parameters(view, page.metadata + view.minima_offset_bytes, group, minima);
        const uint32_t first = group * view.group;
        const uint32_t end =
            first + view.group < view.head_dim ? first + view.group : view.head_dim;
        for (uint32_t stored = first; stored < end; ++stored) {
            const uint32_t bits = bits_of_stored(view, stored);
            if (bits == 16)
                continue;
            const float step = step_of(bits);
            for (uint32_t t = 0; t < view.page_tokens; ++t) {
                float *at = keys + static_cast<uint64_t>(t) * view.head_dim + stored;
                *at = minima[t] + *at * (ranges[t] * step);
            }
        }
    }
}

inline void scale_values(const PageBytes &page, float *values, uint32_t stride) {
    const PageView &view = *page.view;
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        alignas(64) float ranges[LK_MAX_PAGE_TOKENS];
        alignas(64) float minima[LK_MAX_PAGE_TOKENS];
        load_token_parameters(view, page.metadata, group, ranges);
        load_token_parameters(view, page.metadata + view.minima_offset_bytes, group, minima);
        const uint32_t first = group * view.group;
        const uint32_t end =
            first + view.group < view.head_dim ? first + view.group : view.head_dim;
        for (uint32_t stored = first; stored < end; stored += 16) {
            const uint32_t bits = view.strips[stored / 16].bits;
            if (bits == 16)
                continue;
            alignas(64) float steps[LK_MAX_PAGE_TOKENS];
            for (uint32_t t = 0; t < view.page_tokens; ++t)
                steps[t] = ranges[t] * step_of(bits);
            for (uint32_t c = stored; c < stored + 16; ++c)
                scale_run(values + static_cast<uint64_t>(c) * stride, steps, minima,
                          view.page_tokens);
        }
    }
}

inline Matrix unpack_staged(const uint8_t *bytes, uint32_t n_tokens, uint32_t head_dim,
                            bool is_value, float *out) {
    for (uint32_t i = 0; i < n_tokens * head_dim; i += 16)
        for (uint32_t j = 0; j < 16; j += kWidth)
            store(out + i + j, halves_to_floats(load<Vh>(bytes + 2ull * (i + j))));
    return is_value ? Matrix{out, 1, head_dim} : Matrix{out, head_dim, 1};
}

// out: (kKvTileTokens + 16) * head_dim floats. Columns and rows of tokens beyond n_tokens hold
// anything.
inline Matrix unpack_page(const PageBytes &page, uint32_t first_token, uint32_t n_tokens,
                          uint32_t head_dim, bool is_value, float *out) {
    if (!page.view)
        return unpack_staged(page.payload, n_tokens, head_dim, is_value, out);
    const PageView &view = *page.view;
    const bool raw = view.kind == PageKind::kRaw;
    const uint32_t n_tiles = raw ? (n_tokens + 15) / 16 : view.page_tokens / 16;
    const uint32_t stride = is_value ? kKvTileTokens : head_dim;
    const bool is_per_channel = !raw && !is_value && !view.is_per_token;
    const bool is_scaled_by_strip = kScalesStrips && is_per_channel && !view.n_shared;
    for (uint32_t strip = 0; strip < view.n_strips; ++strip) {
        const StripTarget to = {out + strip * (is_value ? 16ull * stride : 16ull), stride, 1,
                                is_value ? 16 : 16ll * stride};
        StripScale scale;
        const bool has_scale = is_scaled_by_strip && view.n_groups == 1;
        if (has_scale)
            load_strip_scale(page, strip, 0, scale.steps, scale.minima);
        const bool is_scaled =
            unpack_strip(page, strip, first_token, n_tiles, has_scale ? &scale : nullptr, to);
        if (is_scaled_by_strip && !is_scaled)
            scale_strips(page, strip, strip + 1, out);
    }
    if (view.n_shared)
        split_pairs(view, out);
    if (is_per_channel && !is_scaled_by_strip)
        scale_strips(page, 0, view.n_strips, out);
    if (!raw && is_value)
        scale_values(page, out, stride);
    else if (!raw && view.is_per_token)
        scale_keys_per_token(page, out);
    return {out, stride, 1};
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
