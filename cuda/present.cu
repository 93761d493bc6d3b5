// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "cuda/launch.h"

namespace lk {
namespace cuda {

namespace {

// Compiled for the architectures of all kernels, so it has code where they have.
__global__ void nothing() {}

}  // namespace

cudaError_t kernels_present() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, nothing);
}

}  // namespace cuda
}  // namespace lk
