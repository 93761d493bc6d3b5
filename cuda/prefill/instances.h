// Attention of many columns: how a launch is cut into thread blocks, and its kernels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_INSTANCES_H
#define LK_CUDA_PREFILL_INSTANCES_H

#include "cuda/launch.h"

namespace lk {
namespace cuda {

constexpr uint32_t kMaxSplits = 32;

// Slices of 8 columns of a warp of a kernel of kStrips strips: its registers hold their output.
constexpr int tile_slices(uint32_t n_strips) { return n_strips > 16 ? 1 : n_strips > 8 ? 2 : 4; }
// Tiles of 16 tokens, whose products a warp holds at once: shared memory holds a stage of them.
constexpr uint32_t round_tiles(int slices) { return slices == 1 ? 1 : 2; }

struct TileGrid {
    uint32_t n_warps;
    uint32_t block_columns;
    uint32_t n_tiles;       // thread blocks that the columns of the longest sequence need
    uint32_t round_tokens;  // that a warp multiplies at once
    uint32_t stage_tokens;
    uint32_t page_bytes;   // shared memory for a packed page, or for a stage of staged tokens
    uint32_t page_stride;  // to a second page, where the page after is copied ahead; 0 without one
    uint32_t shared_bytes;
};

// A second kernel adds up the splits of column tiles of block_columns.
cudaError_t launch_merge_splits(const TileArgs &args, uint32_t block_columns, uint32_t n_tiles,
                                cudaStream_t stream);

// kExact: of kStrips strips; else of up to so many, 8 or 32.
template <int kStrips, bool kExact>
cudaError_t launch_tile_kernel(const TileArgs &args, const TileGrid &grid, cudaStream_t stream);

}  // namespace cuda
}  // namespace lk

#endif
