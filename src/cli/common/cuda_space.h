// Tensors in the memory of a CUDA device.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_CUDA_SPACE_H
#define CLI_CUDA_SPACE_H

#include <cstdint>
#include <memory>

#include "cuda/bench.h"
#include "llama/handles.h"
#include "llama/tensor_space.h"

namespace cli {

// Throws llama::Error unless failure is null.
void check_cuda(lk::cuda::bench::Failure failure);

struct CloseDevice {
    void operator()(lk::cuda::bench::Device *device) const { lk::cuda::bench::close(device); }
};
using DeviceHandle = std::unique_ptr<lk::cuda::bench::Device, CloseDevice>;

// Zeroed memory of a device.
class CudaMemory {
  public:
    CudaMemory(lk::cuda::bench::Device *device, std::uint64_t bytes);
    ~CudaMemory();
    CudaMemory(const CudaMemory &) = delete;
    CudaMemory &operator=(const CudaMemory &) = delete;

    void *data() const { return data_; }
    std::uint64_t bytes() const { return bytes_; }

  private:
    lk::cuda::bench::Device *device_;
    void *data_ = nullptr;
    std::uint64_t bytes_;
};

class CudaSpace : public llama::TensorSpace {
  public:
    explicit CudaSpace(std::uint32_t device_index);

    const lk_queue *queue() const override { return &queue_; }
    lk_tensor input(llama::Role role, float *data, const llama::Extent &extent) override;
    lk_tensor output(llama::Role role, float *data, const llama::Extent &extent) override;
    void collect() override;

    lk::cuda::bench::Device *device() const { return device_.get(); }

  private:
    struct Slot {
        std::unique_ptr<CudaMemory> memory;
        float *written = nullptr;  // where collect() copies it to
        std::uint64_t bytes = 0;
    };
    Slot &place(llama::Role role, const llama::Extent &extent);

    DeviceHandle device_;
    lk_queue queue_;
    Slot slots_[llama::kRoles];
};

}  // namespace cli

#endif
