// Long steps by matrices: keys and values of a sequence are unpacked once for all of its query
// columns, for as many KV heads at a time as their slots have space for.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_PREFILL_SLOTS_H
#define LK_BACKEND_VULKAN_PREFILL_SLOTS_H

#include "backend/backend.h"
#include "backend/gpu/device_state.h"
#include "backend/vulkan/cache_pipelines.h"
#include "backend/vulkan/recorder.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

class PrefillSlots {
  public:
    explicit PrefillSlots(const Allocator &allocator) : sequences_(allocator) {}

    // No memory where no step of the cache can be long. n_workgroups: those that keep the device
    // busy.
    lk_status open(const CacheLayout &layout, const Traits &traits, uint32_t n_workgroups,
                   gpu::TableMemory *memory);
    uint64_t bytes() const { return slots_.bytes(); }

    // The sequences of a step.
    void begin(const Batch &batch);
    // Has the step enough columns of the layer, and a mask and a context that fit?
    bool takes(const gpu::StepShape &shape, const LayerView &layer) const;
    // push: all but what names a pass.
    void record(const Recorder &recorder, const SlotPipelines &pipelines, const LayerView &layer,
                SlotPush push) const;

  private:
    struct Sequence {
        uint64_t n_tokens;  // new ones included
        uint32_t n_new;
        uint32_t n_attended;  // blocks
        bool has_tree;
    };
    static uint64_t n_runs(const Sequence &sequence);
    uint64_t head_bytes(const Sequence &sequence, const LayerView &layer) const;
    void record_pass(const Recorder &recorder, const SlotPipelines &pipelines, uint32_t n_columns,
                     const Sequence &sequence, uint32_t n_heads, SlotPush *push) const;

    const Traits *traits_ = nullptr;
    uint32_t n_workgroups_ = 0;
    gpu::Table slots_;
    Array<Sequence> sequences_;  // of the step
};

}  // namespace vulkan
}  // namespace lk

#endif
