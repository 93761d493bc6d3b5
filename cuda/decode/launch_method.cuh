// Decode: the launch of a kernel.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_LAUNCH_METHOD_CUH
#define LK_CUDA_DECODE_LAUNCH_METHOD_CUH

#include <atomic>

#include "cuda/decode/attend.cuh"

namespace lk {
namespace cuda {

// A kernel may have more shared memory than the common limit once the limit of the device was
// raised.
template <auto kKernel>
cudaError_t allow_shared_memory() {
    static std::atomic<uint64_t> raised{0};  // a bit for each device
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    const uint64_t bit = uint64_t{1} << (device & 63);
    if (error || (raised.load(std::memory_order_relaxed) & bit))
        return error;
    int most = 0;
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    cudaFuncAttributes attributes;
    if (!error)
        error = cudaFuncGetAttributes(&attributes, kKernel);
    if (!error)
        error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     most - static_cast<int>(attributes.sharedSizeBytes));
    if (!error)
        raised.fetch_or(bit, std::memory_order_relaxed);
    return error;
}

// kWarps: of a multiprocessor.
template <class Method, uint32_t kWarps>
cudaError_t launch_method(const DecodeArgs &args, cudaStream_t stream) {
    constexpr auto kKernel = decode_kernel<Method, kWarps>;
    const uint32_t bytes = decode_shared_bytes(
        args.layer.head_dim, Method::kColumns, args.kind, args.n_warps,
        decode_ring_bytes(args.key_metadata_bytes, args.value_metadata_bytes, args.own_bytes));
    const cudaError_t error = allow_shared_memory<kKernel>();
    if (error)
        return error;
    kKernel<<<args.n_blocks, args.n_warps * 32, bytes, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk

#endif
