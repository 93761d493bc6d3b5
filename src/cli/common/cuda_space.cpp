// SPDX-License-Identifier: Apache-2.0
#include "cli/common/cuda_space.h"

#include <string>

#include "cli/common/device_space.h"

namespace cli {

namespace bench = lk::cuda::bench;

void check_cuda(bench::Failure failure) {
    if (failure != nullptr)
        throw llama::Error(std::string("CUDA: ") + failure);
}

CudaMemory::CudaMemory(bench::Device *device, std::uint64_t bytes)
    : device_(device), bytes_(bytes) {
    check_cuda(bench::allocate(device, bytes, &data_));
}

CudaMemory::~CudaMemory() { bench::release(device_, data_); }

CudaSpace::CudaSpace(std::uint32_t device_index) : queue_(llama::initialised(lk_queue_init)) {
    bench::Device *device = nullptr;
    check_cuda(bench::open(device_index, &device));
    device_.reset(device);
    queue_.kind = LK_QUEUE_CUDA_STREAM;
    queue_.handle = bench::stream(device);
}

CudaSpace::Slot &CudaSpace::place(llama::Role role, const llama::Extent &extent) {
    Slot &slot = slots_[static_cast<int>(role)];
    slot.bytes = extent.count() * sizeof(float);
    if (!slot.memory || slot.memory->bytes() < slot.bytes) {
        slot.memory.reset();
        slot.memory = std::make_unique<CudaMemory>(device(), slot.bytes);
    }
    return slot;
}

lk_tensor CudaSpace::input(llama::Role role, float *data, const llama::Extent &extent) {
    const Slot &slot = place(role, extent);
    check_cuda(bench::copy_in(device(), slot.memory->data(), data, slot.bytes));
    return llama::float_tensor(LK_MEMORY_CUDA, static_cast<float *>(slot.memory->data()), extent);
}

lk_tensor CudaSpace::output(llama::Role role, float *data, const llama::Extent &extent) {
    Slot &slot = place(role, extent);
    slot.written = data;
    return llama::float_tensor(LK_MEMORY_CUDA, static_cast<float *>(slot.memory->data()), extent);
}

void CudaSpace::collect() {
    for (Slot &slot : slots_) {
        if (slot.written != nullptr)
            check_cuda(bench::copy_out(device(), slot.written, slot.memory->data(), slot.bytes));
        slot.written = nullptr;
    }
}

std::unique_ptr<llama::TensorSpace> open_cuda_space(std::uint32_t device_index) {
    return std::make_unique<CudaSpace>(device_index);
}

}  // namespace cli
