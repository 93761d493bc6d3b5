// Device memory of tests, and the GPU that they run on.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CUDA_DEVICE_MEMORY_H
#define LK_TESTS_CUDA_DEVICE_MEMORY_H

#include <cuda_runtime_api.h>

#include "kernels/memory.h"

// Ends the program when a call of the runtime fails: what a kernel broke cannot be mended. The
// sentence has the case at work.
void check_cuda(cudaError_t error, const char *what);

// Ends the program as skipped, with the reason, when there is no GPU.
void skip_without_gpu();

// Work is on a stream of its own.
class DeviceMemory final : public Memory {
  public:
    // kArena: one allocation, in which guard zones are around every block and all that was not an
    // output is compared. kExact: allocations of their own, for tools that check what is read and
    // written outside of them.
    enum class Kind { kArena, kExact };
    explicit DeviceMemory(Kind kind);
    ~DeviceMemory() override;

    uint64_t input(const void *bytes, size_t n) override;
    uint64_t output(size_t n) override;
    void read(uint64_t address, void *to, size_t n) override;
    bool intact() override;
    void poison() override;
    void clear() override;
    const lk_queue *queue() const override { return &queue_; }

    cudaStream_t stream() const { return stream_; }

  private:
    void *allocate(size_t n);
    void guard(const GuardedArena::Block &zone);

    Kind kind_;
    cudaStream_t stream_ = nullptr;
    lk_queue queue_{};
    uint8_t *memory_ = nullptr;  // kArena
    GuardedArena arena_;
    struct Exact {
        void *block;
        size_t output_bytes;  // 0 of an input
    };
    std::vector<Exact> exact_;  // kExact
};

// The CUDA backend on the first device and memory for it.
class CudaDevice {
  public:
    explicit CudaDevice(DeviceMemory::Kind kind);
    ~CudaDevice();
    CudaDevice(const CudaDevice &) = delete;
    CudaDevice &operator=(const CudaDevice &) = delete;
    Device device() { return {backend_, &memory_, false}; }

  private:
    DeviceMemory memory_;
    lk::Backend *backend_ = nullptr;
};

#endif
