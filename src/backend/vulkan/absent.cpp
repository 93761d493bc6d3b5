// The Vulkan backend of a build without one.
//
// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/vulkan_backend.h"
#include "base/status.h"

namespace lk {
namespace vulkan {

uint32_t device_count() { return 0; }

lk_status describe_device(uint32_t index, lk_device_info *) {
    return fail(LK_E_NOT_FOUND, "Vulkan device %u does not exist: this build has no Vulkan", index);
}

lk_status open_vulkan(const lk_context_desc &, const Allocator &, Backend **) {
    return fail(LK_E_UNSUPPORTED,
                "this build has no Vulkan backend: configure it with -Dvulkan=enabled, which needs "
                "glslc and the headers of Vulkan");
}

void close_vulkan(const Allocator &, Backend *) {}

}  // namespace vulkan
}  // namespace lk
