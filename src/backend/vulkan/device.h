// The device and its queue: our own, or the host's.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_DEVICE_H
#define LK_BACKEND_VULKAN_DEVICE_H

#include <lowkey/vulkan.h>

#include <atomic>
#include <mutex>

#include "backend/vulkan/features.h"
#include "backend/vulkan/instance.h"

namespace lk {
namespace vulkan {

class Device {
  public:
    explicit Device(const Allocator &allocator) : allocator_(allocator), instance_(allocator) {}
    ~Device();
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    // vulkan is desc.vulkan as this library knows it.
    lk_status open(const lk_context_desc &desc, const lk_vulkan_desc &vulkan);

    const Functions &functions() const { return functions_; }
    VkDevice handle() const { return handle_; }
    bool is_own() const { return is_own_; }
    VkQueue queue() const { return queue_; }
    uint32_t queue_family() const { return queue_family_; }
    const Traits &traits() const { return traits_; }
    // Before anything depends on them.
    void forbid_matrices() { traits_.cooperative_matrix = traits_.matrix_uses = false; }
    void forbid_matrix_uses() { traits_.matrix_uses = false; }
    const VkPhysicalDeviceMemoryProperties &memory() const { return memory_; }
    void describe(lk_device_info *info) const;

    // LK_OK, or the sentence of a call that failed while doing `action`: LK_E_NOMEM or LK_E_DEVICE.
    // A device that was lost once stays lost.
    lk_status checked(VkResult result, const char *action) const;
    lk_status check_alive() const;

    // Any thread.
    lk_status submit(const VkSubmitInfo &info, VkFence fence) const;
    // For as long as work may take; a device that is silent for longer counts as lost.
    lk_status wait(VkFence fence) const;
    // In a process that fork() made: the device is lost, and the driver is not called again.
    void abandon();
    // Before what it guards is destroyed, on a lost device too: work that still runs gets a moment.
    void settle(VkFence fence) const;

  private:
    lk_status create(const lk_context_desc &desc, const lk_vulkan_desc &vulkan);
    lk_status create_handle(const Extensions &extensions, const Features &features);
    lk_status import(const lk_vulkan_desc &vulkan);
    lk_status choose_family();
    lk_status check_family() const;

    const Allocator &allocator_;
    Instance instance_;  // of an own device
    Functions functions_{};
    VkPhysicalDevice physical_ = nullptr;
    VkDevice handle_ = nullptr;
    VkQueue queue_ = nullptr;
    uint32_t queue_family_ = 0;
    uint32_t index_ = 0;
    bool is_own_ = false;
    lk_vulkan_lock_fn lock_ = nullptr;  // the host's, in place of submitting_
    lk_vulkan_lock_fn unlock_ = nullptr;
    void *lock_user_ = nullptr;
    mutable std::mutex submitting_;
    mutable std::atomic<bool> is_lost_{false};
    Traits traits_{};
    VkPhysicalDeviceMemoryProperties memory_{};
};

// What a listing of devices says, without opening one.
void describe_physical_device(const Functions &functions, VkPhysicalDevice device,
                              uint32_t instance_version, lk_device_info *info);

}  // namespace vulkan
}  // namespace lk

#endif
