// SPDX-License-Identifier: Apache-2.0
#include "rig_device.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>

static cudaStream_t g_stream;

static void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static void cuda_wait(void) { check(cudaStreamSynchronize(g_stream), "the work on the queue"); }

static void *cuda_alloc(size_t bytes) {
    void *memory = NULL;
    check(cudaMalloc(&memory, bytes ? bytes : 1), "allocating");
    check(cudaMemsetAsync(memory, 0, bytes, g_stream), "zeros");
    return memory;
}

static void cuda_release(void *memory) {
    cuda_wait();
    check(cudaFree(memory), "freeing");
}

// The bytes are in pageable memory, so they are read before the call returns.
static void cuda_put(void *to, const void *from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, g_stream), "copying in");
}

static void cuda_get(void *to, const void *from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, g_stream), "copying out");
    cuda_wait();
}

const rig_device *rig_cuda(void) {
    static lk_queue queue;
    static const rig_device device = {.backend = LK_BACKEND_CUDA,
                                      .memory = LK_MEMORY_CUDA,
                                      .queue = &queue,
                                      .alloc = cuda_alloc,
                                      .release = cuda_release,
                                      .put = cuda_put,
                                      .get = cuda_get,
                                      .wait = cuda_wait};
    if (g_stream)
        return &device;
    int n_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error != cudaSuccess || !n_devices) {
        printf("skipped: no GPU (%s)\n", error ? cudaGetErrorString(error) : "0 devices");
        exit(77);
    }
    check(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking), "a stream");
    lk_queue_init(&queue, sizeof queue);
    queue.kind = LK_QUEUE_CUDA_STREAM;
    queue.handle = g_stream;
    return &device;
}
