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

DeviceMemory::DeviceMemory(Kind kind) : kind_(kind) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    if (kind == Kind::kArena)
        check_cuda(cudaMalloc(reinterpret_cast<void **>(&arena_), kArenaBytes), "the arena");
    lk_queue_init(&queue_, sizeof queue_);
    queue_.kind = LK_QUEUE_CUDA_STREAM;
    queue_.handle = stream_;
}

DeviceMemory::~DeviceMemory() {
    clear();
    cudaFree(arena_);
    cudaStreamDestroy(stream_);
}

void *DeviceMemory::allocate(size_t n) {
    void *block = nullptr;
    check_cuda(cudaMalloc(&block, n), "a block");
    allocations_.push_back(block);
    return block;
}

// Room for n bytes behind a guard zone; the zone behind them is the next block's first one, or
// its alignment's.
size_t DeviceMemory::reserve(size_t n) {
    const size_t offset =
        (expected_.size() + kGuardBytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
    if (offset + n + kGuardBytes > kArenaBytes) {
        std::fprintf(stderr, "a case needs more than %zu bytes\n", kArenaBytes);
        std::exit(1);
    }
    const size_t from = expected_.size();
    expected_.resize(offset + n + kGuardBytes, kGuard);
    check_cuda(cudaMemsetAsync(arena_ + from, kGuard, expected_.size() - from, stream_),
               "guard zones");
    return offset;
}

uint64_t DeviceMemory::input(const void *bytes, size_t n) {
    if (!n)
        return 0;
    uint8_t *block = nullptr;
    if (kind_ == Kind::kExact) {
        block = static_cast<uint8_t *>(allocate(n));
    } else {
        const size_t offset = reserve(n);
        std::memcpy(expected_.data() + offset, bytes, n);
        block = arena_ + offset;
    }
    check_cuda(cudaMemcpyAsync(block, bytes, n, cudaMemcpyHostToDevice, stream_), "an input");
    return reinterpret_cast<uint64_t>(block);
}

uint64_t DeviceMemory::output(size_t n) {
    auto *block = kind_ == Kind::kExact ? static_cast<uint8_t *>(allocate(n)) : arena_ + reserve(n);
    outputs_.push_back({block, n});
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
    if (kind_ == Kind::kExact || expected_.empty())
        return true;
    std::vector<uint8_t> found(expected_.size());
    read(reinterpret_cast<uint64_t>(arena_), found.data(), found.size());
    for (const Output &output : outputs_) {
        const auto offset = output.block - arena_;
        std::memcpy(found.data() + offset, expected_.data() + offset, output.n_bytes);
    }
    return found == expected_;
}

void DeviceMemory::poison() {
    for (const Output &output : outputs_)
        check_cuda(cudaMemsetAsync(output.block, kPoison, output.n_bytes, stream_), "an output");
}

void DeviceMemory::clear() {
    check_cuda(cudaStreamSynchronize(stream_), "the work");
    for (void *block : allocations_)
        check_cuda(cudaFree(block), "a block");
    allocations_.clear();
    outputs_.clear();
    expected_.clear();
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
