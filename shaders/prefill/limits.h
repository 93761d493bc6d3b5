/* Limits of the workgroups of prefill attention, for the host and the shaders. C++ and GLSL include
 * it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LK_SHADERS_PREFILL_LIMITS_H
#define LK_SHADERS_PREFILL_LIMITS_H

#define LK_TILE_THREADS 256u /* of a workgroup of attend_tile: the lanes of a page's tiles */
#define LK_TILE_MAX_SPLITS 256u
#define LK_STAGED_PAGE_TOKENS 128u /* of a page of staged tokens */
#define LK_MATRIX_STAGE_TOKENS 32u /* that attend_prefill_matrix multiplies at once */
/* Of attend_prefill_latent: parts of a head dim, added up afterwards, and threads of a column. */
#define LK_LATENT_SHARES 8u
#define LK_LATENT_COLUMN_THREADS 32u
#define LK_LATENT_PAGE_PARTS 2u /* of a page, which splits may divide */
#define LK_MOST_LATENT_VALUES 512u
/* Of attend_prefill_latent_matrix: its teams, and the tiles that they multiply at once. */
#define LK_LATENT_MATRIX_COLUMNS 16u
#define LK_LATENT_TEAMS 8u
#define LK_LATENT_STAGE_TILES 2u

/* Of prefill_slots, up to a head dim. A subgroup has 16 columns; slots hold whole stages. */
#define LK_SLOT_HEAD_DIM 128u
#define LK_SLOT_THREADS 384u
#define LK_SLOT_COLUMNS (LK_SLOT_THREADS / 2u)
#define LK_SLOT_STAGE_TOKENS 32u
#define LK_SLOT_MAX_SPLITS 64u
#define LK_SLOT_TOKENS(n) \
    (((n) + LK_SLOT_STAGE_TOKENS - 1u) / LK_SLOT_STAGE_TOKENS * LK_SLOT_STAGE_TOKENS)
/* Vectors of a stage's keys, or values, that a thread loads, at most. */
#define LK_SLOT_LOADS \
    ((LK_SLOT_STAGE_TOKENS * LK_SLOT_HEAD_DIM / 8u + LK_SLOT_THREADS - 1u) / LK_SLOT_THREADS)

#ifdef __cplusplus
#include <cstdint>

#include "format/format_const.h"

namespace lk {
namespace vulkan {

// Shared memory of a workgroup of attend_prefill_matrix, a little more than it takes.
constexpr uint32_t matrix_tile_bytes(uint32_t head_dim, uint32_t columns) {
    return head_dim * (2 * columns + 2 * LK_MATRIX_STAGE_TOKENS + 4) + columns * 12 + 1024;
}
// Columns of a workgroup of it: as many as suit the device, 0 where none do. Invocations are twice
// as many.
constexpr uint32_t matrix_tile_columns(uint32_t head_dim, uint32_t shared_bytes) {
    uint32_t columns = LK_TILE_THREADS / 2;
    while (columns >= 16 && matrix_tile_bytes(head_dim, columns) > shared_bytes)
        columns /= 2;
    return columns >= 16 ? columns : 0;
}

// Shared memory of a workgroup of attend_prefill_latent, a little more than it takes: a tile of
// keys, queries, sums of shares and strips.
constexpr uint32_t latent_shared_bytes(uint32_t head_dim, uint32_t columns) {
    return 32 * (head_dim + 4) + 2 * columns * head_dim + 64 * columns * LK_LATENT_SHARES +
           head_dim * 5 / 4 + 128;
}
// Columns of a workgroup of it: as many as suit the device, 0 where none do.
constexpr uint32_t latent_columns(uint32_t head_dim, uint32_t shared_bytes, uint32_t n_threads) {
    uint32_t columns = 16;
    while (columns >= 8 && (latent_shared_bytes(head_dim, columns) > shared_bytes ||
                            LK_LATENT_COLUMN_THREADS * columns > n_threads))
        columns /= 2;
    return columns >= 8 ? columns : 0;
}

// Shared memory of a workgroup of attend_prefill_latent_matrix, a little more than it takes: a
// stage of keys, sums of shares, strips, channels, weights.
constexpr uint32_t latent_matrix_shared_bytes(uint32_t head_dim) {
    return 66 * head_dim + 64 * LK_TILE_TOKENS * LK_LATENT_TEAMS + head_dim * 5 / 4 + 1280;
}

// Shared memory of a workgroup of prefill_slots, a little more than it takes.
constexpr uint32_t slot_shared_bytes(uint32_t head_dim) {
    return 8 * LK_SLOT_STAGE_TOKENS * head_dim + 64;
}

// Columns of a workgroup, where the longest sequence has n_columns of a KV head: two sizes, so that
// a head dim has two pipelines. matrix_columns: matrix_tile_columns() of a device with matrices,
// else 0.
constexpr uint32_t tile_columns(uint32_t head_dim, uint32_t n_columns, uint32_t matrix_columns) {
    return n_columns <= 8 ? 8 : matrix_columns ? matrix_columns : head_dim > 128 ? 32 : 64;
}

// How many splits keep n_workgroups busy, where the columns alone are n_tiles workgroups (all heads
// and sequences), and the longest sequence has n_pages.
constexpr uint32_t tile_splits(uint64_t n_tiles, uint32_t n_workgroups, uint32_t n_pages) {
    const uint32_t most = n_pages < LK_TILE_MAX_SPLITS ? n_pages : LK_TILE_MAX_SPLITS;
    const uint64_t splits = n_tiles ? n_workgroups / n_tiles : 1;
    return splits <= 1 || !most ? 1 : splits < most ? static_cast<uint32_t>(splits) : most;
}

// The same of attend_prefill_slots, where a core has a workgroup at a time: the splits by which the
// last turn of all cores is fullest. The partial results of a split cost a 256th of the dispatch.
constexpr uint32_t slot_splits(uint64_t n_tiles, uint32_t n_workgroups, uint32_t n_cores) {
    const uint32_t most = tile_splits(n_tiles, n_workgroups, LK_SLOT_MAX_SPLITS);
    uint32_t best = 1;
    uint64_t best_cost = UINT64_MAX;
    for (uint64_t n = 1; n <= most; ++n) {
        const uint64_t n_turns = (n_tiles * n + n_cores - 1) / n_cores;
        const uint64_t cost = n_turns * (256 + n) * 1024 / n;
        if (cost < best_cost) {
            best = static_cast<uint32_t>(n);
            best_cost = cost;
        }
    }
    return best;
}

// Floats of TilePush.partials for every dispatch with as many splits as the functions above give,
// of at most this many columns.
constexpr uint64_t tile_partial_floats(uint32_t head_dim, uint32_t columns, uint32_t n_workgroups) {
    return uint64_t{n_workgroups} * columns * (head_dim + 2);
}

}  // namespace vulkan
}  // namespace lk
#endif

#endif
