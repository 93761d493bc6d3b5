// Elements of the host's tensors: FP16, BF16 or FP32, any strides.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_TENSOR_CUH
#define LK_CUDA_TENSOR_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/types.h"

namespace lk {
namespace cuda {

enum Dtype : uint32_t { kF16 = 1, kBF16 = 2, kF32 = 3 };  // as lk_dtype

__device__ __forceinline__ int64_t row_offset(const TensorArg &tensor, uint32_t token,
                                              uint32_t head) {
    return token * tensor.token_stride + head * tensor.head_stride;
}

__device__ __forceinline__ float load_element(const TensorArg &tensor, int64_t offset) {
    if (tensor.dtype == kF32)
        return static_cast<const float *>(tensor.data)[offset];
    if (tensor.dtype == kF16)
        return __half2float(static_cast<const __half *>(tensor.data)[offset]);
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(tensor.data)[offset]);
}

// Is an element of a query above its layer's limit, infinite or a NaN?
__device__ __forceinline__ bool is_beyond_limit(const LayerArg &layer, float q) {
    return (__float_as_uint(q) & 0x7FFFFFFFu) > __float_as_uint(layer.query_limit);
}
constexpr uint32_t kNanBits = 0x7FC00000u;

// 1 / power, of a power of two from 2^-126 to 2^126.
__device__ __forceinline__ float inverse_power(float power) {
    return __uint_as_float((254u << 23) - __float_as_uint(power));
}

__device__ __forceinline__ void store_element(const TensorArg &tensor, int64_t offset,
                                              float value) {
    if (tensor.dtype == kF32)
        static_cast<float *>(tensor.data)[offset] = value;
    else if (tensor.dtype == kF16)
        static_cast<__half *>(tensor.data)[offset] = __float2half_rn(value);
    else
        static_cast<__nv_bfloat16 *>(tensor.data)[offset] = __float2bfloat16_rn(value);
}

__device__ __forceinline__ uint32_t pack_pair(uint32_t dtype, float low, float high) {
    if (dtype == kF16) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

// Two neighbours, at once where they are aligned.
__device__ __forceinline__ void store_two(const TensorArg &tensor, int64_t offset, float low,
                                          float high) {
    const uint32_t size = tensor.dtype == kF32 ? 4 : 2;
    uint8_t *at = static_cast<uint8_t *>(tensor.data) + offset * size;
    if (reinterpret_cast<uint64_t>(at) % (2 * size)) {
        store_element(tensor, offset, low);
        store_element(tensor, offset + 1, high);
    } else if (size == 4) {
        *reinterpret_cast<float2 *>(at) = make_float2(low, high);
    } else {
        *reinterpret_cast<uint32_t *>(at) = pack_pair(tensor.dtype, low, high);
    }
}

// Eight neighbours, at once where they are aligned.
__device__ inline void store_eight(const TensorArg &tensor, int64_t offset,
                                   const float (&values)[8]) {
    const uint32_t size = tensor.dtype == kF32 ? 4 : 2;
    uint8_t *at = static_cast<uint8_t *>(tensor.data) + offset * size;
    if (reinterpret_cast<uint64_t>(at) % 16) {
        for (int i = 0; i < 8; ++i)
            store_element(tensor, offset + i, values[i]);
    } else if (size == 4) {
        float4 *to = reinterpret_cast<float4 *>(at);
        to[0] = make_float4(values[0], values[1], values[2], values[3]);
        to[1] = make_float4(values[4], values[5], values[6], values[7]);
    } else {
        uint4 words;
        words.x = pack_pair(tensor.dtype, values[0], values[1]);
        words.y = pack_pair(tensor.dtype, values[2], values[3]);
        words.z = pack_pair(tensor.dtype, values[4], values[5]);
        words.w = pack_pair(tensor.dtype, values[6], values[7]);
        *reinterpret_cast<uint4 *>(at) = words;
    }
}

}  // namespace cuda
}  // namespace lk

#endif
