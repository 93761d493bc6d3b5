// SPDX-License-Identifier: Apache-2.0
#include "device_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/status.h"

namespace {

constexpr size_t kArenaBytes = size_t{256} << 20;
constexpr int kSkipped = 77;  // of Meson

}  // namespace

void check_cuda(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return;
    std::fprintf(stderr, "%s: %s\n  %s\n", what, cudaGetErrorString(error), current_case().c_str());
    std::exit(1);
}

void skip_without_gpu() {
    int n_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error == cudaSuccess && n_devices > 0)
        return;
    std::printf("skipped: no GPU (%s)\n",
                error == cudaSuccess ? "0 devices" : cudaGetErrorString(error));
    std::exit(kSkipped);
}

DeviceMemory::DeviceMemory(Kind kind) : kind_(kind), arena_(kArenaBytes) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    if (kind == Kind::kArena)
        check_cuda(cudaMalloc(reinterpret_cast<void **>(&memory_), kArenaBytes), "the arena");
    lk_queue_init(&queue_, sizeof queue_);
    queue_.kind = LK_QUEUE_CUDA_STREAM;
    queue_.handle = stream_;
}

DeviceMemory::~DeviceMemory() {
    clear();
    cudaFree(memory_);
    cudaStreamDestroy(stream_);
}

void *DeviceMemory::allocate(size_t n) {
    void *block = nullptr;
    check_cuda(cudaMalloc(&block, n), "a block");
    return block;
}

void DeviceMemory::guard(const GuardedArena::Block &zone) {
    check_cuda(cudaMemsetAsync(memory_ + zone.offset, kGuard, zone.n_bytes, stream_),
               "guard zones");
}

uint64_t DeviceMemory::input(const void *bytes, size_t n) {
    if (!n)
        return 0;
    void *block = nullptr;
    if (kind_ == Kind::kExact) {
        block = allocate(n);
        exact_.push_back({block, 0});
    } else {
        GuardedArena::Block zone;
        block = memory_ + arena_.input(bytes, n, &zone).offset;
        guard(zone);
    }
    check_cuda(cudaMemcpyAsync(block, bytes, n, cudaMemcpyHostToDevice, stream_), "an input");
    return reinterpret_cast<uint64_t>(block);
}

uint64_t DeviceMemory::output(size_t n) {
    void *block = nullptr;
    if (kind_ == Kind::kExact) {
        block = allocate(n);
        exact_.push_back({block, n});
    } else {
        GuardedArena::Block zone;
        block = memory_ + arena_.output(n, &zone).offset;
        guard(zone);
    }
    check_cuda(cudaMemsetAsync(block, kPoison, n, stream_), "an output");
    return reinterpret_cast<uint64_t>(block);
}

void DeviceMemory::read(uint64_t address, void *to, size_t n) {
    check_cuda(cudaMemcpyAsync(to, reinterpret_cast<const void *>(address), n,
                               cudaMemcpyDeviceToHost, stream_),
               "reading");
    check_cuda(cudaStreamSynchronize(stream_), "the work before reading");
}

bool DeviceMemory::intact() {
    check_cuda(cudaStreamSynchronize(stream_), "the work");
    std::vector<uint8_t> found(arena_.used_bytes());
    if (found.empty())
        return true;
    read(reinterpret_cast<uint64_t>(memory_), found.data(), found.size());
    return arena_.intact(found.data());
}

void DeviceMemory::poison() {
    for (const GuardedArena::Block &output : arena_.outputs())
        check_cuda(cudaMemsetAsync(memory_ + output.offset, kPoison, output.n_bytes, stream_),
                   "an output");
    for (const Exact &exact : exact_)
        check_cuda(cudaMemsetAsync(exact.block, kPoison, exact.output_bytes, stream_), "an output");
}

void DeviceMemory::clear() {
    check_cuda(cudaStreamSynchronize(stream_), "the work");
    for (const Exact &exact : exact_)
        check_cuda(cudaFree(exact.block), "a block");
    exact_.clear();
    arena_.clear();
}

CudaDevice::CudaDevice(DeviceMemory::Kind kind) : memory_(kind) {
    lk_context_desc desc = {};
    desc.backend = LK_BACKEND_CUDA;
    if (lk::backend_open(desc, lk::default_allocator(), &backend_) == LK_OK)
        return;
    std::fprintf(stderr, "the CUDA backend: %s\n", lk::last_sentence());
    std::exit(1);
}

CudaDevice::~CudaDevice() { lk::backend_close(lk::default_allocator(), backend_); }
