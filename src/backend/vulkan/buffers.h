// The host's buffers that tensors may lie in.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_BUFFERS_H
#define LK_BACKEND_VULKAN_BUFFERS_H

#include "backend/vulkan/device.h"

namespace lk {
namespace vulkan {

// Any thread.
class Buffers {
  public:
    Buffers(const Allocator &allocator, const Device &device)
        : device_(device), known_(allocator) {}

    // As lk_vulkan_buffer_add() and lk_vulkan_buffer_remove().
    lk_status add(uint64_t buffer, uint64_t bytes, uint32_t usage);
    lk_status remove(uint64_t buffer);
    // The address of the tensor's first element, of `bytes` in its buffer.
    lk_status resolve(const lk_tensor &tensor, uint64_t bytes, const char *name,
                      uint64_t *address) const;

  private:
    struct Known {
        uint64_t buffer;
        uint64_t bytes;
        uint64_t address;
    };
    size_t find(uint64_t buffer) const;  // its size when it is not there

    const Device &device_;
    mutable std::mutex mutex_;
    Array<Known> known_;  // ascending buffers
};

}  // namespace vulkan
}  // namespace lk

#endif
