// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/table_buffers.h"

#include <algorithm>
#include <cassert>

#include "base/status.h"

namespace lk {
namespace vulkan {

TableBuffers::~TableBuffers() {
    for (Buffer *buffer : buffers_)
        destroy(allocator_, buffer);
}

// The buffer that holds an address: the last one that does not begin after it.
size_t TableBuffers::find(uint64_t address) const {
    const auto next =
        std::upper_bound(buffers_.begin(), buffers_.end(), address,
                         [](uint64_t a, const Buffer *buffer) { return a < buffer->address(); });
    assert(next != buffers_.begin());
    return static_cast<size_t>(next - buffers_.begin()) - 1;
}

lk_status TableBuffers::allocate(uint64_t bytes, const char *what, uint64_t *address) {
    if (!buffers_.reserve(buffers_.size() + 1))
        return fail(LK_E_NOMEM, "no memory for the list of %zu buffers", buffers_.size() + 1);
    auto *buffer = create<Buffer>(allocator_);
    if (!buffer)
        return fail(LK_E_NOMEM, "no memory for %s", what);
    const lk_status status = buffer->open(device_, MemoryKind::kDevice, bytes, what);
    if (status) {
        destroy(allocator_, buffer);
        return status;
    }
    buffers_.push(buffer);
    std::sort(buffers_.begin(), buffers_.end(),
              [](const Buffer *a, const Buffer *b) { return a->address() < b->address(); });
    *address = buffer->address();
    return LK_OK;
}

void TableBuffers::release(uint64_t address) {
    const size_t i = find(address);
    Buffer *buffer = buffers_[i];
    std::copy(buffers_.begin() + i + 1, buffers_.end(), buffers_.begin() + i);
    buffers_.pop();
    destroy(allocator_, buffer);
}

lk_status TableBuffers::put(uint64_t address, const void *data, uint64_t bytes) {
    if (!bytes)
        return LK_OK;
    const Buffer &buffer = *buffers_[find(address)];
    assert(address + bytes <= buffer.address() + buffer.bytes());
    recorder_.update(buffer, address - buffer.address(), data, bytes);
    return LK_OK;
}

}  // namespace vulkan
}  // namespace lk
