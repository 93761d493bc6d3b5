// Attention of few query rows. Weights and logits lie as [row][token].
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_DECODE_TMPL_H
#define LK_BACKEND_CPU_DECODE_TMPL_H

#include "backend/cpu/unpack_tmpl.h"
#include "backend/cpu/visible_tmpl.h"

namespace lk {
namespace cpu {
namespace {

struct DecodeState {
    float *logits;  // [kDecodeRows][kBlockTokens], then weights
    float *matrix;  // an unpacked half
    float *query;   // [kDecodeRows][head_dim], in the order of a page's slots
    float *work;    // of a direct kernel
};

inline DecodeState cut_decode_scratch(const Unit &unit) {
    DecodeState s;
    s.logits = unit.scratch;
    s.matrix = s.logits + kDecodeRows * kBlockTokens;
    s.query = s.matrix + (kBlockTokens + 16) * unit.head_dim;
    s.work = s.query + kDecodeRows * unit.head_dim;
    return s;
}

// out[r][m] (+)= dot(a row m, x row r) for contiguous rows of n floats.
inline void dot_rows(const float *a, int64_t a_stride, uint32_t n_m, const float *x, uint32_t x_stride,
                     uint32_t n_rows, uint32_t n, float *out, uint32_t out_stride, const uint8_t *places, bool add) {
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
    const Matrix keys = unpack_half(block.key, block.first_token, block.n_tokens, unit.head_dim, false, s.matrix);
    const float *query = unit.q;
    if (block.key.channels) {
        for (uint32_t r = 0; r < unit.n_rows; ++r)
            for (uint32_t slot = 0; slot < unit.head_dim; ++slot)
                s.query[r * unit.head_dim + slot] = unit.q[r * unit.head_dim + block.key.channels[slot]];
        query = s.query;
    }
    dot_rows(keys.data, keys.row_stride, block.n_tokens, query, unit.head_dim, unit.n_rows, unit.head_dim, s.logits,
             kBlockTokens, nullptr, false);
}

inline void generic_values(const Unit &unit, const KeyBlock &block, const DecodeState &s) {
    const Matrix values = unpack_half(block.value, block.first_token, block.n_tokens, unit.head_dim, true, s.matrix);
    if (values.k_stride == 1) {
        dot_rows(values.data, values.row_stride, unit.head_dim, s.logits, kBlockTokens, unit.n_rows, block.n_tokens,
                 unit.output, unit.head_dim, block.value.channels, true);
        return;
    }
    for (uint32_t r = 0; r < unit.n_rows; ++r)
        for (uint32_t t = 0; t < block.n_tokens; ++t)
            for (uint32_t c = 0; c < unit.head_dim; ++c)
                unit.output[r * unit.head_dim + c] += s.logits[r * kBlockTokens + t] * values.data[t * values.k_stride + c];
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
    if (factor != 1.0f)
        for (uint32_t c = 0; c < unit.head_dim; ++c)
            unit.output[r * unit.head_dim + c] *= factor;
}

inline void cap_row(float *logits, uint32_t n, float cap) {
    for (uint32_t t = 0; t < n; t += kWidth)
        store(logits + t, tanh_vector(load<Vf>(logits + t)) * cap);
}

inline void attend_decode_block(const Unit &unit, const KeyBlock &block, bool all, const DecodeState &s) {
    generic_logits(unit, block, s);
    for (uint32_t r = 0; unit.cap > 0 && r < unit.n_rows; ++r)
        cap_row(s.logits + r * kBlockTokens, kBlockTokens, unit.cap);
    if (!all)
        hide_decode(unit, block, s);
    for (uint32_t r = 0; r < unit.n_rows; ++r)
        weigh_row(unit, r, block.n_tokens, s.logits + r * kBlockTokens);
    generic_values(unit, block, s);
}

void attend_decode(const Unit &unit) {
    const DecodeState s = cut_decode_scratch(unit);
    std::memset(unit.output, 0, 4ull * unit.n_rows * unit.head_dim);
    for (uint32_t r = 0; r < unit.n_rows; ++r) {
        unit.top[r] = kNoTop;
        unit.sum[r] = 0;
    }
    KeyBlock block;
    while (unit.keys.next(unit.keys.state, &block)) {
        const Sight seen = sight(unit, block);
        if (seen != Sight::kNone)
            attend_decode_block(unit, block, seen == Sight::kAll, s);
    }
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
