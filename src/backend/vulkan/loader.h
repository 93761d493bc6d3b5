// The Vulkan loader, found at run time.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_LOADER_H
#define LK_BACKEND_VULKAN_LOADER_H

#include "backend/vulkan/functions.h"

namespace lk {
namespace vulkan {

class Loader {
  public:
    Loader() = default;
    ~Loader();
    Loader(const Loader &) = delete;
    Loader &operator=(const Loader &) = delete;

    // LK_E_UNSUPPORTED where there is none.
    lk_status open();
    void abandon() { library_ = nullptr; }  // the library stays
    PFN_vkGetInstanceProcAddr get_instance_proc_addr() const { return get_; }

  private:
    void *library_ = nullptr;
    PFN_vkGetInstanceProcAddr get_ = nullptr;
};

}  // namespace vulkan
}  // namespace lk

#endif
