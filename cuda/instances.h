// Kernels that only some of the head dims of cuda-instances have, since each takes space in every
// library (the test "text size" holds it): the head dims of most models have them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_INSTANCES_H
#define LK_CUDA_INSTANCES_H

#include <cstdint>

namespace lk {
namespace cuda {

// Decode of pages of 64 and 32 tokens.
constexpr bool has_short_pages(uint32_t head_dim) { return head_dim == 64 || head_dim == 128; }
// Prefill of long steps, which unpacks once for all query columns.
constexpr bool has_long_steps(uint32_t head_dim) {
    return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

}  // namespace cuda
}  // namespace lk

#endif
