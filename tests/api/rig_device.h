// Where the tensors of steps lie, and what orders the work on them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_RIG_DEVICE_H
#define LK_TESTS_API_RIG_DEVICE_H

#include <lowkey/lowkey.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rig_device {
    lk_backend backend;
    lk_memory_kind memory;
    const lk_queue *queue;         // NULL on the CPU
    void *(*alloc)(size_t bytes);  // zeros
    void (*release)(void *memory);
    void (*put)(void *to, const void *from, size_t bytes);
    void (*get)(void *to, const void *from, size_t bytes);  // after the work on the queue
    void (*wait)(void);                                     // for the work on the queue
    // NULL where tensors lie at pointers: puts a tensor's first element at `memory` or at NULL, and
    // tells where it is.
    void (*point)(lk_context *context, lk_tensor *tensor, void *memory);
    void *(*first)(const lk_tensor *tensor);
    void (*describe)(lk_context_desc *desc);  // fields other than its backend, or NULL
} rig_device;

const rig_device *rig_host(void);
// The first GPU. Ends the program as skipped, with the reason, when there is none.
const rig_device *rig_cuda(void);
// The first Vulkan device, likewise, with tensors in host memory or in buffers.
const rig_device *rig_vulkan(void);
const rig_device *rig_vulkan_buffers(void);
// Takes features away from the Vulkan device of contexts, by the names of test_mask().
void rig_vulkan_mask(const char *names);
// cuda, vulkan or vulkan-buffers, else the CPU.
const rig_device *rig_named(const char *name);

#ifdef __cplusplus
}
#endif
#endif
