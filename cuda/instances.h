// Kernels that only some of the head dims of cuda-instances have, since each takes space in every
// library (the test "text size" holds it): the head dims of most models have them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_INSTANCES_H
#define LK_CUDA_INSTANCES_H

#include <cstdint>

namespace lk {
namespace cuda {

// Decode by teams of warps, one for each kTeamChannels channels: of pages whose groups of values
// end where the channels of a warp do.
constexpr uint32_t kTeamChannels = 128;
constexpr uint32_t kMostTeamChannels = 512;
constexpr bool has_teams(uint32_t head_dim) { return head_dim == 256 || head_dim == 512; }
// Few models have 80 or 96 channels, and none is known with more than four query heads for a KV
// head. Decode has items of eight columns at most there, of FP8 parameters in groups of 32 four.
constexpr bool has_wide_items(uint32_t head_dim) {
    return head_dim != 80 && head_dim != 96 && !has_teams(head_dim);
}
// The same of pages of 4 and 2 bits, whose keys are then one chunk of a warp's ring.
constexpr bool has_narrow_wide_items(uint32_t head_dim) {
    return has_wide_items(head_dim) && head_dim <= 128;
}
// Decode of plain pages with FP8 parameters by a kernel of their own.
constexpr bool has_plain_f8(uint32_t head_dim) { return head_dim == 64 || head_dim == 128; }
// Kernels for FP8 parameters in groups of 32, and for few widths; at 80 channels the one for groups
// of multiples of 32 and all widths reads them.
constexpr bool has_special_f8(uint32_t head_dim) { return head_dim != 80; }
// Decode of pages of 64 and 32 tokens.
constexpr bool has_short_pages(uint32_t head_dim) { return head_dim == 64 || head_dim == 128; }
// Prefill with loops of known length; 80 channels share the kernel of head dims up to 128, since
// few models have them. A macro, since it decides what is compiled.
#define LK_HAS_OWN_PREFILL(head_dim) ((head_dim) <= 256 && (head_dim) != 80)
constexpr bool has_own_prefill(uint32_t head_dim) { return LK_HAS_OWN_PREFILL(head_dim); }
// Prefill of long steps, which unpacks once for all query columns.
constexpr bool has_long_steps(uint32_t head_dim) {
    return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

}  // namespace cuda
}  // namespace lk

#endif
