// Attention of many query rows: pages are unpacked to FP32 once for all rows of a work, and both
// products run in register blocks with the rows along the vectors.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_TILE_TMPL_H
#define LK_BACKEND_CPU_TILE_TMPL_H

#include "backend/cpu/mask_tmpl.h"
#include "backend/cpu/product_tmpl.h"
#include "backend/cpu/unpack_tmpl.h"

namespace lk {
namespace cpu {
namespace {

struct TileState {
    uint32_t width;  // rows, padded to vectors
    float *q;        // [head_dim][width]
    float *output;   // [value_dim][width]
    float *logits;   // [kKvTileTokens][width], then weights
    float *row_max;  // [width]
    float *row_sum;  // [width]
    float *factor;   // [width]
    float *start;    // [width]
    float *matrix;   // an unpacked page
};

inline TileState cut_tile_scratch(const WorkTile &work) {
    TileState s;
    s.width = (work.n_rows + kWidth - 1) / kWidth * kWidth;
    s.q = work.scratch;
    s.output = s.q + kTileRows * work.head_dim;
    s.logits = s.output + kTileRows * work.value_dim;
    s.row_max = s.logits + kTileRows * kKvTileTokens;
    s.row_sum = s.row_max + kTileRows;
    s.factor = s.row_sum + kTileRows;
    s.start = s.factor + kTileRows;
    s.matrix = s.start + kTileRows;
    return s;
}

inline void start_tile(const WorkTile &work, const TileState &s) {
    for (uint32_t c = 0; c < work.head_dim; ++c)
        for (uint32_t r = 0; r < s.width; ++r)
            s.q[c * s.width + r] =
                r < work.n_rows ? work.q[static_cast<uint64_t>(r) * work.head_dim + c] : 0;
    std::memset(s.output, 0, 4ull * work.value_dim * s.width);
    for (uint32_t r = 0; r < s.width; ++r) {
        s.row_max[r] = kNoMaximum;
        s.row_sum[r] = 0;
        s.start[r] = r < work.n_rows ? start_of(work, r) : 0;
    }
}

// Offsets of the rows of channels: in a page, whose stored channels may have another order, and
// outside. Channels from n_wanted on are left out; returns how many there are.
inline uint32_t channel_offsets(const uint8_t *channels, uint32_t n_channels, uint32_t n_wanted,
                                int64_t stored_stride, uint32_t stride, uint32_t *stored_rows,
                                uint32_t *channel_rows) {
    uint32_t n = 0;
    for (uint32_t stored = 0; stored < n_channels; ++stored) {
        const uint32_t channel = channels ? load_channel(channels, n_channels, stored) : stored;
        if (channel >= n_wanted)
            continue;
        stored_rows[n] = stored * static_cast<uint32_t>(stored_stride);
        channel_rows[n++] = channel * stride;
    }
    return n;
}

inline void cap_logits(const TileState &s, uint32_t n_tokens, float cap) {
    for (uint32_t t = 0; t < n_tokens; ++t)
        for (uint32_t r = 0; r < s.width; r += kWidth) {
            float *logits = s.logits + t * s.width + r;
            store(logits, tanh_vector(load<Vf>(logits) + load<Vf>(s.start + r)) * cap);
        }
}

inline void mask_tile(const WorkTile &work, const KvTile &kv_tile, const TileState &s) {
    for (uint32_t t = 0; t < kv_tile.n_tokens; ++t)
        for (uint32_t j = 0; j < work.n_queries; ++j)
            if (!is_visible(work, kv_tile, work.queries[j], t))
                for (uint32_t r = j * work.group_size; r < (j + 1) * work.group_size; ++r)
                    s.logits[t * s.width + r] = kMasked;
}

// Logits to weights; row_max, sum and factor (what earlier sums shrink by) move on.
inline void weigh_tile(const TileState &s, uint32_t n_tokens) {
    for (uint32_t r = 0; r < s.width; r += kWidth) {
        float *column = s.logits + r;
        const Vf before = load<Vf>(s.row_max + r);
        Vf row_max = before;
        for (uint32_t t = 0; t < n_tokens; ++t)
            row_max = maximum(load<Vf>(column + t * s.width), row_max);
        const Vf factor = exp2_negative(before - row_max);
        Vf row_sum = load<Vf>(s.row_sum + r) * factor;
        for (uint32_t t = 0; t < n_tokens; ++t) {
            const Vf weight = exp2_negative(load<Vf>(column + t * s.width) - row_max);
            store(column + t * s.width, weight);
            row_sum += weight;
        }
        store(s.row_max + r, row_max);
        store(s.row_sum + r, row_sum);
        store(s.factor + r, factor);
    }
}

inline void shrink_tile(const TileState &s, uint32_t n_channels) {
    bool same = true;
    for (uint32_t r = 0; r < s.width; ++r)
        same = same && s.factor[r] == 1.0f;
    if (same)
        return;
    for (uint32_t c = 0; c < n_channels; ++c)
        for (uint32_t r = 0; r < s.width; r += kWidth)
            store(s.output + c * s.width + r,
                  load<Vf>(s.output + c * s.width + r) * load<Vf>(s.factor + r));
}

inline void attend_kv_tile(const WorkTile &work, const KvTile &kv_tile, bool all,
                           const TileState &s) {
    uint32_t stored_rows[LK_MAX_HEAD_DIM];
    uint32_t channel_rows[LK_MAX_HEAD_DIM];
    uint32_t token_rows[kKvTileTokens + kTileHeight];
    uint32_t key_rows[kKvTileTokens + kTileHeight];
    const PageBytes &key = kv_tile.key;
    const uint32_t padded = (kv_tile.n_tokens + kTileHeight - 1) / kTileHeight * kTileHeight;
    const Matrix keys =
        unpack_page(key, kv_tile.first_token, kv_tile.n_tokens, work.head_dim, false, s.matrix);
    row_offsets(padded, s.width, token_rows);
    row_offsets(padded, keys.row_stride, key_rows);
    channel_offsets(key.channels, work.head_dim, work.head_dim, 1, s.width, stored_rows,
                    channel_rows);
    multiply({keys.data, key_rows, keys.k_stride, s.q, channel_rows, s.logits, token_rows, padded,
              work.head_dim, s.width, false});
    if (work.cap > 0)
        cap_logits(s, kv_tile.n_tokens, work.cap);
    if (!all)
        mask_tile(work, kv_tile, s);
    weigh_tile(s, kv_tile.n_tokens);
    shrink_tile(s, work.value_dim);
    Matrix values = {keys.data, keys.k_stride, keys.row_stride};
    if (!work.is_latent)
        values = unpack_page(kv_tile.value, kv_tile.first_token, kv_tile.n_tokens, work.value_dim,
                             true, s.matrix);
    const uint32_t n_channels =
        channel_offsets(work.is_latent ? key.channels : kv_tile.value.channels,
                        work.is_latent ? work.head_dim : work.value_dim, work.value_dim,
                        values.row_stride, s.width, stored_rows, channel_rows);
    multiply({values.data, stored_rows, values.k_stride, s.logits, token_rows, s.output,
              channel_rows, n_channels, kv_tile.n_tokens, s.width, true});
}

void attend_tile(const WorkTile &work) {
    const TileState s = cut_tile_scratch(work);
    start_tile(work, s);
    KvTile kv_tile;
    while (work.keys.next(work.keys.state, &kv_tile)) {
        const Visible visible = visible_keys(work, kv_tile);
        if (visible != Visible::kNone)
            attend_kv_tile(work, kv_tile, visible == Visible::kAll, s);
    }
    for (uint32_t r = 0; r < work.n_rows; ++r) {
        work.row_max[r] = s.row_max[r];
        work.row_sum[r] = s.row_sum[r];
        for (uint32_t c = 0; c < work.value_dim; ++c)
            work.output[static_cast<uint64_t>(r) * work.value_dim + c] = s.output[c * s.width + r];
    }
    add_starts(work);
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
