// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/functions.h"

#include <cstdio>

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

template <class Get>
PFN_vkVoidFunction find(const Get &get, const char *name) {
    const PFN_vkVoidFunction found = get(name);
    if (found)
        return found;
    char extended[80];
    std::snprintf(extended, sizeof extended, "%sKHR", name);
    return get(extended);
}

lk_status missing(const char *name) {
    return fail(LK_E_UNSUPPORTED, "the Vulkan driver has no function %s", name);
}

template <class Function>
struct Nothing;
template <class Result, class... Args>
struct Nothing<Result(VKAPI_PTR *)(Args...)> {
    static VKAPI_ATTR Result VKAPI_CALL call(Args...) { return Result(); }
};

}  // namespace

lk_status load_instance_functions(VkInstance instance, Functions *functions) {
    const auto get = [&](const char *name) {
        return functions->GetInstanceProcAddr(instance, name);
    };
#define LK_VULKAN_LOAD(name)                                                 \
    functions->name = reinterpret_cast<PFN_vk##name>(find(get, "vk" #name)); \
    if (!functions->name)                                                    \
        return missing("vk" #name);
    LK_VULKAN_INSTANCE_FUNCTIONS(LK_VULKAN_LOAD)
    functions->GetPhysicalDeviceCooperativeMatrixPropertiesNV =
        reinterpret_cast<PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV>(
            get("vkGetPhysicalDeviceCooperativeMatrixPropertiesNV"));
    return LK_OK;
}

lk_status load_device_functions(VkDevice device, Functions *functions) {
    const auto get = [&](const char *name) { return functions->GetDeviceProcAddr(device, name); };
    LK_VULKAN_DEVICE_FUNCTIONS(LK_VULKAN_LOAD)
#undef LK_VULKAN_LOAD
    return LK_OK;
}

void abandon_functions(Functions *functions) {
#define LK_VULKAN_ABANDON(name) functions->name = Nothing<PFN_vk##name>::call;
    LK_VULKAN_INSTANCE_FUNCTIONS(LK_VULKAN_ABANDON)
    LK_VULKAN_DEVICE_FUNCTIONS(LK_VULKAN_ABANDON)
#undef LK_VULKAN_ABANDON
}

}  // namespace vulkan
}  // namespace lk
