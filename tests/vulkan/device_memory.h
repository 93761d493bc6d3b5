// Device memory of tests, and the Vulkan backend that works on it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_VULKAN_DEVICE_MEMORY_H
#define LK_TESTS_VULKAN_DEVICE_MEMORY_H

#include "device.h"
#include "kernels/memory.h"

// One mapped buffer, in which guard zones are around every block and all that was not an output is
// compared. Addresses are the device's.
class MappedMemory final : public Memory {
  public:
    MappedMemory();
    ~MappedMemory() override;

    uint64_t input(const void *bytes, size_t n) override;
    uint64_t output(size_t n) override;
    void read(uint64_t address, void *to, size_t n) override;
    bool intact() override;
    void poison() override;
    void clear() override;
    const lk_queue *queue() const override { return &queue_; }

  private:
    uint8_t *mapped() const { return static_cast<uint8_t *>(buffer_.mapped); }
    void guard(const GuardedArena::Block &zone);

    vulkan_buffer buffer_{};
    lk_queue queue_{};
    GuardedArena arena_;
};

// The Vulkan backend on the tests' device, and memory for it.
class VulkanDevice {
  public:
    VulkanDevice();
    ~VulkanDevice();
    VulkanDevice(const VulkanDevice &) = delete;
    VulkanDevice &operator=(const VulkanDevice &) = delete;
    Device device() { return {backend_, &memory_, false}; }

  private:
    MappedMemory memory_;
    lk::Backend *backend_ = nullptr;
};

bool has_argument(int argc, char **argv, const char *name);
// What follows an argument, or null.
const char *text_of_argument(int argc, char **argv, const char *name);

#endif
