// Decode: what warps and blocks have gathered, put together. Always in the same order, so that a
// result does not depend on which of them came last.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_MERGE_CUH
#define LK_CUDA_DECODE_MERGE_CUH

#include "decode_values.cuh"
#include "tensor.cuh"

namespace lk {
namespace cuda {

constexpr float kLog2e = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// A block's query columns.
struct Unit {
    uint32_t first_column;  // of the sequence's columns: new token * group + head of the group
    uint32_t n_columns;
    uint32_t group;
    uint32_t first_head;
    uint32_t head_dim;
};

// [warp][column][head_dim + kPad] outputs, then [warp][column] tops and sums.
struct WarpResults {
    float *outputs;
    float *tops;
    float *sums;
    uint32_t n_columns;
    uint32_t stride;  // of a column

    __device__ WarpResults(void *memory, uint32_t n_warps, uint32_t columns, uint32_t head_dim)
        : outputs(static_cast<float *>(memory)), n_columns(columns), stride(head_dim + kPad) {
        tops = outputs + n_warps * columns * stride;
        sums = tops + n_warps * columns;
    }
};

template <int kStrips, int kTiles, bool kGrouped>
__device__ __forceinline__ void store_warp(const Gathered<kStrips, kTiles> &g,
                                           const WarpResults &to, uint32_t warp, uint32_t lane,
                                           uint32_t value_group_strips) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t column = c * 8 + (lane & 3u) * 2 + i;
            const bool is_real = column < to.n_columns;
            float *out = to.outputs + (warp * to.n_columns + column) * to.stride + (lane >> 2);
#pragma unroll
            for (int s = 0; s < kStrips; ++s) {
                float low = g.middle[c][i];
                if (kGrouped)
                    low = __shfl_sync(kAllLanes, low,
                                      (s / value_group_strips * 4 + (lane & 3u)) & 31u);
                if (!is_real)
                    continue;
                out[s * 16] = fmaf(g.o[s][c][i], g.unit, low);
                out[s * 16 + 8] = fmaf(g.o[s][c][2 + i], g.unit, low);
            }
            if (is_real && lane < 4) {
                to.tops[warp * to.n_columns + column] = g.top[c][i];
                to.sums[warp * to.n_columns + column] = g.sum[c][i];
            }
        }
}

// Turn the parts' tops [n_parts][n_columns] into weights, and give each column's top and sum: a
// warp a column, a lane a part.
__device__ __forceinline__ void weigh(float *tops, const float *sums, uint32_t n_parts,
                                      uint32_t n_columns, float *top, float *sum) {
    const uint32_t lane = threadIdx.x % kWarp;
    for (uint32_t column = threadIdx.x / kWarp; column < n_columns; column += blockDim.x / kWarp) {
        float most = kNothing;
        for (uint32_t i = lane; i < n_parts; i += kWarp)
            most = fmaxf(most, tops[i * n_columns + column]);
#pragma unroll
        for (int distance = 16; distance; distance /= 2)
            most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, distance));
        float all = 0;
        for (uint32_t i = lane; i < n_parts; i += kWarp) {
            const float weight = exp2_fast(tops[i * n_columns + column] - most);
            tops[i * n_columns + column] = weight;
            all = fmaf(sums[i * n_columns + column], weight, all);
        }
#pragma unroll
        for (int distance = 16; distance; distance /= 2)
            all += __shfl_xor_sync(kAllLanes, all, distance);
        if (lane == 0) {
            top[column] = most;
            sum[column] = all;
        }
    }
}

struct Destination {
    const DecodeArgs *args;
    const Column *columns;  // shared
    Unit unit;

    __device__ __forceinline__ void store(uint32_t column, uint32_t channel, float value) const {
        const Column &c = columns[column];
        store_element(args->out, row_offset(args->out, c.token, c.head) + channel, value);
    }
    // The learned sink joins here, once. Returns what the output is multiplied by.
    __device__ __forceinline__ float close(uint32_t column, float top, float sum) const {
        float weight = 1.0f;
        if (args->layer.sink_logits) {
            const float sink = args->layer.sink_logits[columns[column].head] * kLog2e;
            const float most = fmaxf(top, sink);
            weight = exp2f(top - most);
            sum = sum * weight + exp2f(sink - most);
            top = most;
        }
        if (args->lse)
            args->lse[columns[column].token * args->lse_token_stride +
                      columns[column].head * args->lse_head_stride] = (top + log2f(sum)) * kLn2;
        return weight / sum;
    }
};

// Sum of the weighted outputs of n_parts parts.
template <bool kGlobal>
__device__ __forceinline__ float add_parts(const float *outputs, const float *weights,
                                           uint32_t n_parts, uint32_t n_columns,
                                           uint32_t part_stride) {
    constexpr uint32_t kBatch = kGlobal ? 16 : 8;
    float sum = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < n_parts; first += kBatch) {
        float values[kBatch];
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            const float *from = outputs + static_cast<uint64_t>(first + i) * part_stride;
            values[i] = first + i < n_parts ? (kGlobal ? __ldcg(from) : *from) : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i)
            if (first + i < n_parts)
                sum = fmaf(values[i], weights[(first + i) * n_columns], sum);
    }
    return sum;
}

// Threads spread over columns and channels, without a division in the loop.
struct Spread {
    uint32_t column;
    uint32_t channel;

    __device__ __forceinline__ explicit Spread(uint32_t head_dim)
        : column(0), channel(threadIdx.x) {
        fold(head_dim);
    }
    __device__ __forceinline__ void next(uint32_t head_dim) {
        channel += blockDim.x;
        fold(head_dim);
    }
    __device__ __forceinline__ void fold(uint32_t head_dim) {
#pragma unroll 1
        for (; channel >= head_dim; channel -= head_dim)
            ++column;
    }
};

// Columns of a block, shared.
struct ColumnTotals {
    float top[16];
    float sum[16];
    float factor[16];
};

// The last block of a unit adds up the partial results in global memory:
// [part][columns][head_dim] outputs, then tops and sums [part][columns].
__device__ inline void merge_blocks(const Destination &to, const WorkItem &item, float *partials,
                                    float *shared, ColumnTotals *totals) {
    const uint32_t n_columns = to.unit.n_columns;
    const uint32_t n = item.n_parts * n_columns;
    const uint32_t values = n_columns * to.unit.head_dim;
    const float *numbers = partials + static_cast<uint64_t>(item.n_parts) * values;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        shared[i] = __ldcg(numbers + i);
        shared[n + i] = __ldcg(numbers + n + i);
    }
    __syncthreads();
    weigh(shared, shared + n, item.n_parts, n_columns, totals->top, totals->sum);
    __syncthreads();
    if (threadIdx.x < n_columns)
        totals->factor[threadIdx.x] =
            to.close(threadIdx.x, totals->top[threadIdx.x], totals->sum[threadIdx.x]);
    __syncthreads();
    for (Spread at(to.unit.head_dim); at.column < n_columns; at.next(to.unit.head_dim)) {
        const float sum = add_parts<true>(partials + at.column * to.unit.head_dim + at.channel,
                                          shared + at.column, item.n_parts, n_columns, values);
        to.store(at.column, at.channel, sum * totals->factor[at.column]);
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

// What the block's warps have stored, to the output or to a partial result. Every thread calls.
__device__ inline void merge_warps(const Destination &to, const WorkItem &item,
                                   const WarpResults &results, uint32_t n_warps, float *shared,
                                   ColumnTotals *totals) {
    __shared__ uint32_t is_last;
    const uint32_t n_columns = to.unit.n_columns;
    const uint32_t head_dim = to.unit.head_dim;
    const uint32_t values = n_columns * head_dim;
    __syncthreads();
    weigh(results.tops, results.sums, n_warps, n_columns, totals->top, totals->sum);
    __syncthreads();
    const bool is_whole = item.n_parts == 1;
    if (is_whole) {
        if (threadIdx.x < n_columns)
            totals->factor[threadIdx.x] =
                to.close(threadIdx.x, totals->top[threadIdx.x], totals->sum[threadIdx.x]);
        __syncthreads();
    }
    float *partials = to.args->partials + static_cast<uint64_t>(item.first_partial);
    float *mine = partials + static_cast<uint64_t>(item.part) * values;
    for (Spread at(head_dim); at.column < n_columns; at.next(head_dim)) {
        const float sum = add_parts<false>(
            results.outputs + at.column * results.stride + at.channel, results.tops + at.column,
            n_warps, n_columns, n_columns * results.stride);
        if (is_whole)
            to.store(at.column, at.channel, sum * totals->factor[at.column]);
        else
            __stcg(mine + at.column * head_dim + at.channel, sum);
    }
    if (is_whole)
        return;
    float *numbers = partials + static_cast<uint64_t>(item.n_parts) * values;
    if (threadIdx.x < n_columns) {
        __stcg(numbers + item.part * n_columns + threadIdx.x, totals->top[threadIdx.x]);
        __stcg(numbers + (item.n_parts + item.part) * n_columns + threadIdx.x,
               totals->sum[threadIdx.x]);
    }
    // The barrier orders the block's stores before the count, which releases them to the device.
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = count_up(to.args->counters + item.unit, item.n_parts - 1) == item.n_parts - 1;
    __syncthreads();
    if (!is_last)
        return;
    merge_blocks(to, item, partials, shared, totals);
}

}  // namespace cuda
}  // namespace lk

#endif
