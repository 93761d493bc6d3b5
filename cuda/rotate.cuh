// The rotation of keys and queries: n neighbouring channels times Hadamard's matrix, over sqrt(n).
//
// Stage by stage, channels that lie 1, 2, 4 .. n / 2 apart become their sum and their difference,
// each rounded once, so that every backend has the same bits. A product with 1 or -1 is exact:
// one fused multiply-add is either.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROTATE_CUH
#define LK_CUDA_ROTATE_CUH

#include "cuda/fragment.cuh"
#include "format/rotation.h"

namespace lk {
namespace cuda {

// cut_for_rotation(), of keys and of queries that rank channels.
__device__ __forceinline__ float cut_to_rotate(float f) {
    return fmaxf(fminf(f, kRotationLimit), -kRotationLimit);
}

// The stages of a lane's own channels, which lie `channels` apart.
template <int kCount>
__device__ __forceinline__ void rotate_in_lane(uint32_t n, uint32_t channels, float (&x)[kCount]) {
#pragma unroll
    for (uint32_t distance = 1; distance < kCount; distance *= 2) {
        if (distance * channels < n)
#pragma unroll
            for (uint32_t i = 0; i + distance < kCount; ++i) {
                const float low = x[i];
                const float high = x[i + distance];
                x[i] = i & distance ? low : __fadd_rn(low, high);
                x[i + distance] = i & distance ? high : __fsub_rn(low, high);
            }
    }
}

// The stages of channels of n_lanes neighbouring lanes, a power of two. Whole warps.
template <int kCount>
__device__ __forceinline__ void rotate_across_lanes(uint32_t n_lanes, float (&x)[kCount]) {
#pragma unroll 1
    for (uint32_t distance = 1; distance < n_lanes; distance *= 2) {
        const float sign = threadIdx.x & distance ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            x[i] = __fmaf_rn(x[i], sign, __shfl_xor_sync(kAllLanes, x[i], distance));
    }
}

// rotation_factor(n) of a power of two: a reciprocal square root would be more instructions.
__device__ __forceinline__ float rotation_scale(uint32_t n) {
    const uint32_t exponent = 31 - __clz(n);
    const float power = __uint_as_float((127 - (exponent + 1) / 2) << 23);
    return exponent % 2 ? power * 1.41421356f : power;
}

template <int kCount>
__device__ __forceinline__ void scale_rotated(uint32_t n, float (&x)[kCount]) {
    const float factor = rotation_scale(n);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        x[i] = __fmul_rn(x[i], factor);
}

// Rotate a query, of which each lane of a warp has channels lane, lane + 32 and so on. What lies
// after the last channel is never mixed with channels.
template <int kCount>
__device__ __forceinline__ void rotate_query(uint32_t n, float (&q)[kCount]) {
    rotate_across_lanes(min(n, kWarp), q);
    rotate_in_lane(n, kWarp, q);
    scale_rotated(n, q);
}

// A warp rotates a row in shared memory.
__device__ __forceinline__ void rotate_row(uint32_t n, uint32_t head_dim, float *row) {
    const uint32_t lane = threadIdx.x % kWarp;
    const float factor = rotation_scale(n);
#pragma unroll 1
    for (uint32_t distance = 1; distance < n; distance *= 2) {
        __syncwarp();
        const float last = 2 * distance == n ? factor : 1.0f;
        for (uint32_t i = lane; i < head_dim / 2; i += kWarp) {
            float *pair = row + 2 * i - (i & (distance - 1));
            const float low = pair[0];
            const float high = pair[distance];
            pair[0] = __fmul_rn(__fadd_rn(low, high), last);
            pair[distance] = __fmul_rn(__fsub_rn(low, high), last);
        }
    }
    __syncwarp();
}

}  // namespace cuda
}  // namespace lk

#endif
