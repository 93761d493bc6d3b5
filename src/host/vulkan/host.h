// A program that owns a Vulkan device: the loader is opened at run time, then an instance and a
// device with one compute queue and whatever lowkey makes use of. The tests and the command's
// measurements hand this device to lowkey and run work of their own on it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef VULKAN_HOST_H
#define VULKAN_HOST_H

#define VK_NO_PROTOTYPES
#include <lowkey/vulkan.h>
#include <vulkan/vulkan.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VULKAN_HOST_INSTANCE_FUNCTIONS(X) \
    X(CreateDevice)                       \
    X(CreateDebugUtilsMessengerEXT)       \
    X(DestroyDebugUtilsMessengerEXT)      \
    X(DestroyInstance)                    \
    X(EnumerateDeviceExtensionProperties) \
    X(EnumeratePhysicalDevices)           \
    X(GetDeviceProcAddr)                  \
    X(GetPhysicalDeviceFeatures2)         \
    X(GetPhysicalDeviceMemoryProperties)  \
    X(GetPhysicalDeviceProperties)        \
    X(GetPhysicalDeviceQueueFamilyProperties)

#define VULKAN_HOST_DEVICE_FUNCTIONS(X) \
    X(AllocateCommandBuffers)           \
    X(AllocateMemory)                   \
    X(BeginCommandBuffer)               \
    X(BindBufferMemory)                 \
    X(CmdBindPipeline)                  \
    X(CmdCopyBuffer)                    \
    X(CmdDispatch)                      \
    X(CmdPipelineBarrier)               \
    X(CmdPushConstants)                 \
    X(CmdResetQueryPool)                \
    X(CmdWriteTimestamp)                \
    X(CreateBuffer)                     \
    X(CreateCommandPool)                \
    X(CreateComputePipelines)           \
    X(CreateFence)                      \
    X(CreatePipelineLayout)             \
    X(CreateQueryPool)                  \
    X(CreateSemaphore)                  \
    X(CreateShaderModule)               \
    X(DestroyBuffer)                    \
    X(DestroyCommandPool)               \
    X(DestroyDevice)                    \
    X(DestroyFence)                     \
    X(DestroyPipeline)                  \
    X(DestroyPipelineLayout)            \
    X(DestroyQueryPool)                 \
    X(DestroySemaphore)                 \
    X(DestroyShaderModule)              \
    X(DeviceWaitIdle)                   \
    X(EndCommandBuffer)                 \
    X(FreeMemory)                       \
    X(GetBufferDeviceAddress)           \
    X(GetBufferMemoryRequirements)      \
    X(GetDeviceQueue)                   \
    X(GetQueryPoolResults)              \
    X(GetSemaphoreCounterValue)         \
    X(MapMemory)                        \
    X(QueueSubmit)                      \
    X(QueueWaitIdle)                    \
    X(ResetFences)                      \
    X(SignalSemaphore)                  \
    X(WaitForFences)                    \
    X(WaitSemaphores)

typedef struct vulkan_functions {
#define VULKAN_HOST_MEMBER(name) PFN_vk##name name;
    VULKAN_HOST_INSTANCE_FUNCTIONS(VULKAN_HOST_MEMBER)
    VULKAN_HOST_DEVICE_FUNCTIONS(VULKAN_HOST_MEMBER)
#undef VULKAN_HOST_MEMBER
} vulkan_functions;

// VK_KHR_cooperative_matrix, which headers before 1.3.255 do not have.
#define VULKAN_MATRIX_USES "VK_KHR_cooperative_matrix"
#define VULKAN_MATRIX_USE_FEATURES ((VkStructureType)1000506000)
typedef struct vulkan_matrix_use_features {
    VkStructureType sType;
    void *pNext;
    VkBool32 cooperativeMatrix;
    VkBool32 cooperativeMatrixRobustBufferAccess;
} vulkan_matrix_use_features;

// Null when a call did what it says, else the reason as a static text.
typedef const char *vulkan_failure;

typedef struct vulkan_host_options {
    uint32_t device_index;
    // Not null: the validation layer checks all calls, with synchronisation, where it is
    // installed, and each of its messages comes here.
    void (*on_message)(const char *message);
    // The device makes pipelines and runs nothing: it has no command buffer, and its pipelines can
    // report what the driver made of them. A driver without hardware has no fences.
    int only_compiles;
} vulkan_host_options;

enum { VULKAN_HOST_EXTENSIONS = 5 };

typedef struct vulkan_host {
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    uint32_t queue_family;
    VkQueue queue;
    VkCommandBuffer commands;
    vulkan_functions vk;
    VkPhysicalDeviceProperties properties;
    uint32_t timestamp_bits;  // of the queue's family; 0: it has no timestamps
    int is_validated;
    int validates_matrix_uses;  // or the layer is older than the extension, which it would report
    // As enabled, features and what hangs on them.
    VkPhysicalDeviceFeatures2 features;
    VkPhysicalDeviceVulkan11Features features11;
    VkPhysicalDeviceVulkan12Features features12;
    VkPhysicalDeviceSubgroupSizeControlFeatures subgroup_size_features;
    VkPhysicalDeviceShaderIntegerDotProductFeatures dot_product_features;
    VkPhysicalDeviceCooperativeMatrixFeaturesNV matrix_features;
    vulkan_matrix_use_features matrix_use_features;
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR statistics_features;
    const char *extensions[VULKAN_HOST_EXTENSIONS];
    uint32_t n_extensions;

    void *library;
    void (*on_message)(const char *message);
    VkDebugUtilsMessengerEXT messenger;
    VkCommandPool pool;
    VkFence fence;
} vulkan_host;

// Must stay at its address until vulkan_host_close(), which also ends the objects of a failed open.
vulkan_failure vulkan_host_open(const vulkan_host_options *options, vulkan_host *host);
void vulkan_host_close(vulkan_host *host);
// The device alone; the instance stays, and with it the driver is loaded.
void vulkan_host_close_device(vulkan_host *host);
// The description with which lowkey takes over this device.
void vulkan_host_describe(const vulkan_host *host, lk_vulkan_desc *desc);

// Begin to record into `commands`, of which there is one.
vulkan_failure vulkan_host_record(const vulkan_host *host);
// End the recording, submit it and wait: the memory that it wrote can be read.
vulkan_failure vulkan_host_submit(const vulkan_host *host);
// The same for everything that was submitted before.
vulkan_failure vulkan_host_wait(const vulkan_host *host);
// Earlier recorded or submitted work is done and visible to later work.
void vulkan_host_barrier(const vulkan_host *host);

// A pipeline whose only input is push constants.
typedef struct vulkan_program {
    VkPipelineLayout layout;
    VkPipeline pipeline;
    uint32_t push_bytes;
} vulkan_program;
vulkan_failure vulkan_program_create(vulkan_host *host, const uint32_t *spirv, size_t spirv_bytes,
                                     uint32_t push_bytes, vulkan_program *program);
void vulkan_program_destroy(vulkan_host *host, vulkan_program *program);
// Record it.
void vulkan_program_run(const vulkan_host *host, const vulkan_program *program, const void *push,
                        uint32_t n_groups);

// A buffer with memory of its own, its bytes zero when it is mapped.
typedef struct vulkan_buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    VkBufferUsageFlags usage;
    uint64_t bytes;
    uint64_t address;  // the device's; 0 without the usage for it
    void *mapped;      // null in memory of the device alone
} vulkan_buffer;
// Storage that can be copied and has an address.
#define VULKAN_BUFFER_USAGE                                                           \
    (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT | \
     VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)
vulkan_failure vulkan_buffer_create(vulkan_host *host, uint64_t bytes, VkBufferUsageFlags usage,
                                    int is_mapped, vulkan_buffer *buffer);
void vulkan_buffer_destroy(vulkan_host *host, vulkan_buffer *buffer);

#ifdef __cplusplus
}
#endif
#endif
