// A device with one compute queue and what lowkey can use of its extensions and features.
//
// SPDX-License-Identifier: Apache-2.0
#include "setup.h"

#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES 16

static vulkan_failure choose_device(uint32_t index, vulkan_host *host) {
    VkPhysicalDevice devices[MOST_DEVICES];
    uint32_t n = MOST_DEVICES;
    if (host->vk.EnumeratePhysicalDevices(host->instance, &n, devices) < 0 || index >= n)
        return "there is no Vulkan device of this index";
    host->physical_device = devices[index];
    host->vk.GetPhysicalDeviceProperties(host->physical_device, &host->properties);
    if (host->properties.apiVersion < VK_API_VERSION_1_2)
        return "the Vulkan device is older than version 1.2";
    VkQueueFamilyProperties families[MOST_DEVICES];
    n = MOST_DEVICES;
    host->vk.GetPhysicalDeviceQueueFamilyProperties(host->physical_device, &n, families);
    for (uint32_t i = 0; i < n; ++i)
        if (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) {
            host->queue_family = i;
            host->timestamp_bits = families[i].timestampValidBits;
            return NULL;
        }
    return "the Vulkan device has no compute queue";
}

static void choose_extensions(const vulkan_host_options *options, vulkan_host *host) {
    static const char *const wanted[VULKAN_HOST_EXTENSIONS] = {
        VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME,
        VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME, VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME,
        VULKAN_MATRIX_USES, VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME};
    const int n_wanted = VULKAN_HOST_EXTENSIONS - !options->only_compiles;
    uint32_t n = 0;
    host->vk.EnumerateDeviceExtensionProperties(host->physical_device, NULL, &n, NULL);
    VkExtensionProperties *found = calloc(n ? n : 1, sizeof *found);
    if (found && host->vk.EnumerateDeviceExtensionProperties(host->physical_device, NULL, &n,
                                                             found) == VK_SUCCESS)
        for (int w = 0; w < n_wanted; ++w)
            for (uint32_t i = 0; i < n; ++i)
                if (!strcmp(found[i].extensionName, wanted[w]) &&
                    (strcmp(wanted[w], VULKAN_MATRIX_USES) || !host->is_validated ||
                     host->validates_matrix_uses))
                    host->extensions[host->n_extensions++] = wanted[w];
    free(found);
}

// Puts a struct of features in front of the chain when the extension that it belongs to is there.
static void chain(vulkan_host *host, const char *extension, VkStructureType type, void *features) {
    VkBaseOutStructure *head = features;
    for (uint32_t i = 0; i < host->n_extensions; ++i)
        if (!strcmp(host->extensions[i], extension)) {
            head->sType = type;
            head->pNext = host->features.pNext;
            host->features.pNext = head;
        }
}

// What lowkey can use of what the device has: robust accesses and the like would only cost.
static void choose_features(vulkan_host *host) {
    host->features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    host->features11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
    host->features12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
    host->features.pNext = &host->features11;
    host->features11.pNext = &host->features12;
    chain(host, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME,
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
          &host->subgroup_size_features);
    chain(host, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME,
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES,
          &host->dot_product_features);
    chain(host, VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME,
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV, &host->matrix_features);
    chain(host, VULKAN_MATRIX_USES, VULKAN_MATRIX_USE_FEATURES, &host->matrix_use_features);
    chain(host, VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME,
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
          &host->statistics_features);
    host->vk.GetPhysicalDeviceFeatures2(host->physical_device, &host->features);
    memset(&host->features.features, 0, sizeof host->features.features);
    const VkPhysicalDeviceVulkan11Features has11 = host->features11;
    host->features11 = (VkPhysicalDeviceVulkan11Features){
        .sType = has11.sType,
        .pNext = has11.pNext,
        .storageBuffer16BitAccess = has11.storageBuffer16BitAccess};
    const VkPhysicalDeviceVulkan12Features has12 = host->features12;
    host->features12 = (VkPhysicalDeviceVulkan12Features){
        .sType = has12.sType,
        .storageBuffer8BitAccess = has12.storageBuffer8BitAccess,
        .shaderFloat16 = has12.shaderFloat16,
        .timelineSemaphore = has12.timelineSemaphore,
        .bufferDeviceAddress = has12.bufferDeviceAddress,
        .vulkanMemoryModel = has12.vulkanMemoryModel,
        .vulkanMemoryModelDeviceScope = has12.vulkanMemoryModelDeviceScope};
}

static vulkan_failure make_device(vulkan_host *host) {
    static const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = host->queue_family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &host->features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = host->n_extensions,
                                     .ppEnabledExtensionNames = host->extensions};
    if (host->vk.CreateDevice(host->physical_device, &info, NULL, &host->device))
        return "the Vulkan device does not open";
#define LOAD(name) \
    host->vk.name = (PFN_vk##name)host->vk.GetDeviceProcAddr(host->device, "vk" #name);
    VULKAN_HOST_DEVICE_FUNCTIONS(LOAD)
#undef LOAD
    host->vk.GetDeviceQueue(host->device, host->queue_family, 0, &host->queue);
    return NULL;
}

static vulkan_failure make_commands(vulkan_host *host) {
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = host->queue_family};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    if (host->vk.CreateCommandPool(host->device, &pool, NULL, &host->pool) ||
        host->vk.CreateFence(host->device, &fence, NULL, &host->fence))
        return "the Vulkan device gives no command pool";
    const VkCommandBufferAllocateInfo commands = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = host->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 1};
    return host->vk.AllocateCommandBuffers(host->device, &commands, &host->commands)
               ? "there is no memory for a command buffer"
               : NULL;
}

vulkan_failure vulkan_open_device(const vulkan_host_options *options, vulkan_host *host) {
    const vulkan_failure failure = choose_device(options->device_index, host);
    if (failure)
        return failure;
    choose_extensions(options, host);
    choose_features(host);
    const vulkan_failure refusal = make_device(host);
    return refusal || options->only_compiles ? refusal : make_commands(host);
}

void vulkan_host_close_device(vulkan_host *host) {
    if (!host->device)
        return;
    if (host->fence)  // else nothing was submitted, and a driver without hardware cannot wait
        host->vk.DeviceWaitIdle(host->device);
    host->vk.DestroyFence(host->device, host->fence, NULL);
    host->vk.DestroyCommandPool(host->device, host->pool, NULL);
    host->vk.DestroyDevice(host->device, NULL);
    host->device = NULL;
}
