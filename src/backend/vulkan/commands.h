// Where work is recorded: in command buffers of our own, submitted one call at a time, or in the
// host's.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_COMMANDS_H
#define LK_BACKEND_VULKAN_COMMANDS_H

#include "backend/vulkan/recorder.h"

namespace lk {
namespace vulkan {

// Timeline semaphores of a submission, 0 for none.
struct Semaphores {
    VkSemaphore wait;
    uint64_t wait_value;
    VkSemaphore signal;
    uint64_t signal_value;
};
Semaphores semaphores_of(const lk_queue *queue);  // null has none

// Used by one thread at a time. Submissions of all objects of a device run in their order, each
// between barriers, so the writes of earlier ones are visible to it.
class Commands {
  public:
    static constexpr uint32_t kSlots = 16;  // submissions in flight

    explicit Commands(const Device &device) : device_(device) {}
    ~Commands();  // waits
    Commands(const Commands &) = delete;
    Commands &operator=(const Commands &) = delete;

    lk_status open(VkPipelineLayout layout);

    // Record into the host's command buffer from now on; null: into our own again.
    void record_into(VkCommandBuffer host) { host_ = host; }

    // Begin the work of a verb. Waits when kSlots submissions are in flight. Between the two calls
    // *out may be used; it is end()ed or abandon()ed.
    lk_status begin(Recorder *out);
    // Submit it. The host's command buffer gets the closing barrier and is not submitted;
    // semaphores are not for it.
    lk_status end(const Semaphores &semaphores = {});
    // Drop it: of our own commands none runs, the host's stay recorded.
    void abandon();

    // For all that was submitted, by the host too of what was recorded for it.
    lk_status wait();
    // For all that anybody submitted to the queue.
    lk_status wait_for_queue();

  private:
    struct Slot {
        VkCommandPool pool;
        VkCommandBuffer commands;
        VkFence fence;
        bool is_in_flight;
    };
    lk_status open_slot(Slot *slot) const;
    lk_status finish(Slot *slot) const;
    lk_status submit(Slot *slot, const Semaphores &semaphores);

    const Device &device_;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    VkCommandBuffer host_ = nullptr;
    Slot slots_[kSlots] = {};
    uint32_t current_ = 0;
    bool has_recorded_ = false;  // for the host, since the last wait
    Recorder recorder_;
};

}  // namespace vulkan
}  // namespace lk

#endif
