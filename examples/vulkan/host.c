// SPDX-License-Identifier: Apache-2.0
#include "host.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define VALIDATION_LAYER "VK_LAYER_KHRONOS_validation"
#define MOST_DEVICES 16
#define WAIT_NS (UINT64_C(60) * 1000000000)

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

static int has_layer(const vulkan_host *host) {
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
            found = found || !strcmp(layers[i].layerName, VALIDATION_LAYER);
    free(layers);
    return found;
}

static vulkan_failure open_instance(const vulkan_host_options *options, vulkan_host *host) {
    static const char *const layer = VALIDATION_LAYER;
    static const char *const extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    static const VkValidationFeatureEnableEXT watched =
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
                                                .pEnabledValidationFeatures = &watched};
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

static void choose_extensions(vulkan_host *host) {
    static const char *const wanted[VULKAN_HOST_EXTENSIONS] = {
        VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME,
        VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME, VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME};
    uint32_t n = 0;
    host->vk.EnumerateDeviceExtensionProperties(host->physical_device, NULL, &n, NULL);
    VkExtensionProperties *found = calloc(n ? n : 1, sizeof *found);
    if (found && host->vk.EnumerateDeviceExtensionProperties(host->physical_device, NULL, &n,
                                                             found) == VK_SUCCESS)
        for (int w = 0; w < VULKAN_HOST_EXTENSIONS; ++w)
            for (uint32_t i = 0; i < n; ++i)
                if (!strcmp(found[i].extensionName, wanted[w]))
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

static vulkan_failure open_device(vulkan_host *host) {
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

vulkan_failure vulkan_host_open(const vulkan_host_options *options, vulkan_host *host) {
    memset(host, 0, sizeof *host);
    vulkan_failure failure = open_loader(host);
    if (!failure)
        failure = open_instance(options, host);
    if (!failure)
        failure = choose_device(options->device_index, host);
    if (failure)
        return failure;
    choose_extensions(host);
    choose_features(host);
    return open_device(host);
}

void vulkan_host_close_device(vulkan_host *host) {
    if (!host->device)
        return;
    host->vk.DeviceWaitIdle(host->device);
    host->vk.DestroyFence(host->device, host->fence, NULL);
    host->vk.DestroyCommandPool(host->device, host->pool, NULL);
    host->vk.DestroyDevice(host->device, NULL);
    host->device = NULL;
}

void vulkan_host_close(vulkan_host *host) {
    vulkan_host_close_device(host);
    if (host->messenger)
        host->vk.DestroyDebugUtilsMessengerEXT(host->instance, host->messenger, NULL);
    if (host->instance)
        host->vk.DestroyInstance(host->instance, NULL);
    if (host->library)
        dlclose(host->library);
    memset(host, 0, sizeof *host);
}

void vulkan_host_describe(const vulkan_host *host, lk_vulkan_desc *desc) {
    desc->api_version = VK_API_VERSION_1_2;
    desc->get_instance_proc_addr = (lk_vulkan_function)host->get_instance_proc_addr;
    desc->instance = host->instance;
    desc->physical_device = host->physical_device;
    desc->device = host->device;
    desc->queue = host->queue;
    desc->queue_family = host->queue_family;
    desc->extensions = host->extensions;
    desc->n_extensions = host->n_extensions;
    desc->features = &host->features;
}

vulkan_failure vulkan_host_record(const vulkan_host *host) {
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    return host->vk.BeginCommandBuffer(host->commands, &info) ? "recording does not begin" : NULL;
}

vulkan_failure vulkan_host_submit(const vulkan_host *host) {
    vulkan_host_barrier(host);
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &host->commands};
    if (host->vk.EndCommandBuffer(host->commands) ||
        host->vk.QueueSubmit(host->queue, 1, &info, host->fence))
        return "commands are not accepted";
    if (host->vk.WaitForFences(host->device, 1, &host->fence, VK_TRUE, WAIT_NS) ||
        host->vk.ResetFences(host->device, 1, &host->fence))
        return "commands do not end";
    return NULL;
}

vulkan_failure vulkan_host_wait(const vulkan_host *host) {
    const vulkan_failure failure = vulkan_host_record(host);
    return failure ? failure : vulkan_host_submit(host);
}

void vulkan_host_barrier(const vulkan_host *host) {
    const VkMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_MEMORY_READ_BIT,
        .dstAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_MEMORY_READ_BIT};
    host->vk.CmdPipelineBarrier(host->commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0,
                                1, &barrier, 0, NULL, 0, NULL);
}

vulkan_failure vulkan_program_create(vulkan_host *host, const uint32_t *spirv, size_t spirv_bytes,
                                     uint32_t push_bytes, vulkan_program *program) {
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                       .size = push_bytes};
    const VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .pushConstantRangeCount = 1,
        .pPushConstantRanges = &range};
    const VkShaderModuleCreateInfo module = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                             .codeSize = spirv_bytes,
                                             .pCode = spirv};
    VkShaderModule shader = VK_NULL_HANDLE;
    *program = (vulkan_program){.push_bytes = push_bytes};
    if (host->vk.CreatePipelineLayout(host->device, &layout, NULL, &program->layout))
        return "there is no memory for the layout of a pipeline";
    if (host->vk.CreateShaderModule(host->device, &module, NULL, &shader))
        return "the device does not take the shader";
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = shader,
                  .pName = "main"},
        .layout = program->layout};
    const VkResult result = host->vk.CreateComputePipelines(host->device, VK_NULL_HANDLE, 1, &info,
                                                            NULL, &program->pipeline);
    host->vk.DestroyShaderModule(host->device, shader, NULL);
    return result ? "the device makes no pipeline of the shader" : NULL;
}

void vulkan_program_destroy(vulkan_host *host, vulkan_program *program) {
    host->vk.DestroyPipeline(host->device, program->pipeline, NULL);
    host->vk.DestroyPipelineLayout(host->device, program->layout, NULL);
    *program = (vulkan_program){0};
}

void vulkan_program_run(const vulkan_host *host, const vulkan_program *program, const void *push,
                        uint32_t n_groups) {
    host->vk.CmdBindPipeline(host->commands, VK_PIPELINE_BIND_POINT_COMPUTE, program->pipeline);
    host->vk.CmdPushConstants(host->commands, program->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                              program->push_bytes, push);
    host->vk.CmdDispatch(host->commands, n_groups, 1, 1);
}

// The first type that has all of `needed`, and of `wanted` if one has both.
static uint32_t memory_type(const vulkan_host *host, uint32_t allowed, VkMemoryPropertyFlags needed,
                            VkMemoryPropertyFlags wanted) {
    VkPhysicalDeviceMemoryProperties memory;
    host->vk.GetPhysicalDeviceMemoryProperties(host->physical_device, &memory);
    for (uint32_t pass = 0; pass < 2; ++pass) {
        const VkMemoryPropertyFlags flags = pass ? needed : needed | wanted;
        for (uint32_t i = 0; i < memory.memoryTypeCount; ++i)
            if (allowed >> i & 1 && (memory.memoryTypes[i].propertyFlags & flags) == flags)
                return i;
    }
    return UINT32_MAX;
}

static vulkan_failure allocate(vulkan_host *host, int is_mapped, vulkan_buffer *buffer) {
    VkMemoryRequirements needs;
    host->vk.GetBufferMemoryRequirements(host->device, buffer->handle, &needs);
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .pNext = buffer->usage & VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT ? &flags : NULL,
        .allocationSize = needs.size,
        .memoryTypeIndex = is_mapped ? memory_type(host, needs.memoryTypeBits,
                                                   VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                                       VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                                   VK_MEMORY_PROPERTY_HOST_CACHED_BIT)
                                     : memory_type(host, needs.memoryTypeBits, 0,
                                                   VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)};
    if (host->vk.AllocateMemory(host->device, &info, NULL, &buffer->memory) ||
        host->vk.BindBufferMemory(host->device, buffer->handle, buffer->memory, 0))
        return "there is no memory for a buffer";
    if (!is_mapped)
        return NULL;
    if (host->vk.MapMemory(host->device, buffer->memory, 0, VK_WHOLE_SIZE, 0, &buffer->mapped))
        return "the memory of a buffer cannot be mapped";
    memset(buffer->mapped, 0, buffer->bytes);
    return NULL;
}

vulkan_failure vulkan_buffer_create(vulkan_host *host, uint64_t bytes, VkBufferUsageFlags usage,
                                    int is_mapped, vulkan_buffer *buffer) {
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes, .usage = usage};
    *buffer = (vulkan_buffer){.bytes = bytes, .usage = usage};
    if (host->vk.CreateBuffer(host->device, &info, NULL, &buffer->handle))
        return "a buffer is refused";
    const vulkan_failure failure = allocate(host, is_mapped, buffer);
    if (failure) {
        vulkan_buffer_destroy(host, buffer);
        return failure;
    }
    if (usage & VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT) {
        const VkBufferDeviceAddressInfo whose = {
            .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = buffer->handle};
        buffer->address = host->vk.GetBufferDeviceAddress(host->device, &whose);
    }
    return NULL;
}

void vulkan_buffer_destroy(vulkan_host *host, vulkan_buffer *buffer) {
    host->vk.DestroyBuffer(host->device, buffer->handle, NULL);
    host->vk.FreeMemory(host->device, buffer->memory, NULL);
    *buffer = (vulkan_buffer){0};
}
