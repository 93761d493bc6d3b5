// lowkey's nodes in llama.cpp's CUDA backend: what the hooks in ggml-cuda.cu call.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_CUDA_CUH
#define LOWKEY_CUDA_CUH

#include <ggml-cuda/common.cuh>

#include "lowkey-cuda.h"

static lowkey_cuda lowkey_calls;

static lowkey_cuda *lowkey_cuda_calls(int (*device_index)(ggml_backend_device *)) {
    lowkey_calls.device_index = device_index;
    return &lowkey_calls;
}

static bool lowkey_is_on(const ggml_tensor *node, ggml_backend_device *device) {
    return lowkey_calls.is_on != nullptr && lowkey_calls.is_on(node, device);
}

static bool lowkey_compute(ggml_tensor *node, cudaStream_t stream) {
    if (lowkey_calls.compute == nullptr)
        return false;
    if (!lowkey_calls.compute(node, stream))
        CUDA_CHECK(cudaMemsetAsync(node->data, 0, ggml_nbytes(node), stream));
    return true;
}

static bool lowkey_may_capture(const ggml_tensor *node) {
    return node->op != GGML_OP_CUSTOM || lowkey_calls.may_capture(node);
}

#endif
