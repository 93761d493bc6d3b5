/* Limits of the workgroups that pack, for the host and the shaders. C++ and GLSL include it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LK_SHADERS_PACK_LIMITS_H
#define LK_SHADERS_PACK_LIMITS_H

#include "format/format_const.h"

#define LK_SPEC_ENTRIES 8u    /* of append_pages: ranges of a page, at most; a multiple of 4 */
#define LK_SPEC_ROTATES 8u    /* of append: 1: keys of the layer are rotated */
#define LK_ROTATE_THREADS 64u /* of append and of rotate_queries */
#define LK_APPEND_LATENT_THREADS 128u /* of append, where keys may have 576 channels */
#define LK_APPEND_PAGES_THREADS 256u
#define LK_SLICE_TILES 8u /* of append_pages: tiles along a page's tokens or channels, at most */

#ifdef __cplusplus
#include <cstdint>
namespace lk {
namespace vulkan {

constexpr uint32_t append_threads(bool is_latent) {
    return is_latent ? LK_APPEND_LATENT_THREADS : LK_ROTATE_THREADS;
}

// Shared memory of a workgroup of append_pages, a little more than it takes: a range and a minimum
// with their thresholds, codes of a page, and three words of a channel.
constexpr uint32_t append_pages_shared_bytes(uint32_t head_dim, uint32_t n_entries) {
    return n_entries * 12 + LK_APPEND_PAGES_THREADS * 32 + head_dim * 12 + LK_SLICE_TILES * 16 + 64;
}

}  // namespace vulkan
}  // namespace lk
#endif

#endif
