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
    const char *missing;    // a function that there is not
    int rounds_otherwise;   // no shaderRoundingModeRTEFloat32
    int has_no_compute;     // no queue family computes
    int64_t n_submits;      // that are well before one is lost; -1 = all
    int64_t n_waits;        // for fences, likewise
    int64_t n_allocations;  // of device memory before there is none; -1 = all
} vulkan_faults;

// What is wrong from now on, NULL for nothing.
void faults_set(const vulkan_faults *faults);
// A PFN_vkGetInstanceProcAddr.
PFN_vkVoidFunction VKAPI_PTR faulty_get_instance_proc_addr(VkInstance instance, const char *name);

#ifdef __cplusplus
}
#endif
#endif
