// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/host_tensors.h"

#include <cassert>

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

constexpr uint64_t kAlignment = 64;

uint64_t element_bytes(lk_dtype dtype) { return dtype == LK_F32 ? 4 : 2; }

uint64_t head_bytes(const TensorView &view, const TensorShape &shape) {
    return shape.n_channels * element_bytes(view.dtype);
}

uint64_t dense_bytes(const TensorView &view, const TensorShape &shape) {
    return uint64_t{shape.n_tokens} * shape.n_heads * head_bytes(view, shape);
}

// Calls copy(home, dense, bytes) for each head of each token.
template <class Copy>
void for_heads(const TensorView &home, const TensorShape &shape, char *dense, const Copy &copy) {
    const uint64_t bytes = head_bytes(home, shape);
    const auto size = static_cast<int64_t>(element_bytes(home.dtype));
    for (uint32_t t = 0; t < shape.n_tokens; ++t)
        for (uint32_t h = 0; h < shape.n_heads; ++h, dense += bytes)
            copy(static_cast<char *>(home.data) +
                     (t * home.token_stride + h * home.head_stride) * size,
                 dense, bytes);
}

}  // namespace

HostTensors::~HostTensors() {
    for (Buffer *buffer : buffers_)
        if (buffer)
            destroy(allocator_, buffer);
}

void HostTensors::add(TensorView *view, const TensorShape &shape, Direction direction) {
    assert(n_parts_ < kMaxParts);
    if (view->is_host && view->data)
        parts_[n_parts_++] = {view, *view, shape, direction, 0};
}

lk_status HostTensors::grow(Direction direction, uint64_t bytes) {
    Buffer *&buffer = buffers_[direction];
    if (bytes <= (buffer ? buffer->bytes() : 0))
        return LK_OK;
    if (buffer)
        destroy(allocator_, buffer);
    buffer = create<Buffer>(allocator_);
    if (!buffer)
        return fail(LK_E_NOMEM, "no memory for copies of tensors");
    const MemoryKind kind = direction == kInput ? MemoryKind::kUpload : MemoryKind::kReadback;
    const lk_status status = buffer->open(device_, kind, bytes, "copies of tensors");
    if (status) {
        destroy(allocator_, buffer);
        buffer = nullptr;
    }
    return status;
}

lk_status HostTensors::place(Commands *commands) {
    if (!n_parts_)
        return LK_OK;
    lk_status status = is_in_use_ ? commands->wait() : LK_OK;
    if (status)
        return status;
    is_in_use_ = false;
    uint64_t bytes[kDirections] = {};
    for (uint32_t i = 0; i < n_parts_; ++i) {
        Part &part = parts_[i];
        part.offset_bytes = bytes[part.direction];
        bytes[part.direction] += round_up(dense_bytes(part.home, part.shape), kAlignment);
    }
    for (const Direction direction : {kInput, kOutput})
        if (!status)
            status = grow(direction, bytes[direction]);
    if (status)
        return status;
    for (uint32_t i = 0; i < n_parts_; ++i) {
        const Part &part = parts_[i];
        const Buffer &buffer = *buffers_[part.direction];
        part.view->data = reinterpret_cast<void *>(buffer.address(part.offset_bytes));
        part.view->head_stride = part.shape.n_channels;
        part.view->token_stride = int64_t{part.shape.n_channels} * part.shape.n_heads;
        if (part.direction == kInput)
            for_heads(
                part.home, part.shape, buffer.as<char>(part.offset_bytes),
                [](const char *home, char *dense, uint64_t n) { std::memcpy(dense, home, n); });
    }
    is_in_use_ = true;
    return LK_OK;
}

lk_status HostTensors::finish(Commands *commands) {
    bool has_outputs = false;
    for (uint32_t i = 0; i < n_parts_; ++i)
        has_outputs = has_outputs || parts_[i].direction == kOutput;
    const lk_status status = has_outputs ? commands->wait() : LK_OK;
    if (status || !has_outputs)
        return status;
    is_in_use_ = false;
    for (uint32_t i = 0; i < n_parts_; ++i) {
        const Part &part = parts_[i];
        if (part.direction == kOutput)
            for_heads(
                part.home, part.shape, buffers_[kOutput]->as<char>(part.offset_bytes),
                [](char *home, const char *dense, uint64_t n) { std::memcpy(home, dense, n); });
    }
    return LK_OK;
}

uint64_t HostTensors::bytes() const {
    uint64_t bytes = 0;
    for (const Buffer *buffer : buffers_)
        bytes += buffer ? buffer->bytes() : 0;
    return bytes;
}

}  // namespace vulkan
}  // namespace lk
