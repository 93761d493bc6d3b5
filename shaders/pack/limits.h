/* Limits of the workgroups that pack, for the host and the shaders. C++ and GLSL include it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LK_SHADERS_PACK_LIMITS_H
#define LK_SHADERS_PACK_LIMITS_H

#include "format/format_const.h"

#define LK_SPEC_ENTRIES 8u /* of append_pages: ranges of a page, at most; a multiple of 4 */
#define LK_APPEND_PAGES_THREADS 256u

#ifdef __cplusplus
#include <cstdint>
namespace lk {
namespace vulkan {

// Shared memory of a workgroup of append_pages, a little more than it takes: rows of channels,
// a range and a minimum with their thresholds, what lanes found, and three words of a channel.
constexpr uint32_t append_pages_shared_bytes(uint32_t head_dim, uint32_t n_entries) {
    return LK_MAX_PAGE_TOKENS * (head_dim / 2 + 4) * 4 + n_entries * 12 +
           LK_APPEND_PAGES_THREADS * 16 + head_dim * 12 + 64;
}

}  // namespace vulkan
}  // namespace lk
#endif

#endif
