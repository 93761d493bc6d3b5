// SPDX-License-Identifier: Apache-2.0
#include "cuda/bench.h"

#include <new>

namespace lk {
namespace cuda {
namespace bench {

struct Device {
    int index;
    int n_processors;
    cudaStream_t stream;
    cudaEvent_t begin;
    cudaEvent_t end;
    uint64_t flush_bytes;
    void *flush;  // read to empty L2
    uint32_t *sink;
};

struct Graph {
    cudaGraphExec_t work;
};

namespace {

constexpr uint32_t kLoadThreads = 512;
constexpr uint32_t kLoadBlocks = 4;  // of a multiprocessor
constexpr uint32_t kLoads = 4;       // of 16 bytes that a thread has in flight
constexpr long long kHoldCycles = 100000;

__global__ void empty_kernel() {}

__global__ void hold_kernel(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
}

__device__ uint4 load_once(const uint4 *at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

// The sum must be used, or the compiler removes the loads.
__global__ void __launch_bounds__(kLoadThreads)
    load_kernel(const uint4 *from, uint64_t count, uint32_t *sink) {
    const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
    uint32_t bits = 0;
    for (uint64_t at = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count;
         at += kLoads * stride) {
        uint4 v[kLoads] = {};
#pragma unroll
        for (uint32_t i = 0; i < kLoads; ++i)
            if (at + i * stride < count)
                v[i] = load_once(from + at + i * stride);
#pragma unroll
        for (uint32_t i = 0; i < kLoads; ++i)
            bits |= v[i].x | v[i].y | v[i].z | v[i].w;
    }
    if (bits != 0)
        *sink = bits;
}

Failure text(cudaError_t error) {
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

cudaError_t prepare(Device *device) {
    int l2_bytes = 0;
    cudaError_t error = cudaSetDevice(device->index);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&device->n_processors, cudaDevAttrMultiProcessorCount,
                                       device->index);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device->index);
    device->flush_bytes = 4 * static_cast<uint64_t>(l2_bytes);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaEventCreate(&device->begin);
    if (error == cudaSuccess)
        error = cudaEventCreate(&device->end);
    if (error == cudaSuccess)
        error = cudaMalloc(&device->flush, device->flush_bytes);
    if (error == cudaSuccess)
        error = cudaMemset(device->flush, 0, device->flush_bytes);
    if (error == cudaSuccess)
        error = cudaMalloc(&device->sink, sizeof *device->sink);
    return error;
}

}  // namespace

Failure open(uint32_t index, Device **out) {
    *out = nullptr;
    Device *device = new (std::nothrow) Device{};
    if (!device)
        return text(cudaErrorMemoryAllocation);
    device->index = static_cast<int>(index);
    const cudaError_t error = prepare(device);
    if (error != cudaSuccess) {
        close(device);
        return text(error);
    }
    *out = device;
    return nullptr;
}

void close(Device *device) {
    if (device->stream)
        (void)cudaStreamSynchronize(device->stream);
    (void)cudaFree(device->sink);
    (void)cudaFree(device->flush);
    if (device->end)
        (void)cudaEventDestroy(device->end);
    if (device->begin)
        (void)cudaEventDestroy(device->begin);
    if (device->stream)
        (void)cudaStreamDestroy(device->stream);
    delete device;
}

void *stream(const Device *device) { return device->stream; }

Failure wait(Device *device) { return text(cudaStreamSynchronize(device->stream)); }

Failure allocate(Device *device, uint64_t bytes, void **out) {
    *out = nullptr;
    cudaError_t error = cudaMalloc(out, bytes);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(*out, 0, bytes, device->stream);
    if (error != cudaSuccess) {
        (void)cudaFree(*out);
        *out = nullptr;
    }
    return text(error);
}

void release(Device *device, void *memory) {
    (void)cudaStreamSynchronize(device->stream);
    (void)cudaFree(memory);
}

Failure copy_in(Device *device, void *to, const void *from, uint64_t bytes) {
    const cudaError_t error =
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, device->stream);
    return error == cudaSuccess ? wait(device) : text(error);
}

Failure copy_out(Device *device, void *to, const void *from, uint64_t bytes) {
    const cudaError_t error =
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, device->stream);
    return error == cudaSuccess ? wait(device) : text(error);
}

Failure start(Device *device) { return text(cudaEventRecord(device->begin, device->stream)); }

Failure stop(Device *device, double *seconds) {
    float milliseconds = 0;
    cudaError_t error = cudaEventRecord(device->end, device->stream);
    if (error == cudaSuccess)
        error = cudaEventSynchronize(device->end);
    if (error == cudaSuccess)
        error = cudaEventElapsedTime(&milliseconds, device->begin, device->end);
    *seconds = double{milliseconds} * 1e-3;
    return text(error);
}

Failure flush_l2(Device *device) { return run_load(device, device->flush, device->flush_bytes); }

Failure hold(Device *device) {
    hold_kernel<<<1, 1, 0, device->stream>>>(kHoldCycles);
    return text(cudaGetLastError());
}

Failure run_empty(Device *device) {
    empty_kernel<<<1, 1, 0, device->stream>>>();
    return text(cudaGetLastError());
}

Failure run_load(Device *device, const void *memory, uint64_t bytes) {
    const uint32_t n_blocks = kLoadBlocks * static_cast<uint32_t>(device->n_processors);
    load_kernel<<<n_blocks, kLoadThreads, 0, device->stream>>>(static_cast<const uint4 *>(memory),
                                                               bytes / 16, device->sink);
    return text(cudaGetLastError());
}

Failure run_copy(Device *device, void *to, const void *from, uint64_t bytes) {
    return text(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device->stream));
}

Failure capture_begin(Device *device) {
    return text(cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeThreadLocal));
}

Failure capture_end(Device *device, Graph **graph) {
    cudaGraph_t recorded = nullptr;
    cudaError_t error = cudaStreamEndCapture(device->stream, &recorded);
    if (error == cudaSuccess && graph) {
        cudaGraphExec_t work = nullptr;
        error = cudaGraphInstantiate(&work, recorded, 0);
        *graph = error == cudaSuccess ? new (std::nothrow) Graph{work} : nullptr;
    }
    if (recorded)
        (void)cudaGraphDestroy(recorded);
    return text(error);
}

Failure replay(Device *device, Graph *graph) {
    return text(cudaGraphLaunch(graph->work, device->stream));
}

void release_graph(Graph *graph) {
    (void)cudaGraphExecDestroy(graph->work);
    delete graph;
}

}  // namespace bench
}  // namespace cuda
}  // namespace lk
