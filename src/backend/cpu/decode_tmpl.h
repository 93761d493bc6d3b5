// Attention of few query rows. Weights and logits are arrays [row][token].
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_DECODE_TMPL_H
#define LK_BACKEND_CPU_DECODE_TMPL_H

#include "backend/cpu/mask_tmpl.h"
#include "backend/cpu/native_tmpl.h"

namespace lk {
namespace cpu {
namespace {

constexpr uint32_t kKeyVectors = 4;   // of a strip of keys, at most
constexpr uint32_t kTokenGroups = 8;  // of a page, at most

struct DecodeState {
    float *logits;          // [kDecodeRows][kKvTileTokens], then weights
    float *matrix;          // an unpacked page
    float *query;           // [kDecodeRows][head_dim], in the order of a page's ordered
    float *query_spread;    // [kDecodeRows][2 head_dim], for 16-bit keys
    float *query_ordered;   // [kDecodeRows][head_dim], strips in the order of the parameters
    float *page_ordered;    // the same under a page's permutation
    float *weight_spread;   // [kDecodeRows][2 kKvTileTokens], for 16-bit values
    float *weight_ordered;  // [kDecodeRows][kKvTileTokens], for packed values
    float *ranges;          // [head_dim or kKvTileTokens]
    float *minima;
    float *folded;
    float *doubled;           // [head_dim]
    uint32_t *key_factors;    // [kDecodeRows][strips][kKeyVectors][32]
    uint32_t *high_factors;   // the same, of bit 1 of shared ordered
    uint32_t *value_factors;  // [kDecodeRows][kKvTileTokens], of which 1 bit takes all
    int32_t *sums;            // [kDecodeRows][kKvTileTokens]
    Fetch *fetch;
};

inline DecodeState cut_decode_scratch(const WorkTile &work) {
    DecodeState s;
    const uint32_t queries = kDecodeRows * work.head_dim;
    const uint32_t weights = kDecodeRows * kKvTileTokens;
    s.logits = work.scratch;
    s.matrix = s.logits + weights;
    s.query = s.matrix + (kKvTileTokens + 16) * largest_dim(work);
    s.query_spread = s.query + queries;
    s.query_ordered = s.query_spread + 2 * queries;
    s.page_ordered = s.query_ordered + queries;
    s.weight_spread = s.page_ordered + queries;
    s.weight_ordered = s.weight_spread + 2 * weights;
    s.ranges = s.weight_ordered + weights;
    s.minima = s.ranges + LK_MAX_HEAD_DIM;
    s.folded = s.minima + LK_MAX_HEAD_DIM;
    s.doubled = s.folded + LK_MAX_HEAD_DIM;
    s.key_factors = reinterpret_cast<uint32_t *>(s.doubled + LK_MAX_HEAD_DIM);
    s.high_factors = s.key_factors + 2 * kKeyVectors * queries;
    s.value_factors = s.high_factors + 2 * kKeyVectors * queries;
    s.sums = reinterpret_cast<int32_t *>(s.value_factors + weights);
    return s;
}

// out[r][m] (+)= dot(a row m, x row r) for contiguous rows of n floats; with channels, rows are
// stored channels and go to out[r][channel].
inline void dot_rows(const float *a, int64_t a_stride, uint32_t n_m, const float *x,
                     uint32_t x_stride, uint32_t n_rows, uint32_t n, float *out,
                     uint32_t out_stride, const uint8_t *channels, bool add) {
    const uint32_t whole = n / kWidth * kWidth;
    for (uint32_t m = 0; m < n_m; ++m)
        for (uint32_t r = 0; r < n_rows; ++r) {
            const float *row = a + m * a_stride;
            const float *vector = x + r * x_stride;
            Vf sums = {};
            for (uint32_t i = 0; i < whole; i += kWidth)
                sums += load<Vf>(row + i) * load<Vf>(vector + i);
            float sum = horizontal_sum(sums);
            for (uint32_t i = whole; i < n; ++i)
                sum += row[i] * vector[i];
            float *to = out + r * out_stride + (channels ? load_channel(channels, n_m, m) : m);
            *to = add ? *to + sum : sum;
        }
}

inline void generic_logits(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
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
    dot_rows(keys.data, keys.row_stride, kv_tile.n_tokens, query, work.head_dim, work.n_rows,
             work.head_dim, s.logits, kKvTileTokens, nullptr, false);
}

inline void generic_values(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    const Matrix values = unpack_page(kv_tile.value, kv_tile.first_token, kv_tile.n_tokens,
                                      work.value_dim, true, s.matrix);
    if (values.k_stride == 1) {
        dot_rows(values.data, values.row_stride, work.value_dim, s.logits, kKvTileTokens,
                 work.n_rows, kv_tile.n_tokens, work.output, work.value_dim, kv_tile.value.channels,
                 true);
        return;
    }
    for (uint32_t r = 0; r < work.n_rows; ++r)
        for (uint32_t t = 0; t < kv_tile.n_tokens; ++t)
            for (uint32_t c = 0; c < work.value_dim; ++c)
                work.output[r * work.value_dim + c] +=
                    s.logits[r * kKvTileTokens + t] * values.data[t * values.k_stride + c];
}

// Are the codes of the page read in place?
inline bool is_native(const PageBytes &page) {
    if (!page.view || page.view->kind == PageKind::kOther)
        return false;
    return !page.channels || (page.view->kind == PageKind::kPacked && !page.view->is_value);
}

inline void raw_logits(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    const PageView &view = *kv_tile.key.view;
    const uint8_t *tiles = kv_tile.key.payload + kv_tile.first_token / 16 * 512ull;
    multiply_raw({tiles, 512, view.page_tokens * 32ull, (kv_tile.n_tokens + 15) / 16, view.n_strips,
                  s.query_spread, 2 * work.head_dim, nullptr, s.logits, kKvTileTokens, false,
                  s.fetch},
                 work.n_rows);
}

inline void raw_values(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    const PageView &view = *kv_tile.value.view;
    const uint32_t whole = kv_tile.n_tokens / 16;
    const uint32_t rest = kv_tile.n_tokens % 16;
    for (uint32_t r = 0; r < work.n_rows; ++r)
        for (uint32_t tile = 0; tile * 16 < kv_tile.n_tokens; ++tile)
            spread_tile(s.logits + r * kKvTileTokens + tile * 16,
                        s.weight_spread + (r * kKvTileTokens + tile * 16) * 2);
    RawProduct p = {kv_tile.value.payload + kv_tile.first_token / 16 * 512ull,
                    view.page_tokens * 32ull,
                    512,
                    view.n_strips,
                    whole,
                    s.weight_spread,
                    2 * kKvTileTokens,
                    nullptr,
                    work.output,
                    work.value_dim,
                    true,
                    s.fetch};
    multiply_raw(p, work.n_rows);
    if (!rest)
        return;
    // A NaN can follow the last token, and a weight of 0 does not silence it.
    alignas(64) uint16_t mask[32];
    for (uint32_t i = 0; i < 32; ++i)
        mask[i] = LK_TILE_K(i / 8, i / 2 % 4) + i % 2 < rest ? 0xFFFF : 0;
    p.tiles += whole * 512ull;
    p.n_k_tiles = 1;
    p.spread += whole * 32;
    p.mask = mask;
    multiply_raw(p, work.n_rows);
}

// q in the order of a page's ordered, strips in the order of their parameters.
inline void order_query(const WorkTile &work, const uint8_t *channels, float *out) {
    alignas(64) float ordered[LK_MAX_HEAD_DIM];
    for (uint32_t r = 0; r < work.n_rows; ++r) {
        const float *query = work.q + r * work.head_dim;
        if (channels) {
            for (uint32_t stored = 0; stored < work.head_dim; ++stored)
                ordered[stored] = query[load_channel(channels, work.head_dim, stored)];
            query = ordered;
        }
        for (uint32_t stored = 0; stored < work.head_dim; stored += 16)
            order_tile(query + stored, out + r * work.head_dim + stored);
    }
}

struct Folded {
    float base;   // sum of factor * minimum
    float scale;  // the value of one of the integers
};

// values * ranges to s.folded; returns the sum of values * minima.
LK_INLINE float multiply_ranges(const float *values, const DecodeState &s, uint32_t n) {
    Vf base = {};
    for (uint32_t i = 0; i < n; i += kWidth) {
        const Vf v = load<Vf>(values + i);
        base += v * load<Vf>(s.minima + i);
        store(s.folded + i, v * load<Vf>(s.ranges + i));
    }
    return horizontal_sum(base);
}

// values * ranges to 16 bits.
LK_INLINE Folded fold_ranges(const float *values, const DecodeState &s, uint32_t n, uint16_t *out) {
    const float base = multiply_ranges(values, s, n);
    const float highest = highest_magnitude(s.folded, n);
    const bool any = highest > 1e-30f;
    round_factors(s.folded, any ? largest_factor(n) / highest : 0.0f, out, n);
    return {base, any ? highest / largest_factor(n) : 0.0f};
}

// Place of a stored's parameters among those of a token group.
LK_INLINE uint32_t parameter_position(uint32_t stored) {
    return (stored & ~15u) | LK_K_ORDER(stored & 15u);
}

// The same of keys with shared ordered: `low` for bit 0 of every field, `high` for bit 1, which of
// a partner is the highest bit of its outlier's code.
inline Folded fold_shared(const PageView &view, const float *values, const DecodeState &s,
                          uint16_t *low, uint16_t *high) {
    const uint32_t n = view.head_dim;
    const float base = multiply_ranges(values, s, n);
    std::memcpy(s.doubled, s.folded, n * sizeof *s.doubled);
    for (uint32_t i = view.shared_first; i < view.shared_first + view.n_shared; ++i)
        s.doubled[parameter_position(i)] = 2 * s.folded[parameter_position(i + view.n_shared)];
    const float lows = highest_magnitude(s.folded, n);
    const float highs = highest_magnitude(s.doubled, n);
    const float highest = lows > highs ? lows : highs;
    const bool any = highest > 1e-30f;
    const float scale = any ? largest_factor(n) / highest : 0.0f;
    round_factors(s.folded, scale, low, n);
    round_factors(s.doubled, scale, high, n);
    return {base, any ? highest / largest_factor(n) : 0.0f};
}

// Steps and minima of a group of tokens, each strip's in the order of its parameters.
inline void load_key_group(const PageBytes &page, uint32_t group, const DecodeState &s) {
    const PageView &view = *page.view;
    for (uint32_t strip = 0; strip < view.n_strips; ++strip) {
        const uint32_t first = (strip * view.n_groups + group) * 16;
        load_parameters(view, page.metadata, first, 16, s.ranges + strip * 16);
        load_parameters(view, page.metadata + view.minima_offset_bytes, first, 16,
                        s.minima + strip * 16);
        const float step = step_of(view.strips[strip].bits);
        for (uint32_t i = strip * 16; i < strip * 16 + 16; i += kWidth)
            store(s.ranges + i, load<Vf>(s.ranges + i) * step);
    }
    for (uint32_t i = view.shared_first; i < view.shared_first + view.n_shared; ++i) {
        s.ranges[parameter_position(i)] *= 3.0f;
        s.ranges[parameter_position(i + view.n_shared)] *= 3.0f / 7.0f;
    }
}

// One row's factors of a token group, in the words that hold its tokens.
inline void spread_key_group(const PageView &view, uint32_t group, const uint16_t *factors,
                             uint32_t *words) {
    for (uint32_t strip = 0; strip < view.n_strips; ++strip) {
        const uint32_t bits = view.strips[strip].bits;
        with_lane_words<0>(view.page_tokens, bits, [&](auto constant) {
            constexpr uint32_t kWords = decltype(constant)::value;
            const uint16_t *own = factors + strip * 16;
            if (view.n_groups == 1) {
                spread_strip_factors<kWords>(own, bits, words + strip * 32);
                return;
            }
            const uint32_t n_words = view.group * bits / 64;
            spread_group_factors<kWords>(own, bits, group * n_words, n_words,
                                         words + strip * (kKeyVectors * 32));
        });
    }
}

// Does the strip have shared ordered?
LK_INLINE bool is_shared(const PageView &view, uint32_t strip) {
    return strip * 16 + 16 > view.shared_first &&
           strip * 16 < view.shared_first + 2 * view.n_shared;
}

// Runs of strips of one width, with or without shared ordered, into s.sums.
inline void multiply_key_strips(const WorkTile &work, const KvTile &kv_tile, uint32_t row_words,
                                const DecodeState &s) {
    const PageView &view = *kv_tile.key.view;
    const uint32_t strip_words = row_words / view.n_strips;
    for (uint32_t first = 0; first < view.n_strips;) {
        const uint32_t bits = view.strips[first].bits;
        const bool shared = is_shared(view, first);
        uint32_t end = first + 1;
        while (end < view.n_strips && view.strips[end].bits == bits &&
               is_shared(view, end) == shared)
            ++end;
        multiply_packed_keys({kv_tile.key.payload + view.strips[first].offset_bytes, end - first,
                              view.page_tokens, s.key_factors + first * strip_words,
                              shared ? s.high_factors + first * strip_words : nullptr, row_words,
                              strip_words, view.n_groups == 1 ? 0u : 32u, s.sums, first > 0},
                             bits, work.n_rows);
        first = end;
    }
}

inline void packed_logits(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    const PageView &view = *kv_tile.key.view;
    const uint32_t head_dim = work.head_dim;
    const float *query = s.query_ordered;
    if (kv_tile.key.channels) {
        order_query(work, kv_tile.key.channels, s.page_ordered);
        query = s.page_ordered;
    }
    const uint32_t row_words = (view.n_groups == 1 ? 1 : kKeyVectors) * 2 * head_dim;
    Folded folded[kTokenGroups][kDecodeRows];
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        load_key_group(kv_tile.key, group, s);
        for (uint32_t r = 0; r < work.n_rows; ++r) {
            alignas(64) uint16_t low[LK_MAX_HEAD_DIM];
            alignas(64) uint16_t high[LK_MAX_HEAD_DIM];
            const float *row = query + r * head_dim;
            s.fetch->step();
            folded[group][r] = view.n_shared ? fold_shared(view, row, s, low, high)
                                             : fold_ranges(row, s, head_dim, low);
            spread_key_group(view, group, low, s.key_factors + r * row_words);
            if (view.n_shared)
                spread_key_group(view, group, high, s.high_factors + r * row_words);
        }
    }
    multiply_key_strips(work, kv_tile, row_words, s);
    for (uint32_t r = 0; r < work.n_rows; ++r)
        for (uint32_t t = 0; t < view.page_tokens; t += kWidth) {
            const Folded &own = folded[t / view.group][r];
            store(
                s.logits + r * kKvTileTokens + t,
                __builtin_convertvector(load<Vi>(s.sums + r * kKvTileTokens + t), Vf) * own.scale +
                    own.base);
        }
}

inline void spread_weights(const uint16_t *factors, uint32_t page_tokens, uint32_t bits,
                           uint32_t *words) {
    if (bits == 1)
        spread_value_factors<1>(factors, page_tokens, words);
    else if (bits == 2)
        spread_value_factors<2>(factors, page_tokens, words);
    else if (bits == 4)
        spread_value_factors<4>(factors, page_tokens, words);
    else
        spread_value_factors<8>(factors, page_tokens, words);
}

// The strips of one channel group.
inline void packed_group_values(const WorkTile &work, const KvTile &kv_tile, uint32_t first,
                                uint32_t end, const Folded *folded,
                                const uint16_t (*factors)[kKvTileTokens], const DecodeState &s) {
    const PageView &view = *kv_tile.value.view;
    uint32_t bits = 0;
    for (uint32_t strip = first; strip < end; ++strip) {
        if (view.strips[strip].bits != bits) {
            bits = view.strips[strip].bits;
            for (uint32_t r = 0; r < work.n_rows; ++r)
                spread_weights(factors[r], view.page_tokens, bits,
                               s.value_factors + r * kKvTileTokens);
        }
        int32_t sums[kDecodeRows][16];
        s.fetch->step();
        multiply_packed_values({kv_tile.value.payload + view.strips[strip].offset_bytes,
                                view.page_tokens, s.value_factors, kKvTileTokens, sums},
                               bits, work.n_rows);
        for (uint32_t r = 0; r < work.n_rows; ++r) {
            float *out = work.output + r * work.value_dim + strip * 16;
            for (uint32_t i = 0; i < 16; i += kWidth)
                store(out + i, load<Vf>(out + i) + folded[r].base +
                                   __builtin_convertvector(load<Vi>(sums[r] + i), Vf) *
                                       (folded[r].scale * step_of(bits)));
        }
    }
}

inline void packed_values(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    const PageView &view = *kv_tile.value.view;
    for (uint32_t r = 0; r < work.n_rows; ++r)
        for (uint32_t t = 0; t < view.page_tokens; t += 16)
            order_tile(s.logits + r * kKvTileTokens + t, s.weight_ordered + r * kKvTileTokens + t);
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        const uint32_t index = group * view.page_tokens;
        load_parameters(view, kv_tile.value.metadata, index, view.page_tokens, s.ranges);
        load_parameters(view, kv_tile.value.metadata + view.minima_offset_bytes, index,
                        view.page_tokens, s.minima);
        Folded folded[kDecodeRows];
        alignas(64) uint16_t factors[kDecodeRows][kKvTileTokens];
        for (uint32_t r = 0; r < work.n_rows; ++r)
            folded[r] =
                fold_ranges(s.weight_ordered + r * kKvTileTokens, s, view.page_tokens, factors[r]);
        const uint32_t first = group * view.group / 16;
        const uint32_t end = first + view.group / 16;
        packed_group_values(work, kv_tile, first, end < view.n_strips ? end : view.n_strips, folded,
                            factors, s);
    }
}

inline void mask_decode(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    for (uint32_t j = 0; j < work.n_queries; ++j)
        for (uint32_t t = 0; t < kv_tile.n_tokens; ++t)
            if (!is_visible(work, kv_tile, work.queries[j], t))
                for (uint32_t r = j * work.group_size; r < (j + 1) * work.group_size; ++r)
                    s.logits[r * kKvTileTokens + t] = kMasked;
}

// Logits of a row to weights. Tokens up to the vector's end count as masked.
inline void weigh_row(const WorkTile &work, uint32_t r, uint32_t n_tokens, float *logits) {
    for (uint32_t t = n_tokens; t < kKvTileTokens; ++t)
        logits[t] = kMasked;
    Vf highest = broadcast(work.row_max[r]);
    for (uint32_t t = 0; t < n_tokens; t += kWidth)
        highest = maximum(load<Vf>(logits + t), highest);
    const float row_max = horizontal_max(highest);
    const float factor = exp2_negative(broadcast(work.row_max[r] - row_max))[0];
    Vf sums = {};
    for (uint32_t t = 0; t < n_tokens; t += kWidth) {
        const Vf weight = exp2_negative(load<Vf>(logits + t) - row_max);
        store(logits + t, weight);
        sums += weight;
    }
    for (uint32_t t = (n_tokens + kWidth - 1) / kWidth * kWidth; t < kKvTileTokens; ++t)
        logits[t] = 0;
    work.row_sum[r] = work.row_sum[r] * factor + horizontal_sum(sums);
    work.row_max[r] = row_max;
    float *output = work.output + r * work.value_dim;
    for (uint32_t c = 0; factor != 1.0f && c < work.value_dim; c += kWidth)
        store(output + c, load<Vf>(output + c) * factor);
}

inline void cap_row(float *logits, uint32_t n, float start, float cap) {
    for (uint32_t t = 0; t < n; t += kWidth)
        store(logits + t, tanh_vector(load<Vf>(logits + t) + start) * cap);
}

inline void attend_kv_tile(const WorkTile &work, const KvTile &kv_tile, bool all,
                           const DecodeState &s) {
    if (!is_native(kv_tile.key))
        generic_logits(work, kv_tile, s);
    else if (kv_tile.key.view->kind == PageKind::kRaw)
        raw_logits(work, kv_tile, s);
    else
        packed_logits(work, kv_tile, s);
    for (uint32_t r = 0; work.cap > 0 && r < work.n_rows; ++r)
        cap_row(s.logits + r * kKvTileTokens, kKvTileTokens, start_of(work, r), work.cap);
    if (!all)
        mask_decode(work, kv_tile, s);
    for (uint32_t r = 0; r < work.n_rows; ++r)
        weigh_row(work, r, kv_tile.n_tokens, s.logits + r * kKvTileTokens);
    if (!is_native(kv_tile.value))
        generic_values(work, kv_tile, s);
    else if (kv_tile.value.view->kind == PageKind::kRaw)
        raw_values(work, kv_tile, s);
    else
        packed_values(work, kv_tile, s);
}

// The steps of a page: calls of Fetch::step().
inline uint32_t count_steps(const PageBytes &page, uint32_t n_rows, uint32_t n_row_tiles) {
    if (!is_native(page))
        return 0;
    const PageView &view = *page.view;
    if (view.kind == PageKind::kRaw)
        return 2 * n_row_tiles * ((n_rows + 3) / 4);
    return view.is_value ? view.n_strips : view.n_groups * n_rows;
}

inline void fetch_page(const PageBytes &page, Fetch *fetch, uint32_t index) {
    if (!page.view)
        return;
    fetch->at[index] = page.payload;
    fetch->n_lines[index] = (page.view->payload_bytes + 63) / 64;
    fetch->at[index + 1] = page.metadata;
    fetch->n_lines[index + 1] = (page.view->metadata_bytes + 63) / 64;
}

// What the work on `kv_tile` prefetches of `next`.
inline Fetch plan_fetch(const WorkTile &work, const KvTile &kv_tile, const KvTile &next) {
    Fetch fetch = {};
    fetch_page(next.key, &fetch, 0);
    fetch_page(next.value, &fetch, 2);
    const uint32_t n_steps = count_steps(kv_tile.key, work.n_rows, (kv_tile.n_tokens + 15) / 16) +
                             count_steps(kv_tile.value, work.n_rows, work.value_dim / 16);
    const uint32_t n_lines =
        fetch.n_lines[0] + fetch.n_lines[1] + fetch.n_lines[2] + fetch.n_lines[3];
    fetch.step_lines = n_steps ? (n_lines + n_steps - 1) / n_steps : 0;
    return fetch;
}

void attend_decode(const WorkTile &work) {
    DecodeState s = cut_decode_scratch(work);
    std::memset(work.output, 0, 4ull * work.n_rows * work.value_dim);
    for (uint32_t r = 0; r < work.n_rows; ++r) {
        work.row_max[r] = kNoMaximum;
        work.row_sum[r] = 0;
    }
    order_query(work, nullptr, s.query_ordered);
    for (uint32_t i = 0; i < work.n_rows * work.head_dim; i += 16)
        spread_tile(work.q + i, s.query_spread + 2 * i);
    KvTile kv_tiles[2];
    bool more = work.keys.next(work.keys.state, &kv_tiles[0]);
    for (uint32_t i = 0; more; i ^= 1) {
        more = work.keys.next(work.keys.state, &kv_tiles[i ^ 1]);
        Fetch fetch = {};
        if (more)
            fetch = plan_fetch(work, kv_tiles[i], kv_tiles[i ^ 1]);
        s.fetch = &fetch;
        const Visible visible = visible_keys(work, kv_tiles[i]);
        if (visible != Visible::kNone)
            attend_kv_tile(work, kv_tiles[i], visible == Visible::kAll, s);
    }
    add_starts(work);
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
