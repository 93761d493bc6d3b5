// Attention of many columns: queries of a thread block, as both kernels of prefill load them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_QUERIES_CUH
#define LK_CUDA_PREFILL_QUERIES_CUH

#include "cuda/prefill/output.cuh"

namespace lk {
namespace cuda {

// A power of two to divide a query by, where FP16 cannot hold it.
__device__ inline float query_divisor(float highest) {
    const uint32_t exponent = __float_as_uint(highest) >> 23;
    constexpr uint32_t kKept = 127 + 14;  // below 2^15
    return exponent > kKept && exponent < 255 ? __uint_as_float((exponent - kKept + 127) << 23)
                                              : 1.0f;
}

// The divisor of a query of which each lane has some channels. `fits`: FP16 holds it as it is.
__device__ inline float find_divisor(bool fits, const float *channels, int n) {
    if (fits)
        return 1;
    float high = 0;
    for (int i = 0; i < n; ++i)
        high = fmaxf(high, fabsf(channels[i]));
    for (int step = 1; step < static_cast<int>(kWarp); step *= 2)
        high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, step));
    return query_divisor(high);
}

// Make zeros of such a query if it is beyond its layer's limit. Returns whether it was.
__device__ inline bool clear_beyond_limit(const LayerArg &layer, float *channels, int n) {
    bool is_beyond = false;
    for (int i = 0; i < n; ++i)
        is_beyond |= is_beyond_limit(layer, channels[i]);
    is_beyond = __any_sync(kAllLanes, is_beyond);
    for (int i = 0; i < n; ++i)
        channels[i] = is_beyond ? 0.0f : channels[i];
    return is_beyond;
}

// The product of such a query with the center of keys.
__device__ inline float center_product(const LayerArg &layer, uint32_t kv_head,
                                       const float *channels, int n) {
    const float *center = layer.key_centers + kv_head * layer.head_dim;
    float sum = 0;
    for (int i = 0; i < n; ++i) {
        const uint32_t channel = kWarp * i + threadIdx.x % kWarp;
        if (channel < layer.head_dim)
            sum = fmaf(channels[i], center[channel], sum);
    }
    for (int step = 1; step < static_cast<int>(kWarp); step *= 2)
        sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
}

// Multiply such a query by the key scales.
__device__ inline void scale_query(const LayerArg &layer, uint32_t kv_head, float *channels,
                                   int n) {
    const float *scale = layer.key_scales + kv_head * layer.head_dim;
    for (int i = 0; i < n; ++i) {
        const uint32_t channel = kWarp * i + threadIdx.x % kWarp;
        if (channel < layer.head_dim)
            channels[i] *= scale[channel];
    }
}

// Elements of a tensor as they lie there, since loads wait together where no conversion comes
// between them: load(pointer to elements) is called for those of 16 or of 32 bits.
template <class Load>
__device__ __forceinline__ void load_bits(const TensorArg &tensor, const Load &load) {
    if (tensor.dtype == kF32)
        load(static_cast<const uint32_t *>(tensor.data));
    else
        load(static_cast<const uint16_t *>(tensor.data));
}
__device__ __forceinline__ float element_of(uint32_t dtype, uint32_t bits) {
    return dtype == kF16 ? __half2float(__ushort_as_half(static_cast<uint16_t>(bits)))
                         : __uint_as_float(dtype == kF32 ? bits : bits << 16);
}

// Round eight of the warp's queries to FP16 and pass them to store(query, channel, value); columns
// that do not exist repeat the last one. Returns whether logits take more than the layer's factor.
template <int kStrips, class Store>
__device__ inline bool load_slice(const TileArgs &args, ColumnTables &tables,
                                  const WarpColumns &warp, uint32_t slice, const Store &store) {
    constexpr int kSteps = (kStrips + 1) / 2;  // a lane's channels, kWarp apart
    const Mask &mask = tables.mask;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t head_dim = args.layer.head_dim;
    const float sign = args.layer.scale < 0 ? -1.0f : 1.0f;
    uint32_t bits[8][kSteps];
    load_bits(args.q, [&](const auto *elements) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t column = min(8 * slice + i, warp.n - 1);
            const QueryColumn query = query_column(mask.sequence, mask.kv_head, mask.group_size,
                                                   mask.first_column + warp.first + column);
            const int64_t offset = row_offset(args.q, query.token, query.head);
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const uint32_t channel = kWarp * step + lane;
                bits[i][step] = channel < head_dim ? elements[offset + channel] : 0;
            }
        }
    });
    float q[8][kSteps];
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
            q[i][step] = sign * element_of(args.q.dtype, bits[i][step]);
    bool has_factors = args.layer.key_centers;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        // A query beyond its layer's limit counts as zeros, its logits are NaN by their offset.
        const bool is_beyond = clear_beyond_limit(args.layer, q[i], kSteps);
        has_factors |= is_beyond;
        const float offset = is_beyond ? __uint_as_float(kNanBits)
                             : args.layer.key_centers
                                 ? center_product(args.layer, mask.kv_head, q[i], kSteps)
                                 : 0;
        if (args.layer.key_scales)
            scale_query(args.layer, mask.kv_head, q[i], kSteps);
        const bool fits = args.q.dtype == kF16 && !args.layer.key_scales;
        const float divisor = find_divisor(fits, q[i], kSteps);
        has_factors |= divisor != 1;
        if (lane == 0) {
            tables.factors[warp.first + 8 * slice + i] = divisor;
            tables.offsets[warp.first + 8 * slice + i] = offset;
        }
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const uint32_t channel = kWarp * step + lane;
            if (channel < head_dim)
                store(i, channel, __float2half_rn(q[i][step] / divisor));
        }
    }
    return has_factors;
}

__device__ inline void load_positions(const TileArgs &args, ColumnTables *tables) {
    const Mask &mask = tables->mask;
    const SequenceInfo &sequence = mask.sequence;
    for (uint32_t column = threadIdx.x; column < kTileColumns; column += blockDim.x) {
        const uint32_t last = mask.n_columns - 1;
        const uint32_t token =
            (mask.first_column + (column < last ? column : last)) / mask.group_size;
        tables->positions[column] = sequence.has_tree
                                        ? args.step.positions[sequence.first_new + token]
                                        : sequence.n_history + token;
        tables->reaches[column] =
            sequence.has_tree ? tables->positions[column] : find_reach(args, sequence, token);
        tables->ancestors[column] =
            sequence.has_tree ? args.step.ancestors[sequence.first_new + token] : 0;
    }
}

}  // namespace cuda
}  // namespace lk

#endif
