// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/buffers.h"

#include <algorithm>

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

using ull = unsigned long long;

lk_status check_usage(uint32_t usage) {
    const char *missing = !(usage & VK_BUFFER_USAGE_STORAGE_BUFFER_BIT)
                              ? "VK_BUFFER_USAGE_STORAGE_BUFFER_BIT"
                          : !(usage & VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT)
                              ? "VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT"
                              : nullptr;
    return missing ? fail(LK_E_ARGUMENT, "usage is 0x%x, without %s", usage, missing) : LK_OK;
}

lk_status unknown(uint64_t buffer) {
    return fail(LK_E_NOT_FOUND, "buffer 0x%llx was not added to the context", ull{buffer});
}

}  // namespace

size_t Buffers::find(uint64_t buffer) const {
    const Known *found =
        std::lower_bound(known_.begin(), known_.end(), buffer,
                         [](const Known &known, uint64_t wanted) { return known.buffer < wanted; });
    return static_cast<size_t>(found - known_.begin());
}

lk_status Buffers::add(uint64_t buffer, uint64_t bytes, uint32_t usage) {
    if (device_.is_own())
        return fail(LK_E_UNSUPPORTED,
                    "the context has a device of its own, which has no buffers of the host");
    LK_TRY(check_usage(usage));
    VkBufferDeviceAddressInfo info{};
    info.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
    info.buffer = reinterpret_cast<VkBuffer>(buffer);
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t at = find(buffer);
    if (at < known_.size() && known_[at].buffer == buffer)
        return fail(LK_E_ARGUMENT, "buffer 0x%llx was added already", ull{buffer});
    const uint64_t address = device_.functions().GetBufferDeviceAddress(device_.handle(), &info);
    if (!address)
        return fail(LK_E_ARGUMENT, "buffer 0x%llx has no address", ull{buffer});
    if (!known_.push({buffer, bytes, address}))
        return fail(LK_E_NOMEM, "no memory for the list of %zu buffers", known_.size() + 1);
    std::rotate(known_.begin() + at, known_.end() - 1, known_.end());
    return LK_OK;
}

lk_status Buffers::remove(uint64_t buffer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t at = find(buffer);
    if (at == known_.size() || known_[at].buffer != buffer)
        return unknown(buffer);
    std::rotate(known_.begin() + at, known_.begin() + at + 1, known_.end());
    known_.pop();
    return LK_OK;
}

lk_status Buffers::resolve(const lk_tensor &tensor, uint64_t bytes, const char *name,
                           uint64_t *address) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t at = find(tensor.buffer);
    if (at == known_.size() || known_[at].buffer != tensor.buffer)
        return fail(LK_E_ARGUMENT, "%s.buffer 0x%llx was not added to the context", name,
                    ull{tensor.buffer});
    const uint64_t left_bytes = known_[at].bytes;
    if (tensor.offset_bytes > left_bytes || bytes > left_bytes - tensor.offset_bytes)
        return fail(LK_E_ARGUMENT, "%s needs %llu bytes from %llu on and its buffer has %llu", name,
                    ull{bytes}, ull{tensor.offset_bytes}, ull{left_bytes});
    *address = known_[at].address + tensor.offset_bytes;
    return LK_OK;
}

}  // namespace vulkan
}  // namespace lk
