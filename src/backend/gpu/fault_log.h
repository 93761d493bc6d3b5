// Reports of kernels on the values that they read, and the sequences that a report means.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_FAULT_LOG_H
#define LK_BACKEND_GPU_FAULT_LOG_H

#include <mutex>

#include "backend/backend.h"
#include "format/tables.h"

namespace lk {
namespace gpu {

// The report that kernels write, as the host reads it without waiting.
class ReportMemory {
  public:
    virtual uint64_t first_bad() const = 0;  // kNoFault, or fault_key()
    virtual uint64_t n_saturated() const = 0;
    // Forget the first fault in the order of the queue, then make n_clears() this.
    virtual lk_status forget(uint8_t n_clears) = 0;
    virtual uint8_t n_clears() const = 0;  // 0 at first

  protected:
    ~ReportMemory() = default;
};

class FaultLog {
  public:
    explicit FaultLog(const Allocator &allocator) : members_(allocator) {}

    lk_status open(uint32_t max_sequences, ReportMemory *memory);

    // Note the sequences of a step, and clear the reports on the device that were cleared here.
    lk_status begin(const Batch &batch, uint32_t serial);
    // Any thread.
    void read(DataReport *out) const;
    // Forget the fault, and those that the last step's kernels have yet to find.
    void clear();

  private:
    static constexpr uint32_t kSteps = 16;  // that a fault key distinguishes

    struct Member {
        uint64_t id;
        uint32_t first_new;
    };
    uint64_t first_bad() const;
    bool is_dropped(uint64_t key) const;
    void decode(uint64_t key, DataReport *out) const;
    void start_clear();
    lk_status forget();

    ReportMemory *memory_ = nullptr;

    mutable std::mutex mutex_;  // of all below
    Array<Member> members_;     // [kSteps][max_sequences]
    uint32_t max_sequences_ = 0;
    uint32_t n_members_[kSteps] = {};
    uint32_t serial_ = 0;   // of the last step
    uint32_t dropped_ = 0;  // bit serial % kSteps: faults of the step are not reported
    uint8_t n_clears_ = 0;  // modulo 256, that were started
    bool is_clear_due_ = false;
};

}  // namespace gpu
}  // namespace lk

#endif
