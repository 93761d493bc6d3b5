// Attention of long steps: pages that are dequantized once for all query columns.
//
// A step whose sequences have more new tokens than a draft is never captured, so the host knows
// its pages. It attends on them in passes, of as many pages as the slots hold. In a pass, one
// kernel makes FP16 tiles of packed pages and of staged tokens, in slots of device memory; another
// attends on these and on 16-bit pages. Between passes, each column's state waits in the partial
// results.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_PASS_H
#define LK_CUDA_PREFILL_PASS_H

#include "cuda/launch.h"

namespace lk {
namespace cuda {

constexpr uint32_t kSlotTokens = 128;
constexpr uint32_t kLongWarps = 4;  // of a thread block; two share a multiprocessor
constexpr uint32_t kSharingBlocks = 2;
constexpr uint32_t kGroupStageTokens = 64;  // of a warpgroup's stage
constexpr uint32_t kMatrixBytes = 128;      // 8 rows of 16 bytes, as warpgroups multiply them

// Bytes of a slot: the tiles or matrices of a K page and of a V page, kSlotTokens long.
constexpr uint32_t slot_bytes(uint32_t head_dim) { return 2 * 2 * kSlotTokens * head_dim; }
constexpr uint32_t long_warp_columns(uint32_t head_dim) { return head_dim > 128 ? 16 : 32; }
constexpr uint32_t long_block_columns(uint32_t head_dim) {
    return kLongWarps * long_warp_columns(head_dim);
}

// What a launch attends. A pair is a sequence and a KV head; the pages of a pair are its blocks
// and, after them, its runs of staged tokens.
struct PagePass {
    uint8_t *slots;  // [pair of the launch][page of the pass]
    uint32_t first_pair;
    uint32_t n_pairs;
    uint32_t first_tile;  // of the columns of a pair
    uint32_t n_tiles;
    uint32_t first_page;  // counted from the first page that may need a slot
    uint32_t n_pages;
    uint32_t skips_blocks;  // only staged tokens need slots
    uint32_t has_matrices;  // slots hold matrices for warpgroups instead of tiles
    uint32_t is_first;      // of the passes of its columns
    uint32_t is_last;
    TensorArg k;  // new tokens where nothing is staged
    TensorArg v;
};

// Make the tiles of a pass.
cudaError_t launch_unpack_pass(const TileArgs &args, const PagePass &pass, cudaStream_t stream);
// Those of new tokens where nothing is staged.
cudaError_t launch_unpack_rows(const TileArgs &args, const PagePass &pass, cudaStream_t stream);

// Which head dims have a kernel for Hopper's warpgroups. In code for Hopper it is instead of the
// other.
constexpr bool has_groups(uint32_t head_dim) { return head_dim == 64 || head_dim == 128; }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kIsHopper = true;
#else
constexpr bool kIsHopper = false;
#endif

// Attend on a pass.
template <int kStrips>
cudaError_t launch_pass_kernel(const TileArgs &args, const PagePass &pass, cudaStream_t stream);

// The same on slots of matrices, where the current device has warpgroups and the build has code for
// them.
template <int kStrips>
bool has_groups_kernel();
template <int kStrips>
cudaError_t launch_groups_kernel(const TileArgs &args, const PagePass &pass, cudaStream_t stream);

}  // namespace cuda
}  // namespace lk

#endif
