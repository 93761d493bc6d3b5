// Vulkan with something wrong: a loader that stands before the real one for lowkey, and hides,
// changes or fails what a test says.
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
    // The call, counted from 1, that fails with all behind it; 0 = none.
    uint32_t lost_submit;
    uint32_t lost_wait;          // for fences
    uint32_t failed_allocation;  // of device memory
} vulkan_faults;

// What is wrong from now on, NULL for nothing.
void faults_set(const vulkan_faults *faults);
// A PFN_vkGetInstanceProcAddr.
PFN_vkVoidFunction VKAPI_PTR faulty_get_instance_proc_addr(VkInstance instance, const char *name);

#ifdef __cplusplus
}
#endif
#endif
