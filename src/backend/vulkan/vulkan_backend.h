// GPUs with Vulkan as a backend. A build without it has these functions too, and no devices.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_VULKAN_BACKEND_H
#define LK_BACKEND_VULKAN_VULKAN_BACKEND_H

#include "backend/backend.h"

namespace lk {
namespace vulkan {

// 0 where there is no loader or no driver.
uint32_t device_count();
lk_status describe_device(uint32_t index, lk_device_info *info);
lk_status open_vulkan(const lk_context_desc &desc, const Allocator &allocator, Backend **out);
void close_vulkan(const Allocator &allocator, Backend *backend);

}  // namespace vulkan
}  // namespace lk

#endif
