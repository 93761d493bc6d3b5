// Checks of the tensors that a caller hands in.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_TENSOR_H
#define LK_CORE_TENSOR_H

#include "backend/backend.h"

namespace lk {

struct TensorShape {
    uint32_t n_tokens;
    uint32_t n_heads;
    uint32_t n_channels;
};

// Bytes that a tensor touches.
struct TensorRange {
    bool is_host = false;  // else addresses of the device
    uint64_t first = 0;
    uint64_t n_bytes = 0;         // from the first to behind the last
    uint64_t token_bytes = 0;     // between tokens
    uint64_t in_token_bytes = 0;  // of one token, from its first byte to behind its last
};

// Kind of memory that a backend works on.
lk_memory_kind memory_of(lk_backend backend);
// Whose tensors it takes: those, and on Vulkan the host's too.
bool takes_memory(lk_backend backend, lk_memory_kind memory);

// Check a tensor of `shape` for a backend; name is that of the argument. An output's elements must
// not overlap each other. range->first is the caller's to set.
lk_status import_tensor(const lk_tensor *from, const char *name, const TensorShape &shape,
                        lk_backend backend, bool is_output, lk_tensor *tensor, TensorRange *range);

// Do two tensors share a byte? Interleaved tokens of one allocation do not.
bool overlaps(const TensorRange &a, const TensorRange &b);

}  // namespace lk

#endif
