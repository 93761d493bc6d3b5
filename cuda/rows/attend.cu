// Attention of uneven layers: launches, and the merge of splits.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "cuda/launch_kernel.cuh"
#include "cuda/rows/latent.cuh"
#include "cuda/rows/shapes.h"
#include "cuda/rows/unpacked.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kMergeThreads = 512;
constexpr uint32_t kMergeWarps = kMergeThreads / kWarp;
constexpr uint32_t kMergeChannels = 4 * kWarp;
static_assert(kMergeThreads >= kMostRowsSplits, "a thread has a split");
LK_BOTH uint32_t merge_parts(uint32_t value_dim) {
    return (value_dim + kMergeChannels - 1) / kMergeChannels;
}
static_assert(kRowsStaticBytes >= sizeof(RowsTables) + kRowsStrips * sizeof(StripCodes) +
                                      2 * sizeof(float) * kMostRowsColumns,
              "the most that a kernel has");

cudaError_t cut_launch(const TileArgs &args, const RowsPages &pages, RowsGrid *grid) {
    int device = 0;
    int most = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess)
        return error;
    const uint32_t n_columns = args.max_new * (args.layer.n_query_heads / args.layer.n_kv_heads);
    return choose_shape(args.layer, pages, n_columns, static_cast<uint32_t>(most), grid)
               ? cudaSuccess
               : cudaErrorInvalidConfiguration;
}

constexpr uint32_t kFirstSplits = 9;  // of a warp: enough for 144 multiprocessors

__device__ __forceinline__ float4 load_four(const float *from, uint32_t offset) {
    return __ldcg(reinterpret_cast<const float4 *>(from + offset));
}
__device__ __forceinline__ void add_weighed(const float4 &four, float weight, float4 *sum) {
    sum->x = fmaf(four.x, weight, sum->x);
    sum->y = fmaf(four.y, weight, sum->y);
    sum->z = fmaf(four.z, weight, sum->z);
    sum->w = fmaf(four.w, weight, sum->w);
}

// A thread block adds up the splits of 128 channels of a column: a warp takes every so many-th
// split, a lane four channels, and the warps' sums meet in shared memory.
__global__ void __launch_bounds__(kMergeThreads)
    merge_rows(const __grid_constant__ TileArgs args, uint32_t n_tiles, uint32_t n_columns) {
    __shared__ float weights[kMostRowsSplits];
    __shared__ float warp_values[2][kMergeWarps];
    __shared__ float4 sums[kMergeWarps][kWarp];
    const uint32_t value_dim = args.layer.value_dim;
    const uint32_t n_parts = merge_parts(value_dim);
    const uint32_t column = blockIdx.x / n_parts;
    const uint32_t at = column % n_columns;
    const uint32_t stride = n_columns * (value_dim + 2);  // from split to split
    const uint64_t first_split =
        ((blockIdx.z * gridDim.y + blockIdx.y) * n_tiles + column / n_columns) * args.n_splits;
    const float *partials = args.partials + first_split * stride;
    const uint32_t warp = threadIdx.x / kWarp;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t channel = blockIdx.x % n_parts * kMergeChannels + 4 * lane;
    const float *from = partials + at * value_dim + min(channel, value_dim - 4);
    // All that a launch reads is on its way at once: outputs of the first splits, and a thread has
    // a split's reference and sum.
    float4 first[kFirstSplits];
#pragma unroll
    for (uint32_t i = 0; i < kFirstSplits; ++i)
        first[i] = load_four(from, min(warp + kMergeWarps * i, args.n_splits - 1) * stride);
    const float *stats = partials + n_columns * value_dim + at +
                         uint64_t{min(threadIdx.x, args.n_splits - 1)} * stride;
    const bool exists = threadIdx.x < args.n_splits;
    const float own = exists ? __ldcg(stats) : kNoReference;
    const float own_sum = exists ? __ldcg(stats + n_columns) : 0;
    if (args.step.header->n_sequences != args.n_sequences ||
        args.step.header->n_tokens != args.n_tokens)
        return;
    const SequenceInfo &sequence = args.step.sequences[blockIdx.z];
    const uint32_t group_size = args.layer.n_query_heads / args.layer.n_kv_heads;
    if (column >= sequence.n_new * group_size)
        return;
    const float highest = warp_max(own);
    if (lane == 0)
        warp_values[0][warp] = highest;
    __syncthreads();
    Total total;
    total.reference = warp_max(warp_values[0][lane % kMergeWarps]);
    const float weight = exp2_fast(own - total.reference);
    weights[threadIdx.x] = weight;
    const float weighed = warp_sum(weight * own_sum);
    if (lane == 0)
        warp_values[1][warp] = weighed;
    __syncthreads();
    total.sum = warp_sum(lane < kMergeWarps ? warp_values[1][lane] : 0);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t i = 0; i < kFirstSplits; ++i)
        if (warp + kMergeWarps * i < args.n_splits)
            add_weighed(first[i], weights[warp + kMergeWarps * i], &sum);
#pragma unroll 1
    for (uint32_t i = warp + kMergeWarps * kFirstSplits; i < args.n_splits; i += kMergeWarps)
        add_weighed(load_four(from, i * stride), weights[i], &sum);
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp || channel >= value_dim)
        return;
    for (uint32_t other = 1; other < kMergeWarps; ++other) {
        sum.x += sums[other][lane].x;
        sum.y += sums[other][lane].y;
        sum.z += sums[other][lane].z;
        sum.w += sums[other][lane].w;
    }
    const QueryColumn query = query_column(sequence, blockIdx.y, group_size, column);
    const float shrink = add_sink(args.layer, query.head, &total);
    if (channel == 0)
        store_lse(args, query, total);
    const float factor = shrink * inverse(total.sum);
    const int64_t row = row_offset(args.out, query.token, query.head) + channel;
#pragma unroll 1
    for (uint32_t i = 0; i < 2; ++i)
        store_two(args.out, row + 2 * i, (i ? sum.z : sum.x) * factor,
                  (i ? sum.w : sum.y) * factor);
}

}  // namespace

cudaError_t rows_fit(const LayerArg &layer) {
    TileArgs args{};
    args.layer = layer;
    args.layer.n_query_heads = args.layer.n_kv_heads = 1;
    args.max_new = 1;
    RowsGrid grid{};
    return cut_launch(args, {}, &grid);
}

uint32_t rows_splits(const TileArgs &args, const RowsPages &pages, uint32_t n_sms) {
    RowsGrid grid{};
    if (cut_launch(args, pages, &grid) != cudaSuccess)
        return 1;
    const uint64_t n = uint64_t{grid.n_tiles} * args.layer.n_kv_heads * args.n_sequences;
    if (!n || n >= n_sms)
        return 1;
    const uint64_t splits = n_sms / n;
    return splits < kMostRowsSplits ? static_cast<uint32_t>(splits) : kMostRowsSplits;
}

uint64_t rows_floats(const LayerArg &layer, uint32_t n_sms) {
    return uint64_t{n_sms} * rows_partial_floats(kMostRowsColumns, layer.value_dim);
}

cudaError_t launch_rows(const TileArgs &args, const RowsPages &pages, cudaStream_t stream) {
    if (!args.max_new || !args.n_sequences)
        return cudaSuccess;
    RowsGrid grid{};
    cudaError_t error = cut_launch(args, pages, &grid);
    if (error != cudaSuccess)
        return error;
    const dim3 blocks(grid.n_tiles, args.layer.n_kv_heads, args.n_sequences * args.n_splits);
    const auto kernel = grid.divides_warps ? attend_latent
                        : grid.unpacks     ? attend_unpacked
                                           : attend_rows;
    error = launch_kernel(kernel, blocks, kRowsThreads, grid.shared_bytes, stream, args, grid);
    if (error != cudaSuccess || args.n_splits == 1)
        return error;
    const uint32_t n_columns = args.max_new * (args.layer.n_query_heads / args.layer.n_kv_heads);
    const dim3 merges(n_columns * merge_parts(args.layer.value_dim), args.layer.n_kv_heads,
                      args.n_sequences);
    merge_rows<<<merges, kMergeThreads, 0, stream>>>(args, grid.n_tiles, grid.n_columns);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
