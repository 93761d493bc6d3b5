// Attention of few query rows. Weights and logits lie as [row][token].
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_DECODE_TMPL_H
#define LK_BACKEND_CPU_DECODE_TMPL_H

#include "backend/cpu/direct_tmpl.h"
#include "backend/cpu/visible_tmpl.h"

namespace lk {
namespace cpu {
namespace {

constexpr uint32_t kKeyVectors = 4;   // of a strip of keys, at most
constexpr uint32_t kTokenGroups = 8;  // of a page, at most

struct DecodeState {
    float *logits;          // [kDecodeRows][kBlockTokens], then weights
    float *matrix;          // an unpacked half
    float *query;           // [kDecodeRows][head_dim], in the order of a page's slots
    float *query_places;    // [kDecodeRows][2 head_dim], for 16-bit keys
    float *query_ordered;   // [kDecodeRows][head_dim], strips in the order of the parameters
    float *page_ordered;    // the same under a page's permutation
    float *weight_places;   // [kDecodeRows][2 kBlockTokens], for 16-bit values
    float *weight_ordered;  // [kDecodeRows][kBlockTokens], for packed values
    float *ranges;          // [head_dim or kBlockTokens]
    float *minima;
    float *folded;
    float *doubled;           // [head_dim]
    uint32_t *key_factors;    // [kDecodeRows][strips][kKeyVectors][32]
    uint32_t *high_factors;   // the same, of bit 1 of shared slots
    uint32_t *value_factors;  // [kDecodeRows][kBlockTokens], of which 1 bit takes all
    int32_t *sums;            // [kDecodeRows][kBlockTokens]
};

inline DecodeState cut_decode_scratch(const Unit &unit) {
    DecodeState s;
    const uint32_t queries = kDecodeRows * unit.head_dim;
    const uint32_t weights = kDecodeRows * kBlockTokens;
    s.logits = unit.scratch;
    s.matrix = s.logits + weights;
    s.query = s.matrix + (kBlockTokens + 16) * unit.head_dim;
    s.query_places = s.query + queries;
    s.query_ordered = s.query_places + 2 * queries;
    s.page_ordered = s.query_ordered + queries;
    s.weight_places = s.page_ordered + queries;
    s.weight_ordered = s.weight_places + 2 * weights;
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

// out[r][m] (+)= dot(a row m, x row r) for contiguous rows of n floats.
inline void dot_rows(const float *a, int64_t a_stride, uint32_t n_m, const float *x,
                     uint32_t x_stride, uint32_t n_rows, uint32_t n, float *out,
                     uint32_t out_stride, const uint8_t *places, bool add) {
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
            float *to = out + r * out_stride + (places ? places[m] : m);
            *to = add ? *to + sum : sum;
        }
}

inline void generic_logits(const Unit &unit, const KeyBlock &block, const DecodeState &s) {
    const Matrix keys =
        unpack_page(block.key, block.first_token, block.n_tokens, unit.head_dim, false, s.matrix);
    const float *query = unit.q;
    if (block.key.channels) {
        for (uint32_t r = 0; r < unit.n_rows; ++r)
            for (uint32_t slot = 0; slot < unit.head_dim; ++slot)
                s.query[r * unit.head_dim + slot] =
                    unit.q[r * unit.head_dim + block.key.channels[slot]];
        query = s.query;
    }
    dot_rows(keys.data, keys.row_stride, block.n_tokens, query, unit.head_dim, unit.n_rows,
             unit.head_dim, s.logits, kBlockTokens, nullptr, false);
}

inline void generic_values(const Unit &unit, const KeyBlock &block, const DecodeState &s) {
    const Matrix values =
        unpack_page(block.value, block.first_token, block.n_tokens, unit.head_dim, true, s.matrix);
    if (values.k_stride == 1) {
        dot_rows(values.data, values.row_stride, unit.head_dim, s.logits, kBlockTokens, unit.n_rows,
                 block.n_tokens, unit.output, unit.head_dim, block.value.channels, true);
        return;
    }
    for (uint32_t r = 0; r < unit.n_rows; ++r)
        for (uint32_t t = 0; t < block.n_tokens; ++t)
            for (uint32_t c = 0; c < unit.head_dim; ++c)
                unit.output[r * unit.head_dim + c] +=
                    s.logits[r * kBlockTokens + t] * values.data[t * values.k_stride + c];
}

// Whether the half is read as it lies. Strips whose lanes have fewer than 4 words, 2 at 1 bit, are
// unpacked.
inline bool is_direct(const HalfBytes &half) {
    if (!half.view || half.view->kind == HalfKind::kOther || (half.view->is_value && half.channels))
        return false;
    if (half.view->kind == HalfKind::kRaw)
        return !half.channels;
    for (uint32_t strip = 0; strip < half.view->n_strips; ++strip) {
        const uint32_t bits = half.view->strips[strip].bits;
        if (half.view->page_tokens * bits < (bits == 1 ? 128 : 256))
            return false;
    }
    return true;
}

inline void raw_logits(const Unit &unit, const KeyBlock &block, const DecodeState &s) {
    const HalfView &view = *block.key.view;
    const uint8_t *tiles = block.key.payload + block.first_token / 16 * 512ull;
    multiply_raw({tiles, 512, view.page_tokens * 32ull, (block.n_tokens + 15) / 16, view.n_strips,
                  s.query_places, 2 * unit.head_dim, nullptr, s.logits, kBlockTokens, false},
                 unit.n_rows);
}

inline void raw_values(const Unit &unit, const KeyBlock &block, const DecodeState &s) {
    const HalfView &view = *block.value.view;
    const uint32_t whole = block.n_tokens / 16;
    const uint32_t rest = block.n_tokens % 16;
    for (uint32_t r = 0; r < unit.n_rows; ++r)
        for (uint32_t tile = 0; tile * 16 < block.n_tokens; ++tile)
            spread_block(s.logits + r * kBlockTokens + tile * 16,
                         s.weight_places + (r * kBlockTokens + tile * 16) * 2);
    RawProduct p = {block.value.payload + block.first_token / 16 * 512ull,
                    view.page_tokens * 32ull,
                    512,
                    view.n_strips,
                    whole,
                    s.weight_places,
                    2 * kBlockTokens,
                    nullptr,
                    unit.output,
                    unit.head_dim,
                    true};
    multiply_raw(p, unit.n_rows);
    if (!rest)
        return;
    // What lies behind the last token may be a NaN, which a weight of 0 does not silence.
    alignas(64) uint16_t mask[32];
    for (uint32_t i = 0; i < 32; ++i)
        mask[i] = LK_TILE_K(i / 8, i / 2 % 4) + i % 2 < rest ? 0xFFFF : 0;
    p.tiles += whole * 512ull;
    p.n_k_blocks = 1;
    p.places += whole * 32;
    p.mask = mask;
    multiply_raw(p, unit.n_rows);
}

// q in the order of a page's slots, strips in the order of their parameters.
inline void order_query(const Unit &unit, const uint8_t *channels, float *out) {
    alignas(64) float slots[LK_MAX_HEAD_DIM];
    for (uint32_t r = 0; r < unit.n_rows; ++r) {
        const float *query = unit.q + r * unit.head_dim;
        if (channels) {
            for (uint32_t slot = 0; slot < unit.head_dim; ++slot)
                slots[slot] = query[channels[slot]];
            query = slots;
        }
        for (uint32_t slot = 0; slot < unit.head_dim; slot += 16)
            order_block(query + slot, out + r * unit.head_dim + slot);
    }
}

struct Folded {
    float base;  // sum of factor * minimum
    float unit;  // what one of the integers stands for
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
    round_factors(s.folded, any ? 32767.0f / highest : 0.0f, out, n);
    return {base, any ? highest / 32767.0f : 0.0f};
}

// Place of a slot's parameters among those of a token group.
LK_INLINE uint32_t slot_place(uint32_t slot) { return (slot & ~15u) | LK_K_ORDER(slot & 15u); }

// The same of keys with shared slots: `low` for bit 0 of every field, `high` for bit 1, which of a
// partner is the highest bit of its outlier's code.
inline Folded fold_shared(const HalfView &view, const float *values, const DecodeState &s,
                          uint16_t *low, uint16_t *high) {
    const uint32_t n = view.head_dim;
    const float base = multiply_ranges(values, s, n);
    std::memcpy(s.doubled, s.folded, n * sizeof *s.doubled);
    for (uint32_t i = view.shared_first; i < view.shared_first + view.n_shared; ++i)
        s.doubled[slot_place(i)] = 2 * s.folded[slot_place(i + view.n_shared)];
    const float lows = highest_magnitude(s.folded, n);
    const float highs = highest_magnitude(s.doubled, n);
    const float highest = lows > highs ? lows : highs;
    const bool any = highest > 1e-30f;
    const float scale = any ? 32767.0f / highest : 0.0f;
    round_factors(s.folded, scale, low, n);
    round_factors(s.doubled, scale, high, n);
    return {base, any ? highest / 32767.0f : 0.0f};
}

// Steps and minima of a group of tokens, each strip's in the order of its parameters.
inline void load_key_group(const HalfBytes &half, uint32_t group, const DecodeState &s) {
    const HalfView &view = *half.view;
    for (uint32_t strip = 0; strip < view.n_strips; ++strip) {
        const uint32_t first = (strip * view.n_groups + group) * 16;
        load_parameters(view, half.metadata, first, 16, s.ranges + strip * 16);
        load_parameters(view, half.metadata + view.minima_offset_bytes, first, 16,
                        s.minima + strip * 16);
        const float step = step_of(view.strips[strip].bits);
        for (uint32_t i = strip * 16; i < strip * 16 + 16; i += kWidth)
            store(s.ranges + i, load<Vf>(s.ranges + i) * step);
    }
    for (uint32_t i = view.shared_first; i < view.shared_first + view.n_shared; ++i) {
        s.ranges[slot_place(i)] *= 3.0f;
        s.ranges[slot_place(i + view.n_shared)] *= 3.0f / 7.0f;
    }
}

// One row's factors of a token group, in the words that hold its tokens.
inline void spread_key_group(const HalfView &view, uint32_t group, const uint16_t *factors,
                             uint32_t *places) {
    for (uint32_t strip = 0; strip < view.n_strips; ++strip) {
        const uint32_t bits = view.strips[strip].bits;
        if (view.n_groups == 1) {
            spread_key_factors(factors + strip * 16, bits, places + strip * 32);
            continue;
        }
        const uint32_t n_words = view.group * bits / 64;
        spread_group_factors(factors + strip * 16, bits, group * n_words, n_words,
                             places + strip * (kKeyVectors * 32));
    }
}

// Does the strip have shared slots?
LK_INLINE bool is_shared(const HalfView &view, uint32_t strip) {
    return strip * 16 + 16 > view.shared_first &&
           strip * 16 < view.shared_first + 2 * view.n_shared;
}

// Runs of strips of one width, with or without shared slots, into s.sums.
inline void multiply_key_strips(const Unit &unit, const KeyBlock &block, uint32_t row_words,
                                const DecodeState &s) {
    const HalfView &view = *block.key.view;
    const uint32_t strip_words = row_words / view.n_strips;
    for (uint32_t first = 0; first < view.n_strips;) {
        const uint32_t bits = view.strips[first].bits;
        const bool shared = is_shared(view, first);
        uint32_t end = first + 1;
        while (end < view.n_strips && view.strips[end].bits == bits &&
               is_shared(view, end) == shared)
            ++end;
        multiply_packed_keys({block.key.payload + view.strips[first].offset_bytes, end - first,
                              view.page_tokens, s.key_factors + first * strip_words,
                              shared ? s.high_factors + first * strip_words : nullptr, row_words,
                              strip_words, view.n_groups == 1 ? 0u : 32u, s.sums, first > 0},
                             bits, unit.n_rows);
        first = end;
    }
}

inline void packed_logits(const Unit &unit, const KeyBlock &block, const DecodeState &s) {
    const HalfView &view = *block.key.view;
    const uint32_t head_dim = unit.head_dim;
    const float *query = s.query_ordered;
    if (block.key.channels) {
        order_query(unit, block.key.channels, s.page_ordered);
        query = s.page_ordered;
    }
    const uint32_t row_words = (view.n_groups == 1 ? 1 : kKeyVectors) * 2 * head_dim;
    Folded folded[kTokenGroups][kDecodeRows];
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        load_key_group(block.key, group, s);
        for (uint32_t r = 0; r < unit.n_rows; ++r) {
            alignas(64) uint16_t low[LK_MAX_HEAD_DIM];
            alignas(64) uint16_t high[LK_MAX_HEAD_DIM];
            const float *row = query + r * head_dim;
            folded[group][r] = view.n_shared ? fold_shared(view, row, s, low, high)
                                             : fold_ranges(row, s, head_dim, low);
            spread_key_group(view, group, low, s.key_factors + r * row_words);
            if (view.n_shared)
                spread_key_group(view, group, high, s.high_factors + r * row_words);
        }
    }
    multiply_key_strips(unit, block, row_words, s);
    for (uint32_t r = 0; r < unit.n_rows; ++r)
        for (uint32_t t = 0; t < view.page_tokens; t += kWidth) {
            const Folded &own = folded[t / view.group][r];
            store(s.logits + r * kBlockTokens + t,
                  __builtin_convertvector(load<Vi>(s.sums + r * kBlockTokens + t), Vf) * own.unit +
                      own.base);
        }
}

inline void spread_weights(const uint16_t *factors, uint32_t page_tokens, uint32_t bits,
                           uint32_t *places) {
    if (bits == 1)
        spread_value_factors<1>(factors, page_tokens, places);
    else if (bits == 2)
        spread_value_factors<2>(factors, page_tokens, places);
    else if (bits == 4)
        spread_value_factors<4>(factors, page_tokens, places);
    else
        spread_value_factors<8>(factors, page_tokens, places);
}

// The strips of one channel group.
inline void packed_group_values(const Unit &unit, const KeyBlock &block, uint32_t first,
                                uint32_t end, const Folded *folded,
                                const uint16_t (*factors)[kBlockTokens], const DecodeState &s) {
    const HalfView &view = *block.value.view;
    uint32_t bits = 0;
    for (uint32_t strip = first; strip < end; ++strip) {
        if (view.strips[strip].bits != bits) {
            bits = view.strips[strip].bits;
            for (uint32_t r = 0; r < unit.n_rows; ++r)
                spread_weights(factors[r], view.page_tokens, bits,
                               s.value_factors + r * kBlockTokens);
        }
        int32_t sums[kDecodeRows][16];
        multiply_packed_values({block.value.payload + view.strips[strip].offset_bytes,
                                view.page_tokens, s.value_factors, kBlockTokens, sums},
                               bits, unit.n_rows);
        for (uint32_t r = 0; r < unit.n_rows; ++r) {
            float *out = unit.output + r * unit.head_dim + strip * 16;
            for (uint32_t i = 0; i < 16; i += kWidth)
                store(out + i, load<Vf>(out + i) + folded[r].base +
                                   __builtin_convertvector(load<Vi>(sums[r] + i), Vf) *
                                       (folded[r].unit * step_of(bits)));
        }
    }
}

inline void packed_values(const Unit &unit, const KeyBlock &block, const DecodeState &s) {
    const HalfView &view = *block.value.view;
    for (uint32_t r = 0; r < unit.n_rows; ++r)
        for (uint32_t t = 0; t < view.page_tokens; t += 16)
            order_block(s.logits + r * kBlockTokens + t, s.weight_ordered + r * kBlockTokens + t);
    for (uint32_t group = 0; group < view.n_groups; ++group) {
        const uint32_t index = group * view.page_tokens;
        load_parameters(view, block.value.metadata, index, view.page_tokens, s.ranges);
        load_parameters(view, block.value.metadata + view.minima_offset_bytes, index,
                        view.page_tokens, s.minima);
        Folded folded[kDecodeRows];
        alignas(64) uint16_t factors[kDecodeRows][kBlockTokens];
        for (uint32_t r = 0; r < unit.n_rows; ++r)
            folded[r] =
                fold_ranges(s.weight_ordered + r * kBlockTokens, s, view.page_tokens, factors[r]);
        const uint32_t first = group * view.group / 16;
        const uint32_t end = first + view.group / 16;
        packed_group_values(unit, block, first, end < view.n_strips ? end : view.n_strips, folded,
                            factors, s);
    }
}

inline void hide_decode(const Unit &unit, const KeyBlock &block, const DecodeState &s) {
    for (uint32_t j = 0; j < unit.n_queries; ++j)
        for (uint32_t t = 0; t < block.n_tokens; ++t)
            if (!sees(unit, block, unit.queries[j], t))
                for (uint32_t r = j * unit.group_size; r < (j + 1) * unit.group_size; ++r)
                    s.logits[r * kBlockTokens + t] = kHidden;
}

// Logits of a row to weights. Tokens up to the vector's end count as hidden.
inline void weigh_row(const Unit &unit, uint32_t r, uint32_t n_tokens, float *logits) {
    for (uint32_t t = n_tokens; t < kBlockTokens; ++t)
        logits[t] = kHidden;
    Vf highest = broadcast(unit.top[r]);
    for (uint32_t t = 0; t < n_tokens; t += kWidth)
        highest = maximum(load<Vf>(logits + t), highest);
    const float top = horizontal_max(highest);
    const float factor = exp2_negative(broadcast(unit.top[r] - top))[0];
    Vf sums = {};
    for (uint32_t t = 0; t < n_tokens; t += kWidth) {
        const Vf weight = exp2_negative(load<Vf>(logits + t) - top);
        store(logits + t, weight);
        sums += weight;
    }
    for (uint32_t t = (n_tokens + kWidth - 1) / kWidth * kWidth; t < kBlockTokens; ++t)
        logits[t] = 0;
    unit.sum[r] = unit.sum[r] * factor + horizontal_sum(sums);
    unit.top[r] = top;
    float *output = unit.output + r * unit.head_dim;
    for (uint32_t c = 0; factor != 1.0f && c < unit.head_dim; c += kWidth)
        store(output + c, load<Vf>(output + c) * factor);
}

inline void cap_row(float *logits, uint32_t n, float start, float cap) {
    for (uint32_t t = 0; t < n; t += kWidth)
        store(logits + t, tanh_vector(load<Vf>(logits + t) + start) * cap);
}

inline void attend_decode_block(const Unit &unit, const KeyBlock &block, bool all,
                                const DecodeState &s) {
    if (!is_direct(block.key))
        generic_logits(unit, block, s);
    else if (block.key.view->kind == HalfKind::kRaw)
        raw_logits(unit, block, s);
    else
        packed_logits(unit, block, s);
    for (uint32_t r = 0; unit.cap > 0 && r < unit.n_rows; ++r)
        cap_row(s.logits + r * kBlockTokens, kBlockTokens, start_of(unit, r), unit.cap);
    if (!all)
        hide_decode(unit, block, s);
    for (uint32_t r = 0; r < unit.n_rows; ++r)
        weigh_row(unit, r, block.n_tokens, s.logits + r * kBlockTokens);
    if (!is_direct(block.value))
        generic_values(unit, block, s);
    else if (block.value.view->kind == HalfKind::kRaw)
        raw_values(unit, block, s);
    else
        packed_values(unit, block, s);
}

// Halves lie anywhere, and packed ones are shorter than what the hardware needs to see a stream,
// so the next block is asked for while this one is worked on. A 16-bit half would fill the first
// cache level and goes to the second.
LK_INLINE void fetch_half(const HalfBytes &half) {
    if (!half.view)
        return;
    if (half.view->kind == HalfKind::kRaw) {
        for (uint32_t i = 0; i < half.view->payload_bytes; i += 64)
            __builtin_prefetch(half.payload + i, 0, 1);
        return;
    }
    for (uint32_t i = 0; i < half.view->payload_bytes; i += 64)
        __builtin_prefetch(half.payload + i, 0, 3);
    for (uint32_t i = 0; i < half.view->metadata_bytes; i += 64)
        __builtin_prefetch(half.metadata + i, 0, 3);
}

void attend_decode(const Unit &unit) {
    const DecodeState s = cut_decode_scratch(unit);
    std::memset(unit.output, 0, 4ull * unit.n_rows * unit.head_dim);
    for (uint32_t r = 0; r < unit.n_rows; ++r) {
        unit.top[r] = kNoTop;
        unit.sum[r] = 0;
    }
    order_query(unit, nullptr, s.query_ordered);
    for (uint32_t i = 0; i < unit.n_rows * unit.head_dim; i += 16)
        spread_block(unit.q + i, s.query_places + 2 * i);
    KeyBlock blocks[2];
    bool more = unit.keys.next(unit.keys.state, &blocks[0]);
    for (uint32_t i = 0; more; i ^= 1) {
        more = unit.keys.next(unit.keys.state, &blocks[i ^ 1]);
        if (more) {
            fetch_half(blocks[i ^ 1].key);
            fetch_half(blocks[i ^ 1].value);
        }
        const Sight seen = sight(unit, blocks[i]);
        if (seen != Sight::kNone)
            attend_decode_block(unit, blocks[i], seen == Sight::kAll, s);
    }
    add_starts(unit);
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
