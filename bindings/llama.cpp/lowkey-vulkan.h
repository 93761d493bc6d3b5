// What llama.cpp's Vulkan backend and lowkey's adapter know of each other. Both include this file;
// the backend may be a library that is loaded at run time.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_LLAMA_VULKAN_H
#define LOWKEY_LLAMA_VULKAN_H

#include <stdint.h>

struct ggml_backend_device;
struct ggml_tensor;

// The backend's get_proc_address() has it under this name.
#define LOWKEY_VULKAN_NAME "lowkey_vulkan"

// A device of the backend, as lk_vulkan_desc has it.
struct lowkey_vulkan_device {
    void (*get_instance_proc_addr)(void);
    void *instance;
    void *physical_device;
    void *device;
    void *queue;
    uint32_t queue_family;
    uint32_t api_version;
    uint32_t n_extensions;
    const char *const *extensions;
    const void *features;
    void (*lock_queue)(void *user);
    void (*unlock_queue)(void *user);
    void *lock_user;
};

// Where a tensor is.
struct lowkey_vulkan_bytes {
    uint64_t buffer;  // VkBuffer
    uint64_t buffer_bytes;
    uint32_t usage;  // VkBufferUsageFlags
    uint64_t offset_bytes;
};

enum { LOWKEY_VULKAN_TENSORS = 4 };  // queries, keys, values, output

struct lowkey_vulkan {
    // Of the backend. The device that ggml has made, valid until the process ends.
    const lowkey_vulkan_device *(*describe)(ggml_backend_device *device);
    // Waits until the device's queue has run all that was submitted.
    void (*wait)(ggml_backend_device *device);

    // Of the adapter, set before the first graph. `node` is any GGML_OP_CUSTOM.
    // Whether the node is attention with a cache on the device.
    bool (*is_on)(const ggml_tensor *node, ggml_backend_device *device);
    // Records the node's work into a VkCommandBuffer. n_destroyed counts the buffers that the
    // backend has destroyed: their handles may by now be those of others. False: it failed, and
    // the batch will fail after its graph; meanwhile the node's output is zero.
    bool (*record)(ggml_tensor *node, void *commands, const lowkey_vulkan_bytes *tensors,
                   uint64_t n_destroyed);
};

#endif
