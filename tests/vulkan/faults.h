// Vulkan with something wrong: a loader that stands before the real one for lowkey, and hides,
// changes or fails what a test says. It counts pipelines, which any thread may make.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_VULKAN_FAULTS_H
#define LK_TESTS_VULKAN_FAULTS_H

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vulkan_faults {
    const char *missing;   // a function that there is not
    int rounds_otherwise;  // no shaderRoundingModeRTEFloat32
    int has_no_compute;    // no queue family computes
    // The call, counted from 1, that fails with all later ones; 0 = none.
    uint32_t lost_submit;
    uint32_t lost_wait;          // for fences
    uint32_t failed_allocation;  // of device memory
    uint32_t failed_pipeline;
    int fails_subgroups;      // no shader of a required subgroup size compiles
    VkShaderModule stand_in;  // compiled in place of every other, when it is not null
} vulkan_faults;

typedef struct vulkan_pipelines {
    uint32_t made;         // so far
    uint32_t live;         // and not destroyed yet
    uint32_t live_caches;  // VkPipelineCache
} vulkan_pipelines;

// What is wrong from now on, NULL for nothing.
void faults_set(const vulkan_faults *faults);
// The pipelines of all devices that the function below lists.
vulkan_pipelines faults_pipelines(void);
// A PFN_vkGetInstanceProcAddr.
PFN_vkVoidFunction VKAPI_PTR faulty_get_instance_proc_addr(VkInstance instance, const char *name);

#ifdef __cplusplus
}
#endif
#endif
