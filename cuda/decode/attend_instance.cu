// Decode attention for one head dim, LK_CUDA_HEAD_DIM.
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "cuda/decode/attend.cuh"
#include "cuda/decode/instances.h"
#include "cuda/decode/sixteen_columns.cuh"
#include "cuda/instances.h"

namespace lk {
namespace cuda {

// The namespace has a name because nvcc would put the number of its own process into the symbols of
// these templates otherwise, and no two builds would give the same bytes.
namespace instance {

constexpr int kStrips = LK_CUDA_HEAD_DIM / 16;

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

template <class Method, DecodeKind kKind>
cudaError_t launch(const DecodeArgs &args, cudaStream_t stream) {
    constexpr uint32_t kWarps = decode_warps(LK_CUDA_HEAD_DIM, Method::kColumns, kKind);
    constexpr auto kKernel = decode_kernel<Method, kWarps>;
    const uint32_t bytes = decode_shared_bytes(
        LK_CUDA_HEAD_DIM, Method::kColumns, args.n_warps,
        decode_ring_bytes(args.key_metadata_bytes, args.value_metadata_bytes, args.own_bytes));
    const cudaError_t error = allow_shared_memory<kKernel>();
    if (error)
        return error;
    kKernel<<<args.n_blocks, args.n_warps * 32, bytes, stream>>>(args);
    return cudaGetLastError();
}

template <DecodeKind kKind>
cudaError_t launch_split_k(const DecodeArgs &args, cudaStream_t stream) {
    return launch<BySplitK<kStrips, kKind>, kKind>(args, stream);
}

}  // namespace instance

template <>
cudaError_t launch_decode_kernel<LK_CUDA_HEAD_DIM / 16>(const DecodeArgs &args,
                                                        cudaStream_t stream) {
    using namespace instance;
    if constexpr (has_all_kinds(LK_CUDA_HEAD_DIM)) {
        if (args.kind == kDecodeF8)
            return launch_split_k<kDecodeF8>(args, stream);
        if (args.kind == kDecodeF16)
            return launch_split_k<kDecodeF16>(args, stream);
    }
    if constexpr (has_short_pages(LK_CUDA_HEAD_DIM)) {
        if (args.kind == kDecodeF16Pages64)
            return launch_split_k<kDecodeF16Pages64>(args, stream);
        if (args.kind == kDecodeF16Pages32)
            return launch_split_k<kDecodeF16Pages32>(args, stream);
    }
    if constexpr (has_split_k(LK_CUDA_HEAD_DIM, kDecodeF8Narrow)) {
        if (args.kind == kDecodeF8Wide)
            return launch_split_k<kDecodeF8Wide>(args, stream);
        if constexpr (has_special_f8(LK_CUDA_HEAD_DIM)) {
            if (args.kind == kDecodeF8Narrow)
                return launch_split_k<kDecodeF8Narrow>(args, stream);
            if (args.kind == kDecodeF8By32 && args.tile_columns == 4)
                return launch_split_k<kDecodeF8By32>(args, stream);
        }
    }
    if constexpr (has_all_kinds(LK_CUDA_HEAD_DIM)) {
        if (args.kind == kDecodePlain && args.tile_columns == 4)
            return launch<ByBytes<kStrips, kDecodePlain>, kDecodePlain>(args, stream);
    }
    if constexpr (has_plain_f8(LK_CUDA_HEAD_DIM)) {
        if (args.kind == kDecodeF8Plain)
            return launch<ByBytes<kStrips, kDecodeF8Plain>, kDecodeF8Plain>(args, stream);
    }
    if constexpr (has_narrow_wide_items(LK_CUDA_HEAD_DIM)) {
        if (args.kind == kDecodePlainNarrow)
            return launch<BySixteen<kStrips>, kDecodePlainNarrow>(args, stream);
    }
    if constexpr (has_wide_items(LK_CUDA_HEAD_DIM)) {
        if (args.kind == kDecodeF8By32)
            return launch<ByF16<kStrips, 1, kDecodeF8By32>, kDecodeF8By32>(args, stream);
        if (args.tile_columns > 8)
            return launch<ByF16<kStrips, 2, kDecodePlain>, kDecodePlain>(args, stream);
    }
    return launch<ByF16<kStrips, 1, kDecodePlain>, kDecodePlain>(args, stream);
}

}  // namespace cuda
}  // namespace lk
