// Attention of uneven layers with packed pages that become FP16: the kernel.
//
// As attend_rows(), of stages that are rows of channels, one at a time: of a page of 128 tokens,
// where shared memory has the place. The next page is copied while values are multiplied.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_UNPACKED_CUH
#define LK_CUDA_ROWS_UNPACKED_CUH

#include "cuda/rows/attend.cuh"
#include "cuda/rows/row_products.cuh"

namespace lk {
namespace cuda {

// A kernel's own functions are those of its own type.
struct UnpackingThreads : AllThreads {
    static constexpr bool kCanCut = false;
};

// Weights of all columns, 16 at a time: a warp has one of these.
__device__ __forceinline__ bool weigh_rows(const TileArgs &args, const RowsBlock &block,
                                           const RowsStage &stage, const RowOrder &order,
                                           KeyRows &keys, const RowsSums &sums,
                                           RowsThread &thread) {
    const bool is_wide = block.is_wide();
    RowsSums at = sums;
    bool is_raised = false;
#pragma unroll 1
    for (uint32_t i = 0; i < block.n_columns; i += kRowsColumns) {
        if (i)
            __syncthreads();
        keys.store(sums.partial, sums.partial_stride);
        __syncthreads();
        at.first_column = i;
        is_raised |= weigh(args, *block.tables, stage, order, at, kRowsColumns,
                           i + threadIdx.x / kWarp, thread.references[0], thread.sums[0]);
        if (is_wide) {
            swap_two(thread.references);
            swap_two(thread.sums);
        }
    }
    return is_raised;
}

__global__ void __launch_bounds__(kRowsThreads, 1)
    attend_unpacked(const __grid_constant__ TileArgs args, const __grid_constant__ RowsGrid grid) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ RowsTables tables;
    __shared__ StripCodes strips[kRowsStrips];
    __shared__ float column_values[2][kMostRowsColumns];
    const TilePosition position = own_position(args);
    const uint32_t split = blockIdx.z % args.n_splits;
    Mask &mask = tables.mask;
    if (!find_work(args, grid, position, split, &mask))
        return;
    const RowsLayout layout = rows_layout(args.layer, grid);
    const RowsBlock block = make_block(args, grid, layout, memory, &tables);
    const RowsSums sums = make_sums(grid, layout, memory, column_values);
    const WarpColumns all = all_columns(mask);
    const RowShape shape(block);
    const RowOrder order = {shape, grid.key_shares < kKeyShares};

    FetchedPage fetched = {~0u, {~0u, ~0u}, {}};
    Stage stage = advance<UnpackingThreads>(args, block, {0, 0, 0, 0, block.n_slots - 1});
    if (stage.n_tokens)
        fetch_stage(block, shape, strips, stage, &fetched);
    load_queries(args, block);
    RowsThread thread = new_thread();
#pragma unroll 1
    while (stage.n_tokens) {
        wait_copies<0>();
        __syncthreads();  // the page is there, and the rows of the stage before were read
        make_rows(block, shape, strips, stage);
        const Stage next = advance<UnpackingThreads>(args, block, stage);
        __syncthreads();
        const uint32_t rows = renewed(shared_address(block.slots));
        KeyRows keys(block, order, rows);
        const RowsStage now = {stage.first_token, stage.n_tokens, shape.n_quads > 1,
                               !all_are_visible(args.layer, all, stage, 1)};
        if (__syncthreads_or(weigh_rows(args, block, now, order, keys, sums, thread)))
            scale_columns<kOwnStrips, kEights>(sums.shrinks, thread.out);
        if (next.n_tokens)  // where sums of products were
            fetch_stage(block, shape, strips, next, &fetched);
        const ValueWork work = {
            args.layer.value_dim / LK_STRIP_CHANNELS, shape.n_tiles(), threadIdx.x / kWarp,
            weights_address(sums.weights, sums.weight_stride), sums.weight_stride};
        const uint32_t values =
            rows + (block.value_strips ? block.key_strips * shape.strip_bytes() : 0);
        if (block.is_wide())
            multiply_value_rows<true, kOwnStrips, kEights>(shape, values, work, thread.out);
        else
            multiply_value_rows<false, kOwnStrips, kEights>(shape, values, work, thread.out);
        stage = next;
    }
    store_output(args, block, position, split, sums, memory, thread);
}

}  // namespace cuda
}  // namespace lk

#endif
