// Compiled pipelines that contexts of a test program share. A driver on the CPU takes a second for
// a decode shader, and most test cases open a context for plans that an earlier case had.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_VULKAN_SHARED_PIPELINES_H
#define LK_TESTS_VULKAN_SHARED_PIPELINES_H

#include "vulkan/host.h"

#ifdef __cplusplus
extern "C" {
#endif

// A function that stands before one of the driver's.
typedef struct vulkan_replacement {
    const char *name;
    PFN_vkVoidFunction function;
} vulkan_replacement;
// The function of that name among n; NULL for a name that is not there.
PFN_vkVoidFunction replacement_of(const char *name, const vulkan_replacement *all, size_t n);

// For lk_vulkan_desc. On a device that is a CPU, equal shaders with equal constants are compiled
// once and live until shared_pipelines_close(); on a GPU, where their lifetimes are checked, all is
// the driver's.
PFN_vkVoidFunction VKAPI_PTR shared_get_instance_proc_addr(VkInstance instance, const char *name);

// What a replacement of functions that stands before them calls.
VKAPI_ATTR VkResult VKAPI_CALL shared_pipelines_compile(VkDevice device, VkPipelineCache cache,
                                                        uint32_t n,
                                                        const VkComputePipelineCreateInfo *infos,
                                                        const VkAllocationCallbacks *callbacks,
                                                        VkPipeline *out);
VKAPI_ATTR void VKAPI_CALL shared_pipelines_drop(VkDevice device, VkPipeline pipeline,
                                                 const VkAllocationCallbacks *callbacks);

// Pipelines that were compiled so far and are shared: 0 on a GPU.
uint32_t shared_pipelines_count(void);

// Before the device is destroyed.
void shared_pipelines_close(void);

#ifdef __cplusplus
}
#endif
#endif
