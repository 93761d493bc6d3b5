// Decode: the accumulators of warps and thread blocks, merged. Always in the same order, so that a
// result does not depend on which of them came last.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_MERGE_CUH
#define LK_CUDA_DECODE_MERGE_CUH

#include "cuda/decode/values.cuh"
#include "cuda/tensor.cuh"

namespace lk {
namespace cuda {

constexpr float kLog2e = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// The query columns of a thread block.
struct WorkTile {
    uint32_t first_column;  // of the sequence's columns: new token * group + head of the group
    uint32_t n_columns;
    uint32_t group;
    uint32_t first_head;
    uint32_t head_dim;
};

// [warp or team][column][head_dim + kPad] outputs, then [warp or team][column] row_max and row_sum.
struct WarpResults {
    float *outputs;
    float *row_maxes;
    float *row_sums;
    uint32_t n_columns;
    uint32_t stride;  // of a column
    // Does the warp store row_max and row_sum? Of a team the first does, since all have the same.
    bool has_stats = true;

    __device__ WarpResults(void *memory, uint32_t n_warps, uint32_t columns, uint32_t head_dim)
        : outputs(static_cast<float *>(memory)), n_columns(columns), stride(head_dim + kPad) {
        row_maxes = outputs + n_warps * columns * stride;
        row_sums = row_maxes + n_warps * columns;
    }
    // The same from a channel on.
    __device__ __forceinline__ WarpResults from(uint32_t channel) const {
        WarpResults part = *this;
        part.outputs += channel;
        part.has_stats = channel == 0;
        return part;
    }
};

template <int kStrips, int kTiles, DecodeKind kKind>
__device__ __forceinline__ void store_warp(const Accumulator<kStrips, kTiles> &g,
                                           const WarpResults &to, uint32_t warp, uint32_t lane) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t column = c * 8 + (lane & 3u) * 2 + i;
            const bool is_real = column < to.n_columns;
            float *out = to.outputs + (warp * to.n_columns + column) * to.stride + (lane >> 2);
#pragma unroll
            for (int s = 0; s < kStrips; ++s) {
                float low = g.midpoint[c][i];
                if (!kIsPlain<kKind>)
                    low = __shfl_sync(kAllLanes, low, (s / kF8GroupStrips * 4 + (lane & 3u)) & 31u);
                if (!is_real)
                    continue;
                out[s * 16] = fmaf(g.o[s][c][i], g.output_scale, low);
                out[s * 16 + 8] = fmaf(g.o[s][c][2 + i], g.output_scale, low);
            }
            if (is_real && lane < 4 && to.has_stats) {
                to.row_maxes[warp * to.n_columns + column] = g.row_max[c][i];
                to.row_sums[warp * to.n_columns + column] = g.row_sum[c][i];
            }
        }
}

// The splits of a query column, in shared memory or in global memory.
struct Splits {
    const float *outputs;
    const float *row_maxes;
    const float *row_sums;
    uint32_t n;
    uint32_t output_stride;  // from split to split
    uint32_t stats_stride;   // the same
};
// Their sum, relative to the highest row_max: of the channels of a lane.
template <int kLaneChannels>
struct Total {
    float output[kLaneChannels];
    float row_max;
    float row_sum;
};

template <bool kGlobal, typename T>
__device__ __forceinline__ T load_split(const T *from) {
    return kGlobal ? __ldcg(from) : *from;
}
template <bool kGlobal>
__device__ __forceinline__ void load_channels(const float *from, float (&out)[1]) {
    out[0] = load_split<kGlobal>(from);
}
template <bool kGlobal>
__device__ __forceinline__ void load_channels(const float *from, float (&out)[4]) {
    const float4 four = load_split<kGlobal>(reinterpret_cast<const float4 *>(from));
    out[0] = four.x;
    out[1] = four.y;
    out[2] = four.z;
    out[3] = four.w;
}

// The next ones, zeros from n on.
template <bool kGlobal, uint32_t kCount, int kLaneChannels>
__device__ __forceinline__ void load_splits(const float *from, uint32_t stride, uint32_t n,
                                            float (&out)[kCount][kLaneChannels]) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
        if (i < n) {
            load_channels<kGlobal>(from + i * stride, out[i]);
            continue;
        }
#pragma unroll
        for (int c = 0; c < kLaneChannels; ++c)
            out[i][c] = 0;
    }
}

// The highest of the lanes: floats as integers of the same order.
__device__ __forceinline__ float highest_of_lanes(float x) {
    const auto ordered = [](int bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); };
    return __int_as_float(ordered(__reduce_max_sync(kAllLanes, ordered(__float_as_int(x)))));
}

// A lane adds up its own channels; for the weights, lane i has split i.
template <bool kGlobal, int kLaneChannels>
__device__ __forceinline__ Total<kLaneChannels> add_splits(const Splits &splits, uint32_t lane) {
    // At most a split a lane. Eight KV heads have 17 splits each on a GPU of 132 multiprocessors.
    constexpr uint32_t kBatch = kGlobal && kLaneChannels == 1 ? 20 : 16;
    // Loads of distant outputs start before the weights are known. Near outputs are loaded in a
    // loop: code that runs once takes longest to arrive.
    constexpr uint32_t kAhead = kGlobal ? kBatch : 4;
    Total<kLaneChannels> total = {{}, kNothing, 0};
#pragma unroll 1
    for (uint32_t first = 0; first < splits.n; first += kBatch) {
        const uint32_t n = min(splits.n - first, kBatch);
        const float *from = splits.outputs + first * splits.output_stride;
        float outputs[kAhead][kLaneChannels];
        if (kGlobal)
            load_splits<kGlobal>(from, splits.output_stride, n, outputs);
        const uint32_t at = (first + min(lane, n - 1)) * splits.stats_stride;
        const float row_max = load_split<kGlobal>(splits.row_maxes + at);
        const float split_sum = load_split<kGlobal>(splits.row_sums + at);
        const float most = highest_of_lanes(fmaxf(row_max, total.row_max));
        const float weight = exp2_fast(row_max - most);
        float row_sum = lane < n ? weight * split_sum : 0.0f;
#pragma unroll 1
        for (uint32_t distance = kWarp / 2; distance; distance /= 2)
            row_sum += __shfl_xor_sync(kAllLanes, row_sum, distance);
        const float factor = exp2_fast(total.row_max - most);
        total.row_max = most;
        total.row_sum = fmaf(total.row_sum, factor, __shfl_sync(kAllLanes, row_sum, 0));
#pragma unroll
        for (int c = 0; c < kLaneChannels; ++c)
            total.output[c] *= factor;
#pragma unroll 1
        for (uint32_t i = 0; i < n; i += kAhead) {
            if (!kGlobal)
                load_splits<kGlobal>(from + i * splits.output_stride, splits.output_stride, n - i,
                                     outputs);
#pragma unroll
            for (uint32_t j = 0; j < kAhead; ++j) {
                const float own = __shfl_sync(kAllLanes, weight, i + j);
#pragma unroll
                for (int c = 0; c < kLaneChannels; ++c)
                    total.output[c] = fmaf(outputs[j][c], own, total.output[c]);
            }
        }
    }
    return total;
}

// Warps take the columns' channels in runs, and lanes some that lie next to each other: four of
// wide heads, where one thread block adds up many channels.
template <int kLaneChannels>
struct Run {
    uint32_t column;
    uint32_t first_channel;  // of the lane

    __device__ __forceinline__ Run(uint32_t index, uint32_t n_columns, uint32_t lane)
        : column(index % n_columns),
          first_channel((index / n_columns * kWarp + lane) * kLaneChannels) {}
    // Has the run no channel?
    __device__ __forceinline__ bool is_beyond(uint32_t head_dim, uint32_t lane) const {
        return first_channel - lane * kLaneChannels >= head_dim;
    }
};
// More floats of partial results than this take one thread block longer than groups of splits and
// their sums, some 5 us on an H200.
constexpr uint32_t kMergeFloats = 64 * 1024;

constexpr int lane_channels(uint32_t head_dim) { return head_dim > 256 ? 4 : 1; }

struct Destination {
    const DecodeArgs *args;
    const Column *columns;  // shared
    WorkTile work_tile;

    template <int kLaneChannels>
    __device__ __forceinline__ void store(const Run<kLaneChannels> &run,
                                          const Total<kLaneChannels> &total, float factor) const {
        const Column &c = columns[run.column];
        const int64_t at = row_offset(args->out, c.token, c.head) + run.first_channel;
#pragma unroll
        for (int i = 0; i < kLaneChannels; ++i)
            store_element(args->out, at + i, total.output[i] * factor);
    }
    // The learned sink joins here, once. Returns what the output is multiplied by.
    template <int kLaneChannels>
    __device__ __forceinline__ float close(const Run<kLaneChannels> &run,
                                           const Total<kLaneChannels> &total) const {
        const Column &c = columns[run.column];
        float weight = 1.0f;
        float row_max = total.row_max;
        float row_sum = total.row_sum;
        if (args->layer.sink_logits) {
            const float sink = args->layer.sink_logits[c.head] * kLog2e;
            row_max = fmaxf(row_max, sink);
            weight = exp2f(total.row_max - row_max);
            row_sum = row_sum * weight + exp2f(sink - row_max);
        }
        if (c.is_beyond)
            row_sum = __uint_as_float(kNanBits);
        if (args->lse && run.first_channel == 0)
            args->lse[c.token * args->lse_token_stride + c.head * args->lse_head_stride] =
                (row_max + log2f(row_sum)) * kLn2;
        return weight / row_sum;
    }
};

// Splits of a work tile that a thread block adds up: n of them from `first` on, `step` apart.
struct MergeLevel {
    uint32_t first;
    uint32_t step;
    uint32_t n;
    bool is_final;  // the sum goes to the output, otherwise to the place of the first split
};

// A thread block adds up partial results in global memory: [split][columns][head_dim] outputs, then
// row_max and row_sum [split][columns]. row_max and row_sum of a sum that is not final go to
// `results`, since warps that come later read those of the splits.
template <int kLaneChannels>
__device__ inline void merge_blocks(const Destination &to, const WorkItem &item,
                                    const MergeLevel &level, const WarpResults &results,
                                    float *partials) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t n_columns = to.work_tile.n_columns;
    const uint32_t head_dim = to.work_tile.head_dim;
    const uint32_t values = n_columns * head_dim;
    const float *row_stats = partials + item.n_splits * values + level.first * n_columns;
    float *outputs = partials + level.first * values;
    for (uint32_t i = threadIdx.x / kWarp;; i += blockDim.x / kWarp) {
        const Run<kLaneChannels> run(i, n_columns, lane);
        if (run.is_beyond(head_dim, lane))
            return;
        const uint32_t channel = min(run.first_channel, head_dim - kLaneChannels);
        float *own = outputs + run.column * head_dim + channel;
        const Splits splits = {
            own,     row_stats + run.column, row_stats + item.n_splits * n_columns + run.column,
            level.n, level.step * values,    level.step * n_columns};
        const auto total = add_splits<true, kLaneChannels>(splits, lane);
        const bool is_real = run.first_channel < head_dim;
        if (level.is_final) {
            const float factor = to.close(run, total);
            if (is_real)
                to.store(run, total, factor);
            continue;
        }
#pragma unroll
        for (int c = 0; is_real && c < kLaneChannels; ++c)
            __stcg(own + c, total.output[c]);
        if (i < n_columns && lane == 0) {
            results.row_maxes[i] = total.row_max;
            results.row_sums[i] = total.row_sum;
        }
    }
}

// Count to `most`, then from 0 again; the count before.
__device__ __forceinline__ uint32_t count_up(uint32_t *counter, uint32_t most) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0,[%1],%2;"
                 : "=r"(before)
                 : "l"(counter), "r"(most)
                 : "memory");
    return before;
}

// Has every one of n thread blocks come here, this one last? The barrier orders the stores of the
// thread block before the count, which releases them to the device. Every thread calls.
__device__ inline bool is_last_of(uint32_t n, uint32_t *counter) {
    __shared__ uint32_t is_last;
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = count_up(counter, n - 1) == n - 1;
    __syncthreads();
    return is_last;
}

// The last thread block of a work tile adds up its splits. Where they have too many floats for one
// thread block, the last thread block of each group of splits adds up its group before.
template <int kLaneChannels>
__device__ inline void merge_splits(const Destination &to, const WorkItem &item,
                                    const WarpResults &results, float *partials) {
    const uint32_t n_columns = to.work_tile.n_columns;
    const uint32_t values = n_columns * to.work_tile.head_dim;
    uint32_t *counter = to.args->counters + item.work_tile * kTileCounters;
    MergeLevel level = {0, 1, item.n_splits, true};
    if (item.n_splits * values > kMergeFloats) {
        const uint32_t size = (item.n_splits + kMergeGroups - 1) / kMergeGroups;
        const uint32_t group = item.split / size;
        level = {group * size, 1, min(size, item.n_splits - group * size), false};
        counter += 1 + group;
    }
    while (is_last_of(level.n, counter)) {
        merge_blocks<kLaneChannels>(to, item, level, results, partials);
        if (level.is_final)
            return;
        __syncthreads();
        if (threadIdx.x < n_columns) {
            float *row_max =
                partials + item.n_splits * values + level.first * n_columns + threadIdx.x;
            __stcg(row_max, results.row_maxes[threadIdx.x]);
            __stcg(row_max + item.n_splits * n_columns, results.row_sums[threadIdx.x]);
        }
        const uint32_t size = (item.n_splits + kMergeGroups - 1) / kMergeGroups;
        level = {0, size, (item.n_splits + size - 1) / size, true};
        counter = to.args->counters + item.work_tile * kTileCounters;
    }
}

// The results that the first n_results warps of the thread block, or its teams, have stored go to
// the output or to a partial result. Every thread calls.
template <int kLaneChannels>
__device__ inline void merge_warps(const Destination &to, const WorkItem &item,
                                   const WarpResults &results, uint32_t n_results) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t n_columns = to.work_tile.n_columns;
    const uint32_t head_dim = to.work_tile.head_dim;
    const uint32_t values = n_columns * head_dim;
    float *partials = to.args->partials + static_cast<uint64_t>(item.first_partial);
    float *row_stats = partials + item.n_splits * values;
    __syncthreads();
    for (uint32_t i = threadIdx.x / kWarp;; i += blockDim.x / kWarp) {
        const Run<kLaneChannels> run(i, n_columns, lane);
        if (run.is_beyond(head_dim, lane))
            break;
        const uint32_t channel = run.first_channel;
        const Splits splits = {results.outputs + run.column * results.stride + channel,
                               results.row_maxes + run.column,
                               results.row_sums + run.column,
                               n_results,
                               n_columns * results.stride,
                               n_columns};
        const auto total = add_splits<false, kLaneChannels>(splits, lane);
        const bool is_real = channel < head_dim;
        if (item.n_splits == 1) {
            const float factor = to.close(run, total);
            if (is_real)
                to.store(run, total, factor);
            continue;
        }
#pragma unroll
        for (int c = 0; is_real && c < kLaneChannels; ++c)
            __stcg(partials + item.split * values + run.column * head_dim + channel + c,
                   total.output[c]);
        if (i < n_columns && lane == 0) {
            __stcg(row_stats + item.split * n_columns + i, total.row_max);
            __stcg(row_stats + (item.n_splits + item.split) * n_columns + i, total.row_sum);
        }
    }
    if (item.n_splits > 1)
        merge_splits<kLaneChannels>(to, item, results, partials);
}

}  // namespace cuda
}  // namespace lk

#endif
