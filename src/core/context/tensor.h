// Checks of the tensors that a caller hands in.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CONTEXT_TENSOR_H
#define LK_CORE_CONTEXT_TENSOR_H

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
    uint64_t n_bytes = 0;         // from the first to the end of the last
    uint64_t token_bytes = 0;     // between tokens
    uint64_t in_token_bytes = 0;  // of one token, from its first byte to its end
};

// Check a tensor of `shape` for a backend; name is that of the argument. An output's elements must
// not overlap each other. range->first is the caller's to set.
lk_status import_tensor(const lk_tensor *from, const char *name, const TensorShape &shape,
                        const BackendTraits &backend, bool is_output, lk_tensor *tensor,
                        TensorRange *range);

// Do two tensors share a byte? Interleaved tokens of one allocation do not.
bool overlaps(const TensorRange &a, const TensorRange &b);

}  // namespace lk

#endif
