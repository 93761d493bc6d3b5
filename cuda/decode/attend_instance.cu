// Decode attention for one head dim, LK_CUDA_HEAD_DIM.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/decode/instances.h"
#include "cuda/decode/launch_method.cuh"
#include "cuda/decode/sixteen_columns.cuh"
#include "cuda/instances.h"

namespace lk {
namespace cuda {

// The namespace has a name because nvcc would put the number of its own process into the symbols of
// these templates otherwise, and no two builds would give the same bytes.
namespace instance {

constexpr int kStrips = LK_CUDA_HEAD_DIM / 16;

template <class Method, DecodeKind kKind>
cudaError_t launch(const DecodeArgs &args, cudaStream_t stream) {
    return launch_method<Method, decode_warps(LK_CUDA_HEAD_DIM, Method::kColumns, kKind)>(args,
                                                                                          stream);
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
    if constexpr (!has_teams(LK_CUDA_HEAD_DIM)) {
        if (args.kind == kDecodeF8)
            return launch_split_k<kDecodeF8>(args, stream);
        if (args.kind == kDecodeF16)
            return launch_split_k<kDecodeF16>(args, stream);
        if constexpr (has_wide_items(LK_CUDA_HEAD_DIM))
            if (args.kind == kDecodeF8By32 && args.tile_columns == 8)
                return launch<ByF16<kStrips, 1, kDecodeF8By32>, kDecodeF8By32>(args, stream);
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
            if (args.kind == kDecodeF8By32)
                return launch_split_k<kDecodeF8By32>(args, stream);
        }
    }
    if constexpr (has_plain_f8(LK_CUDA_HEAD_DIM)) {
        if (args.kind == kDecodeF8Plain)
            return launch<ByBytes<kStrips, kDecodeF8Plain>, kDecodeF8Plain>(args, stream);
    }
    if constexpr (has_narrow_wide_items(LK_CUDA_HEAD_DIM)) {
        if (args.kind == kDecodePlainNarrow)
            return launch<BySixteen<kStrips>, kDecodePlainNarrow>(args, stream);
    }
    constexpr bool kHasFour = decode_team(LK_CUDA_HEAD_DIM, 4, kDecodePlain) == 1;
    if constexpr (kHasFour) {
        if (args.kind == kDecodePlain && args.tile_columns == 4)
            return launch<ByBytes<kStrips, kDecodePlain>, kDecodePlain>(args, stream);
    }
    if constexpr (has_teams(LK_CUDA_HEAD_DIM)) {
        return launch_teams(args, stream);
    } else {
        if constexpr (has_wide_items(LK_CUDA_HEAD_DIM))
            if (args.tile_columns > 8)
                return launch<ByF16<kStrips, 2, kDecodePlain>, kDecodePlain>(args, stream);
        return launch<ByF16<kStrips, 1, kDecodePlain>, kDecodePlain>(args, stream);
    }
}

}  // namespace cuda
}  // namespace lk
