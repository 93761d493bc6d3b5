// The launch of a kernel whose thread blocks may have more shared memory than the common limit.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_LAUNCH_KERNEL_CUH
#define LK_CUDA_LAUNCH_KERNEL_CUH

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lk {
namespace cuda {

template <class... Args>
cudaError_t launch_kernel(void (*kernel)(Args...), const dim3 &blocks, uint32_t n_threads,
                          uint32_t shared_bytes, cudaStream_t stream, const Args &...args) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess)
        return error;
    kernel<<<blocks, n_threads, shared_bytes, stream>>>(args...);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk

#endif
