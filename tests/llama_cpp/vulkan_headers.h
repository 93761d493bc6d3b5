// Names of VK_EXT_layer_settings for Vulkan headers that are older than the extension, such as
// those of Debian 12. ggml-vulkan names them always and uses them with the validation layer alone,
// and before any other code of its own, so the test includes this file before its sources.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_LLAMA_VULKAN_HEADERS_H
#define TESTS_LLAMA_VULKAN_HEADERS_H

#if defined(__cplusplus) && __has_include(<vulkan/vulkan_core.h>)
#include <vulkan/vulkan_core.h>

#ifndef VK_EXT_layer_settings
#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
    const char *layer_name;
    const char *setting_name;
    LayerSettingTypeEXT type;
    uint32_t n_values;
    const void *values;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> &all)
        : n_settings(static_cast<uint32_t>(all.size())), settings(all.data()) {}

    VkStructureType type = static_cast<VkStructureType>(1000496000);
    const void *next = nullptr;
    uint32_t n_settings;
    const LayerSettingEXT *settings;
};

}  // namespace vk
#endif
#endif
#endif
