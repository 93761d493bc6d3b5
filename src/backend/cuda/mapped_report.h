// The report that kernels write to host memory.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_MAPPED_REPORT_H
#define LK_BACKEND_CUDA_MAPPED_REPORT_H

#include "backend/cuda/runtime.h"
#include "backend/gpu/fault_log.h"
#include "cuda/types.h"

namespace lk {
namespace cuda {

// Reading makes no calls of the runtime, so a capture does not mind.
class MappedReport final : public gpu::ReportMemory {
  public:
    lk_status open();
    void use(cudaStream_t stream) { stream_ = stream; }
    void abandon() { memory_.abandon(); }
    // For kernels.
    Report *device_report() const { return device_report_; }

    uint64_t first_bad() const override;
    uint64_t n_saturated() const override;
    lk_status forget(uint8_t n_clears) override;
    uint8_t n_clears() const override;

  private:
    struct Mapped {
        Report report;
        uint8_t n_clears;
    };

    Mapped *mapped() const { return reinterpret_cast<Mapped *>(memory_.data()); }

    PinnedMemory memory_;  // Mapped
    Report *device_report_ = nullptr;
    cudaStream_t stream_ = nullptr;
};

}  // namespace cuda
}  // namespace lk

#endif
