// The loader, an instance, and the validation layer where it is wanted.
//
// SPDX-License-Identifier: Apache-2.0
#include "setup.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define VALIDATION_LAYER "VK_LAYER_KHRONOS_validation"
// The first version of the layer that knows VK_KHR_cooperative_matrix.
#define MATRIX_USES_VERSION VK_MAKE_API_VERSION(0, 1, 3, 255)

static VKAPI_ATTR VkBool32 VKAPI_CALL hear(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                           VkDebugUtilsMessageTypeFlagsEXT types,
                                           const VkDebugUtilsMessengerCallbackDataEXT *data,
                                           void *user) {
    (void)severity;
    (void)types;
    ((const vulkan_host *)user)->on_message(data->pMessage);
    return VK_FALSE;
}

static vulkan_failure open_loader(vulkan_host *host) {
    static const char *const names[] = {"libvulkan.so.1", "libvulkan.so"};
    for (int i = 0; i < 2 && !host->library; ++i)
        host->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!host->library)
        return "there is no Vulkan loader";
    // ISO C has no conversion from an object's pointer to a function's.
    void *symbol = dlsym(host->library, "vkGetInstanceProcAddr");
    memcpy(&host->get_instance_proc_addr, &symbol, sizeof symbol);
    return symbol ? NULL : "the Vulkan loader has no vkGetInstanceProcAddr";
}

static int has_layer(vulkan_host *host) {
    const PFN_vkEnumerateInstanceLayerProperties list =
        (PFN_vkEnumerateInstanceLayerProperties)host->get_instance_proc_addr(
            NULL, "vkEnumerateInstanceLayerProperties");
    uint32_t n = 0;
    if (!list || list(&n, NULL) || !n)
        return 0;
    VkLayerProperties *layers = calloc(n, sizeof *layers);
    int found = 0;
    if (layers && list(&n, layers) == VK_SUCCESS)
        for (uint32_t i = 0; i < n; ++i)
            if (!strcmp(layers[i].layerName, VALIDATION_LAYER)) {
                found = 1;
                host->validates_matrix_uses = layers[i].specVersion >= MATRIX_USES_VERSION;
            }
    free(layers);
    return found;
}

static vulkan_failure make_instance(const vulkan_host_options *options, vulkan_host *host) {
    static const char *const layer = VALIDATION_LAYER;
    static const char *const extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    static const VkValidationFeatureEnableEXT validation_features =
        VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
    host->on_message = options->on_message;
    host->is_validated = options->on_message && has_layer(host);
    const VkDebugUtilsMessengerCreateInfoEXT messenger = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
        .pfnUserCallback = hear,
        .pUserData = host};
    const VkValidationFeaturesEXT validation = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                                .pNext = &messenger,
                                                .enabledValidationFeatureCount = 1,
                                                .pEnabledValidationFeatures = &validation_features};
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .apiVersion = VK_API_VERSION_1_2};
    const uint32_t n = (uint32_t)host->is_validated;
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pNext = n ? &validation : NULL,
                                       .pApplicationInfo = &application,
                                       .enabledLayerCount = n,
                                       .ppEnabledLayerNames = &layer,
                                       .enabledExtensionCount = n,
                                       .ppEnabledExtensionNames = &extension};
    const PFN_vkCreateInstance create =
        (PFN_vkCreateInstance)host->get_instance_proc_addr(NULL, "vkCreateInstance");
    if (!create || create(&info, NULL, &host->instance))
        return "there is no Vulkan instance of version 1.2";
#define LOAD(name) \
    host->vk.name = (PFN_vk##name)host->get_instance_proc_addr(host->instance, "vk" #name);
    VULKAN_HOST_INSTANCE_FUNCTIONS(LOAD)
#undef LOAD
    if (n &&
        host->vk.CreateDebugUtilsMessengerEXT(host->instance, &messenger, NULL, &host->messenger))
        return "the validation layer takes no messenger";
    return NULL;
}

vulkan_failure vulkan_open_instance(const vulkan_host_options *options, vulkan_host *host) {
    const vulkan_failure failure = open_loader(host);
    return failure ? failure : make_instance(options, host);
}
