// A page as FP32: rows and k of its tiles, so keys as [token][stored] and values as
// [stored][token].
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_UNPACK_TMPL_H
#define LK_BACKEND_CPU_UNPACK_TMPL_H

#include "backend/cpu/product_tmpl.h"
#include "backend/cpu/unpack_avx512.h"

namespace lk {
namespace cpu {
namespace {

LK_INLINE float step_of(uint32_t bits) { return 1.0f / static_cast<float>((1u << bits) - 1); }

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
    unorder_tile(ordered, out);
}

// All tokens of a channel group, natural order.
inline void load_token_parameters(const PageView &view, const uint8_t *array, uint32_t group,
                                  float *out) {
    float ordered[LK_MAX_PAGE_TOKENS];
    load_parameters(view, array, group * view.page_tokens, view.page_tokens, ordered);
    for (uint32_t t = 0; t < view.page_tokens; t += 16)
        if (view.is_value)
            unorder_tile(ordered + t, out + t);
        else
            unorder_rows(ordered + t, out + t);
}

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
    for (uint32_t g = 0; g < 8; ++g) {
        Vu4 words[4];  // [register][t]
        load_lane_words<4>(tile + 64 * g, words);
        for (uint32_t row = 0; row < 2; ++row) {
            uint16_t k[16];
            store(k, words[row]);
            store(k + 8, words[row + 2]);
            float *at = to.data + (g + 8 * row) * to.row_stride;
            for (uint32_t i = 0; i < 16; i += kWidth)
                store(at + i, halves_to_floats(load<Vh>(k + i)));
        }
    }
#endif
}

// A strip's codes, scaled; kIsHigh: the high bits of codes whose low bits are there, as many as
// `weight` counts, and both are scaled.
template <uint32_t kBits, uint32_t kWords, bool kIsHigh>
inline void unpack_lane_words(const uint8_t *strip, uint32_t page_tokens, float weight,
                              const StripScale &scale, const StripTarget &to) {
    using F = Fields<kBits>;
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
    // Of the words and fields of a row, those of k 8 to 15.
    constexpr uint32_t kHighWord = kBits == 8 ? 1 : 0;
    const uint32_t n_vectors = kWords < 4 ? 1 : page_tokens * kBits / 256;
    for (uint32_t i = 0; i < 8 * n_vectors; ++i) {
        Vu4 words[kWords];
        load_lane_words<kWords>(strip + i * (16ull * kWords), words);
        LK_UNROLL(4)
        for (uint32_t w = 0; w < kWords; w += 1 + kHighWord) {
            LK_UNROLL(16)
            for (uint32_t field = 0; field < F::kCount; ++field) {
                if (field & F::kKBit)
                    continue;
                const RowWords row = {
                    (words[w] >> (kBits * field)) & kMask,
                    (words[w + kHighWord] >> (kBits * (field | F::kKBit))) & kMask};
                Vf codes[16 / kWidth];
                convert_row_words(row, codes);
                const uint32_t position = unfold(i / 8 * kWords + w, field, F::kSteps);
                float *at = to.data + (position >> 2) * to.tile_stride +
                            (i % 8 + 8 * (position & 1u)) * to.row_stride;
                const uint32_t first = scale.first[position >> 2];
                for (uint32_t v = 0; v < 16 / kWidth; ++v) {
                    const Vf code =
                        kIsHigh ? codes[v] * weight + load<Vf>(at + v * kWidth) : codes[v];
                    store(at + v * kWidth, code * load<Vf>(scale.steps + first + v * kWidth) +
                                               load<Vf>(scale.minima + first + v * kWidth));
                }
            }
        }
    }
}

template <uint32_t kBits, bool kIsHigh>
inline void unpack_lanes(const uint8_t *strip, uint32_t page_tokens, float weight,
                         const StripScale &scale, const StripTarget &to) {
    with_lane_words<kBits>(page_tokens, [&](auto words) {
        unpack_lane_words<kBits, decltype(words)::value, kIsHigh>(strip, page_tokens, weight, scale,
                                                                  to);
    });
}

inline StripScale no_scale() {
    StripScale scale = {};
    for (float &step : scale.steps)
        step = 1.0f;
    return scale;
}

// value = minimum + code * step of what is unpacked.
inline void scale_strip(const StripScale &scale, uint32_t n_tiles, const StripTarget &to) {
    for (uint32_t tile = 0; tile < n_tiles; ++tile)
        for (uint32_t row = 0; row < 16; ++row)
            for (uint32_t i = 0; i < 16; i += kWidth) {
                float *at = to.data + tile * to.tile_stride + row * to.row_stride + i;
                store(at, load<Vf>(at) * load<Vf>(scale.steps + scale.first[tile] + i) +
                              load<Vf>(scale.minima + scale.first[tile] + i));
            }
}

inline void unpack_low_bits(const uint8_t *strip, uint32_t page_tokens, uint32_t bits,
                            const StripScale &scale, const StripTarget &to) {
#if defined(__AVX512F__)
    if (bits > 1 && page_tokens * bits >= 256) {
        const bool is_one = scale.first[page_tokens / 16 - 1] == 0;
        const StripScale none = no_scale();
        const StripScale &used = is_one ? scale : none;
        if (bits == 2)
            unpack_wide_strip<2>(strip, page_tokens, used, to);
        else if (bits == 4)
            unpack_wide_strip<4>(strip, page_tokens, used, to);
        else
            unpack_byte_strip(strip, page_tokens, used, to);
        if (!is_one)
            scale_strip(scale, page_tokens / 16, to);
        return;
    }
#endif
    with_width(bits, [&](auto width) {
        unpack_lanes<decltype(width)::value, false>(strip, page_tokens, 0, scale, to);
    });
}

// A strip of codes, scaled.
inline void unpack_strip(const PageBytes &page, const StripView &at, const StripScale &scale,
                         const StripTarget &to) {
    const uint32_t page_tokens = page.view->page_tokens;
    const uint32_t low_bits = LK_LOW_BITS(at.bits);
    const bool is_split = at.bits != low_bits;
    unpack_low_bits(page.payload + at.offset_bytes, page_tokens, low_bits,
                    is_split ? no_scale() : scale, to);
    if (is_split)
        unpack_lanes<1, true>(page.payload + at.high_offset_bytes, page_tokens,
                              static_cast<float>(1u << low_bits), scale, to);
}

// Pairs of shared channels hold a 1-bit code | high bit << 1, and the low bits of a 3-bit code.
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

LK_INLINE StripTarget strip_target(float *out, uint32_t strip, uint32_t stride, bool is_value) {
    return {out + strip * (is_value ? 16ull * stride : 16ull), stride,
            is_value ? 16 : 16ll * stride};
}

inline void load_key_scale(const PageBytes &page, uint32_t strip, StripScale *scale) {
    const PageView &view = *page.view;
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        float *steps = scale->steps + group * 16;
        load_strip_parameters(view, page.metadata, strip, group, steps);
        load_strip_parameters(view, page.metadata + view.minima_offset_bytes, strip, group,
                              scale->minima + group * 16);
        for (uint32_t i = 0; i < 16; ++i)
            steps[i] *= step_of(bits_of_stored(view, strip * 16 + i));
    }
    for (uint32_t tile = 0; tile < view.page_tokens / 16; ++tile)
        scale->first[tile] = tile * 16 / view.group * 16;
}

// Of the strip's channel group and width.
inline void load_value_scale(const PageBytes &page, uint32_t strip, StripScale *scale) {
    const PageView &view = *page.view;
    const uint32_t group = strip * 16 / view.group;
    load_token_parameters(view, page.metadata, group, scale->steps);
    load_token_parameters(view, page.metadata + view.minima_offset_bytes, group, scale->minima);
    const float step = step_of(view.strips[strip].bits);
    for (uint32_t t = 0; t < view.page_tokens; t += kWidth)
        store(scale->steps + t, load<Vf>(scale->steps + t) * step);
    for (uint32_t tile = 0; tile < view.page_tokens / 16; ++tile)
        scale->first[tile] = tile * 16;
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
        for (uint32_t strip = first / 16; strip < end / 16; ++strip) {
            if (view.strips[strip].bits == 16)
                continue;
            alignas(64) float steps[16];
            for (uint32_t i = 0; i < 16; ++i)
                steps[i] = step_of(bits_of_stored(view, strip * 16 + i));
            for (uint32_t t = 0; t < view.page_tokens; ++t) {
                float *at = keys + static_cast<uint64_t>(t) * view.head_dim + strip * 16;
                for (uint32_t i = 0; i < 16; i += kWidth)
                    store(at + i, load<Vf>(at + i) * (load<Vf>(steps + i) * ranges[t]) + minima[t]);
            }
        }
    }
}

inline void scale_keys_per_channel(const PageBytes &page, float *keys) {
    const PageView &view = *page.view;
    StripScale scale;
    for (uint32_t strip = 0; strip < view.n_strips; ++strip) {
        if (view.strips[strip].bits == 16)
            continue;
        load_key_scale(page, strip, &scale);
        scale_strip(scale, view.page_tokens / 16, strip_target(keys, strip, view.head_dim, false));
    }
}

inline Matrix unpack_staged(const uint8_t *bytes, uint32_t n_tokens, uint32_t head_dim,
                            bool is_value, float *out) {
    for (uint32_t i = 0; i < n_tokens * head_dim; i += 16)
        for (uint32_t j = 0; j < 16; j += kWidth)
            store(out + i + j, halves_to_floats(load<Vh>(bytes + 2ull * (i + j))));
    return is_value ? Matrix{out, 1, head_dim} : Matrix{out, head_dim, 1};
}

inline void unpack_raw_strip(const PageBytes &page, uint32_t strip, uint32_t first_token,
                             uint32_t n_tiles, StripTarget to) {
    const uint8_t *tiles = page.payload + page.view->strips[strip].offset_bytes;
    for (uint32_t tile = 0; tile < n_tiles; ++tile, to.data += to.tile_stride)
        unpack_raw_tile(tiles + (first_token / 16 + tile) * 512ull, to);
}

// out: (kKvTileTokens + 16) * head_dim floats. Columns and rows of tokens beyond n_tokens hold
// anything.
inline Matrix unpack_page(const PageBytes &page, uint32_t first_token, uint32_t n_tokens,
                          uint32_t head_dim, bool is_value, float *out) {
    if (!page.view)
        return unpack_staged(page.payload, n_tokens, head_dim, is_value, out);
    const PageView &view = *page.view;
    const uint32_t n_tiles =
        view.kind == PageKind::kRaw ? (n_tokens + 15) / 16 : view.page_tokens / 16;
    const uint32_t stride = is_value ? kKvTileTokens : head_dim;
    const bool is_scaled = is_value || (!view.is_per_token && !view.n_shared);
    StripScale scale = no_scale();
    for (uint32_t strip = 0; strip < view.n_strips; ++strip) {
        const StripTarget to = strip_target(out, strip, stride, is_value);
        if (view.strips[strip].bits == 16) {
            unpack_raw_strip(page, strip, first_token, n_tiles, to);
            continue;
        }
        const bool is_next =
            strip * 16 % view.group == 0 || view.strips[strip].bits != view.strips[strip - 1].bits;
        if (is_value && is_next)
            load_value_scale(page, strip, &scale);
        else if (!is_value && is_scaled)
            load_key_scale(page, strip, &scale);
        unpack_strip(page, view.strips[strip], scale, to);
    }
    if (view.n_shared)
        split_pairs(view, out);
    if (!is_value && view.is_per_token)
        scale_keys_per_token(page, out);
    else if (!is_scaled)
        scale_keys_per_channel(page, out);
    return {out, stride, 1};
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
