// What kernels report of the numbers they met, and which sequences a report means.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_FAULT_LOG_H
#define LK_BACKEND_CUDA_FAULT_LOG_H

#include <mutex>

#include "backend/backend.h"
#include "backend/cuda/runtime.h"
#include "cuda/types.h"

namespace lk {
namespace cuda {

class FaultLog {
  public:
    explicit FaultLog(const Allocator &allocator) : members_(allocator) {}

    lk_status open(uint32_t max_sequences);
    // For kernels: the report in host memory.
    Report *device_report() const { return device_report_; }

    // Note who takes part in a step, and let the device forget what was cleared, in the order of
    // the stream.
    lk_status begin(const Batch &batch, uint32_t serial, cudaStream_t stream);
    // Any thread; makes no calls of the runtime, so a capture does not mind.
    void read(DataReport *out) const;
    // Forget the fault, and those that the last step's kernels have yet to find.
    void clear();

  private:
    static constexpr uint32_t kSteps = 16;  // that a fault key tells apart

    struct Member {
        uint64_t id;
        uint32_t first_new;
    };
    struct Mapped {
        Report report;
        uint8_t n_clears;  // modulo 256, that the device has carried out
    };

    Mapped *mapped() const { return reinterpret_cast<Mapped *>(memory_.data()); }
    uint64_t first_bad() const;
    bool is_dropped(uint64_t key) const;
    void decode(uint64_t key, DataReport *out) const;
    void start_clear();
    lk_status forget(cudaStream_t stream);

    PinnedMemory memory_;  // Mapped
    Report *device_report_ = nullptr;

    mutable std::mutex mutex_;  // of all below
    Array<Member> members_;     // [kSteps][max_sequences]
    uint32_t max_sequences_ = 0;
    uint32_t n_members_[kSteps] = {};
    uint32_t serial_ = 0;   // of the last step
    uint32_t dropped_ = 0;  // bit serial % kSteps: faults of the step are not told
    uint8_t n_clears_ = 0;
    bool is_clear_due_ = false;
};

}  // namespace cuda
}  // namespace lk

#endif
