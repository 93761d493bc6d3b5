// A GPU as the command's measurements see it: a context, memory, times between two points of a
// queue, and work whose cost is known. Everything throws llama::Error.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_GPU_H
#define CLI_GPU_H

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cli/common/command.h"

namespace cli {

// Memory of the device.
class GpuMemory {
  public:
    virtual ~GpuMemory() = default;
    virtual std::uint64_t bytes() const = 0;
    // A tensor that begins where the memory does; its strides are the caller's.
    virtual lk_tensor tensor() const = 0;
};

// A recorded part of the queue's work.
class GpuGraph {
  public:
    virtual ~GpuGraph() = default;
    virtual void replay() = 0;
};

class Gpu {
  public:
    using Work = std::function<void()>;

    virtual ~Gpu() = default;
    virtual lk_context *context() = 0;
    // Orders the steps of measured caches.
    virtual llama::TensorSpace &space() = 0;

    // How much to copy, to measure a copy's speed.
    virtual std::uint64_t copy_bytes() const { return std::uint64_t{2} << 30; }
    virtual std::unique_ptr<GpuMemory> allocate(std::uint64_t bytes) = 0;
    // Repeats the words until the memory is full.
    virtual void fill(GpuMemory &memory, const std::vector<std::uint16_t> &words) = 0;

    // Seconds that `work` takes on the device. `before` is queued in front of it, and between them
    // L2 is emptied by reading, or the device kept busy until the host has queued `work`.
    virtual double sample(const Work &before, const Work &work, bool is_warm) = 0;

    // Seconds of a call that queues its work by itself, until the device has done it.
    virtual double sample_call(const Work &call, bool is_warm) = 0;

    // To compare with; these are called in what sample() measures.
    virtual void run_empty() = 0;
    virtual void run_load(const GpuMemory &from, std::uint64_t bytes) = 0;
    virtual void run_copy(GpuMemory &to, const GpuMemory &from, std::uint64_t bytes) = 0;

    virtual std::unique_ptr<GpuGraph> capture(const Work &work) = 0;
};

// In a build without the backend these throw. mask: LK_VULKAN_NO_* bits.
std::unique_ptr<Gpu> open_cuda(const DeviceOptions &options);
std::unique_ptr<Gpu> open_vulkan(const DeviceOptions &options, std::uint32_t mask);

}  // namespace cli

#endif
