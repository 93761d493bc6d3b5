// Tensors in host memory, for what needs no device.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_HOST_TENSOR_H
#define LK_BASE_HOST_TENSOR_H

#include <lowkey/base.h>

namespace lk {

inline uint64_t element_bytes(lk_dtype dtype) { return dtype == LK_F32 ? 4 : 2; }

// Check a tensor of [n_tokens][n_heads][n_channels], each at least 1, and copy its description;
// name is that of the argument.
lk_status import_host_tensor(const lk_tensor *from, const char *name, uint32_t n_tokens,
                             uint32_t n_heads, uint32_t n_channels, lk_tensor *tensor);

// The channels of a token's head.
inline const void *host_row(const lk_tensor &tensor, uint64_t token, uint64_t head) {
    const auto at = token * static_cast<uint64_t>(tensor.token_stride) +
                    head * static_cast<uint64_t>(tensor.head_stride);
    return static_cast<const uint8_t *>(tensor.data) + at * element_bytes(tensor.dtype);
}

}  // namespace lk

#endif
