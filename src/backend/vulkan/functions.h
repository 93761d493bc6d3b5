// The functions of Vulkan that this backend calls, as the loader or the host gives them. Nothing
// links to Vulkan.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_FUNCTIONS_H
#define LK_BACKEND_VULKAN_FUNCTIONS_H

#define VK_NO_PROTOTYPES
#include <lowkey/base.h>
#include <vulkan/vulkan_core.h>

namespace lk {
namespace vulkan {

#define LK_VULKAN_INSTANCE_FUNCTIONS(X)   \
    X(CreateDevice)                       \
    X(DestroyInstance)                    \
    X(EnumerateDeviceExtensionProperties) \
    X(EnumeratePhysicalDevices)           \
    X(GetDeviceProcAddr)                  \
    X(GetPhysicalDeviceFeatures2)         \
    X(GetPhysicalDeviceMemoryProperties2) \
    X(GetPhysicalDeviceProperties2)       \
    X(GetPhysicalDeviceQueueFamilyProperties)

#define LK_VULKAN_DEVICE_FUNCTIONS(X) \
    X(AllocateCommandBuffers)         \
    X(AllocateMemory)                 \
    X(BeginCommandBuffer)             \
    X(BindBufferMemory)               \
    X(CmdBindPipeline)                \
    X(CmdCopyBuffer)                  \
    X(CmdDispatch)                    \
    X(CmdFillBuffer)                  \
    X(CmdPipelineBarrier)             \
    X(CmdPushConstants)               \
    X(CmdUpdateBuffer)                \
    X(CreateBuffer)                   \
    X(CreateCommandPool)              \
    X(CreateComputePipelines)         \
    X(CreateFence)                    \
    X(CreatePipelineCache)            \
    X(CreatePipelineLayout)           \
    X(CreateShaderModule)             \
    X(DestroyBuffer)                  \
    X(DestroyCommandPool)             \
    X(DestroyDevice)                  \
    X(DestroyFence)                   \
    X(DestroyPipeline)                \
    X(DestroyPipelineCache)           \
    X(DestroyPipelineLayout)          \
    X(DestroyShaderModule)            \
    X(EndCommandBuffer)               \
    X(FreeMemory)                     \
    X(GetBufferDeviceAddress)         \
    X(GetBufferMemoryRequirements)    \
    X(GetDeviceQueue)                 \
    X(GetPipelineCacheData)           \
    X(MapMemory)                      \
    X(MergePipelineCaches)            \
    X(QueueSubmit)                    \
    X(ResetCommandPool)               \
    X(ResetFences)                    \
    X(WaitForFences)

struct Functions {
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
#define LK_VULKAN_MEMBER(name) PFN_vk##name name;
    LK_VULKAN_INSTANCE_FUNCTIONS(LK_VULKAN_MEMBER)
    LK_VULKAN_DEVICE_FUNCTIONS(LK_VULKAN_MEMBER)
#undef LK_VULKAN_MEMBER
    // Null where no device has the extension.
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV
        GetPhysicalDeviceCooperativeMatrixPropertiesNV;
};

// Fill the functions of an instance, then those of a device; GetInstanceProcAddr is there. A
// function that is newer than the device's version is looked for as the extension's.
// LK_E_UNSUPPORTED names one that is missing.
lk_status load_instance_functions(VkInstance instance, Functions *functions);
lk_status load_device_functions(VkDevice device, Functions *functions);

// Make every function one that does nothing and returns 0, for a process that fork() made: objects
// of the parent's driver end without it.
void abandon_functions(Functions *functions);

}  // namespace vulkan
}  // namespace lk

#endif
