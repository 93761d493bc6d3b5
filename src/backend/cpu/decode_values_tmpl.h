// Weights of few query rows times the values of a KV tile.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_DECODE_VALUES_TMPL_H
#define LK_BACKEND_CPU_DECODE_VALUES_TMPL_H

#include "backend/cpu/decode_state_tmpl.h"

namespace lk {
namespace cpu {
namespace {

// Staged values, [token][channel].
inline void staged_values(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    const Matrix values =
        unpack_page(kv_tile.value, 0, kv_tile.n_tokens, work.value_dim, true, s.matrix);
    uint32_t weight_rows[kDecodeRows];
    uint32_t value_rows[kKvTileTokens];
    uint32_t result_rows[kDecodeRows];
    row_offsets(kDecodeRows, kKvTileTokens, weight_rows);
    row_offsets(kv_tile.n_tokens, values.k_stride, value_rows);
    row_offsets(kDecodeRows, work.value_dim, result_rows);
    multiply({s.logits, weight_rows, 1, values.data, value_rows, s.result, result_rows,
              (work.n_rows + kTileHeight - 1) / kTileHeight * kTileHeight, kv_tile.n_tokens,
              work.value_dim, false});
    for (uint32_t i = 0; i < work.n_rows * work.value_dim; i += kWidth)
        store(work.output + i, load<Vf>(work.output + i) + load<Vf>(s.result + i));
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

// A row's factors in the words of a plane of `bits`.
inline void spread_weights(const uint16_t *factors, uint32_t page_tokens, uint32_t bits,
                           uint32_t *words) {
    with_width(bits, [&](auto width) {
        spread_value_factors<decltype(width)::value>(factors, page_tokens, words);
    });
}

// A strip's sums; of 3 bits, those of the high plane count four times.
inline void multiply_value_strip(const WorkTile &work, const KvTile &kv_tile, uint32_t strip,
                                 const DecodeState &s, int32_t (*sums)[16]) {
    const PageView &view = *kv_tile.value.view;
    const StripView &at = view.strips[strip];
    multiply_packed_values({kv_tile.value.payload + at.offset_bytes, view.page_tokens,
                            s.value_factors, kKvTileTokens, sums},
                           LK_LOW_BITS(at.bits), work.n_rows);
    if (at.bits != 3)
        return;
    int32_t high[kDecodeRows][16];
    multiply_packed_values({kv_tile.value.payload + at.high_offset_bytes, view.page_tokens,
                            s.high_weights, kKvTileTokens, high},
                           1, work.n_rows);
    for (uint32_t r = 0; r < work.n_rows; ++r)
        for (uint32_t i = 0; i < 16; i += kWidth)
            store(sums[r] + i, load<Vi>(sums[r] + i) + (load<Vi>(high[r] + i) << 2));
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
            for (uint32_t r = 0; r < work.n_rows; ++r) {
                spread_weights(factors[r], view.page_tokens, LK_LOW_BITS(bits),
                               s.value_factors + r * kKvTileTokens);
                if (bits == 3)
                    spread_weights(factors[r], view.page_tokens, 1,
                                   s.high_weights + r * kKvTileTokens);
            }
        }
        int32_t sums[kDecodeRows][16];
        s.fetch->step();
        multiply_value_strip(work, kv_tile, strip, s, sums);
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

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
