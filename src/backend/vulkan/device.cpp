// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/proc.h"
#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

// Longer than any work of one call, on a software device too.
constexpr uint64_t kPatienceSeconds = 600;
constexpr uint64_t kNsPerSecond = 1000000000;

uint32_t version_of(const Functions &functions, VkPhysicalDevice device,
                    uint32_t instance_version) {
    VkPhysicalDeviceProperties2 properties{};
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    functions.GetPhysicalDeviceProperties2(device, &properties);
    return std::min(properties.properties.apiVersion, instance_version);
}

// Bytes of the largest heap of device memory, all of it and what is not in use.
struct HeapBytes {
    uint64_t total;
    uint64_t free;
};
HeapBytes heap_bytes(const Functions &functions, VkPhysicalDevice device,
                     const Extensions &extensions, bool is_unified) {
    if (is_unified)
        return {memory_line("MemTotal"), memory_line("MemAvailable")};
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{};
    budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
    const bool has_budget = extensions.has(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    VkPhysicalDeviceMemoryProperties2 memory{};
    memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    memory.pNext = has_budget ? &budget : nullptr;
    functions.GetPhysicalDeviceMemoryProperties2(device, &memory);
    HeapBytes bytes{};
    for (uint32_t h = 0; h < memory.memoryProperties.memoryHeapCount; ++h) {
        const VkMemoryHeap &heap = memory.memoryProperties.memoryHeaps[h];
        if (!(heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) || heap.size <= bytes.total)
            continue;
        const uint64_t all = has_budget ? budget.heapBudget[h] : heap.size;
        const uint64_t used = has_budget ? budget.heapUsage[h] : 0;
        bytes = {heap.size, all > used ? all - used : 0};
    }
    return bytes;
}

void write_info(const Traits &traits, const HeapBytes &bytes, lk_device_info *info) {
    info->backend = LK_BACKEND_VULKAN;
    info->n_threads = 0;
    info->memory_bytes = bytes.total;
    info->free_bytes = bytes.free;
    std::snprintf(info->name, sizeof info->name, "%.*s", static_cast<int>(sizeof info->name) - 1,
                  traits.name);
    std::snprintf(
        info->features, sizeof info->features, "Vulkan %u.%u subgroup %u%s%s%s%s%s",
        VK_API_VERSION_MAJOR(traits.api_version), VK_API_VERSION_MINOR(traits.api_version),
        traits.subgroup_size, traits.subgroup ? "" : " (unused)", traits.float16 ? " fp16" : "",
        traits.timeline ? " timeline" : "", traits.cooperative_matrix ? " cooperative-matrix" : "",
        traits.matrix_uses ? " matrix-uses" : "");
}

}  // namespace

void describe_physical_device(const Functions &functions, VkPhysicalDevice device,
                              uint32_t instance_version, lk_device_info *info) {
    const uint32_t version = version_of(functions, device, instance_version);
    Extensions extensions(default_allocator());
    if (extensions.query(functions, device))
        return;
    FeatureChain chain(version, extensions);
    functions.GetPhysicalDeviceFeatures2(device, chain.head());
    const Traits traits = query_traits(functions, device, version, extensions, chain.features(), 0);
    write_info(traits, heap_bytes(functions, device, extensions, traits.is_unified), info);
}

Device::~Device() {
    if (handle_ && is_own_ && functions_.DestroyDevice)
        functions_.DestroyDevice(handle_, nullptr);
}

lk_status Device::open(const lk_context_desc &desc, const lk_vulkan_desc &vulkan) {
    is_own_ = !vulkan.device;
    index_ = desc.device_index;
    lk_status status = is_own_ ? create(desc, vulkan) : import(vulkan);
    if (status)
        return status;
    VkPhysicalDeviceMemoryProperties2 memory{};
    memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    functions_.GetPhysicalDeviceMemoryProperties2(physical_, &memory);
    memory_ = memory.memoryProperties;
    return LK_OK;
}

lk_status Device::create(const lk_context_desc &desc, const lk_vulkan_desc &vulkan) {
    lk_status status =
        instance_.open(vulkan.validation != 0, {desc.log, desc.log_user, desc.log_level});
    if (status)
        return status;
    const Array<VkPhysicalDevice> &found = instance_.physical_devices();
    if (found.empty())
        return fail(LK_E_UNSUPPORTED, "no Vulkan device can be used here: no driver offers one");
    if (desc.device_index >= found.size())
        return fail(LK_E_NOT_FOUND, "there is no Vulkan device %u, the machine has %zu",
                    desc.device_index, found.size());
    functions_ = instance_.functions();
    physical_ = found[desc.device_index];
    const uint32_t version = version_of(functions_, physical_, instance_.api_version());
    if (version < VK_API_VERSION_1_1)
        return fail(LK_E_UNSUPPORTED, "Vulkan device %u is of version 1.0, at least 1.1",
                    desc.device_index);
    Extensions extensions(allocator_);
    status = extensions.query(functions_, physical_);
    if (status)
        return status;
    FeatureChain chain(version, extensions);
    functions_.GetPhysicalDeviceFeatures2(physical_, chain.head());
    Features features = chain.features();
    // Only cooperative matrices need a memory model.
    if (!features.cooperative_matrix || !features.memory_model_device_scope)
        features.memory_model = features.memory_model_device_scope = false;
    // Layers before 1.3.255 report the extension as an error.
    if (!features.cooperative_matrix || vulkan.validation)
        features.matrix_uses = false;
    traits_ = query_traits(functions_, physical_, version, extensions, features, vulkan.mask);
    status = check_required(traits_.name, features, traits_);
    if (!status)
        status = choose_family();
    if (!status)
        status = create_handle(extensions, features);
    if (!status)
        status = load_device_functions(handle_, &functions_);
    if (!status)
        functions_.GetDeviceQueue(handle_, queue_family_, 0, &queue_);
    return status;
}

lk_status Device::create_handle(const Extensions &extensions, const Features &features) {
    FeatureChain chain(traits_.api_version, extensions);
    chain.set(features);
    const char *names[kMaxExtensions];
    const float priority = 1.0F;
    VkDeviceQueueCreateInfo queue{};
    queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
    queue.queueFamilyIndex = queue_family_;
    queue.queueCount = 1;
    queue.pQueuePriorities = &priority;
    VkDeviceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
    info.pNext = chain.head();
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queue;
    info.enabledExtensionCount = extension_names(traits_.api_version, features, names);
    info.ppEnabledExtensionNames = names;
    return checked(functions_.CreateDevice(physical_, &info, nullptr, &handle_),
                   "making a Vulkan device");
}

lk_status Device::choose_family() {
    VkQueueFamilyProperties families[16];
    uint32_t n = 16;
    functions_.GetPhysicalDeviceQueueFamilyProperties(physical_, &n, families);
    for (uint32_t f = 0; f < n; ++f)
        if (families[f].queueFlags & VK_QUEUE_COMPUTE_BIT) {
            queue_family_ = f;
            return LK_OK;
        }
    return fail(LK_E_UNSUPPORTED, "%s has no queue for compute", traits_.name);
}

lk_status Device::check_family() const {
    VkQueueFamilyProperties families[16];
    uint32_t n = 16;
    functions_.GetPhysicalDeviceQueueFamilyProperties(physical_, &n, families);
    if (queue_family_ >= n)
        return fail(LK_E_ARGUMENT, "vulkan.queue_family is %u and the device has %u", queue_family_,
                    n);
    if (!(families[queue_family_].queueFlags & VK_QUEUE_COMPUTE_BIT))
        return fail(LK_E_ARGUMENT, "vulkan.queue_family is %u, which has no compute",
                    queue_family_);
    return LK_OK;
}

lk_status Device::import(const lk_vulkan_desc &vulkan) {
    handle_ = static_cast<VkDevice>(vulkan.device);
    physical_ = static_cast<VkPhysicalDevice>(vulkan.physical_device);
    queue_ = static_cast<VkQueue>(vulkan.queue);
    queue_family_ = vulkan.queue_family;
    lock_ = vulkan.lock_queue;
    unlock_ = vulkan.unlock_queue;
    lock_user_ = vulkan.lock_user;
    functions_.GetInstanceProcAddr =
        reinterpret_cast<PFN_vkGetInstanceProcAddr>(vulkan.get_instance_proc_addr);
    lk_status status =
        load_instance_functions(static_cast<VkInstance>(vulkan.instance), &functions_);
    if (status)
        return status;
    const uint32_t version = version_of(functions_, physical_, vulkan.api_version);
    if (version < VK_API_VERSION_1_1)
        return fail(LK_E_UNSUPPORTED, "vulkan.api_version and the device's are %u.%u, at least 1.1",
                    VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
    Extensions offered(allocator_);
    Extensions enabled(allocator_);
    status = offered.query(functions_, physical_);
    if (!status)
        status = enabled.assign(vulkan.extensions, vulkan.n_extensions);
    if (!status)
        status = check_extensions("the imported device", version, enabled);
    if (status)
        return status;
    const Features features = features_of_chain(vulkan.features);
    traits_ = query_traits(functions_, physical_, version, offered, features, vulkan.mask);
    status = check_required("the imported device", features, traits_);
    if (!status)
        status = load_device_functions(handle_, &functions_);
    return status ? status : check_family();
}

void Device::describe(lk_device_info *info) const {
    Extensions extensions(allocator_);
    if (extensions.query(functions_, physical_) == LK_OK)
        write_info(traits_, heap_bytes(functions_, physical_, extensions, traits_.is_unified),
                   info);
    info->backend = LK_BACKEND_VULKAN;
    info->index = index_;
}

lk_status Device::checked(VkResult result, const char *action) const {
    switch (result) {
        case VK_SUCCESS: return LK_OK;
        case VK_ERROR_OUT_OF_HOST_MEMORY: return fail(LK_E_NOMEM, "%s: no host memory", action);
        case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        case VK_ERROR_TOO_MANY_OBJECTS: return fail(LK_E_NOMEM, "%s: no device memory", action);
        case VK_ERROR_DEVICE_LOST:
            is_lost_.store(true);
            return fail(LK_E_DEVICE, "%s: the device is lost", action);
        default: return fail(LK_E_DEVICE, "%s failed with error %d of Vulkan", action, result);
    }
}

lk_status Device::check_alive() const {
    return is_lost_.load() ? fail(LK_E_DEVICE, "the device was lost in an earlier call") : LK_OK;
}

lk_status Device::submit(const VkSubmitInfo &info, VkFence fence) const {
    const lk_status status = check_alive();
    if (status)
        return status;
    VkResult result;
    if (lock_) {
        lock_(lock_user_);
        result = functions_.QueueSubmit(queue_, 1, &info, fence);
        unlock_(lock_user_);
    } else {
        const std::lock_guard<std::mutex> lock(submitting_);
        result = functions_.QueueSubmit(queue_, 1, &info, fence);
    }
    return checked(result, "submitting work");
}

lk_status Device::wait(VkFence fence) const {
    lk_status status = check_alive();
    if (status)
        return status;
    const VkResult result =
        functions_.WaitForFences(handle_, 1, &fence, VK_TRUE, kPatienceSeconds * kNsPerSecond);
    if (result != VK_TIMEOUT)
        return checked(result, "waiting for the device");
    is_lost_.store(true);
    return fail(LK_E_DEVICE, "the device did not finish its work in %llu seconds",
                static_cast<unsigned long long>(kPatienceSeconds));
}

void Device::abandon() {
    is_lost_.store(true);
    abandon_functions(&functions_);
    instance_.abandon();
}

void Device::settle(VkFence fence) const {
    (void)functions_.WaitForFences(handle_, 1, &fence, VK_TRUE, kNsPerSecond);
}

}  // namespace vulkan
}  // namespace lk
