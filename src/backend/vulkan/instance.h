// An instance of Vulkan of our own, for own devices and for listing devices.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_INSTANCE_H
#define LK_BACKEND_VULKAN_INSTANCE_H

#include <lowkey/context.h>

#include "backend/vulkan/loader.h"
#include "base/memory.h"

namespace lk {
namespace vulkan {

// Where the messages of the validation layer go.
struct MessageLog {
    lk_log_fn log;
    void *user;
    lk_log_level level;
};

class Instance {
  public:
    explicit Instance(const Allocator &allocator) : physical_devices_(allocator) {}
    ~Instance();
    Instance(const Instance &) = delete;
    Instance &operator=(const Instance &) = delete;

    // LK_E_UNSUPPORTED says what is missing: loader, version, driver, the validation layer.
    lk_status open(bool validates, const MessageLog &log);

    // Leave it and the loader to the process that opened them.
    void abandon();

    VkInstance handle() const { return handle_; }
    uint32_t api_version() const { return api_version_; }
    const Functions &functions() const { return functions_; }
    const Array<VkPhysicalDevice> &physical_devices() const { return physical_devices_; }

  private:
    lk_status create(bool validates);
    lk_status enumerate();
    lk_status report_messages();

    Loader loader_;
    Functions functions_{};
    MessageLog log_{};
    VkInstance handle_ = nullptr;
    VkDebugUtilsMessengerEXT messenger_ = VK_NULL_HANDLE;
    uint32_t api_version_ = 0;
    Array<VkPhysicalDevice> physical_devices_;
};

}  // namespace vulkan
}  // namespace lk

#endif
