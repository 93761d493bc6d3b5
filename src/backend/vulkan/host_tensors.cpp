// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/host_tensors.h"

#include <cstring>

#include "base/status.h"

namespace lk {
namespace vulkan {

static_assert(LK_DTYPE_F16 == LK_F16 && LK_DTYPE_BF16 == LK_BF16 && LK_DTYPE_F32 == LK_F32,
              "shaders know the same element types");

namespace {

constexpr uint64_t kAlignment = 64;

bool is_host(const CallTensor &tensor) { return tensor.view->is_host && tensor.view->data; }

uint64_t element_bytes(const CallTensor &tensor) { return tensor.view->dtype == LK_F32 ? 4 : 2; }

uint64_t head_bytes(const CallTensor &tensor) { return tensor.n_channels * element_bytes(tensor); }

uint64_t dense_bytes(const CallTensor &tensor) {
    return uint64_t{tensor.n_tokens} * tensor.n_heads * head_bytes(tensor);
}

// Calls copy(home, dense, bytes) for each head of each token.
template <class Copy>
void for_heads(const CallTensor &tensor, char *dense, const Copy &copy) {
    const uint64_t bytes = head_bytes(tensor);
    const auto size = static_cast<int64_t>(element_bytes(tensor));
    const TensorView &view = *tensor.view;
    for (uint32_t t = 0; t < tensor.n_tokens; ++t)
        for (uint32_t h = 0; h < tensor.n_heads; ++h, dense += bytes)
            copy(static_cast<char *>(view.data) +
                     (t * view.token_stride + h * view.head_stride) * size,
                 dense, bytes);
}

PushTensor device_tensor(const CallTensor &tensor) {
    const TensorView &view = *tensor.view;
    return {reinterpret_cast<Address>(view.data), view.dtype,
            static_cast<uint32_t>(view.token_stride), static_cast<uint32_t>(view.head_stride), 0};
}

}  // namespace

lk_status HostTensors::grow(Buffer *buffer, MemoryKind kind, uint64_t bytes) {
    if (bytes <= buffer->bytes())
        return LK_OK;
    buffer->close();
    return buffer->open(device_, kind, bytes, "copies of tensors");
}

lk_status HostTensors::reserve_area(CallTensor *tensors, uint32_t n) {
    uint64_t input_bytes = 0;
    uint64_t output_bytes = 0;
    for (uint32_t i = 0; i < n; ++i) {
        if (!is_host(tensors[i]))
            continue;
        uint64_t &used = tensors[i].is_output ? output_bytes : input_bytes;
        tensors[i].offset_bytes = used;
        used += round_up(dense_bytes(tensors[i]), kAlignment);
    }
    if (!input_bytes && !output_bytes)
        return LK_OK;
    lk_status status = is_in_use_ ? commands_.wait() : LK_OK;
    if (!status)
        status = grow(&inputs_, MemoryKind::kUpload, input_bytes);
    if (!status)
        status = grow(&outputs_, MemoryKind::kReadback, output_bytes);
    is_in_use_ = true;
    return status;
}

lk_status HostTensors::stage(CallTensor *tensors, uint32_t n) {
    LK_TRY(reserve_area(tensors, n));
    for (uint32_t i = 0; i < n; ++i) {
        const CallTensor &tensor = tensors[i];
        if (!is_host(tensor)) {
            *tensor.push = device_tensor(tensor);
            continue;
        }
        const Buffer &buffer = tensor.is_output ? outputs_ : inputs_;
        *tensor.push = {buffer.address(tensor.offset_bytes), tensor.view->dtype,
                        tensor.n_heads * tensor.n_channels, tensor.n_channels, 0};
        if (!tensor.is_output)
            for_heads(tensor, buffer.as<char>(tensor.offset_bytes),
                      [](const char *home, char *dense, uint64_t bytes) {
                          std::memcpy(dense, home, bytes);
                      });
    }
    return LK_OK;
}

lk_status HostTensors::finish(const CallTensor *tensors, uint32_t n) {
    bool has_outputs = false;
    for (uint32_t i = 0; i < n; ++i)
        has_outputs = has_outputs || (is_host(tensors[i]) && tensors[i].is_output);
    const lk_status status = has_outputs ? commands_.wait() : LK_OK;
    if (status || !has_outputs)
        return status;
    is_in_use_ = false;
    for (uint32_t i = 0; i < n; ++i)
        if (is_host(tensors[i]) && tensors[i].is_output)
            for_heads(tensors[i], outputs_.as<char>(tensors[i].offset_bytes),
                      [](char *home, const char *dense, uint64_t bytes) {
                          std::memcpy(home, dense, bytes);
                      });
    return LK_OK;
}

}  // namespace vulkan
}  // namespace lk
