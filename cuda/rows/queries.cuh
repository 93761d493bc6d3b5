// Attention over rows: queries of a thread block, as B operands in shared memory.
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

// A power of two that makes a query's channels less than 1, so that their products with ranges are
// numbers of FP16.
__device__ __forceinline__ float unit_divisor(float highest) {
    const uint32_t exponent = __float_as_uint(highest) >> 23;
    return exponent ? __uint_as_float(min(exponent + 1, 254u) << 23) : 1.0f;
}

// A warp rounds the queries of a column to FP16 numbers, which lie as B operands; columns that do
// not exist repeat the last one. Loops are short code, which is read once.
__device__ __noinline__ void load_query_columns(const TileArgs &args, const RowsBlock block) {
    RowsTables &tables = *block.tables;
    const Mask &mask = tables.mask;
    const LayerArg &layer = args.layer;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t first_key = mask.kv_head * layer.head_dim;
    const float *centers = layer.key_centers ? layer.key_centers + first_key : nullptr;
    const float *scales = layer.key_scales ? layer.key_scales + first_key : nullptr;
#pragma unroll 1
    for (uint32_t column = threadIdx.x / kWarp; column < block.n_columns; column += kRowsWarps) {
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
        const float divisor = is_beyond ? 1.0f : unit_divisor(warp_max(most));
        offset = is_beyond ? __uint_as_float(kNanBits) : warp_sum(offset);
        if (lane == 0) {
            tables.factors[column] = divisor;
            tables.offsets[column] = offset;
        }
        uint8_t *operand =
            block.queries + column / 16 * kTileBytes + 64 * (column % 8) + 8 * (column / 8 % 2);
        const uint32_t strip_bytes = block.query_strip_bytes();
#pragma unroll 2
        for (uint32_t c = lane; c < layer.head_dim; c += kWarp) {
            const float x = q.element(c);
            auto *to = reinterpret_cast<__half *>(operand + c / LK_STRIP_CHANNELS * strip_bytes +
                                                  c % 8 / 2 * 16 + c / 8 % 2 * 4);
            to[c % 2] =
                __float2half_rn(is_beyond ? 0.0f : (scales ? x * scales[c] : x) / divisor);
        }
    }
}

}  // namespace cuda
}  // namespace lk

#endif
