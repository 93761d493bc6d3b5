// Attention of many columns: sums, sinks and output, of a thread block or of its splits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_OUTPUT_CUH
#define LK_CUDA_PREFILL_OUTPUT_CUH

#include "cuda/prefill/weights.cuh"
#include "cuda/tensor.cuh"

namespace lk {
namespace cuda {

struct QueryColumn {
    uint32_t token;  // of the batch
    uint32_t head;
};

__device__ __forceinline__ QueryColumn query_column(const SequenceInfo &sequence, uint32_t kv_head,
                                                    uint32_t group_size, uint32_t column) {
    return {sequence.first_new + column / group_size, kv_head * group_size + column % group_size};
}

// Weights of a column: their sum, relative to a reference (base 2).
struct Total {
    float reference;
    float sum;
};

// Take `head`'s learned sink in; returns what the output is to be multiplied by.
__device__ inline float add_sink(const LayerArg &layer, uint32_t head, Total *total) {
    if (!layer.sink_logits)
        return 1;
    const float sink = layer.sink_logits[head] * kLog2E;
    const float reference = fmaxf(total->reference, sink);
    const float shrink = exp2_fast(total->reference - reference);
    total->sum = total->sum * shrink + exp2_fast(sink - reference);
    total->reference = reference;
    return shrink;
}

__device__ inline void store_lse(const TileArgs &args, const QueryColumn &query,
                                 const Total &total) {
    if (args.lse)
        args.lse[query.token * args.lse_token_stride + query.head * args.lse_head_stride] =
            (total.reference + log2f(total.sum)) * kLn2;
}

// A NaN stays.
__device__ __forceinline__ float inverse(float sum) { return sum != 0 ? 1 / sum : 0; }

// The result of a thread block of a split: output [columns][head_dim], then references and sums
// [columns]. Where the thread block goes on in another launch, sums are those of the lanes.
struct Partial {
    float *out;
    float *references;
    float *sums;
};
constexpr uint32_t kSumLanes = 4;  // that share a column

__host__ __device__ inline uint64_t partial_floats(uint32_t block_columns, uint32_t head_dim) {
    return static_cast<uint64_t>(block_columns) * (head_dim + 1 + kSumLanes);
}

__device__ inline Partial partial_of(const TileArgs &args, uint64_t block, uint32_t block_columns) {
    const uint32_t head_dim = args.layer.head_dim;
    Partial partial;
    partial.out = args.partials + block * partial_floats(block_columns, head_dim);
    partial.references = partial.out + static_cast<uint64_t>(block_columns) * head_dim;
    partial.sums = partial.references + block_columns;
    return partial;
}
__device__ inline Partial find_partial(const TileArgs &args, uint32_t sequence, uint32_t kv_head,
                                       uint32_t tile, uint32_t n_tiles, uint32_t split,
                                       uint32_t block_columns) {
    const uint64_t pair = static_cast<uint64_t>(sequence) * args.layer.n_kv_heads + kv_head;
    return partial_of(args, (pair * n_tiles + tile) * args.n_splits + split, block_columns);
}

// Where a lane's column of the output goes, a strip at a time.
struct OutputRow {
    TensorArg tensor;
    int64_t offset;  // of channel 0
};

// Columns become rows on the way through `scratch`, 16 channels of each of the warp's columns.
template <int kSlices>
__device__ inline void store_strip(const float (&out)[kSlices][4], float *scratch,
                                   const OutputRow &row, bool exists, uint32_t strip) {
    constexpr uint32_t kColumns = 8 * kSlices;
    const uint32_t lane = threadIdx.x % kWarp;
    __syncwarp();
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t channel = lane / 4 + 8 * (i / 2);
            const uint32_t column = column_of(slice, i);
            const uint32_t turned = channel ^ (column / 2 % 4 * 4);
            scratch[LK_STRIP_CHANNELS * column + turned] = out[slice][i];
        }
    __syncwarp();
    const uint32_t column = lane % kColumns;
    for (uint32_t first = lane / kColumns * 8; first < LK_STRIP_CHANNELS;
         first += kWarp / kColumns * 8) {
        float values[8];
        for (uint32_t i = 0; i < 8; ++i)
            values[i] = scratch[LK_STRIP_CHANNELS * column + ((first + i) ^ (column / 2 % 4 * 4))];
        if (exists)
            store_eight(row.tensor, row.offset + LK_STRIP_CHANNELS * strip + first, values);
    }
}

template <int kStrips>
__device__ inline void scale_output(Accumulators<kStrips> &acc, int slice, int column,
                                    float factor) {
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
        acc.out[strip][slice][column] *= factor;
        acc.out[strip][slice][column + 2] *= factor;
    }
}

template <int kStrips>
__device__ inline void add_lanes(Accumulators<kStrips> &acc) {
#pragma unroll
    for (int slice = 0; slice < Accumulators<kStrips>::kSlices; ++slice)
#pragma unroll
        for (int column = 0; column < 2; ++column)
            for (int step = 4; step < static_cast<int>(kWarp); step *= 2)
                acc.sum[slice][column] += __shfl_xor_sync(kAllLanes, acc.sum[slice][column], step);
}

// The columns' sums: into the output, or, of a split, to the partial results.
template <int kStrips>
__device__ inline void close_columns(const TileArgs &args, const Mask &mask,
                                     const WarpColumns &warp, const Partial &partial,
                                     Accumulators<kStrips> &acc) {
    const bool is_first = threadIdx.x % kWarp < 4;  // of the lanes that have the same columns
#pragma unroll
    for (int slice = 0; slice < Accumulators<kStrips>::kSlices; ++slice)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t column = column_of(slice, i);
            Total total = {acc.reference[slice][i], acc.sum[slice][i]};
            if (column >= warp.n)
                continue;
            if (args.n_splits > 1) {
                if (is_first) {
                    partial.references[warp.first + column] = total.reference;
                    partial.sums[warp.first + column] = total.sum;
                }
                continue;
            }
            const QueryColumn query = query_column(mask.sequence, mask.kv_head, mask.group_size,
                                                   mask.first_column + warp.first + column);
            const float shrink = add_sink(args.layer, query.head, &total);
            if (is_first)
                store_lse(args, query, total);
            scale_output(acc, slice, i, shrink * inverse(total.sum));
        }
}

template <int kStrips>
__device__ inline void store_output(const TileArgs &args, const Mask &mask, const WarpColumns &warp,
                                    const Partial &partial, float *scratch,
                                    Accumulators<kStrips> &acc) {
    constexpr int kSlices = Accumulators<kStrips>::kSlices;
    add_lanes(acc);
    close_columns(args, mask, warp, partial, acc);
    const uint32_t column = threadIdx.x % (8 * kSlices);
    const bool exists = column < warp.n;
    OutputRow row = {args.out, 0};
    if (args.n_splits > 1) {
        row.tensor.data = partial.out;
        row.tensor.dtype = kF32;
        row.offset = static_cast<int64_t>(warp.first + column) * args.layer.head_dim;
    } else if (exists) {
        const QueryColumn query = query_column(mask.sequence, mask.kv_head, mask.group_size,
                                               mask.first_column + warp.first + column);
        row.offset = row_offset(args.out, query.token, query.head);
    }
    const uint32_t n_strips = args.layer.head_dim / LK_STRIP_CHANNELS;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip)
        if (strip < static_cast<int>(n_strips))
            store_strip<kSlices>(acc.out[strip], scratch, row, exists, strip);
}

}  // namespace cuda
}  // namespace lk

#endif
