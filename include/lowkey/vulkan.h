/* lowkey: Vulkan. A context on lowkey's own device or on the host's, buffers of the host as
 * tensors, and the cache of pipelines. This header needs no header of Vulkan: a dispatchable handle
 * (VkInstance, VkDevice, VkQueue ...) is a void *, any other handle is a uint64_t.
 *
 * A context keeps the pipelines of its open caches and the last 64 of all others, so compiled
 * pipelines take bounded memory however many plans the context runs.
 *
 * After the first recorded step of a context, its caches share the memory that they free; the last
 * cache returns it to the driver.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_VULKAN_H
#define LOWKEY_VULKAN_H

#include <lowkey/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of lk_vulkan_desc.mask. Each bit disables a feature of the device, so that one device can
 * test every path. */
enum {
    LK_VULKAN_NO_FLOAT16 = 0x1,            /* shaderFloat16 */
    LK_VULKAN_NO_SUBGROUP = 0x2,           /* subgroup arithmetic and shuffles */
    LK_VULKAN_NO_INTEGER_DOT = 0x4,        /* VK_KHR_shader_integer_dot_product */
    LK_VULKAN_NO_COOPERATIVE_MATRIX = 0x8, /* VK_NV_ and VK_KHR_cooperative_matrix */
    LK_VULKAN_NO_TIMELINE = 0x10           /* timelineSemaphore */
};

/* Any function pointer; cast it to its own type. */
typedef void (*lk_vulkan_function)(void);
/* Runs before or after every vkQueueSubmit() of lowkey on the host's queue. It must not call
 * lowkey. */
typedef void (*lk_vulkan_lock_fn)(void *user);

/* Options of a Vulkan context: lk_context_desc.vulkan. Only lk_context_open() reads the struct; the
 * callbacks and the objects of the handles must outlive the context. Start from
 * lk_vulkan_desc_init().
 *
 * If `device` is NULL, lowkey loads libvulkan.so.1 at run time and creates an instance and a device
 * of its own, with index lk_context_desc.device_index.
 *
 * Otherwise lowkey uses the host's device. The host sets get_instance_proc_addr, instance,
 * physical_device, queue, queue_family, api_version, extensions and features. The device and
 * api_version are of version 1.1 or later, the device has the property
 * shaderRoundingModeRTEFloat32, and the host has created it with
 *
 *   bufferDeviceAddress, storageBuffer8BitAccess, storageBuffer16BitAccess
 *
 * and, in version 1.1, with the extensions VK_KHR_buffer_device_address, VK_KHR_8bit_storage and
 * VK_KHR_shader_float_controls. lowkey uses further features if they are enabled: shaderFloat16,
 * timelineSemaphore, subgroupSizeControl, shaderIntegerDotProduct, and cooperativeMatrix of
 * VK_NV_cooperative_matrix with vulkanMemoryModel, which requires vulkanMemoryModelDeviceScope;
 * next to it cooperativeMatrix of VK_KHR_cooperative_matrix.
 *
 * A lost device, the host's too, stays lost: every later call that needs it returns LK_E_DEVICE,
 * and no call waits for it. */
typedef struct lk_vulkan_desc {
    uint32_t size;        /* sizeof(lk_vulkan_desc) */
    uint32_t mask;        /* LK_VULKAN_NO_* bits; 0 = use all features */
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
    const char *const *extensions;             /* [n_extensions] enabled on the device */
    const void *features;           /* VkPhysicalDeviceFeatures2 with its chain, as enabled */
    lk_vulkan_lock_fn lock_queue;   /* called before a submission. Both or neither is NULL; NULL =
                                     * the host does not use the queue during calls of lowkey on
                                     * the context or its caches */
    lk_vulkan_lock_fn unlock_queue; /* called after a submission */
    void *lock_user;                /* given to both */
    const void *pipeline_cache;     /* bytes of lk_vulkan_pipeline_cache(), or NULL */
    uint64_t pipeline_cache_bytes;  /* its size */
} lk_vulkan_desc;
LK_API lk_status lk_vulkan_desc_init(lk_vulkan_desc *desc, size_t struct_bytes);

/* Register a buffer of the host, so that tensors can use it as lk_tensor.buffer. The buffer stays
 * valid until lk_vulkan_buffer_remove(). Any thread.
 *
 * buffer  VkBuffer of the context's device, bound to memory
 * bytes   its size
 * usage   its VkBufferUsageFlags
 *
 * Errors: LK_E_ARGUMENT (NULL, 0; usage without VK_BUFFER_USAGE_STORAGE_BUFFER_BIT or
 * VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT; a buffer that is registered already),
 * LK_E_UNSUPPORTED (not a Vulkan context, or its device is lowkey's own), LK_E_NOMEM. */
LK_API lk_status lk_vulkan_buffer_add(lk_context *context, uint64_t buffer, uint64_t bytes,
                                      uint32_t usage);

/* Remove a registered buffer after all work that uses it has run. Any thread.
 *
 * Errors: LK_E_ARGUMENT (NULL), LK_E_NOT_FOUND (the buffer is not registered), LK_E_UNSUPPORTED
 * (not a Vulkan context). */
LK_API lk_status lk_vulkan_buffer_remove(lk_context *context, uint64_t buffer);

/* Copy the context's compiled pipelines, for lk_vulkan_desc.pipeline_cache of a later context: on
 * the same device and driver it need not compile them again; another driver ignores them. The copy
 * has the last 128 pipelines at least, and at most 256 and those of this context's own
 * pipeline_cache. A pipeline is made when a cache is opened, or by the first step or call that runs
 * it: copy after a step of each kind. A cache has up to 11 for each kind of layer with pages of one
 * form. Any thread.
 *
 * buffer        [capacity_bytes]; may be NULL with capacity 0
 * needed_bytes  set to the size; may be NULL
 *
 * Errors: LK_E_ARGUMENT (NULL; a capacity that is not 0 and too small: needed_bytes is set, nothing
 * is copied), LK_E_UNSUPPORTED (not a Vulkan context), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_vulkan_pipeline_cache(const lk_context *context, void *buffer,
                                          uint64_t capacity_bytes, uint64_t *needed_bytes);

#ifdef __cplusplus
}
#endif
#endif
