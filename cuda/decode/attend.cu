// Decode attention: which head dims have kernels.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "cuda/decode/instances.h"

namespace lk {
namespace cuda {

namespace {

template <uint32_t... kHeadDims>
struct HeadDims {
    static bool has(uint32_t head_dim) { return ((head_dim == kHeadDims) || ...); }
    static cudaError_t launch(const DecodeArgs &args, cudaStream_t stream) {
        cudaError_t error = cudaErrorInvalidValue;
        (void)((args.layer.head_dim == kHeadDims &&
                (error = launch_decode_kernel<kHeadDims / 16>(args, stream), true)) ||
               ...);
        return error;
    }
};
using Built = HeadDims<LK_CUDA_HEAD_DIMS>;

}  // namespace

bool decode_has_instance(uint32_t head_dim) { return Built::has(head_dim); }

cudaError_t launch_decode(const DecodeArgs &args, cudaStream_t stream) {
    return Built::launch(args, stream);
}

}  // namespace cuda
}  // namespace lk
