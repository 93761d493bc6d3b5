// The report that shaders write to host memory: the first fault of each layer and step, and counts.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_REPORT_BUFFER_H
#define LK_BACKEND_VULKAN_REPORT_BUFFER_H

#include "backend/gpu/fault_log.h"
#include "backend/vulkan/recorder.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

class ReportBuffer final : public gpu::ReportMemory {
  public:
    explicit ReportBuffer(const Allocator &allocator) : heads_(allocator) {}

    // LK_E_UNSUPPORTED: a step of so many tokens and heads that a fault's key needs over 32 bits.
    lk_status open(const Device &device, const CacheLayout &layout);
    // Where forget() records from now on.
    void use(const Recorder &recorder) { recorder_ = recorder; }
    uint64_t address() const { return buffer_.address(); }

    uint64_t first_bad() const override;
    uint64_t n_saturated() const override;
    lk_status forget(uint8_t n_clears) override;
    uint8_t n_clears() const override;

  private:
    FaultReport *report() const { return buffer_.as<FaultReport>(); }
    uint32_t *faults() const { return buffer_.as<uint32_t>(sizeof(FaultReport)); }
    uint64_t n_faults() const { return uint64_t{LK_FAULT_STEPS} * heads_.size(); }

    Buffer buffer_;          // FaultReport, u32 [LK_FAULT_STEPS][layers]
    Array<uint32_t> heads_;  // [layers] KV heads
    Recorder recorder_;
};

}  // namespace vulkan
}  // namespace lk

#endif
