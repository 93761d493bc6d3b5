// Attention of many columns: how a launch is cut into thread blocks, and its kernels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_INSTANCES_H
#define LK_CUDA_PREFILL_INSTANCES_H

#include "cuda/launch.h"

namespace lk {
namespace cuda {

constexpr uint32_t kMaxSplits = 32;

struct TileGrid {
    uint32_t n_warps;
    uint32_t block_columns;
    uint32_t n_tiles;  // thread blocks that the columns of the longest sequence need
    uint32_t stage_tokens;
    uint32_t page_bytes;   // shared memory for a packed page, or for a stage of staged tokens
    uint32_t page_stride;  // to a second page, where the page after is copied ahead; 0 without one
    uint32_t shared_bytes;
};

// A second kernel adds up the splits of column tiles of block_columns.
cudaError_t launch_merge_splits(const TileArgs &args, uint32_t block_columns, uint32_t n_tiles,
                                cudaStream_t stream);

// kExact: of kStrips strips; else of up to so many.
template <int kStrips, bool kExact>
cudaError_t launch_tile_kernel(const TileArgs &args, const TileGrid &grid, cudaStream_t stream);

}  // namespace cuda
}  // namespace lk

#endif
