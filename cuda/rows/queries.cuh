// Attention over rows: queries of a thread block, rounded to FP16 rows in shared memory.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_QUERIES_CUH
#define LK_CUDA_ROWS_QUERIES_CUH

#include "cuda/rows/load.cuh"

namespace lk {
namespace cuda {

template <uint32_t kThreads, class F>
__device__ __forceinline__ float reduce_column(float x, F f) {
#pragma unroll
    for (uint32_t step = 1; step < kThreads; step *= 2)
        x = f(x, __shfl_xor_sync(kAllLanes, x, step));
    return x;
}

// Elements of a query as the kernel reads them: of the sign of the layer's scale.
struct QueryReader {
    const TensorArg &tensor;
    int64_t offset;
    float sign;

    __device__ float element(uint32_t channel) const {
        return sign * load_element(tensor, offset + channel);
    }
};

__device__ __forceinline__ float warp_max(float x) {
    return reduce_column<kWarp>(x, [](float a, float b) { return fmaxf(a, b); });
}
__device__ __forceinline__ float warp_sum(float x) {
    return reduce_column<kWarp>(x, [](float a, float b) { return a + b; });
}

// A warp rounds queries to FP16 rows; columns that do not exist repeat the last one. Returns
// whether logits take more than the layer's factor. Loops are short code, which is read once.
__device__ __noinline__ bool load_query_rows(const TileArgs &args, const RowsBlock block,
                                             uint32_t n_columns) {
    RowsTables &tables = *block.tables;
    const Mask &mask = tables.mask;
    const LayerArg &layer = args.layer;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t first_key = mask.kv_head * layer.head_dim;
    const float *centers = layer.key_centers ? layer.key_centers + first_key : nullptr;
    const float *scales = layer.key_scales ? layer.key_scales + first_key : nullptr;
    bool has_factors = centers;
#pragma unroll 1
    for (uint32_t column = threadIdx.x / kWarp; column < n_columns; column += kRowsWarps) {
        const QueryColumn query = query_column(mask.sequence, mask.kv_head, mask.group_size,
                                               mask.first_column + min(column, mask.n_columns - 1));
        const QueryReader q = {args.q, row_offset(args.q, query.token, query.head),
                               layer.scale < 0 ? -1.0f : 1.0f};
        bool is_beyond = false;
        float offset = 0;
        float most = 0;
#pragma unroll 2
        for (uint32_t c = lane; c < layer.head_dim; c += kWarp) {
            const float x = q.element(c);
            is_beyond |= is_beyond_limit(layer, x);
            offset = centers ? fmaf(x, centers[c], offset) : offset;
            most = fmaxf(most, fabsf(scales ? x * scales[c] : x));
        }
        // A query beyond its layer's limit counts as zeros, its logits are NaN by their offset.
        is_beyond = __any_sync(kAllLanes, is_beyond);
        const bool fits = is_beyond || (args.q.dtype == kF16 && !scales);
        const float divisor = fits ? 1.0f : query_divisor(warp_max(most));
        offset = is_beyond ? __uint_as_float(kNanBits) : warp_sum(offset);
        has_factors |= is_beyond || divisor != 1;
        if (lane == 0) {
            tables.factors[column] = divisor;
            tables.offsets[column] = offset;
        }
        auto *row = reinterpret_cast<__half *>(block.keys + column * block.key_row_bytes());
#pragma unroll 2
        for (uint32_t c = lane; c < layer.head_dim; c += kWarp) {
            const float x = q.element(c);
            row[c] = __float2half_rn(is_beyond ? 0.0f : (scales ? x * scales[c] : x) / divisor);
        }
    }
    return has_factors;
}

}  // namespace cuda
}  // namespace lk

#endif
