// Logits of few query rows with the keys of a KV tile.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_DECODE_KEYS_TMPL_H
#define LK_BACKEND_CPU_DECODE_KEYS_TMPL_H

#include "backend/cpu/decode_state_tmpl.h"

namespace lk {
namespace cpu {
namespace {

// Are the keys read where they lie?
inline bool is_native(const PageBytes &page) {
    if (!page.view || page.view->kind == PageKind::kOther)
        return false;
    return !page.channels || page.view->kind == PageKind::kPacked;
}

inline void unpacked_logits(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    const Matrix keys = unpack_page(kv_tile.key, kv_tile.first_token, kv_tile.n_tokens,
                                    work.head_dim, false, s.matrix);
    const float *query = work.q;
    if (kv_tile.key.channels) {
        for (uint32_t r = 0; r < work.n_rows; ++r)
            for (uint32_t stored = 0; stored < work.head_dim; ++stored)
                s.query[r * work.head_dim + stored] =
                    work.q[r * work.head_dim +
                           load_channel(kv_tile.key.channels, work.head_dim, stored)];
        query = s.query;
    }
    dot_rows(
        {keys.data, work.head_dim, query, work.head_dim, work.head_dim, s.logits, kKvTileTokens},
        (kv_tile.n_tokens + 3) / 4 * 4, work.n_rows);
}

inline void raw_logits(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    const PageView &view = *kv_tile.key.view;
    const uint8_t *tiles = kv_tile.key.payload + kv_tile.first_token / 16 * 512ull;
    multiply_raw(
        {tiles, 512, view.page_tokens * 32ull, (kv_tile.n_tokens + 15) / 16, view.n_strips,
         s.query_spread, 2 * work.head_dim, nullptr, s.logits, kKvTileTokens, false, s.fetch},
        work.n_rows);
}

// q in the order of a page's stored channels, strips in the order of their parameters, and spread
// for strips at 16 bits.
inline void order_query(const WorkTile &work, const uint8_t *channels, float *out, float *spread) {
    alignas(64) float ordered[LK_MAX_HEAD_DIM];
    for (uint32_t r = 0; r < work.n_rows; ++r) {
        const float *query = work.q + r * work.head_dim;
        if (channels) {
            for (uint32_t stored = 0; stored < work.head_dim; ++stored)
                ordered[stored] = query[load_channel(channels, work.head_dim, stored)];
            query = ordered;
        }
        for (uint32_t stored = 0; stored < work.head_dim; stored += 16) {
            order_tile(query + stored, out + r * work.head_dim + stored);
            if (spread)
                spread_tile(query + stored, spread + 2 * (r * work.head_dim + stored));
        }
    }
}

// Place of a stored channel's parameters among those of a token group.
LK_INLINE uint32_t parameter_position(uint32_t stored) {
    return (stored & ~15u) | LK_K_ORDER(stored & 15u);
}

// As fold_ranges(), of keys with shared channels: `low` for bit 0 of every field, `high` for bit 1,
// which of a partner is the highest bit of its outlier's code.
inline Folded fold_shared(const PageView &view, const float *values, const DecodeState &s,
                          uint16_t *low, uint16_t *high) {
    const uint32_t n = view.head_dim;
    float lows;
    const float base = multiply_ranges(values, s, n, &lows);
    std::memcpy(s.doubled, s.folded, n * sizeof *s.doubled);
    for (uint32_t i = view.shared_first; i < view.shared_first + view.n_shared; ++i)
        s.doubled[parameter_position(i)] = 2 * s.folded[parameter_position(i + view.n_shared)];
    const float highs = highest_magnitude(s.doubled, n);
    const float highest = lows > highs ? lows : highs;
    const bool any = highest > 1e-30f;
    const float scale = any ? largest_factor(n) / highest : 0.0f;
    round_factors(s.folded, scale, low, n);
    round_factors(s.doubled, scale, high, n);
    return {base, any ? highest / largest_factor(n) : 0.0f};
}

// Steps and minima of a token group, each strip's in the order of its parameters; zeros of strips
// at 16 bits.
inline void load_key_group(const PageBytes &page, uint32_t group, const DecodeState &s) {
    const PageView &view = *page.view;
    for (uint32_t strip = 0; strip < view.n_strips; ++strip) {
        float *ranges = s.ranges + strip * 16;
        float *minima = s.minima + strip * 16;
        if (view.strips[strip].bits == 16) {
            std::memset(ranges, 0, 16 * sizeof *ranges);
            std::memset(minima, 0, 16 * sizeof *minima);
            continue;
        }
        const uint32_t first = (strip * view.n_groups + group) * 16;
        load_parameters(view, page.metadata, first, 16, ranges);
        load_parameters(view, page.metadata + view.minima_offset_bytes, first, 16, minima);
        const float step = step_of(view.strips[strip].bits);
        for (uint32_t i = 0; i < 16; i += kWidth)
            store(ranges + i, load<Vf>(ranges + i) * step);
    }
    for (uint32_t i = view.shared_first; i < view.shared_first + view.n_shared; ++i) {
        s.ranges[parameter_position(i)] *= 3.0f;
        s.ranges[parameter_position(i + view.n_shared)] *= 3.0f / 7.0f;
    }
}

// Do all tokens have the same factors?
LK_INLINE bool is_one_group(const PageView &view) {
    return view.is_per_token || view.n_groups == 1;
}

// Words of a row's factors in one strip, and between strips.
LK_INLINE uint32_t strip_words(const PageView &view) {
    return (is_one_group(view) ? 1 : kKeyVectors) * 2 * kChunkWords;
}

// One row's factors of a strip in the words of a plane of kBits, [vector][tile bits][k part][lane]
// [word]; those of one group are the same in all vectors and tiles. group_stride: factors between
// groups.
template <uint32_t kBits>
LK_INLINE void spread_strip(const PageView &view, const uint16_t *factors, uint32_t group_stride,
                            uint32_t *words) {
    with_lane_words<kBits>(view.page_tokens, [&](auto constant) {
        constexpr uint32_t kWords = decltype(constant)::value;
        if (is_one_group(view)) {
            spread_factors<kBits, kWords>(factors, nullptr, words);
            return;
        }
        const uint32_t n_vectors = kWords < 4 ? 1 : view.page_tokens * kBits / 256;
        const uint32_t n_tiles = view.group * kBits < 64 ? Fields<kBits>::kTileBits : 1;
        for (uint32_t v = 0; v < n_vectors; ++v)
            for (uint32_t tile = 0; tile < n_tiles; ++tile) {
                uint32_t first[kWords];
                for (uint32_t w = 0; w < kWords; ++w)
                    first[w] =
                        tile_of<kBits>(kWords * v + w, tile) * 16 / view.group * group_stride;
                spread_factors<kBits, kWords>(factors, first,
                                              words + (v * n_tiles + tile) * 2 * kChunkWords);
            }
    });
}

// A row's factors of strips [first, end), and those of bit 1 of shared channels or bit 2 of 3-bit
// codes.
inline void spread_row(const WorkTile &work, const PageView &view, uint32_t row, uint32_t first,
                       uint32_t end, const DecodeState &s) {
    const uint64_t from = uint64_t{row} * kTokenGroups * work.head_dim;
    const uint32_t stride = strip_words(view);
    for (uint32_t strip = first; strip < end; ++strip) {
        const uint32_t bits = view.strips[strip].bits;
        const uint64_t to = (uint64_t{row} * view.n_strips + strip) * stride;
        const uint16_t *factors = s.group_factors + from + strip * 16;
        if (bits == 16)
            continue;
        with_width(LK_LOW_BITS(bits), [&](auto width) {
            spread_strip<decltype(width)::value>(view, factors, work.head_dim, s.key_factors + to);
        });
        if (bits == 3)
            spread_strip<1>(view, factors, work.head_dim, s.high_factors + to);
        else if (view.n_shared && bits == 2)
            spread_strip<2>(view, s.group_doubled + from + strip * 16, work.head_dim,
                            s.high_factors + to);
    }
}

// Has the strip shared channels?
LK_INLINE bool is_shared(const PageView &view, uint32_t strip) {
    return strip * 16 + 16 > view.shared_first &&
           strip * 16 < view.shared_first + 2 * view.n_shared;
}

// Which sums strips have: of the low planes, and of the high plane of 3 bits.
struct KeySums {
    bool low;
    bool high;
};

// Strips [first, end) into s.sums and s.high_sums, by runs of one width with or without shared
// channels.
inline KeySums multiply_key_strips(const WorkTile &work, const KvTile &kv_tile, uint32_t first,
                                   uint32_t end, const DecodeState &s) {
    const PageView &view = *kv_tile.key.view;
    const uint32_t stride = strip_words(view);
    KeySums has = {};
    for (uint32_t run_end = first; first < end; first = run_end) {
        const StripView &at = view.strips[first];
        const bool shared = is_shared(view, first);
        for (run_end = first + 1; run_end < end && view.strips[run_end].bits == at.bits &&
                                  is_shared(view, run_end) == shared;)
            ++run_end;
        if (at.bits == 16)
            continue;
        const uint32_t *high = s.high_factors + first * stride;
        PackedKeys keys = {kv_tile.key.payload + at.offset_bytes,
                           run_end - first,
                           view.page_tokens,
                           s.key_factors + first * stride,
                           shared ? high : nullptr,
                           view.n_strips * stride,
                           stride,
                           is_one_group(view) ? 0 : view.group,
                           s.sums,
                           has.low};
        multiply_packed_keys(keys, LK_LOW_BITS(at.bits), work.n_rows);
        has.low = true;
        if (at.bits != 3)
            continue;
        keys.strips = kv_tile.key.payload + at.high_offset_bytes;
        keys.factors = high;
        keys.out = s.high_sums;
        keys.add = has.high;
        multiply_packed_keys(keys, 1, work.n_rows);
        has.high = true;
    }
    return has;
}

// A row's sums at token t.
LK_INLINE Vf load_sums(KeySums has, const DecodeState &s, uint32_t r, uint32_t t) {
    const uint32_t at = r * kKvTileTokens + t;
    Vi sums = has.low ? load<Vi>(s.sums + at) : Vi{};
    if (has.high)
        sums += load<Vi>(s.high_sums + at) << 2;
    return __builtin_convertvector(sums, Vf);
}

// Keys with ranges of channels, which are folded into the factors of each token group.
inline void channel_logits(const WorkTile &work, const KvTile &kv_tile, const float *query,
                           const DecodeState &s) {
    const PageView &view = *kv_tile.key.view;
    const uint32_t head_dim = work.head_dim;
    Folded folded[kTokenGroups][kDecodeRows];
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        load_key_group(kv_tile.key, group, s);
        for (uint32_t r = 0; r < work.n_rows; ++r) {
            const uint64_t at = (uint64_t{r} * kTokenGroups + group) * head_dim;
            const float *row = query + r * head_dim;
            s.fetch->step();
            folded[group][r] = view.n_shared ? fold_shared(view, row, s, s.group_factors + at,
                                                           s.group_doubled + at)
                                             : fold_ranges(row, s, head_dim, s.group_factors + at);
        }
    }
    for (uint32_t r = 0; r < work.n_rows; ++r)
        spread_row(work, view, r, 0, view.n_strips, s);
    const KeySums has = multiply_key_strips(work, kv_tile, 0, view.n_strips, s);
    for (uint32_t r = 0; r < work.n_rows; ++r)
        for (uint32_t t = 0; t < view.page_tokens; t += kWidth) {
            const Folded &own = folded[t / view.group][r];
            store(s.logits + r * kKvTileTokens + t, load_sums(has, s, r, t) * own.scale + own.base);
        }
}

// Steps of strips [first, end) whose ranges are the tokens'; ones as minima, which add up q.
inline void load_steps(const PageView &view, uint32_t first, uint32_t end, const DecodeState &s) {
    for (uint32_t strip = first; strip < end; ++strip) {
        const bool is_raw = view.strips[strip].bits == 16;
        const float step = is_raw ? 0.0f : step_of(view.strips[strip].bits);
        for (uint32_t i = (strip - first) * 16; i < (strip - first) * 16 + 16; ++i) {
            s.ranges[i] = step;
            s.minima[i] = is_raw ? 0.0f : 1.0f;
        }
    }
}

// Keys with ranges of tokens: sum of q * (minimum + range * step * code) of each channel group.
inline void token_logits(const WorkTile &work, const KvTile &kv_tile, const float *query,
                         const DecodeState &s) {
    const PageView &view = *kv_tile.key.view;
    alignas(64) float ranges[LK_MAX_PAGE_TOKENS];
    alignas(64) float minima[LK_MAX_PAGE_TOKENS];
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        const uint32_t first = group * view.group / 16;
        const uint32_t wanted = first + view.group / 16;
        const uint32_t end = wanted < view.n_strips ? wanted : view.n_strips;
        load_token_parameters(view, kv_tile.key.metadata, group, ranges);
        load_token_parameters(view, kv_tile.key.metadata + view.minima_offset_bytes, group, minima);
        load_steps(view, first, end, s);
        Folded folded[kDecodeRows];
        for (uint32_t r = 0; r < work.n_rows; ++r) {
            s.fetch->step();
            folded[r] = fold_ranges(
                query + r * work.head_dim + first * 16, s, (end - first) * 16,
                s.group_factors + uint64_t{r} * kTokenGroups * work.head_dim + first * 16);
            spread_row(work, view, r, first, end, s);
        }
        const KeySums has = multiply_key_strips(work, kv_tile, first, end, s);
        for (uint32_t r = 0; r < work.n_rows; ++r)
            for (uint32_t t = 0; t < view.page_tokens; t += kWidth) {
                float *to = s.logits + r * kKvTileTokens + t;
                const Vf part = load_sums(has, s, r, t) * folded[r].scale * load<Vf>(ranges + t) +
                                load<Vf>(minima + t) * folded[r].base;
                store(to, group ? load<Vf>(to) + part : part);
            }
    }
}

// Strips at 16 bits among packed ones, added to the logits.
inline void add_raw_strips(const WorkTile &work, const KvTile &kv_tile, const float *spread,
                           const DecodeState &s) {
    const PageView &view = *kv_tile.key.view;
    uint32_t n = 0;
    while (n < view.n_strips && view.strips[n].bits == 16)
        ++n;
    if (n)
        multiply_raw({kv_tile.key.payload + view.strips[0].offset_bytes, 512,
                      view.page_tokens * 32ull, view.page_tokens / 16, n, spread, 2 * work.head_dim,
                      nullptr, s.logits, kKvTileTokens, true, s.fetch},
                     work.n_rows);
}

inline void packed_logits(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    const PageView &view = *kv_tile.key.view;
    const float *query = s.query_ordered;
    const float *spread = s.query_spread;
    if (kv_tile.key.channels) {
        const QueryOrder wanted = {kv_tile.key.channels, view.strips[0].bits == 16};
        QueryOrder &has = *s.page_order;
        if (has.channels != wanted.channels || (wanted.has_spread && !has.has_spread)) {
            order_query(work, wanted.channels, s.page_ordered,
                        wanted.has_spread ? s.page_spread : nullptr);
            has = wanted;
        }
        query = s.page_ordered;
        spread = s.page_spread;
    }
    if (view.is_per_token)
        token_logits(work, kv_tile, query, s);
    else
        channel_logits(work, kv_tile, query, s);
    add_raw_strips(work, kv_tile, spread, s);
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
