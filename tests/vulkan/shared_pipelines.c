// SPDX-License-Identifier: Apache-2.0
#include "shared_pipelines.h"

#include "device.h"

#include <pthread.h>
#include <string.h>

#define MOST_PIPELINES 4096
#define MOST_MODULES 64  // that live at the same time

// What a pipeline is made of, hashed.
typedef struct shared_pipeline {
    uint64_t key;
    VkPipeline pipeline;
} shared_pipeline;
typedef struct module_key {
    VkShaderModule module;
    uint64_t key;
} module_key;

static shared_pipeline g_pipelines[MOST_PIPELINES];
static uint32_t g_n_pipelines;
static module_key g_modules[MOST_MODULES];
static pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;

static const vulkan_functions *vk(void) { return &test_device()->vk; }

// FNV-1a of 64 bits.
static uint64_t hashed(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001B3ull;
    return hash;
}

// The entry of a module; of VK_NULL_HANDLE, a free one. The mutex is held.
static module_key *find_module(VkShaderModule module) {
    for (uint32_t i = 0; i < MOST_MODULES; ++i)
        if (g_modules[i].module == module)
            return &g_modules[i];
    return NULL;
}

static VKAPI_ATTR VkResult VKAPI_CALL make_module(VkDevice device,
                                                  const VkShaderModuleCreateInfo *info,
                                                  const VkAllocationCallbacks *callbacks,
                                                  VkShaderModule *out) {
    const VkResult result = vk()->CreateShaderModule(device, info, callbacks, out);
    if (result != VK_SUCCESS)
        return result;
    pthread_mutex_lock(&g_mutex);
    module_key *own = find_module(VK_NULL_HANDLE);
    if (own) {
        own->module = *out;
        own->key = hashed(0xCBF29CE484222325ull, info->pCode, info->codeSize);
    }
    pthread_mutex_unlock(&g_mutex);
    return result;
}

static VKAPI_ATTR void VKAPI_CALL drop_module(VkDevice device, VkShaderModule module,
                                              const VkAllocationCallbacks *callbacks) {
    pthread_mutex_lock(&g_mutex);
    module_key *own = module ? find_module(module) : NULL;
    if (own)
        own->module = VK_NULL_HANDLE;
    pthread_mutex_unlock(&g_mutex);
    vk()->DestroyShaderModule(device, module, callbacks);
}

// 0 for what is not shared: a module that is not known. The mutex is held.
static uint64_t key_of(const VkComputePipelineCreateInfo *info) {
    const module_key *module = find_module(info->stage.module);
    if (!module)
        return 0;
    uint64_t key = module->key;
    const VkSpecializationInfo *constants = info->stage.pSpecializationInfo;
    if (constants) {
        for (uint32_t i = 0; i < constants->mapEntryCount; ++i) {
            const VkSpecializationMapEntry *entry = &constants->pMapEntries[i];
            key = hashed(key, &entry->constantID, sizeof entry->constantID);
            key = hashed(key, (const char *)constants->pData + entry->offset, entry->size);
        }
    }
    for (const VkBaseInStructure *next = info->stage.pNext; next; next = next->pNext)
        if (next->sType ==
            VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO)
            key = hashed(
                key,
                &((const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *)(const void *)next)
                     ->requiredSubgroupSize,
                sizeof(uint32_t));
        else
            return 0;
    return key;
}

static VkResult compile_one(VkDevice device, VkPipelineCache cache,
                            const VkComputePipelineCreateInfo *info,
                            const VkAllocationCallbacks *callbacks, VkPipeline *out) {
    const uint64_t key = key_of(info);
    for (uint32_t i = 0; key && i < g_n_pipelines; ++i)
        if (g_pipelines[i].key == key) {
            *out = g_pipelines[i].pipeline;
            return VK_SUCCESS;
        }
    const VkResult result = vk()->CreateComputePipelines(device, cache, 1, info, callbacks, out);
    if (result == VK_SUCCESS && key && g_n_pipelines < MOST_PIPELINES)
        g_pipelines[g_n_pipelines++] = (shared_pipeline){key, *out};
    return result;
}

VKAPI_ATTR VkResult VKAPI_CALL shared_pipelines_compile(VkDevice device, VkPipelineCache cache,
                                                        uint32_t n,
                                                        const VkComputePipelineCreateInfo *infos,
                                                        const VkAllocationCallbacks *callbacks,
                                                        VkPipeline *out) {
    if (test_device()->properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU)
        return vk()->CreateComputePipelines(device, cache, n, infos, callbacks, out);
    VkResult result = VK_SUCCESS;
    pthread_mutex_lock(&g_mutex);
    for (uint32_t i = 0; i < n && result == VK_SUCCESS; ++i)
        result = compile_one(device, cache, &infos[i], callbacks, &out[i]);
    pthread_mutex_unlock(&g_mutex);
    return result;
}

VKAPI_ATTR void VKAPI_CALL shared_pipelines_drop(VkDevice device, VkPipeline pipeline,
                                                 const VkAllocationCallbacks *callbacks) {
    int is_shared = 0;
    pthread_mutex_lock(&g_mutex);
    for (uint32_t i = 0; i < g_n_pipelines; ++i)
        is_shared |= g_pipelines[i].pipeline == pipeline;
    pthread_mutex_unlock(&g_mutex);
    if (!is_shared)
        vk()->DestroyPipeline(device, pipeline, callbacks);
}

uint32_t shared_pipelines_count(void) {
    pthread_mutex_lock(&g_mutex);
    const uint32_t n = g_n_pipelines;
    pthread_mutex_unlock(&g_mutex);
    return n;
}

void shared_pipelines_close(void) {
    while (g_n_pipelines)
        vk()->DestroyPipeline(test_device()->device, g_pipelines[--g_n_pipelines].pipeline, NULL);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char *name);

PFN_vkVoidFunction replacement_of(const char *name, const vulkan_replacement *all, size_t n) {
    for (size_t i = 0; i < n; ++i)
        if (!strcmp(name, all[i].name))
            return all[i].function;
    return NULL;
}

// NULL for what is the driver's.
static PFN_vkVoidFunction replacement(const char *name) {
    static const vulkan_replacement all[] = {
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_function},
        {"vkCreateShaderModule", (PFN_vkVoidFunction)make_module},
        {"vkDestroyShaderModule", (PFN_vkVoidFunction)drop_module},
        {"vkCreateComputePipelines", (PFN_vkVoidFunction)shared_pipelines_compile},
        {"vkDestroyPipeline", (PFN_vkVoidFunction)shared_pipelines_drop}};
    return replacement_of(name, all, sizeof all / sizeof *all);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char *name) {
    const PFN_vkVoidFunction own = replacement(name);
    return own ? own : vk()->GetDeviceProcAddr(device, name);
}

PFN_vkVoidFunction VKAPI_PTR shared_get_instance_proc_addr(VkInstance instance, const char *name) {
    const PFN_vkVoidFunction own = replacement(name);
    return own ? own : test_device()->get_instance_proc_addr(instance, name);
}
