// lowkey's nodes in llama.cpp's Vulkan backend: what the hooks in ggml-vulkan.cpp call.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_VULKAN_HPP
#define LOWKEY_VULKAN_HPP

#include <ggml-vulkan/ggml-vulkan-common.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "lowkey-vulkan.h"

// What a device was made with.
struct lowkey_kept_device {
    std::vector<const char *> extensions;
    VkPhysicalDeviceFeatures2 features;
    VkPhysicalDeviceVulkan11Features features_11;
    VkPhysicalDeviceVulkan12Features features_12;
    VkPhysicalDeviceShaderIntegerDotProductFeatures integer_dot;
    VkPhysicalDeviceSubgroupSizeControlFeatures subgroup_size;
    VkPhysicalDeviceCooperativeMatrixFeaturesNV matrix;  // in ggml's chain
    VkPhysicalDeviceCooperativeMatrixFeaturesNV kept_matrix;
#ifdef VK_KHR_cooperative_matrix
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix_uses;
#endif
    lowkey_vulkan_device description;
};

static lowkey_vulkan lowkey_calls;
static std::map<const vk_device_struct *, lowkey_kept_device> lowkey_devices;
static std::mutex lowkey_devices_mutex;

// Copies a struct of the chain of `from`, and links the copy to `kept`.
template <typename Struct>
static void lowkey_keep(VkPhysicalDeviceFeatures2 *kept, const VkPhysicalDeviceFeatures2 &from,
                        VkStructureType type, Struct *copy) {
    for (auto *next = static_cast<const VkBaseInStructure *>(from.pNext); next != nullptr;
         next = next->pNext) {
        if (next->sType != type)
            continue;
        std::memcpy(copy, next, sizeof *copy);
        copy->pNext = kept->pNext;
        kept->pNext = copy;
        return;
    }
}

// Adds an extension that the device has.
static bool lowkey_add_extension(const vk_device &device, std::vector<const char *> &extensions,
                                 const char *name) {
    for (const auto &known : device->physical_device.enumerateDeviceExtensionProperties()) {
        if (std::strcmp(known.extensionName, name) != 0)
            continue;
        extensions.push_back(name);
        return true;
    }
    return false;
}

// Adds what lowkey alone uses: the number of multiprocessors, and the matrices that it multiplies
// with, since ggml uses those of another extension.
static void lowkey_add_extensions(const vk_device &device, std::vector<const char *> &extensions,
                                  VkPhysicalDeviceFeatures2 &features,
                                  VkPhysicalDeviceCooperativeMatrixFeaturesNV &matrix) {
    lowkey_add_extension(device, extensions, VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME);
    lowkey_add_extension(device, extensions, VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME);
    if (!lowkey_add_extension(device, extensions, VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME))
        return;
    matrix.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV;
    VkPhysicalDeviceFeatures2 offered{};
    offered.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    offered.pNext = &matrix;
    vkGetPhysicalDeviceFeatures2(device->physical_device, &offered);
    matrix.cooperativeMatrixRobustBufferAccess = VK_FALSE;
    matrix.pNext = features.pNext;
    features.pNext = &matrix;
}

// Before the device is made. The features that lowkey uses are in these structs.
static void lowkey_prepare_device(const vk_device &device, std::vector<const char *> &extensions,
                                  VkPhysicalDeviceFeatures2 &features) {
    const std::lock_guard<std::mutex> lock(lowkey_devices_mutex);
    lowkey_kept_device &kept = lowkey_devices[device.get()];
    lowkey_add_extensions(device, extensions, features, kept.matrix);
    kept.extensions = extensions;
    kept.features = features;
    kept.features.pNext = nullptr;
    VkPhysicalDeviceFeatures2 *head = &kept.features;
    lowkey_keep(head, features, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                &kept.features_11);
    lowkey_keep(head, features, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                &kept.features_12);
    lowkey_keep(head, features,
                VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES,
                &kept.integer_dot);
    lowkey_keep(head, features, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
                &kept.subgroup_size);
    lowkey_keep(head, features, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV,
                &kept.kept_matrix);
#ifdef VK_KHR_cooperative_matrix
    lowkey_keep(head, features, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
                &kept.matrix_uses);
#endif
}

static vk_device lowkey_device_of(ggml_backend_device *device) {
    return ggml_vk_get_device(
        static_cast<ggml_backend_vk_device_context *>(device->context)->device);
}

// The locks of ggml's own submissions, in their order.
static void lowkey_lock_queue(void *user) {
    auto *queue = static_cast<vk_queue_handle *>(user);
    if (queue->device_submit_mutex != nullptr)
        queue->device_submit_mutex->lock();
    queue->lock();
}

static void lowkey_unlock_queue(void *user) {
    auto *queue = static_cast<vk_queue_handle *>(user);
    queue->unlock();
    if (queue->device_submit_mutex != nullptr)
        queue->device_submit_mutex->unlock();
}

static const lowkey_vulkan_device *lowkey_describe(ggml_backend_device *device) {
    const vk_device made = lowkey_device_of(device);
    const std::lock_guard<std::mutex> lock(lowkey_devices_mutex);
    lowkey_kept_device &kept = lowkey_devices.at(made.get());
    lowkey_vulkan_device &out = kept.description;
    vk_queue_handle *queue = made->compute_queue->handle.get();
    out.get_instance_proc_addr = reinterpret_cast<void (*)(void)>(vkGetInstanceProcAddr);
    out.instance = static_cast<VkInstance>(vk_instance.instance);
    out.physical_device = static_cast<VkPhysicalDevice>(made->physical_device);
    out.device = static_cast<VkDevice>(made->device);
    out.queue = static_cast<VkQueue>(queue->queue);
    out.queue_family = made->compute_queue->queue_family_index;
    out.api_version = vk::enumerateInstanceVersion();  // ggml's instance is of this version
    out.n_extensions = static_cast<uint32_t>(kept.extensions.size());
    out.extensions = kept.extensions.data();
    out.features = &kept.features;
    out.lock_queue = lowkey_lock_queue;
    out.unlock_queue = lowkey_unlock_queue;
    out.lock_user = queue;
    return &out;
}

static void lowkey_wait(ggml_backend_device *device) {
    vk_queue_handle *queue = lowkey_device_of(device)->compute_queue->handle.get();
    lowkey_lock_queue(queue);
    queue->queue.waitIdle();
    lowkey_unlock_queue(queue);
}

static void *lowkey_proc_address(ggml_backend_reg_t, const char *name) {
    if (std::strcmp(name, LOWKEY_VULKAN_NAME) != 0)
        return nullptr;
    lowkey_calls.describe = lowkey_describe;
    lowkey_calls.wait = lowkey_wait;
    return &lowkey_calls;
}

static bool lowkey_is_on(const ggml_tensor *node, ggml_backend_device *device) {
    return lowkey_calls.is_on != nullptr && lowkey_calls.is_on(node, device);
}

static void lowkey_record(ggml_backend_vk_context *ctx, vk_context &subctx, ggml_tensor *node) {
    const ggml_tensor *tensors[LOWKEY_VULKAN_TENSORS] = {node->src[0], node->src[1], node->src[2],
                                                         node};
    lowkey_vulkan_bytes bytes[LOWKEY_VULKAN_TENSORS];
    vk_buffer out;
    for (int i = 0; i < LOWKEY_VULKAN_TENSORS; ++i) {
        out = ggml_vk_tensor_subbuffer(ctx, tensors[i], true).buffer;
        bytes[i].buffer = reinterpret_cast<uint64_t>(static_cast<VkBuffer>(out->buffer));
        bytes[i].buffer_bytes = out->size;
        bytes[i].usage =
            VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
            (ctx->device->buffer_device_address ? VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT : 0);
        bytes[i].offset_bytes = ggml_vk_tensor_buffer_offset(ctx, tensors[i]);
    }
    const uint64_t n_destroyed = ctx->device->buffer_destroy_count.load(std::memory_order_acquire);
    if (!lowkey_calls.record(node, static_cast<VkCommandBuffer>(subctx->s->buffer->buf), bytes,
                             n_destroyed))
        subctx->s->buffer->buf.fillBuffer(
            out->buffer, bytes[LOWKEY_VULKAN_TENSORS - 1].offset_bytes, ggml_nbytes(node), 0);
}

#endif
