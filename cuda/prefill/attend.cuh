// Attention of many columns: the kernel.
//
// S^T = K Q^T with tokens as rows, O^T = V^T P^T with channels as rows: pages are A operands as
// they lie. A warp has 32 columns (16 above 128 channels, 8 above 256), a thread block up to 8
// warps, which share every tile that prefill/load.cuh makes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_ATTEND_CUH
#define LK_CUDA_PREFILL_ATTEND_CUH

#include "cuda/launch_kernel.cuh"
#include "cuda/prefill/instances.h"
#include "cuda/prefill/output.cuh"
#include "cuda/prefill/queries.cuh"
#include "cuda/prefill/stages.cuh"

namespace lk {
namespace cuda {

template <int kStrips>
using BlockOf = TileBlock<tile_slices(kStrips)>;

// The queries of a warp as B operands: rows of channels, whose order belongs to the page.
template <int kStrips>
__device__ inline bool load_queries(const TileArgs &args, const BlockOf<kStrips> &block,
                                    const WarpColumns &warp, uint8_t *queries) {
    bool has_factors = false;
#pragma unroll 1
    for (uint32_t slice = 0; warp.n && slice < Accumulators<kStrips>::kSlices; ++slice) {
        const auto store = [&](uint32_t i, uint32_t channel, __half q) {
            const uint32_t at = query_row(channel, block.row_shift) ^ (16 * slice);
            *reinterpret_cast<__half *>(queries + at + 2 * i) = q;
        };
        has_factors |= load_slice<kStrips>(args, *block.tables, warp, slice, store);
    }
    return has_factors;
}

// The inputs of a strip's products of keys and queries.
template <int kSlices>
struct KeyFragments {
    uint4 a[kRoundTiles<kSlices>];
    // Of two slices: k 0-7 and k 8-15 of the first, then of the second.
    uint32_t b[(kSlices + 1) / 2][4];
};

// row: offset of the queries of the lane's channel.
template <int kSlices>
__device__ __forceinline__ void load_fragments(uint32_t tiles, uint32_t queries, uint32_t row,
                                               KeyFragments<kSlices> &fragments) {
    const uint32_t lane = threadIdx.x % kWarp;
    if constexpr (kSlices == 1)
        load_matrices_transposed(fragments.b[0], queries + row);  // the slice, twice
#pragma unroll
    for (int pair = 0; pair < kSlices / 2; ++pair)
        load_matrices_transposed(fragments.b[pair],
                                 queries + (row ^ (16 * (2 * pair + lane / 16))));
#pragma unroll
    for (int tile = 0; tile < static_cast<int>(kRoundTiles<kSlices>); ++tile)
        fragments.a[tile] = load_shared4(tiles + tile * kTileBytes);
}

// Tiles of keys times the warp's queries. A strip's fragments are loaded during the products of the
// one before.
template <int kStrips, bool kExact, int kSlices>
__device__ __forceinline__ void multiply_keys(const TileBlock<kSlices> &block, const Round &round,
                                              uint32_t rows, uint32_t queries,
                                              Products<kSlices> &products) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t tiles = round.tiles[0] + 16 * lane;
    constexpr int kEight = (kStrips + 7) / 8;
    uint4 eight[kEight];  // strips' rows of the lane, 16 bits each
#pragma unroll
    for (int i = 0; i < kEight; ++i)
        eight[i] = load_shared4(rows + 16 * i);
    KeyFragments<kSlices> fragments[2];
    const auto load = [&](int strip) {
        const uint4 &e = eight[strip / 8];
        const uint32_t two =
            strip % 8 < 4 ? (strip % 4 < 2 ? e.x : e.y) : (strip % 4 < 2 ? e.z : e.w);
        const uint32_t row = strip % 2 ? two >> 16 : two & 0xFFFFu;
        load_fragments<kSlices>(tiles + strip * kStripRoundBytes<kSlices>, queries, row,
                                fragments[strip % 2]);
    };
    load(0);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
        if (!kExact && strip >= static_cast<int>(block.n_strips))
            continue;
        if (strip + 1 < kStrips && (kExact || strip + 1 < static_cast<int>(block.n_strips)))
            load(strip + 1);
        const KeyFragments<kSlices> &now = fragments[strip % 2];
#pragma unroll
        for (int tile = 0; tile < static_cast<int>(kRoundTiles<kSlices>); ++tile) {
            const uint4 &a = now.a[tile];
#pragma unroll
            for (int slice = 0; slice < kSlices; ++slice)
                mma(products[tile][slice], a.x, a.y, a.z, a.w, now.b[slice / 2][slice % 2 * 2],
                    now.b[slice / 2][slice % 2 * 2 + 1]);
        }
    }
}

template <int kStrips, bool kExact, int kSlices>
__device__ __forceinline__ void multiply_values(
    const TileBlock<kSlices> &block, const Round &round,
    const uint32_t (&weights)[kRoundTiles<kSlices>][kSlices][2], Accumulators<kStrips> &acc) {
    const uint32_t tiles = round.tiles[1] + 16 * (threadIdx.x % kWarp);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
        if (!kExact && strip >= static_cast<int>(block.n_strips))
            continue;
#pragma unroll
        for (int tile = 0; tile < static_cast<int>(kRoundTiles<kSlices>); ++tile) {
            const uint4 a =
                load_shared4(tiles + strip * kStripRoundBytes<kSlices> + tile * kTileBytes);
#pragma unroll
            for (int slice = 0; slice < kSlices; ++slice)
                mma(acc.out[strip][slice], a.x, a.y, a.z, a.w, weights[tile][slice][0],
                    weights[tile][slice][1]);
        }
    }
}

template <int kStrips, bool kExact>
__device__ __forceinline__ void attend_round(const TileArgs &args, const BlockOf<kStrips> &block,
                                             const WarpColumns &warp, const Round &round,
                                             uint32_t rows, uint32_t queries,
                                             Accumulators<kStrips> &acc) {
    constexpr int kSlices = Accumulators<kStrips>::kSlices;
    // As Products<kSlices>, at which nvcc 12.4 fails.
    float products[kRoundTiles<kSlices>][kSlices][4] = {};
    multiply_keys<kStrips, kExact, kSlices>(block, round, rows, queries, products);
    if (round.shapes)
        shape_logits<kSlices>(args.layer, *block.tables, warp, products);
    if (round.hides)
        hide<kSlices>(args, *block.tables, warp, round, products);
    uint32_t weights[kRoundTiles<kSlices>][kSlices][2];
    weigh<kStrips, kSlices>(products, logit_factor(args.layer), acc, weights);
    multiply_values<kStrips, kExact, kSlices>(block, round, weights, acc);
}

template <int kStrips, bool kExact>
__device__ __forceinline__ void attend_stage(const TileArgs &args, const BlockOf<kStrips> &block,
                                             const WarpColumns &warp, const Stage &stage,
                                             uint32_t queries, Accumulators<kStrips> &acc) {
    constexpr uint32_t kTokens = BlockOf<kStrips>::kRoundTokens;
    const uint32_t side_bytes = block.n_strips * BlockOf<kStrips>::kStripRoundBytes;
    const uint32_t rows =
        shared_address(block.tables->query_rows[stage.parity / 2][threadIdx.x % 16]);
    Round round;
    round.first_token = stage.first_token;
    round.tiles[0] = shared_address(block.tiles(stage, 0, 0));
    round.shapes = block.tables->has_factors || args.layer.soft_cap > 0;
    round.hides = !all_are_visible(args.layer, warp, stage, kTokens);
    const uint32_t n_rounds = (seen_tokens(warp, stage) + kTokens - 1) / kTokens;
#pragma unroll 1
    for (uint32_t i = 0; i < n_rounds; ++i) {
        round.n_tokens = min(kTokens, stage.n_tokens - i * kTokens);
        round.tiles[1] = round.tiles[0] + side_bytes;
        attend_round<kStrips, kExact>(args, block, warp, round, rows, queries, acc);
        round.first_token += kTokens;
        round.tiles[0] += 2 * side_bytes;
    }
}

template <int kStrips>
__device__ __forceinline__ void clear(Accumulators<kStrips> &acc) {
#pragma unroll
    for (int slice = 0; slice < Accumulators<kStrips>::kSlices; ++slice) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
            acc.reference[slice][column] = kNoReference;
            acc.sum[slice][column] = 0;
        }
#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                acc.out[strip][slice][i] = 0;
    }
}

template <int kStrips, bool kExact>
__device__ __forceinline__ BlockOf<kStrips> cut_memory(const TileArgs &args, const TileGrid &grid,
                                                       uint8_t *memory, TileTables *tables) {
    constexpr int kSlices = Accumulators<kStrips>::kSlices;
    BlockOf<kStrips> block;
    block.n_strips = kExact ? kStrips : args.layer.head_dim / LK_STRIP_CHANNELS;
    block.head_dim = block.n_strips * LK_STRIP_CHANNELS;
    const TileLayout layout =
        tile_layout(block.head_dim, blockDim.x / kWarp * 8 * kSlices, grid.stage_tokens, 0);
    block.tables = tables;
    block.stages = memory + layout.stages;
    block.pages = memory + layout.pages;
    block.page_bytes = grid.page_bytes;
    block.page_stride = grid.page_stride;
    block.stage_tokens = grid.stage_tokens;
    block.row_shift = kSlices == 4 ? 6 : kSlices == 2 ? 5 : 4;
    return block;
}

// A stage is multiplied while the next one's copies are under way. The barrier at the top says that
// this stage's tiles are there and that the memory of the next one's is free. Where the next one's
// codes are there already, half of the warps turn to them first, so that their work and the
// products of the others overlap.
template <int kStrips, bool kExact>
__device__ __forceinline__ void attend_pages(const TileArgs &args, const BlockOf<kStrips> &block,
                                             const WarpColumns &warp, uint32_t queries,
                                             Accumulators<kStrips> &acc) {
    Stage stage = {};
    Stage next = enter_page(args, block, block.mask().page_begin);
    do {
        __syncthreads();
        if (next.n_tokens)
            start_stage(block, next);
        const bool products_first =
            2 * threadIdx.x >= blockDim.x || !next.n_tokens || !is_copied(block, next);
#pragma unroll 1
        for (int turn = 0; turn < 2; ++turn) {
            if ((turn == 0) != products_first)
                await_stage(block, next);
            else
                attend_stage<kStrips, kExact>(args, block, warp, stage, queries, acc);
        }
        stage = next;
        if (stage.n_tokens)
            next = next_stage(args, block, stage);
    } while (stage.n_tokens);
}

template <int kStrips, bool kExact>
__global__ void __launch_bounds__(kTileWarps *kWarp, 1)
    attend_tile(const __grid_constant__ TileArgs args, const __grid_constant__ TileGrid grid) {
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ TileTables tables;
    __shared__ WarpColumns columns[kTileWarps];
    constexpr uint32_t kColumns = 8 * Accumulators<kStrips>::kSlices;
    const uint32_t n_warps = blockDim.x / kWarp;
    if (threadIdx.x == 0) {
        tables.mask.stage_tokens = grid.stage_tokens;
        // Most tokens are visible to the last columns: their thread blocks start first.
        const TilePosition position = {blockIdx.z / args.n_splits, blockIdx.y,
                                       gridDim.x - 1 - blockIdx.x};
        if (find_mask(args, position, n_warps * kColumns, &tables.mask))
            cut_pages(args, 0, tables.mask.blocks.n + tables.mask.staged.n,
                      blockIdx.z % args.n_splits, &tables.mask);
        else
            tables.mask.n_columns = 0;
    }
    __syncthreads();
    if (!tables.mask.n_columns)
        return;
    const BlockOf<kStrips> block = cut_memory<kStrips, kExact>(args, grid, memory, &tables);
    // The columns are in shared memory, since registers are scarcest.
    WarpColumns &warp = columns[threadIdx.x / kWarp];
    if (threadIdx.x % kWarp == 0)
        warp = find_columns(args, tables.mask, kColumns);
    __syncwarp();
    uint8_t *queries = memory + threadIdx.x / kWarp * (kColumns * 2 * block.head_dim);
    load_positions(args, &tables);
    const int has_factors = __syncthreads_or(load_queries<kStrips>(args, block, warp, queries));
    if (threadIdx.x == 0)
        tables.has_factors = has_factors;

    Accumulators<kStrips> acc;
    clear(acc);
    attend_pages<kStrips, kExact>(args, block, warp, shared_address(queries), acc);

    const Partial partial =
        find_partial(args, blockIdx.z / args.n_splits, blockIdx.y, gridDim.x - 1 - blockIdx.x,
                     gridDim.x, blockIdx.z % args.n_splits, n_warps * kColumns);
    store_output(args, tables.mask, warp, partial, reinterpret_cast<float *>(queries), acc);
}

template <int kStrips, bool kExact>
cudaError_t launch_tile_kernel(const TileArgs &args, const TileGrid &grid, cudaStream_t stream) {
    const dim3 blocks(grid.n_tiles, args.layer.n_kv_heads, args.n_sequences * args.n_splits);
    return launch_kernel(attend_tile<kStrips, kExact>, blocks, grid.n_warps * kWarp,
                         grid.shared_bytes, stream, args, grid);
}

}  // namespace cuda
}  // namespace lk

#endif
