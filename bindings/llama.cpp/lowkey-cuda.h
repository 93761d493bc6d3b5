// What llama.cpp's CUDA backend and lowkey's adapter know of each other. Both include this file;
// the backend may be a library that is loaded at run time.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_CUDA_H
#define LOWKEY_CUDA_H

struct ggml_backend_device;
struct ggml_tensor;

// The backend's get_proc_address() has it under this name.
#define LOWKEY_CUDA_NAME "lowkey_cuda"

struct lowkey_cuda {
    // Of the backend: the device's number in CUDA.
    int (*device_index)(ggml_backend_device *device);

    // Of the adapter, set before the first graph. `node` is any GGML_OP_CUSTOM.
    // Whether the node is attention with a cache on the device.
    bool (*is_on)(const ggml_tensor *node, ggml_backend_device *device);
    // Queues the node's work on a stream, a cudaStream_t. False: it failed, and the batch will fail
    // after its graph; meanwhile the node's output is zero.
    bool (*compute)(ggml_tensor *node, void *stream);
    // Whether a CUDA graph may hold, or replay, the node in the step at hand.
    bool (*may_capture)(const ggml_tensor *node);
};

#endif
