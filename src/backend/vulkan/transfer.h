// Bytes of slots to the host and back, through mapped buffers, and from slab to slab: a batch is
// one submission.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_TRANSFER_H
#define LK_BACKEND_VULKAN_TRANSFER_H

#include "backend/vulkan/slabs.h"

namespace lk {
namespace vulkan {

class Transfer {
  public:
    Transfer(const Device &device, Commands *commands) : device_(device), commands_(*commands) {}
    // Where slots are.
    void open(const SlabPool *slabs) { slabs_ = slabs; }

    // After all submissions; done when they return.
    lk_status download(const SlotCopy *items, uint32_t n_items);
    lk_status upload(const SlotCopy *items, uint32_t n_items);
    // In the order of the queue.
    lk_status copy(const MemoryCopy *items, uint32_t n_items);

    uint64_t bytes() const { return to_host_.bytes() + to_device_.bytes(); }
    static constexpr uint64_t kBufferBytes = 4u << 20;

  private:
    // Copies items [first, end) between their slots and the buffer.
    lk_status copy(const SlotCopy *items, uint32_t first, uint32_t end, const Buffer &staged,
                   bool is_upload);

    const Device &device_;
    Commands &commands_;
    const SlabPool *slabs_ = nullptr;
    Buffer to_host_;  // from the first use on
    Buffer to_device_;
};

}  // namespace vulkan
}  // namespace lk

#endif
