// Attention of long steps: queries on their way in, states between passes and results on their way
// out. A warp has kRows tiles of 16 columns.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_PASS_COLUMNS_CUH
#define LK_CUDA_PREFILL_PASS_COLUMNS_CUH

#include "cuda/prefill/pass_weights.cuh"
#include "cuda/prefill/queries.cuh"

namespace lk {
namespace cuda {

// A thread block of a pass.
struct PassPosition {
    uint32_t pair;
    uint32_t tile;  // of the launch's columns
    uint32_t split;
};

inline dim3 pass_blocks(const TileArgs &args, const PagePass &pass) {
    return {pass.n_tiles * args.n_splits, pass.n_pairs};
}
// Most tokens are visible to the last columns: their thread blocks start first.
__device__ inline PassPosition pass_position(const TileArgs &args, const PagePass &pass) {
    return {pass.first_pair + blockIdx.y, pass.n_tiles - 1 - blockIdx.x / args.n_splits,
            blockIdx.x % args.n_splits};
}

// Where a thread block has nothing to do, n_columns is 0: it has no columns, or no page of a pass
// between others is visible to them.
__device__ inline void find_pass_mask(const TileArgs &args, const PagePass &pass,
                                      const PassPosition &at, uint32_t block_columns, Mask *mask) {
    const TilePosition position = {at.pair / args.layer.n_kv_heads, at.pair % args.layer.n_kv_heads,
                                   pass.first_tile + at.tile};
    const bool has_columns = find_mask(args, position, block_columns, mask);
    if (has_columns)
        cut_pass(args, pass, at.split, mask);
    const bool is_between = !pass.is_first && !pass.is_last;
    if (!has_columns || (is_between && mask->page_begin == mask->page_end))
        mask->n_columns = 0;
}

__device__ inline Partial pass_partial(const TileArgs &args, const PagePass &pass,
                                       const PassPosition &at, uint32_t block_columns) {
    const uint64_t pair = at.pair - (args.n_splits > 1 ? 0 : pass.first_pair);
    return partial_of(args, (pair * pass.n_tiles + at.tile) * args.n_splits + at.split,
                      block_columns);
}

// The queries of a warp as A operands.
template <int kStrips, int kRows>
__device__ inline bool load_queries(const TileArgs &args, ColumnTables &tables,
                                    const WarpColumns &warp, uint8_t *queries) {
    bool has_factors = false;
#pragma unroll 1
    for (uint32_t slice = 0; warp.n && slice < 2 * kRows; ++slice) {
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
template <int kStrips, int kRows, class F>
__device__ __forceinline__ void for_state(const WarpColumns &warp, const Partial &partial,
                                          RowSums<kStrips> (&sums)[kRows], F f) {
    const uint32_t lane = threadIdx.x % kSumLanes;
#pragma unroll
    for (int row = 0; row < kRows; ++row)
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

template <int kStrips, int kRows>
__device__ __forceinline__ void store_output(const TileArgs &args, const Mask &mask,
                                             const WarpColumns &warp, const Partial &partial,
                                             const RowSums<kStrips> (&sums)[kRows]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row)
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

}  // namespace cuda
}  // namespace lk

#endif
