// Attention of long steps: the kernel.
//
// S = Q K^T and O = S V with query columns as rows, so that the products of the first become
// operands of the second as they are; the tiles of a page are B operands as they lie. A thread
// block has four warps of 32 columns (16 above 128 channels); two thread blocks share a
// multiprocessor, and each covers what the other waits for. Keys are copied while the values
// before them are multiplied, values while the keys are.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_ATTEND_PASS_CUH
#define LK_CUDA_PREFILL_ATTEND_PASS_CUH

#include "cuda/instances.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/prefill/pass_columns.cuh"
#include "cuda/prefill/pass_stages.cuh"

namespace lk {
namespace cuda {

// The fields of a thread block that the functions below need.
struct PassBlock : PassPages<AllThreads> {
    uint32_t tiles[2];  // shared addresses of a stage's keys and values, [strip][tile]
};

// Calls f(shared address, address, tile of the stage) for the 16 bytes of each strip that a thread
// copies: those of a lane of a tile.
template <int kStrips, class F>
__device__ __forceinline__ void for_strips(const PassBlock &block, uint32_t side, F f) {
    constexpr uint32_t kRunBytes = PassShape<kStrips>::kTiles * kTileBytes;
    constexpr uint32_t kRuns = kLongWarps * kWarp * 16 / kRunBytes;  // of a turn
    const uint32_t byte = 16 * threadIdx.x;
    const uint32_t first = byte / kRunBytes;
#pragma unroll
    for (uint32_t turn = 0; turn * kRuns < kStrips; ++turn) {
        const uint32_t strip = first + turn * kRuns;
        if (kStrips % kRuns == 0 || strip < kStrips)
            f(block.tiles[side] + strip * kRunBytes + byte % kRunBytes, strip, byte % kRunBytes);
    }
}

template <int kStrips>
__device__ __forceinline__ void copy_side(const PassBlock &block, const Stage &stage,
                                          uint32_t side) {
    const TilesView &view = block.view(stage).sides[side];
    const uint32_t first_tile = stage.index * PassShape<kStrips>::kTiles;
    const uint8_t *tiles = view.tiles + first_tile * kTileBytes;
    for_strips<kStrips>(block, side, [&](uint32_t to, uint32_t strip, uint32_t byte) {
        const bool exists = first_tile + byte / kTileBytes < view.n_tiles;
        copy_or_clear(to, tiles + strip * view.strip_bytes + (exists ? byte : 0), exists);
    });
}

// A thread clears the bytes that it copied.
template <int kStrips>
__device__ inline void clear_values(const PassBlock &block, const Stage &stage) {
    for_strips<kStrips>(block, 1, [&](uint32_t to, uint32_t, uint32_t byte) {
        clear_hidden(static_cast<uint32_t *>(__cvta_shared_to_generic(to)), byte / kTileBytes,
                     stage.n_tokens);
    });
}

// Two fragments of 8 tokens or channels each, from a tile.
__device__ __forceinline__ void multiply_tile(float (&low)[4], float (&high)[4],
                                              const uint32_t (&a)[4], const uint4 &b) {
    mma(low, a[0], a[1], a[2], a[3], b.x, b.z);
    mma(high, a[0], a[1], a[2], a[3], b.y, b.w);
}

// queries: the warp's, [row][strip] tiles.
template <int kStrips>
__device__ __forceinline__ void multiply_keys(
    uint32_t tiles, uint32_t queries,
    float (&products)[PassShape<kStrips>::kRows][2 * PassShape<kStrips>::kTiles][4]) {
    using Shape = PassShape<kStrips>;
    const uint32_t lane = 16 * (threadIdx.x % kWarp);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
        uint32_t a[Shape::kRows][4];
#pragma unroll
        for (int row = 0; row < Shape::kRows; ++row) {
            const uint4 q = load_shared4(queries + lane + (row * kStrips + strip) * kTileBytes);
            a[row][0] = q.x;
            a[row][1] = q.y;
            a[row][2] = q.z;
            a[row][3] = q.w;
        }
#pragma unroll
        for (int tile = 0; tile < Shape::kTiles; ++tile) {
            const uint4 b =
                load_shared4(tiles + lane + (strip * Shape::kTiles + tile) * kTileBytes);
#pragma unroll
            for (int row = 0; row < Shape::kRows; ++row)
                multiply_tile(products[row][2 * tile], products[row][2 * tile + 1], a[row], b);
        }
    }
}

template <int kStrips>
__device__ __forceinline__ void multiply_values(
    uint32_t tiles,
    const uint32_t (&weights)[PassShape<kStrips>::kRows][PassShape<kStrips>::kTiles][4],
    RowSums<kStrips> (&sums)[PassShape<kStrips>::kRows]) {
    using Shape = PassShape<kStrips>;
    const uint32_t lane = 16 * (threadIdx.x % kWarp);
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile)
#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip) {
            const uint4 b =
                load_shared4(tiles + lane + (strip * Shape::kTiles + tile) * kTileBytes);
#pragma unroll
            for (int row = 0; row < Shape::kRows; ++row)
                multiply_tile(sums[row].out[2 * strip], sums[row].out[2 * strip + 1],
                              weights[row][tile], b);
        }
}

template <int kStrips>
__device__ __forceinline__ void weigh_stage(
    const TileArgs &args, const PassBlock &block, const WarpColumns &warp, const Stage &stage,
    float (&products)[PassShape<kStrips>::kRows][2 * PassShape<kStrips>::kTiles][4],
    RowSums<kStrips> (&sums)[PassShape<kStrips>::kRows],
    uint32_t (&weights)[PassShape<kStrips>::kRows][PassShape<kStrips>::kTiles][4]) {
    using Shape = PassShape<kStrips>;
    const ColumnTables &tables = *block.tables;
    const bool shapes = tables.has_factors || args.layer.soft_cap > 0;
    const bool hides = !all_are_visible(args.layer, warp, stage, Shape::kStageTokens);
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row) {
        if (shapes)
            shape_rows<Shape::kTiles>(args.layer, tables, warp, row, products[row]);
        if (hides)
            hide_rows<Shape::kTiles>(args, tables, warp, stage, row, products[row]);
        weigh_rows<kStrips, Shape::kTiles>(products[row], logit_factor(args.layer), sums[row],
                                           sums[row], weights[row]);
    }
}

// The barriers say that copies have arrived and that what the next copy overwrites was read.
template <int kStrips>
__device__ __forceinline__ void attend_pages(const TileArgs &args, const PassBlock &block,
                                             const WarpColumns &warp, uint32_t queries,
                                             RowSums<kStrips> (&sums)[PassShape<kStrips>::kRows]) {
    using Shape = PassShape<kStrips>;
    Stage stage = enter_page(args, block, block.mask().page_begin);
    if (stage.n_tokens)
        copy_side<kStrips>(block, stage, 0);
    commit_copies();
#pragma unroll 1
    while (stage.n_tokens) {
        wait_copies<0>();
        __syncthreads();
        copy_side<kStrips>(block, stage, 1);
        commit_copies();
        const bool is_seen = seen_tokens(warp, stage) != 0;
        float products[Shape::kRows][2 * Shape::kTiles][4] = {};
        if (is_seen)
            multiply_keys<kStrips>(block.tiles[0], queries, products);
        wait_copies<0>();
        if (stage.n_tokens < Shape::kStageTokens)
            clear_values<kStrips>(block, stage);
        __syncthreads();
        const Stage next = next_stage(args, block, stage);
        if (next.n_tokens)
            copy_side<kStrips>(block, next, 0);
        commit_copies();
        if (is_seen) {
            uint32_t weights[Shape::kRows][Shape::kTiles][4];
            weigh_stage<kStrips>(args, block, warp, stage, products, sums, weights);
            multiply_values<kStrips>(block.tiles[1], weights, sums);
        }
        stage = next;
    }
}

template <int kStrips>
__device__ __forceinline__ void attend_tiles(const TileArgs &args, const PagePass &pass) {
    using Shape = PassShape<kStrips>;
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ PassTables tables;
    __shared__ WarpColumns columns[kLongWarps];
    constexpr uint32_t kColumns = 16 * Shape::kRows;
    constexpr uint32_t kQueryBytes = Shape::kRows * kStrips * kTileBytes;
    const PassPosition position = pass_position(args, pass);
    if (threadIdx.x == 0) {
        tables.mask.stage_tokens = Shape::kStageTokens;
        find_pass_mask(args, pass, position, kLongWarps * kColumns, &tables.mask);
    }
    __syncthreads();
    if (!tables.mask.n_columns)
        return;
    const uint32_t tiles = shared_address(memory) + kLongWarps * kQueryBytes;
    const PassBlock block = {{&pass, &tables, blockIdx.y}, {tiles, tiles + Shape::kSideBytes}};
    // The columns are in shared memory, since registers are scarcest.
    WarpColumns &warp = columns[threadIdx.x / kWarp];
    if (threadIdx.x % kWarp == 0)
        warp = find_columns(args, tables.mask, kColumns);
    __syncwarp();
    uint8_t *queries = memory + threadIdx.x / kWarp * kQueryBytes;
    load_positions(args, &tables);
    const int has_factors =
        __syncthreads_or(load_queries<kStrips, Shape::kRows>(args, tables, warp, queries));
    if (threadIdx.x == 0)
        tables.has_factors = has_factors;

    const Partial partial = pass_partial(args, pass, position, kLongWarps * kColumns);
    RowSums<kStrips> sums[Shape::kRows];
    if (pass.is_first) {
#pragma unroll
        for (RowSums<kStrips> &row : sums)
            clear(row);
    } else {
        for_state(warp, partial, sums, LoadState());
        __syncthreads();  // a result may be stored over another warp's state
    }
    attend_pages<kStrips>(args, block, warp, shared_address(queries), sums);
    if (pass.is_last)
        store_output(args, tables.mask, warp, partial, sums);
    else
        for_state(warp, partial, sums, StoreState());
}

template <int kStrips>
__global__ void __launch_bounds__(kLongWarps *kWarp, kSharingBlocks)
    attend_pass(const __grid_constant__ TileArgs args, const __grid_constant__ PagePass pass) {
    if constexpr (!(kIsHopper && has_groups(kStrips * LK_STRIP_CHANNELS)))
        attend_tiles<kStrips>(args, pass);
}

template <int kStrips>
cudaError_t launch_pass_kernel(const TileArgs &args, const PagePass &pass, cudaStream_t stream) {
    if constexpr (has_long_steps(kStrips * 16)) {
        using Shape = PassShape<kStrips>;
        constexpr uint32_t kBytes =
            kLongWarps * Shape::kRows * kStrips * kTileBytes + 2 * Shape::kSideBytes;
        return launch_kernel(attend_pass<kStrips>, pass_blocks(args, pass), kLongWarps * kWarp,
                             kBytes, stream, args, pass);
    } else {
        return cudaErrorInvalidConfiguration;
    }
}

}  // namespace cuda
}  // namespace lk

#endif
