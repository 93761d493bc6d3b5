// Decode: the accumulators of teams and of their thread blocks, merged. A thread block adds up 16
// KB of each split there, so each column's weights are made once, and threads add up four channels.
// Single warps that read 256 channels have merge_warps(): with this loop theirs over pages spills.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_MERGE_WIDE_CUH
#define LK_CUDA_DECODE_MERGE_WIDE_CUH

#include "cuda/decode/merge.cuh"

namespace lk {
namespace cuda {

// One thread block adds up so many floats of partial results at once, and groups of splits before
// where there are more.
constexpr uint32_t kWideMergeFloats = 96 * 1024;
constexpr uint32_t kWideChannels = kWarp * 4;  // that a warp adds up at once
// Loads of a thread on their way. More of them spill where 16 warps share the registers.
constexpr uint32_t wide_ahead(uint32_t n_warps) { return n_warps <= 12 ? 12 : 8; }

// Of all columns: the fields of the first one.
struct WideSplits : Splits {
    uint32_t column_stride;  // of outputs; row_maxes and row_sums of columns lie next to each other
};
// Their weights, shared.
struct WideWeights {
    float *of_column;
    uint32_t column_stride;
    uint32_t stride;  // from split to split
};

// The weights of a column's splits, relative to the highest row_max. A warp calls.
__device__ __forceinline__ Total<1> weigh_splits(const WideSplits &from, uint32_t column,
                                                 const WideWeights &weights, uint32_t lane) {
    const float *row_maxes = from.row_maxes + column;
    const float *row_sums = from.row_sums + column;
    float *own = weights.of_column + column * weights.column_stride;
    const uint32_t first = min(lane, from.n - 1) * from.stats_stride;
    const float first_max = row_maxes[first];
    const float first_sum = row_sums[first];
    Total<1> total = {{0}, first_max, 0};
#pragma unroll 1
    for (uint32_t i = lane + kWarp; i < from.n; i += kWarp)
        total.row_max = fmaxf(total.row_max, row_maxes[i * from.stats_stride]);
#pragma unroll
    for (uint32_t distance = kWarp / 2; distance; distance /= 2)
        total.row_max = fmaxf(total.row_max, __shfl_xor_sync(kAllLanes, total.row_max, distance));
#pragma unroll 1
    for (uint32_t i = lane; i < from.n; i += kWarp) {
        const bool is_first = i == lane;
        const float row_max = is_first ? first_max : row_maxes[i * from.stats_stride];
        const float row_sum = is_first ? first_sum : row_sums[i * from.stats_stride];
        const float weight = exp2_fast(row_max - total.row_max);
        own[i * weights.stride] = weight;
        total.row_sum = fmaf(weight, row_sum, total.row_sum);
    }
#pragma unroll
    for (uint32_t distance = kWarp / 2; distance; distance /= 2)
        total.row_sum += __shfl_xor_sync(kAllLanes, total.row_sum, distance);
    return total;
}

template <uint32_t kAhead>
__device__ __forceinline__ void load_ahead(const float *from, uint32_t stride, uint32_t n,
                                           float4 (&out)[kAhead]) {
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i)
        if (i < n)
            out[i] = *reinterpret_cast<const float4 *>(from + i * stride);
}

// The first splits are `ahead` already.
template <uint32_t kAhead>
__device__ __forceinline__ Total<4> add_weighed(const float *from, const WideSplits &splits,
                                                const float *weights, uint32_t weight_stride,
                                                float4 (&ahead)[kAhead]) {
    Total<4> total = {};
#pragma unroll 1
    for (uint32_t i = 0;;) {
#pragma unroll
        for (uint32_t j = 0; j < kAhead; ++j) {
            if (i + j >= splits.n)
                return total;
            const float weight = weights[(i + j) * weight_stride];
            total.output[0] = fmaf(ahead[j].x, weight, total.output[0]);
            total.output[1] = fmaf(ahead[j].y, weight, total.output[1]);
            total.output[2] = fmaf(ahead[j].z, weight, total.output[2]);
            total.output[3] = fmaf(ahead[j].w, weight, total.output[3]);
        }
        i += kAhead;
        load_ahead(from + i * splits.output_stride, splits.output_stride,
                   i < splits.n ? splits.n - i : 0, ahead);
    }
}

// The results that the teams of the thread block have stored go to the output or to a partial
// result, which the last thread block of a group of splits, then of the work tile adds
// up: all by the code of one loop, since code that runs once takes longest to arrive. Partial
// results are as merge_blocks() has them. Every thread calls.
template <uint32_t kAhead>
__device__ inline void merge_wide(const Destination &to, const WorkItem &item,
                                  const WarpResults &results, uint32_t n_results) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t warp = threadIdx.x / kWarp;
    const uint32_t n_warps = blockDim.x / kWarp;
    const uint32_t n_columns = to.work_tile.n_columns;
    const uint32_t head_dim = to.work_tile.head_dim;
    const uint32_t n_runs = n_columns * (head_dim / kWideChannels);
    const uint32_t values = n_columns * head_dim;
    float *partials = to.args->partials + static_cast<uint64_t>(item.first_partial);
    float *row_stats = partials + item.n_splits * values;
    uint32_t *counter = to.args->counters + item.work_tile * kTileCounters;
    // What a column sums to is in the pad of its first result: row_max and row_sum, or what the
    // output is multiplied by.
    float *sums = results.outputs + head_dim;
    const bool has_groups =
        item.n_splits > min(kWideMergeFloats / values, head_dim);  // weights have that space
    const uint32_t group_size =
        has_groups ? (item.n_splits + kMergeGroups - 1) / kMergeGroups : item.n_splits;
    WideSplits from = {{results.outputs, results.row_maxes, results.row_sums, n_results,
                        n_columns * results.stride, n_columns},
                       results.stride};
    WideWeights weights = {results.row_maxes, 1, n_columns};
    MergeLevel level = {item.split, 1, 1, item.n_splits == 1};
    bool is_group = has_groups;  // is the next level that of a group?
    __syncthreads();
#pragma unroll 1
    while (true) {
        float4 ahead[kAhead];
        const auto start = [&](uint32_t i) {
            const Run<4> run(i, n_columns, lane);
            const float *own = from.outputs + run.column * from.column_stride + run.first_channel;
            if (i < n_runs)
                load_ahead(own, from.output_stride, from.n, ahead);
            return own;
        };
        const float *own = start(warp);  // on the way before weights are known
#pragma unroll 1
        for (uint32_t column = warp; column < n_columns; column += n_warps) {
            const Total<1> total = weigh_splits(from, column, weights, lane);
            float *sum = sums + column * results.stride;
            const float factor =
                level.is_final ? to.close(Run<1>(column, n_columns, lane), total) : 0.0f;
            if (lane == 0) {
                sum[0] = level.is_final ? factor : total.row_max;
                sum[1] = total.row_sum;
            }
        }
        __syncthreads();
#pragma unroll 1
        for (uint32_t i = warp; i < n_runs; own = start(i += n_warps)) {
            const Run<4> run(i, n_columns, lane);
            const auto total =
                add_weighed(own, from, weights.of_column + run.column * weights.column_stride,
                            weights.stride, ahead);
            if (level.is_final)
                to.store(run, total, sums[run.column * results.stride]);
            else
                __stcg(reinterpret_cast<float4 *>(partials + level.first * values +
                                                  run.column * head_dim + run.first_channel),
                       make_float4(total.output[0], total.output[1], total.output[2],
                                   total.output[3]));
        }
        if (level.is_final)
            return;
        if (threadIdx.x < n_columns) {
            float *row_max = row_stats + level.first * n_columns + threadIdx.x;
            __stcg(row_max, sums[threadIdx.x * results.stride]);
            __stcg(row_max + item.n_splits * n_columns, sums[threadIdx.x * results.stride + 1]);
        }
        const uint32_t group = item.split / group_size;
        if (is_group)
            level = {group * group_size, 1, min(group_size, item.n_splits - group * group_size),
                     false};
        else
            level = {0, has_groups ? group_size : 1,
                     has_groups ? (item.n_splits + group_size - 1) / group_size : item.n_splits,
                     true};
        if (!is_last_of(level.n, counter + (is_group ? 1 + group : 0)))
            return;
        is_group = false;
        const float *stats = row_stats + level.first * n_columns;
        from = {{partials + level.first * values, stats, stats + item.n_splits * n_columns, level.n,
                 level.step * values, level.step * n_columns},
                head_dim};
        // Results of the thread block's own are stored, so weights may lie there.
        weights = {results.outputs, results.stride, 1};
    }
}

}  // namespace cuda
}  // namespace lk

#endif
