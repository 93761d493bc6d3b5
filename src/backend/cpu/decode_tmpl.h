// Attention of few query rows. Weights and logits are arrays [row][token].
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_DECODE_TMPL_H
#define LK_BACKEND_CPU_DECODE_TMPL_H

#include "backend/cpu/decode_keys_tmpl.h"
#include "backend/cpu/decode_values_tmpl.h"

namespace lk {
namespace cpu {
namespace {

inline void mask_decode(const WorkTile &work, const KvTile &kv_tile, const DecodeState &s) {
    for (uint32_t j = 0; j < work.n_queries; ++j)
        for (uint32_t t = 0; t < kv_tile.n_tokens; ++t)
            if (!is_visible(work, kv_tile, work.queries[j], t))
                for (uint32_t r = j * work.group_size; r < (j + 1) * work.group_size; ++r)
                    s.logits[r * kKvTileTokens + t] = kMasked;
}

// Weights of a row: tokens of its value page, or whole tiles.
LK_INLINE uint32_t count_weights(const KvTile &kv_tile) {
    const PageView *view = kv_tile.value.view;
    return view && view->kind == PageKind::kPacked ? view->page_tokens
                                                   : (kv_tile.n_tokens + 15) / 16 * 16;
}

// Logits of a row to weights, n_weights of them; those from n_tokens on become 0.
inline void weigh_row(const WorkTile &work, uint32_t r, uint32_t n_tokens, uint32_t n_weights,
                      float *logits) {
    for (uint32_t t = n_tokens; t < n_weights; ++t)
        logits[t] = kMasked;
    Vf highest = broadcast(work.row_max[r]);
    for (uint32_t t = 0; t < n_weights; t += kWidth)
        highest = maximum(load<Vf>(logits + t), highest);
    const float row_max = horizontal_max(highest);
    const float factor = exp2_negative(broadcast(work.row_max[r] - row_max))[0];
    Vf sums = {};
    for (uint32_t t = 0; t < n_weights; t += kWidth) {
        const Vf weight = exp2_negative(load<Vf>(logits + t) - row_max);
        store(logits + t, weight);
        sums += weight;
    }
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
        unpacked_logits(work, kv_tile, s);
    else if (kv_tile.key.view->kind == PageKind::kRaw)
        raw_logits(work, kv_tile, s);
    else
        packed_logits(work, kv_tile, s);
    for (uint32_t r = 0; work.cap > 0 && r < work.n_rows; ++r)
        cap_row(s.logits + r * kKvTileTokens, kv_tile.n_tokens, start_of(work, r), work.cap);
    if (!all)
        mask_decode(work, kv_tile, s);
    const uint32_t n_weights = count_weights(kv_tile);
    for (uint32_t r = 0; r < work.n_rows; ++r)
        weigh_row(work, r, kv_tile.n_tokens, n_weights, s.logits + r * kKvTileTokens);
    if (!kv_tile.value.view)
        staged_values(work, kv_tile, s);
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
    order_query(work, nullptr, s.query_ordered, s.query_spread);
    QueryOrder page_order = {};
    s.page_order = &page_order;
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
