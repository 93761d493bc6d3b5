// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/memory.h"

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

constexpr VkBufferUsageFlags kUsage =
    VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
    VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;

constexpr VkMemoryPropertyFlags kMapped =
    VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;

// Which memory a kind must be in and should be in.
struct Wish {
    VkMemoryPropertyFlags required;
    VkMemoryPropertyFlags preferred;
};
Wish wish_of(MemoryKind kind) {
    switch (kind) {
        case MemoryKind::kUpload: return {kMapped, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT};
        case MemoryKind::kReadback: return {kMapped, VK_MEMORY_PROPERTY_HOST_CACHED_BIT};
        default: return {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0};
    }
}

// The first type of `bits` with these flags; types come in the driver's order of preference.
constexpr uint32_t kNoType = ~0u;
uint32_t find_type(const VkPhysicalDeviceMemoryProperties &memory, uint32_t bits,
                   VkMemoryPropertyFlags flags) {
    for (uint32_t t = 0; t < memory.memoryTypeCount; ++t)
        if ((bits >> t & 1u) && (memory.memoryTypes[t].propertyFlags & flags) == flags)
            return t;
    return kNoType;
}

bool is_no_memory(VkResult result) {
    return result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY ||
           result == VK_ERROR_TOO_MANY_OBJECTS;
}

lk_status no_memory(const char *what, uint64_t bytes) {
    return fail(LK_E_NOMEM, "no device memory for %s of %llu bytes", what,
                static_cast<unsigned long long>(bytes));
}

}  // namespace

void Buffer::close() {
    if (!device_)
        return;
    const Functions &vk = device_->functions();
    vk.DestroyBuffer(device_->handle(), handle_, nullptr);
    vk.FreeMemory(device_->handle(), memory_, nullptr);
    device_ = nullptr;
    handle_ = VK_NULL_HANDLE;
    memory_ = VK_NULL_HANDLE;
    bytes_ = address_ = 0;
    mapped_ = nullptr;
}

lk_status Buffer::open(const Device &device, MemoryKind kind, uint64_t bytes, const char *what) {
    if (!bytes)
        return LK_OK;
    if (bytes > device.traits().max_allocation_bytes)
        return no_memory(what, bytes);
    device_ = &device;
    VkBufferCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.size = round_up(bytes, 4);
    info.usage = kUsage;
    info.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
    const VkResult result =
        device.functions().CreateBuffer(device.handle(), &info, nullptr, &handle_);
    if (is_no_memory(result))
        return no_memory(what, bytes);
    LK_TRY(device.checked(result, "making a buffer"));
    bytes_ = bytes;
    LK_TRY(allocate(kind, what));
    VkBufferDeviceAddressInfo address{};
    address.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
    address.buffer = handle_;
    address_ = device.functions().GetBufferDeviceAddress(device.handle(), &address);
    return LK_OK;
}

// What should be is tried before what must be, since the memory that is both may be scarce.
lk_status Buffer::allocate(MemoryKind kind, const char *what) {
    const Functions &vk = device_->functions();
    VkMemoryRequirements needs{};
    vk.GetBufferMemoryRequirements(device_->handle(), handle_, &needs);
    const Wish wish = wish_of(kind);
    VkResult result = VK_ERROR_FEATURE_NOT_PRESENT;
    for (const VkMemoryPropertyFlags flags : {wish.required | wish.preferred, wish.required}) {
        const uint32_t type = find_type(device_->memory(), needs.memoryTypeBits, flags);
        if (result != VK_SUCCESS && type != kNoType)
            result = allocate_type(needs.size, type);
    }
    if (result == VK_ERROR_FEATURE_NOT_PRESENT)
        return fail(LK_E_UNSUPPORTED, "the device has no memory of the kind for %s", what);
    if (is_no_memory(result))
        return no_memory(what, bytes_);
    if (result == VK_SUCCESS)
        result = vk.BindBufferMemory(device_->handle(), handle_, memory_, 0);
    if (result == VK_SUCCESS && kind != MemoryKind::kDevice)
        result = vk.MapMemory(device_->handle(), memory_, 0, VK_WHOLE_SIZE, 0, &mapped_);
    return device_->checked(result, "allocating memory");
}

VkResult Buffer::allocate_type(uint64_t bytes, uint32_t type) {
    VkMemoryAllocateFlagsInfo flags{};
    flags.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO;
    flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
    VkMemoryAllocateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    info.pNext = &flags;
    info.allocationSize = bytes;
    info.memoryTypeIndex = type;
    return device_->functions().AllocateMemory(device_->handle(), &info, nullptr, &memory_);
}

}  // namespace vulkan
}  // namespace lk
