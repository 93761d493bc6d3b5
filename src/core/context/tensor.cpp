// SPDX-License-Identifier: Apache-2.0
#include "core/context/tensor.h"

#include "base/host_tensor.h"
#include "base/memory.h"
#include "base/status.h"

namespace lk {

namespace {

const char *memory_name(lk_memory_kind memory) {
    switch (memory) {
        case LK_MEMORY_HOST: return "host memory";
        case LK_MEMORY_CUDA: return "CUDA memory";
        case LK_MEMORY_VULKAN: return "a Vulkan buffer";
        default: return nullptr;
    }
}

lk_status check_kind(const lk_tensor &tensor, const char *name, const BackendTraits &backend) {
    if (tensor.dtype < LK_F16 || tensor.dtype > LK_F32)
        return fail(LK_E_ARGUMENT, "%s.dtype is %u, which names no element type", name,
                    tensor.dtype);
    if (tensor.flags)
        return fail(LK_E_ARGUMENT, "%s.flags is 0x%x, not 0", name, tensor.flags);
    const char *kind = memory_name(tensor.memory);
    if (!kind)
        return fail(LK_E_ARGUMENT, "%s.memory is %u, which names no kind of memory", name,
                    tensor.memory);
    const bool is_taken = tensor.memory == backend.memory ||
                          (backend.takes_host_tensors && tensor.memory == LK_MEMORY_HOST);
    if (!is_taken)
        return fail(LK_E_UNSUPPORTED, "%s.memory is %s and the context takes %s", name, kind,
                    memory_name(backend.memory));
    return LK_OK;
}

lk_status check_strides(const lk_tensor &tensor, const char *name) {
    if (tensor.token_stride < 0 || tensor.head_stride < 0)
        return fail(LK_E_ARGUMENT, "%s.%s is %lld, at least 0", name,
                    tensor.token_stride < 0 ? "token_stride" : "head_stride",
                    static_cast<long long>(tensor.token_stride < 0 ? tensor.token_stride
                                                                   : tensor.head_stride));
    return LK_OK;
}

lk_status check_buffer(const lk_tensor &tensor, const char *name) {
    if (!tensor.buffer)
        return fail(LK_E_ARGUMENT, "%s.buffer is 0", name);
    if (tensor.data)
        return fail(LK_E_ARGUMENT, "%s has data next to a buffer", name);
    if (tensor.offset_bytes % element_bytes(tensor.dtype))
        return fail(LK_E_ARGUMENT,
                    "%s.offset_bytes is %llu, not aligned to its elements of %llu bytes", name,
                    ull{tensor.offset_bytes}, ull{element_bytes(tensor.dtype)});
    return LK_OK;
}

lk_status check_address(const lk_tensor &tensor, const char *name) {
    if (tensor.memory == LK_MEMORY_VULKAN)
        return check_buffer(tensor, name);
    if (!tensor.data)
        return fail(LK_E_ARGUMENT, "%s.data is NULL", name);
    if (tensor.buffer || tensor.offset_bytes)
        return fail(LK_E_ARGUMENT, "%s has a buffer or an offset, which %s has not", name,
                    memory_name(tensor.memory));
    if (reinterpret_cast<uintptr_t>(tensor.data) % element_bytes(tensor.dtype))
        return fail(LK_E_ARGUMENT, "%s.data is not aligned to its elements of %llu bytes", name,
                    ull{element_bytes(tensor.dtype)});
    return LK_OK;
}

// Elements from the first to the end of the last of n steps of `stride` with `inner` elements each.
bool span(uint64_t n, uint64_t stride, uint64_t inner, uint64_t *out) {
    uint64_t steps;
    return checked_mul(n - 1, stride, &steps) && checked_add(steps, inner, out);
}

lk_status measure(const lk_tensor &tensor, const char *name, const TensorShape &shape,
                  TensorRange *range) {
    const uint64_t bytes = element_bytes(tensor.dtype);
    const auto token_stride = static_cast<uint64_t>(tensor.token_stride);
    const auto head_stride = static_cast<uint64_t>(tensor.head_stride);
    uint64_t in_token;
    uint64_t all;
    uint64_t end;
    const uint64_t first = reinterpret_cast<uintptr_t>(tensor.data) + tensor.offset_bytes;
    const bool is_sane = span(shape.n_heads, head_stride, shape.n_channels, &in_token) &&
                         span(shape.n_tokens, token_stride, in_token, &all) &&
                         checked_mul(all, bytes, &range->n_bytes) && range->n_bytes <= INT64_MAX &&
                         checked_add(first, range->n_bytes, &end);
    if (!is_sane)
        return fail(LK_E_ARGUMENT,
                    "%s with token_stride %lld and head_stride %lld leaves the address space", name,
                    static_cast<long long>(tensor.token_stride),
                    static_cast<long long>(tensor.head_stride));
    range->is_host = tensor.memory == LK_MEMORY_HOST;
    range->in_token_bytes = in_token * bytes;
    range->token_bytes = shape.n_tokens > 1 ? token_stride * bytes : range->in_token_bytes;
    return LK_OK;
}

bool elements_overlap(const lk_tensor &tensor, const TensorShape &shape) {
    uint64_t n[2] = {shape.n_heads, shape.n_tokens};
    uint64_t stride[2] = {static_cast<uint64_t>(tensor.head_stride),
                          static_cast<uint64_t>(tensor.token_stride)};
    if (stride[0] > stride[1]) {
        std::swap(n[0], n[1]);
        std::swap(stride[0], stride[1]);
    }
    uint64_t length = shape.n_channels;
    for (int i = 0; i < 2; ++i) {
        if (n[i] > 1 && stride[i] < length)
            return true;
        length += (n[i] - 1) * stride[i];
    }
    return false;
}

}  // namespace

lk_status import_tensor(const lk_tensor *from, const char *name, const TensorShape &shape,
                        const BackendTraits &backend, bool is_output, lk_tensor *tensor,
                        TensorRange *range) {
    *tensor = {};
    LK_TRY(import_struct(tensor, sizeof *tensor, sizeof *tensor, from, name));
    LK_TRY(check_kind(*tensor, name, backend));
    LK_TRY(check_address(*tensor, name));
    LK_TRY(check_strides(*tensor, name));
    LK_TRY(measure(*tensor, name, shape, range));
    if (is_output && elements_overlap(*tensor, shape))
        return fail(LK_E_ARGUMENT,
                    "%s with token_stride %lld and head_stride %lld has elements that overlap",
                    name, static_cast<long long>(tensor->token_stride),
                    static_cast<long long>(tensor->head_stride));
    return LK_OK;
}

bool overlaps(const TensorRange &a, const TensorRange &b) {
    if (a.is_host != b.is_host || a.first + a.n_bytes <= b.first || b.first + b.n_bytes <= a.first)
        return false;
    const uint64_t period = a.token_bytes;
    if (period != b.token_bytes || a.in_token_bytes > period || b.in_token_bytes > period)
        return true;
    const uint64_t ahead = a.first <= b.first ? (b.first - a.first) % period
                                              : (period - (a.first - b.first) % period) % period;
    return ahead < a.in_token_bytes || ahead + b.in_token_bytes > period;
}

}  // namespace lk
