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
#include "cuda/prefill/pass_weights.cuh"
#include "cuda/prefill/queries.cuh"

namespace lk {
namespace cuda {

struct PassTables : ColumnTables {
    PassView views[kPageBatch];
};

// The fields of a thread block that the functions below need.
struct PassBlock {
    PassTables *tables;
    uint32_t tiles[2];  // shared addresses of a stage's keys and values, [strip][tile]
    uint32_t pair;      // of the launch

    __device__ const PassView &view(const Stage &stage) const {
        return tables->views[(stage.page - tables->mask.page_begin) % kPageBatch];
    }
};

__device__ inline void look_up_pages(const TileArgs &args, const PagePass &pass,
                                     const PassBlock &block, uint32_t page) {
    PassTables &tables = *block.tables;
    __syncthreads();
    if (threadIdx.x < min(kPageBatch, tables.mask.page_end - page))
        view_tiles(args, pass, tables.mask, block.pair, page + threadIdx.x,
                   &tables.views[threadIdx.x]);
    __syncthreads();
}

// The first stage at or after the beginning of `page`.
__device__ inline Stage enter_page(const TileArgs &args, const PagePass &pass,
                                   const PassBlock &block, uint32_t page) {
    const Mask &mask = block.tables->mask;
    Stage stage = {page, 0, 0, 0, 0};
    for (; stage.page < mask.page_end; ++stage.page) {
        if ((stage.page - mask.page_begin) % kPageBatch == 0)
            look_up_pages(args, pass, block, stage.page);
        const PassView &view = block.view(stage);
        if (view.first_stage < view.end_stage) {
            stage.index = view.first_stage;
            stage_position(view, mask.stage_tokens, &stage);
            return stage;
        }
    }
    return stage;
}

__device__ inline Stage next_stage(const TileArgs &args, const PagePass &pass,
                                   const PassBlock &block, const Stage &stage) {
    const PassView &view = block.view(stage);
    if (stage.index + 1 == view.end_stage)
        return enter_page(args, pass, block, stage.page + 1);
    Stage next = stage;
    ++next.index;
    stage_position(view, block.tables->mask.stage_tokens, &next);
    return next;
}

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
                                           weights[row]);
    }
}

// The barriers say that copies have arrived and that what the next copy overwrites was read.
template <int kStrips>
__device__ __forceinline__ void attend_pages(const TileArgs &args, const PagePass &pass,
                                             const PassBlock &block, const WarpColumns &warp,
                                             uint32_t queries,
                                             RowSums<kStrips> (&sums)[PassShape<kStrips>::kRows]) {
    using Shape = PassShape<kStrips>;
    Stage stage = enter_page(args, pass, block, block.tables->mask.page_begin);
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
        const Stage next = next_stage(args, pass, block, stage);
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

// The queries of a warp as A operands.
template <int kStrips>
__device__ inline bool load_queries(const TileArgs &args, PassTables &tables,
                                    const WarpColumns &warp, uint8_t *queries) {
    bool has_factors = false;
#pragma unroll 1
    for (uint32_t slice = 0; warp.n && slice < 2 * PassShape<kStrips>::kRows; ++slice) {
        const auto store = [&](uint32_t i, uint32_t channel, __half q) {
            const uint32_t row = 8 * (slice % 2) + i;
            const uint32_t k = channel % LK_STRIP_CHANNELS;
            const uint32_t tile = slice / 2 * kStrips + channel / LK_STRIP_CHANNELS;
            *reinterpret_cast<__half *>(queries + tile * kTileBytes + 16 * LK_TILE_LANE(row, k) +
                                        4 * LK_TILE_REGISTER(row, k) + 2 * LK_TILE_HALF(k)) = q;
        };
        has_factors |= load_slice<kStrips>(args, tables, warp, slice, store);
    }
    return has_factors;
}

// The state of a column between passes: exact, as if the pages had never been cut.
template <int kStrips, class F>
__device__ __forceinline__ void for_state(const WarpColumns &warp, const Partial &partial,
                                          RowSums<kStrips> (&sums)[PassShape<kStrips>::kRows],
                                          F f) {
    const uint32_t lane = threadIdx.x % kSumLanes;
#pragma unroll
    for (int row = 0; row < PassShape<kStrips>::kRows; ++row)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t column = warp.first + row_column(row, half);
            float *out =
                partial.out + static_cast<uint64_t>(column) * (LK_STRIP_CHANNELS * kStrips);
#pragma unroll
            for (int n = 0; n < 2 * kStrips; ++n)
                f(*reinterpret_cast<float2 *>(out + 8 * n + 2 * lane), sums[row].out[n][2 * half],
                  sums[row].out[n][2 * half + 1]);
            f.one(partial.references[column], sums[row].reference[half]);
            f.one(partial.sums[kSumLanes * column + lane], sums[row].sum[half]);
        }
}
struct LoadState {
    __device__ void operator()(const float2 &from, float &low, float &high) const {
        const float2 two = from;
        low = two.x;
        high = two.y;
    }
    __device__ void one(const float &from, float &value) const { value = from; }
};
struct StoreState {
    __device__ void operator()(float2 &to, float low, float high) const {
        to = make_float2(low, high);
    }
    __device__ void one(float &to, float value) const { to = value; }
};

template <int kStrips>
__device__ __forceinline__ void clear(RowSums<kStrips> &sums) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sums.reference[half] = kNoReference;
        sums.sum[half] = 0;
    }
#pragma unroll
    for (int n = 0; n < 2 * kStrips; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            sums.out[n][i] = 0;
}

// A column's result: into the output, or, of a split, to the partial results.
template <int kStrips>
__device__ __forceinline__ void store_column(const TileArgs &args, const Mask &mask,
                                             const Partial &partial, uint32_t column, int half,
                                             const Total &all, const RowSums<kStrips> &sums) {
    Total total = all;
    const uint32_t lane = threadIdx.x % kSumLanes;
    TensorArg to = args.out;
    int64_t offset = static_cast<int64_t>(column) * args.layer.head_dim;
    float factor = 1;
    if (args.n_splits > 1) {
        to.data = partial.out;
        to.dtype = kF32;
        if (lane == 0) {
            partial.references[column] = total.reference;
            partial.sums[column] = total.sum;
        }
    } else {
        const QueryColumn query =
            query_column(mask.sequence, mask.kv_head, mask.group_size, mask.first_column + column);
        factor = add_sink(args.layer, query.head, &total);
        if (lane == 0)
            store_lse(args, query, total);
        factor *= inverse(total.sum);
        offset = row_offset(args.out, query.token, query.head);
    }
#pragma unroll
    for (int n = 0; n < 2 * kStrips; ++n)
        store_two(to, offset + 8 * n + 2 * lane, sums.out[n][2 * half] * factor,
                  sums.out[n][2 * half + 1] * factor);
}

template <int kStrips>
__device__ __forceinline__ void store_output(
    const TileArgs &args, const Mask &mask, const WarpColumns &warp, const Partial &partial,
    const RowSums<kStrips> (&sums)[PassShape<kStrips>::kRows]) {
#pragma unroll
    for (int row = 0; row < PassShape<kStrips>::kRows; ++row)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Total total = {sums[row].reference[half], sums[row].sum[half]};
            for (int step = 1; step < static_cast<int>(kSumLanes); step *= 2)
                total.sum += __shfl_xor_sync(kAllLanes, total.sum, step);
            const uint32_t column = row_column(row, half);
            if (column < warp.n)
                store_column(args, mask, partial, warp.first + column, half, total, sums[row]);
        }
}

template <int kStrips>
__global__ void __launch_bounds__(kLongWarps *kWarp, kSharingBlocks)
    attend_pass(const __grid_constant__ TileArgs args, const __grid_constant__ PagePass pass) {
    using Shape = PassShape<kStrips>;
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ PassTables tables;
    __shared__ WarpColumns columns[kLongWarps];
    constexpr uint32_t kColumns = 16 * Shape::kRows;
    constexpr uint32_t kQueryBytes = Shape::kRows * kStrips * kTileBytes;
    const uint32_t tile = blockIdx.x / args.n_splits;
    const uint32_t split = blockIdx.x % args.n_splits;
    const uint32_t pair = pass.first_pair + blockIdx.y;
    if (threadIdx.x == 0) {
        tables.mask.stage_tokens = Shape::kStageTokens;
        // Most tokens are visible to the last columns: their thread blocks start first.
        const TilePosition position = {pair / args.layer.n_kv_heads, pair % args.layer.n_kv_heads,
                                       pass.first_tile + pass.n_tiles - 1 - tile};
        if (find_mask(args, position, kLongWarps * kColumns, &tables.mask))
            cut_pass(args, pass, split, &tables.mask);
        else
            tables.mask.n_columns = 0;
    }
    __syncthreads();
    if (!tables.mask.n_columns)
        return;
    const PassBlock block = {
        &tables,
        {shared_address(memory) + kLongWarps * kQueryBytes,
         shared_address(memory) + kLongWarps * kQueryBytes + Shape::kSideBytes},
        blockIdx.y};
    // The columns are in shared memory, since registers are scarcest.
    WarpColumns &warp = columns[threadIdx.x / kWarp];
    if (threadIdx.x % kWarp == 0)
        warp = find_columns(args, tables.mask, kColumns);
    __syncwarp();
    uint8_t *queries = memory + threadIdx.x / kWarp * kQueryBytes;
    load_positions(args, &tables);
    const int has_factors = __syncthreads_or(load_queries<kStrips>(args, tables, warp, queries));
    if (threadIdx.x == 0)
        tables.has_factors = has_factors;

    const uint32_t first_pair = args.n_splits > 1 ? 0 : pass.first_pair;
    const Partial partial = partial_of(
        args,
        (static_cast<uint64_t>(pair - first_pair) * pass.n_tiles + pass.n_tiles - 1 - tile) *
                args.n_splits +
            split,
        kLongWarps * kColumns);
    RowSums<kStrips> sums[Shape::kRows];
    if (pass.is_first) {
#pragma unroll
        for (RowSums<kStrips> &row : sums)
            clear(row);
    } else {
        for_state<kStrips>(warp, partial, sums, LoadState());
        __syncthreads();  // a result may be stored over another warp's state
    }
    attend_pages<kStrips>(args, pass, block, warp, shared_address(queries), sums);
    if (pass.is_last)
        store_output<kStrips>(args, tables.mask, warp, partial, sums);
    else
        for_state<kStrips>(warp, partial, sums, StoreState());
}

template <int kStrips>
cudaError_t launch_pass_kernel(const TileArgs &args, const PagePass &pass, cudaStream_t stream) {
    if constexpr (has_long_steps(kStrips * 16)) {
        using Shape = PassShape<kStrips>;
        constexpr uint32_t kBytes =
            kLongWarps * Shape::kRows * kStrips * kTileBytes + 2 * Shape::kSideBytes;
        const auto kernel = attend_pass<kStrips>;
        const cudaError_t error = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
        if (error != cudaSuccess)
            return error;
        const dim3 blocks(pass.n_tiles * args.n_splits, pass.n_pairs);
        kernel<<<blocks, kLongWarps * kWarp, kBytes, stream>>>(args, pass);
        return cudaGetLastError();
    } else {
        return cudaErrorInvalidConfiguration;
    }
}

}  // namespace cuda
}  // namespace lk

#endif
