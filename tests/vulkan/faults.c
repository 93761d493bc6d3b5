// SPDX-License-Identifier: Apache-2.0
#include "faults.h"

#include "shared_pipelines.h"

#include <pthread.h>
#include <string.h>

static vulkan_faults g_faults;
static vulkan_pipelines g_pipelines;
static pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // of g_pipelines and of compile()

void faults_set(const vulkan_faults *faults) {
    g_faults = faults ? *faults : (vulkan_faults){.missing = NULL};
}

vulkan_pipelines faults_pipelines(void) { return g_pipelines; }

// Counts down to 1, where it stays.
static int fails(uint32_t *call) {
    if (*call > 1) {
        --*call;
        return 0;
    }
    return *call == 1;
}

static VKAPI_ATTR void VKAPI_CALL properties(VkPhysicalDevice device,
                                             VkPhysicalDeviceProperties2 *out) {
    const vulkan_host *host = test_device();
    const PFN_vkGetPhysicalDeviceProperties2 get_properties =
        (PFN_vkGetPhysicalDeviceProperties2)host->get_instance_proc_addr(
            host->instance, "vkGetPhysicalDeviceProperties2");
    get_properties(device, out);
    for (VkBaseOutStructure *next = out->pNext; next && g_faults.rounds_otherwise;
         next = next->pNext)
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES)
            ((VkPhysicalDeviceFloatControlsProperties *)(void *)next)
                ->shaderRoundingModeRTEFloat32 = VK_FALSE;
        else if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES)
            ((VkPhysicalDeviceVulkan12Properties *)(void *)next)->shaderRoundingModeRTEFloat32 =
                VK_FALSE;
}

static VKAPI_ATTR void VKAPI_CALL families(VkPhysicalDevice device, uint32_t *n,
                                           VkQueueFamilyProperties *out) {
    test_device()->vk.GetPhysicalDeviceQueueFamilyProperties(device, n, out);
    for (uint32_t i = 0; out && i < *n; ++i)
        if (g_faults.has_no_compute)
            out[i].queueFlags &= ~(VkQueueFlags)VK_QUEUE_COMPUTE_BIT;
}

// What was submitted before is done, as it is on a device that is lost.
static VkResult lose(void) {
    test_device()->vk.QueueWaitIdle(test_device()->queue);
    return VK_ERROR_DEVICE_LOST;
}

static VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t n, const VkSubmitInfo *infos,
                                             VkFence fence) {
    return fails(&g_faults.lost_submit) ? lose()
                                        : test_device()->vk.QueueSubmit(queue, n, infos, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL wait(VkDevice device, uint32_t n, const VkFence *fences,
                                           VkBool32 all, uint64_t timeout_ns) {
    return fails(&g_faults.lost_wait)
               ? lose()
               : test_device()->vk.WaitForFences(device, n, fences, all, timeout_ns);
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice device, const VkMemoryAllocateInfo *info,
                                               const VkAllocationCallbacks *callbacks,
                                               VkDeviceMemory *out) {
    return fails(&g_faults.failed_allocation)
               ? VK_ERROR_OUT_OF_DEVICE_MEMORY
               : test_device()->vk.AllocateMemory(device, info, callbacks, out);
}

// The device's own, which the host has no use for.
#define DEVICE_FUNCTION(name) \
    ((PFN_vk##name)test_device()->vk.GetDeviceProcAddr(test_device()->device, "vk" #name))

static VKAPI_ATTR VkResult VKAPI_CALL compile(VkDevice device, VkPipelineCache cache, uint32_t n,
                                              const VkComputePipelineCreateInfo *infos,
                                              const VkAllocationCallbacks *callbacks,
                                              VkPipeline *out) {
    VkResult result = VK_SUCCESS;
    for (uint32_t i = 0; i < n && result == VK_SUCCESS; ++i) {
        VkComputePipelineCreateInfo info = infos[i];
        if (g_faults.stand_in)
            info.stage.module = g_faults.stand_in;
        pthread_mutex_lock(&g_mutex);
        const int is_failing = fails(&g_faults.failed_pipeline);
        pthread_mutex_unlock(&g_mutex);
        result = is_failing ? VK_ERROR_OUT_OF_HOST_MEMORY
                 : g_faults.fails_subgroups && info.stage.pNext
                     ? VK_ERROR_UNKNOWN
                     : shared_pipelines_compile(device, cache, 1, &info, callbacks, &out[i]);
        pthread_mutex_lock(&g_mutex);
        g_pipelines.made += result == VK_SUCCESS;
        g_pipelines.live += result == VK_SUCCESS;
        pthread_mutex_unlock(&g_mutex);
    }
    return result;
}

static VKAPI_ATTR void VKAPI_CALL drop_pipeline(VkDevice device, VkPipeline pipeline,
                                                const VkAllocationCallbacks *callbacks) {
    pthread_mutex_lock(&g_mutex);
    g_pipelines.live -= pipeline != VK_NULL_HANDLE;
    pthread_mutex_unlock(&g_mutex);
    shared_pipelines_drop(device, pipeline, callbacks);
}

static VKAPI_ATTR VkResult VKAPI_CALL make_cache(VkDevice device,
                                                 const VkPipelineCacheCreateInfo *info,
                                                 const VkAllocationCallbacks *callbacks,
                                                 VkPipelineCache *out) {
    const VkResult result = DEVICE_FUNCTION(CreatePipelineCache)(device, info, callbacks, out);
    g_pipelines.live_caches += result == VK_SUCCESS;
    return result;
}

static VKAPI_ATTR void VKAPI_CALL drop_cache(VkDevice device, VkPipelineCache cache,
                                             const VkAllocationCallbacks *callbacks) {
    g_pipelines.live_caches -= cache != VK_NULL_HANDLE;
    DEVICE_FUNCTION(DestroyPipelineCache)(device, cache, callbacks);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char *name);

// NULL for what is as it should be.
static PFN_vkVoidFunction replacement(const char *name) {
    static const vulkan_replacement all[] = {
        {"vkGetPhysicalDeviceProperties2", (PFN_vkVoidFunction)properties},
        {"vkGetPhysicalDeviceQueueFamilyProperties", (PFN_vkVoidFunction)families},
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_function},
        {"vkQueueSubmit", (PFN_vkVoidFunction)submit},
        {"vkWaitForFences", (PFN_vkVoidFunction)wait},
        {"vkAllocateMemory", (PFN_vkVoidFunction)allocate},
        {"vkCreateComputePipelines", (PFN_vkVoidFunction)compile},
        {"vkDestroyPipeline", (PFN_vkVoidFunction)drop_pipeline},
        {"vkCreatePipelineCache", (PFN_vkVoidFunction)make_cache},
        {"vkDestroyPipelineCache", (PFN_vkVoidFunction)drop_cache}};
    return replacement_of(name, all, sizeof all / sizeof *all);
}

// Names of extensions that became part of Vulkan count as the same function.
static int is_missing(const char *name) {
    return g_faults.missing && !strncmp(name, g_faults.missing, strlen(g_faults.missing));
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char *name) {
    if (is_missing(name))
        return NULL;
    const PFN_vkVoidFunction own = replacement(name);
    const PFN_vkGetDeviceProcAddr shared = (PFN_vkGetDeviceProcAddr)shared_get_instance_proc_addr(
        test_device()->instance, "vkGetDeviceProcAddr");
    return own ? own : shared(device, name);
}

PFN_vkVoidFunction VKAPI_PTR faulty_get_instance_proc_addr(VkInstance instance, const char *name) {
    if (is_missing(name))
        return NULL;
    const PFN_vkVoidFunction own = replacement(name);
    return own ? own : shared_get_instance_proc_addr(instance, name);
}
