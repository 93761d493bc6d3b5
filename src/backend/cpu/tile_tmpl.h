// Attention of many query rows: pages are unpacked to FP32 once for all rows of a work, and both
// products run in register blocks with the rows along the vectors.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_TILE_TMPL_H
#define LK_BACKEND_CPU_TILE_TMPL_H

#include "backend/cpu/mask_tmpl.h"
#include "backend/cpu/unpack_tmpl.h"

namespace lk {
namespace cpu {
namespace {

constexpr uint32_t kTileHeight = 4;                      // rows of A in registers
constexpr uint32_t kTileVectors = LK_SIMD_TILE_VECTORS;  // vectors of B

// Accumulate kTileHeight x N vectors of C += A * B, B's rows in the order of b_rows.
template <uint32_t N>
LK_INLINE void multiply_tile(const Matrix &a, const float *b, const uint32_t *b_rows, uint32_t n_k,
                             float *const *c, bool add) {
    Vf sums[kTileHeight][N];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kTileHeight; ++i)
#pragma GCC unroll 4
        for (uint32_t j = 0; j < N; ++j)
            sums[i][j] = add ? load<Vf>(c[i] + j * kWidth) : Vf{};
    for (uint32_t k = 0; k < n_k; ++k) {
        const float *b_row = b + b_rows[k];
        const float *a_column = a.data + k * a.k_stride;
        Vf columns[N];
#pragma GCC unroll 4
        for (uint32_t j = 0; j < N; ++j)
            columns[j] = load<Vf>(b_row + j * kWidth);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < kTileHeight; ++i) {
            const Vf value = broadcast(a_column[i * a.row_stride]);
#pragma GCC unroll 4
            for (uint32_t j = 0; j < N; ++j)
                sums[i][j] += value * columns[j];
        }
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kTileHeight; ++i)
#pragma GCC unroll 4
        for (uint32_t j = 0; j < N; ++j)
            store(c[i] + j * kWidth, sums[i][j]);
}

// C [n_m][width] (+)= A [n_m][n_k] * B [n_k][width]; rows of B and C by tables of offsets.
inline void multiply(const Matrix &a, uint32_t n_m, uint32_t n_k, const float *b,
                     const uint32_t *b_rows, float *c, const uint32_t *c_rows, uint32_t width,
                     bool add) {
    for (uint32_t x = 0; x < width;) {
        const uint32_t vectors = (width - x) / kWidth;
        const uint32_t n = vectors < kTileVectors ? vectors : kTileVectors;
        for (uint32_t m = 0; m < n_m; m += kTileHeight) {
            const Matrix rows = {a.data + m * a.row_stride, a.row_stride, a.k_stride};
            float *const targets[kTileHeight] = {c + c_rows[m] + x, c + c_rows[m + 1] + x,
                                                 c + c_rows[m + 2] + x, c + c_rows[m + 3] + x};
            switch (n) {
                case 1: multiply_tile<1>(rows, b + x, b_rows, n_k, targets, add); break;
                case 2: multiply_tile<2>(rows, b + x, b_rows, n_k, targets, add); break;
                case 3: multiply_tile<3>(rows, b + x, b_rows, n_k, targets, add); break;
                default: multiply_tile<4>(rows, b + x, b_rows, n_k, targets, add); break;
            }
        }
        x += n * kWidth;
    }
}

struct TileState {
    uint32_t width;  // rows, padded to vectors
    float *q;        // [head_dim][width]
    float *output;   // [value_dim, in a latent layer head_dim][width]
    float *logits;   // [kKvTileTokens][width], then weights
    float *row_max;  // [width]
    float *row_sum;  // [width]
    float *factor;   // [width]
    float *start;    // [width]
    float *matrix;   // an unpacked page
};

// Rows of TileState::output. Keys of a latent layer are weighed whole: their stored channels may be
// in any order.
LK_INLINE uint32_t output_rows(const WorkTile &work) {
    return work.is_latent ? work.head_dim : work.value_dim;
}

inline TileState cut_tile_scratch(const WorkTile &work) {
    TileState s;
    s.width = (work.n_rows + kWidth - 1) / kWidth * kWidth;
    s.q = work.scratch;
    s.output = s.q + kTileRows * work.head_dim;
    s.logits = s.output + kTileRows * largest_dim(work);
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
    std::memset(s.output, 0, 4ull * output_rows(work) * s.width);
    for (uint32_t r = 0; r < s.width; ++r) {
        s.row_max[r] = kNoMaximum;
        s.row_sum[r] = 0;
        s.start[r] = r < work.n_rows ? start_of(work, r) : 0;
    }
}

// Offsets of matrix rows: the row of stored channel i, or row i, of `width` floats each.
inline void row_offsets(const uint8_t *channels, uint32_t n, uint32_t width, uint32_t *offsets) {
    for (uint32_t i = 0; i < n; ++i)
        offsets[i] = (channels ? load_channel(channels, n, i) : i) * width;
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
    uint32_t channel_rows[LK_MAX_HEAD_DIM];
    uint32_t token_rows[kKvTileTokens + kTileHeight];
    row_offsets(nullptr, kKvTileTokens + kTileHeight, s.width, token_rows);
    row_offsets(kv_tile.key.channels, work.head_dim, s.width, channel_rows);
    const uint32_t padded = (kv_tile.n_tokens + kTileHeight - 1) / kTileHeight * kTileHeight;
    const Matrix keys = unpack_page(kv_tile.key, kv_tile.first_token, kv_tile.n_tokens,
                                    work.head_dim, false, s.matrix);
    multiply(keys, padded, work.head_dim, s.q, channel_rows, s.logits, token_rows, s.width, false);
    if (work.cap > 0)
        cap_logits(s, kv_tile.n_tokens, work.cap);
    if (!all)
        mask_tile(work, kv_tile, s);
    weigh_tile(s, kv_tile.n_tokens);
    shrink_tile(s, output_rows(work));
    Matrix values = {keys.data, keys.k_stride, keys.row_stride};
    if (!work.is_latent) {
        row_offsets(kv_tile.value.channels, work.value_dim, s.width, channel_rows);
        values = unpack_page(kv_tile.value, kv_tile.first_token, kv_tile.n_tokens, work.value_dim,
                             true, s.matrix);
    }
    multiply(values, output_rows(work), kv_tile.n_tokens, s.logits, token_rows, s.output,
             channel_rows, s.width, true);
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
