// The description of a Vulkan device that a host hands in.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CONTEXT_VULKAN_H
#define LK_CORE_CONTEXT_VULKAN_H

#include <lowkey/vulkan.h>

namespace lk {

// desc.vulkan as this library knows it, its defaults when it is null. LK_E_ARGUMENT,
// LK_E_UNSUPPORTED.
lk_status import_vulkan(const lk_context_desc &desc, lk_vulkan_desc *vulkan);

}  // namespace lk

#endif
