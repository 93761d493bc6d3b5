// Attention of many columns: launches, and the merge of splits.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/instances.h"
#include "cuda/prefill/instances.h"
#include "cuda/prefill/output.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kMergeWarps = 8;

// The strips that the kernel of a head dim has registers for: those of the head dims of
// cuda-instances, or the most that others share a kernel for.
template <uint32_t... kHeadDims>
uint32_t kernel_strips(std::integer_sequence<uint32_t, kHeadDims...>, uint32_t head_dim) {
    if (has_own_prefill(head_dim) && ((head_dim == kHeadDims) || ...))
        return head_dim / LK_STRIP_CHANNELS;
    return head_dim > 128 ? 32 : 8;
}
int slices_of(uint32_t head_dim) {
    return tile_slices(
        kernel_strips(std::integer_sequence<uint32_t, LK_CUDA_HEAD_DIMS>{}, head_dim));
}

// Thread blocks of a launch with as many warps.
TileGrid grid_of(const TileArgs &args, uint32_t n_warps) {
    TileGrid grid{};
    const int slices = slices_of(args.layer.head_dim);
    const uint32_t group_size = args.layer.n_query_heads / args.layer.n_kv_heads;
    grid.n_warps = n_warps;
    grid.block_columns = n_warps * 8 * slices;
    grid.stage_tokens = grid.round_tokens = round_tiles(slices) * LK_TILE_TOKENS;
    grid.n_tiles = (args.max_new * group_size + grid.block_columns - 1) / grid.block_columns;
    return grid;
}

// Two thread blocks of few warps share a multiprocessor, and leave less unused than one large
// thread block.
bool shares_processor(const TileGrid &grid) { return grid.n_warps * 4 <= kTileWarps; }

// Few columns take fewer warps; n_tiles stays.
TileGrid choose_warps(const TileArgs &args) {
    TileGrid grid = grid_of(args, kTileWarps);
    while (grid.n_warps > 1 && grid_of(args, grid.n_warps / 2).n_tiles == grid.n_tiles)
        grid = grid_of(args, grid.n_warps / 2);
    return grid;
}

// The keys and values of a page of at most 8 bits, with the most metadata that a page format can
// have.
uint32_t largest_page(uint32_t head_dim) {
    return 2 * LK_MAX_PAGE_TOKENS * head_dim +
           2 * (LK_MAX_PAGE_TOKENS / LK_MIN_GROUP) * 4 * head_dim + 2 * permutation_bytes(head_dim);
}

// A page with the tokens of a stage: packed, or staged.
uint32_t wanted_bytes(uint32_t head_dim, uint32_t stage_tokens) {
    const uint32_t packed = largest_page(head_dim);
    const uint32_t staged = 2 * stage_tokens * staged_row_bytes(head_dim);
    return packed > staged ? packed : staged;
}

// Stages are long where any page fits next to them, except for thread blocks that share a
// multiprocessor. Else the page gets the rest of the memory, as far as it can use it; where that is
// not enough for staged tokens, a thread block has fewer warps.
cudaError_t choose_memory(const TileArgs &args, TileGrid *grid) {
    int device = 0;
    int most = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess)
        return error;
    const uint32_t head_dim = args.layer.head_dim;
    const uint32_t free_bytes =
        static_cast<uint32_t>(most) - sizeof(TileTables) - kTileWarps * sizeof(WarpColumns);
    const auto total_bytes = [&](uint32_t pages_bytes) {
        return tile_layout(head_dim, grid->block_columns, grid->stage_tokens, pages_bytes).total;
    };
    grid->stage_tokens = kMaxRounds * grid->round_tokens;
    if (shares_processor(*grid) ||
        total_bytes(wanted_bytes(head_dim, grid->stage_tokens)) > free_bytes)
        grid->stage_tokens = grid->round_tokens;
    const uint32_t staged_bytes = 2 * grid->stage_tokens * staged_row_bytes(head_dim);
    while (total_bytes(staged_bytes) > free_bytes) {
        if (grid->n_warps == 1)
            return cudaErrorInvalidConfiguration;
        *grid = grid_of(args, grid->n_warps / 2);
    }
    const uint32_t rest = free_bytes - total_bytes(0);
    const uint32_t wanted = wanted_bytes(head_dim, grid->stage_tokens);
    grid->page_bytes = (rest < wanted ? rest : wanted) / 16 * 16;
    const bool are_two = !shares_processor(*grid) && 2 * wanted <= rest;
    grid->page_stride = are_two ? grid->page_bytes : 0;
    grid->shared_bytes = total_bytes(grid->page_stride + grid->page_bytes);
    return cudaSuccess;
}

template <uint32_t kHeadDim>
cudaError_t launch_kernel_of(const TileArgs &args, const TileGrid &grid, cudaStream_t stream) {
    if constexpr (has_own_prefill(kHeadDim))
        return launch_tile_kernel<kHeadDim / LK_STRIP_CHANNELS, true>(args, grid, stream);
    else
        return launch_tile_kernel<(kHeadDim > 128 ? 32 : 8), false>(args, grid, stream);
}

template <uint32_t... kHeadDims>
cudaError_t launch_kernel(std::integer_sequence<uint32_t, kHeadDims...>, const TileArgs &args,
                          const TileGrid &grid, cudaStream_t stream) {
    const uint32_t head_dim = args.layer.head_dim;
    cudaError_t error = cudaSuccess;
    const bool found = ((head_dim == kHeadDims &&
                         (error = launch_kernel_of<kHeadDims>(args, grid, stream), true)) ||
                        ...);
    if (found)
        return error;
    return head_dim > 128 ? launch_tile_kernel<32, false>(args, grid, stream)
                          : launch_tile_kernel<8, false>(args, grid, stream);
}

// A warp merges the splits of a column.
__global__ void __launch_bounds__(kMergeWarps *kWarp)
    merge_splits(const __grid_constant__ TileArgs args, uint32_t block_columns, uint32_t n_tiles) {
    const uint32_t column = blockIdx.x * kMergeWarps + threadIdx.x / kWarp;
    if (args.step.header->n_sequences != args.n_sequences ||
        args.step.header->n_tokens != args.n_tokens)
        return;
    const SequenceInfo &sequence = args.step.sequences[blockIdx.z];
    const uint32_t group_size = args.layer.n_query_heads / args.layer.n_kv_heads;
    if (column >= sequence.n_new * group_size || column >= n_tiles * block_columns)
        return;
    const uint32_t at = column % block_columns;
    const auto split_of = [&](uint32_t split) {
        return find_partial(args, blockIdx.z, blockIdx.y, column / block_columns, n_tiles, split,
                            block_columns);
    };
    Total total = {kNoReference, 0};
    for (uint32_t split = 0; split < args.n_splits; ++split)
        total.reference = fmaxf(total.reference, split_of(split).references[at]);
    float out[LK_MAX_PLAIN_DIM / kWarp] = {};
    for (uint32_t split = 0; split < args.n_splits; ++split) {
        const Partial partial = split_of(split);
        const float weight = exp2_fast(partial.references[at] - total.reference);
        total.sum += weight * partial.sums[at];
#pragma unroll
        for (uint32_t i = 0; i < LK_MAX_PLAIN_DIM / kWarp; ++i) {
            const uint32_t channel = kWarp * i + threadIdx.x % kWarp;
            if (channel < args.layer.head_dim)
                out[i] +=
                    weight * partial.out[static_cast<uint64_t>(at) * args.layer.head_dim + channel];
        }
    }
    const QueryColumn query = query_column(sequence, blockIdx.y, group_size, column);
    const float shrink = add_sink(args.layer, query.head, &total);
    if (threadIdx.x % kWarp == 0)
        store_lse(args, query, total);
    const int64_t row = row_offset(args.out, query.token, query.head);
#pragma unroll
    for (uint32_t i = 0; i < LK_MAX_PLAIN_DIM / kWarp; ++i) {
        const uint32_t channel = kWarp * i + threadIdx.x % kWarp;
        if (channel < args.layer.head_dim)
            store_element(args.out, row + channel, out[i] * shrink * inverse(total.sum));
    }
}

}  // namespace

cudaError_t tile_fits(uint32_t head_dim) {
    TileArgs args{};
    args.layer.head_dim = head_dim;
    args.layer.n_query_heads = args.layer.n_kv_heads = 1;
    args.max_new = 1;
    TileGrid grid = choose_warps(args);
    return choose_memory(args, &grid);
}

uint32_t tile_splits(const TileArgs &args, uint32_t n_blocks) {
    TileGrid grid = choose_warps(args);
    if (choose_memory(args, &grid) != cudaSuccess)
        return 1;
    const uint64_t n =
        static_cast<uint64_t>(grid.n_tiles) * args.layer.n_kv_heads * args.n_sequences;
    const uint64_t most = shares_processor(grid) ? 2ull * n_blocks : n_blocks;
    if (!n || n >= most)
        return 1;
    const uint64_t splits = most / n;
    return splits < kMaxSplits ? static_cast<uint32_t>(splits) : kMaxSplits;
}

uint64_t tile_partial_floats(uint32_t head_dim, uint32_t n_blocks) {
    return n_blocks * partial_floats(kTileWarps * 8 * slices_of(head_dim), head_dim);
}

cudaError_t launch_merge_splits(const TileArgs &args, uint32_t block_columns, uint32_t n_tiles,
                                cudaStream_t stream) {
    const uint32_t n_columns = n_tiles * block_columns;
    const dim3 blocks((n_columns + kMergeWarps - 1) / kMergeWarps, args.layer.n_kv_heads,
                      args.n_sequences);
    merge_splits<<<blocks, kMergeWarps * kWarp, 0, stream>>>(args, block_columns, n_tiles);
    return cudaGetLastError();
}

cudaError_t launch_tile(const TileArgs &args, cudaStream_t stream) {
    TileGrid grid = choose_warps(args);
    if (!grid.n_tiles || !args.n_sequences)
        return cudaSuccess;
    cudaError_t error = choose_memory(args, &grid);
    if (error != cudaSuccess)
        return error;
    error = launch_kernel(std::integer_sequence<uint32_t, LK_CUDA_HEAD_DIMS>{}, args, grid, stream);
    if (error != cudaSuccess || args.n_splits == 1)
        return error;
    return launch_merge_splits(args, grid.block_columns, grid.n_tiles, stream);
}

}  // namespace cuda
}  // namespace lk
