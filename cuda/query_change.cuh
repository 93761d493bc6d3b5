// What changes a query before it meets a KV head's keys: their centers, scales and rotation.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_QUERY_CHANGE_CUH
#define LK_CUDA_QUERY_CHANGE_CUH

#include "cuda/rotate.cuh"
#include "cuda/types.h"

namespace lk {
namespace cuda {

// Null and 0 where the layer has none.
struct QueryChange {
    const float *centers;
    const float *scales;
    uint32_t head_dim;
    uint32_t rotation;

    __device__ QueryChange(const LayerArg &layer, uint32_t kv_head)
        : centers(layer.key_centers),
          scales(layer.key_scales),
          head_dim(layer.head_dim),
          rotation(layer.key_rotation) {
        if (centers)
            centers += kv_head * head_dim;
        if (scales)
            scales += kv_head * head_dim;
    }
    __device__ bool exists() const { return centers || scales || rotation; }
};

// Change a query, of which each lane of a warp has channels lane, lane + 32 and so on. Returns its
// product with the centers, which comes first.
template <int kCount>
__device__ __forceinline__ float change_query(const QueryChange &change, float (&x)[kCount]) {
    const uint32_t lane = threadIdx.x % kWarp;
    float product = 0;
    if (change.centers) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            if (i * kWarp + lane < change.head_dim)
                product = fmaf(x[i], change.centers[i * kWarp + lane], product);
#pragma unroll
        for (int distance = 16; distance; distance /= 2)
            product += __shfl_xor_sync(kAllLanes, product, distance);
    }
    if (change.scales)
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            if (i * kWarp + lane < change.head_dim)
                x[i] *= change.scales[i * kWarp + lane];
    if (change.rotation)
        rotate_query(change.rotation, x);
    return product;
}

}  // namespace cuda
}  // namespace lk

#endif
