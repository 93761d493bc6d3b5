// Buffers of our own, each with memory of its own and an address that shaders read.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_MEMORY_H
#define LK_BACKEND_VULKAN_MEMORY_H

#include "backend/vulkan/device.h"

namespace lk {
namespace vulkan {

enum class MemoryKind {
    kDevice,   // fast for shaders; the host reaches it through copies
    kUpload,   // mapped and coherent: the host writes, shaders read; in device memory if it can be
    kReadback  // mapped and coherent: shaders write, the host reads; cached if it can be
};

class Buffer {
  public:
    Buffer() = default;
    ~Buffer() { close(); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    // LK_E_NOMEM names `what` and the bytes. 0 bytes are no memory and LK_OK.
    lk_status open(const Device &device, MemoryKind kind, uint64_t bytes, const char *what);
    // Nothing uses it any more.
    void close();

    VkBuffer handle() const { return handle_; }
    uint64_t bytes() const { return bytes_; }
    uint64_t address(uint64_t offset_bytes = 0) const { return address_ + offset_bytes; }
    // The host's view of mapped memory.
    template <class T>
    T *as(uint64_t offset_bytes = 0) const {
        return reinterpret_cast<T *>(static_cast<char *>(mapped_) + offset_bytes);
    }

  private:
    lk_status allocate(MemoryKind kind, const char *what);
    VkResult allocate_type(uint64_t bytes, uint32_t type);

    const Device *device_ = nullptr;
    VkBuffer handle_ = VK_NULL_HANDLE;
    VkDeviceMemory memory_ = VK_NULL_HANDLE;
    uint64_t bytes_ = 0;
    uint64_t address_ = 0;
    void *mapped_ = nullptr;
};

}  // namespace vulkan
}  // namespace lk

#endif
