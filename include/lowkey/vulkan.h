/* lowkey: Vulkan. Opening a context on lowkey's own device or on the host's, buffers of the
 * host as tensors, and the cache of pipelines. Nothing here needs the headers of Vulkan: a
 * handle that can be dispatched (VkInstance, VkDevice, VkQueue ...) is a void *, any other is
 * a uint64_t.
 *
 * What compiled pipelines take does not grow with the number of plans that a context has seen:
 * those of open caches stay, and of all others the last 64.
 *
 * Once work was recorded in a context, memory that its caches give back serves their next needs
 * and returns to the driver with the last of them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_VULKAN_H
#define LOWKEY_VULKAN_H

#include <lowkey/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a device offers and lowkey is not to use, to test every path on one device. */
enum {
    LK_VULKAN_NO_FLOAT16 = 0x1,            /* shaderFloat16 */
    LK_VULKAN_NO_SUBGROUP = 0x2,           /* subgroup arithmetic and shuffles */
    LK_VULKAN_NO_INTEGER_DOT = 0x4,        /* VK_KHR_shader_integer_dot_product */
    LK_VULKAN_NO_COOPERATIVE_MATRIX = 0x8, /* VK_NV_cooperative_matrix */
    LK_VULKAN_NO_TIMELINE = 0x10           /* timelineSemaphore */
};

/* Any function; cast from and to its own type. */
typedef void (*lk_vulkan_function)(void);
/* Around every vkQueueSubmit() of lowkey on the host's queue. Must not call lowkey. */
typedef void (*lk_vulkan_lock_fn)(void *user);

/* How to open Vulkan: lk_context_desc.vulkan. Read by lk_context_open() only, but for the
 * callbacks and what the handles name.
 *
 * With `device` NULL lowkey finds the loader (libvulkan.so.1) at run time and makes an
 * instance and a device of its own, number lk_context_desc.device_index.
 *
 * Else the host's device is used, which must outlive the context: get_instance_proc_addr,
 * instance, physical_device, queue, queue_family, api_version, the extensions and features are
 * set. Both it and api_version are 1.1 or later, shaderRoundingModeRTEFloat32 is among its
 * properties, and it was made with
 *
 *   bufferDeviceAddress, storageBuffer8BitAccess, storageBuffer16BitAccess
 *
 * and, of version 1.1, with the extensions VK_KHR_buffer_device_address, VK_KHR_8bit_storage
 * and VK_KHR_shader_float_controls. Used when they were enabled: shaderFloat16,
 * timelineSemaphore, subgroupSizeControl, shaderIntegerDotProduct, and cooperativeMatrix of
 * VK_NV_cooperative_matrix with vulkanMemoryModel, which takes vulkanMemoryModelDeviceScope.
 *
 * A device that is lost, the host's too, stays lost: every call that needs it returns
 * LK_E_DEVICE from then on, and none waits for it. */
typedef struct lk_vulkan_desc {
    uint32_t size;        /* sizeof(lk_vulkan_desc) */
    uint32_t mask;        /* LK_VULKAN_NO_* bits, 0 = use what the device has */
    uint32_t validation;  /* own device: 1 = VK_LAYER_KHRONOS_validation, synchronization
                           * included; its messages go to lk_context_desc.log */
    uint32_t api_version; /* of the host's VkApplicationInfo, as VK_MAKE_API_VERSION */
    lk_vulkan_function get_instance_proc_addr; /* PFN_vkGetInstanceProcAddr */
    void *instance;                            /* VkInstance */
    void *physical_device;                     /* VkPhysicalDevice */
    void *device;                              /* VkDevice, or NULL for one of lowkey's own */
    void *queue;                               /* VkQueue of a family with compute */
    uint32_t queue_family;                     /* its index */
    uint32_t n_extensions;                     /* of extensions */
    const char *const *extensions;             /* [n_extensions] that the device was made with */
    const void *features;           /* VkPhysicalDeviceFeatures2 with its chain, as enabled */
    lk_vulkan_lock_fn lock_queue;   /* both or neither. NULL = the host leaves the queue alone */
    lk_vulkan_lock_fn unlock_queue; /* while a call of lowkey on the context or its caches runs */
    void *lock_user;                /* given to both */
    const void *pipeline_cache;     /* what lk_vulkan_pipeline_cache() gave, or NULL */
    uint64_t pipeline_cache_bytes;  /* its size */
} lk_vulkan_desc;
LK_API lk_status lk_vulkan_desc_init(lk_vulkan_desc *desc, size_t struct_bytes);

/* Make a buffer of the host known, so that tensors may lie in it: lk_tensor.buffer.
 *
 * buffer  VkBuffer of the context's device, bound to memory
 * bytes   its size
 * usage   VkBufferUsageFlags that it was made with
 *
 * It must stay until lk_vulkan_buffer_remove(). Any thread.
 *
 * Errors: LK_E_ARGUMENT (NULL, 0; usage without VK_BUFFER_USAGE_STORAGE_BUFFER_BIT or
 * VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT; known already), LK_E_UNSUPPORTED (not a Vulkan
 * context, or it has a device of its own), LK_E_NOMEM. */
LK_API lk_status lk_vulkan_buffer_add(lk_context *context, uint64_t buffer, uint64_t bytes,
                                      uint32_t usage);

/* Forget a buffer. Work that uses it must have run. Any thread.
 * Errors: LK_E_ARGUMENT (NULL), LK_E_NOT_FOUND, LK_E_UNSUPPORTED. */
LK_API lk_status lk_vulkan_buffer_remove(lk_context *context, uint64_t buffer);

/* Copy what the driver compiled for this context: the last 128 pipelines at least, and at most
 * 256 and what the context was given. A cache has up to 8 for each kind of layer. Given to a
 * later context of the same device and driver as lk_vulkan_desc.pipeline_cache, it saves
 * compiling again; another driver ignores it.
 *
 * buffer        [capacity_bytes], may be NULL when capacity_bytes is 0
 * needed_bytes  set to the size; may be NULL
 *
 * Any thread. Errors: LK_E_ARGUMENT (NULL; a capacity that is too small: nothing is copied,
 * needed_bytes is set), LK_E_UNSUPPORTED (not a Vulkan context), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_vulkan_pipeline_cache(const lk_context *context, void *buffer,
                                          uint64_t capacity_bytes, uint64_t *needed_bytes);

#ifdef __cplusplus
}
#endif
#endif
