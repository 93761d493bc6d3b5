// SPDX-License-Identifier: Apache-2.0
#include "base/host_tensor.h"

#include "base/memory.h"
#include "base/status.h"

namespace lk {

namespace {

lk_status check_place(const lk_tensor &tensor, const char *name) {
    if (tensor.dtype < LK_F16 || tensor.dtype > LK_F32)
        return fail(LK_E_ARGUMENT, "%s.dtype is %u, which names no element type", name,
                    tensor.dtype);
    if (tensor.memory != LK_MEMORY_HOST)
        return fail(LK_E_ARGUMENT, "%s.memory is %u, this call takes host memory, %u", name,
                    tensor.memory, static_cast<uint32_t>(LK_MEMORY_HOST));
    if (tensor.flags || tensor.buffer || tensor.offset_bytes)
        return fail(LK_E_ARGUMENT, "%s has flags, a buffer or an offset, which host memory has not",
                    name);
    if (!tensor.data)
        return fail(LK_E_ARGUMENT, "%s.data is NULL", name);
    if (reinterpret_cast<uintptr_t>(tensor.data) % element_bytes(tensor.dtype))
        return fail(LK_E_ARGUMENT, "%s.data is not aligned to its elements", name);
    return LK_OK;
}

bool stays_in_memory(const lk_tensor &tensor, uint64_t n_tokens, uint64_t n_heads,
                     uint64_t n_channels) {
    uint64_t tokens;
    uint64_t heads;
    uint64_t elements;
    uint64_t bytes;
    uint64_t end;
    return tensor.token_stride >= 0 && tensor.head_stride >= 0 &&
           checked_mul(n_tokens - 1, static_cast<uint64_t>(tensor.token_stride), &tokens) &&
           checked_mul(n_heads - 1, static_cast<uint64_t>(tensor.head_stride), &heads) &&
           checked_add(tokens, heads, &elements) && checked_add(elements, n_channels, &elements) &&
           checked_mul(elements, element_bytes(tensor.dtype), &bytes) && bytes <= INT64_MAX &&
           checked_add(reinterpret_cast<uintptr_t>(tensor.data), bytes, &end);
}

}  // namespace

lk_status import_host_tensor(const lk_tensor *from, const char *name, uint32_t n_tokens,
                             uint32_t n_heads, uint32_t n_channels, lk_tensor *tensor) {
    *tensor = {};
    lk_status status = import_struct(tensor, sizeof *tensor, sizeof *tensor, from, name);
    if (status == LK_OK)
        status = check_place(*tensor, name);
    if (status != LK_OK || stays_in_memory(*tensor, n_tokens, n_heads, n_channels))
        return status;
    return fail(LK_E_ARGUMENT,
                "%s with token_stride %lld and head_stride %lld leaves the address space", name,
                static_cast<long long>(tensor->token_stride),
                static_cast<long long>(tensor->head_stride));
}

}  // namespace lk
