// Attention of layers whose values are channels of their keys or of another dim: how a launch is
// cut into thread blocks. The host reads it, too.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_GRID_H
#define LK_CUDA_ROWS_GRID_H

#include "cuda/launch.h"

namespace lk {
namespace cuda {

constexpr uint32_t kRowsWarps = 8;
constexpr uint32_t kRowsThreads = 32 * kRowsWarps;
constexpr uint32_t kRowsColumns = 16;  // query columns of a thread block
constexpr uint32_t kRowsTokens = 32;   // of a stage
constexpr uint32_t kMostRowsSplits = 512;
constexpr uint32_t kRowsResident = 2;  // thread blocks of a multiprocessor, for whose registers the
                                       // kernel is compiled

struct RowsGrid {
    uint32_t n_tiles;     // thread blocks that the columns of the longest sequence need
    uint32_t page_bytes;  // shared memory for packed pages, or for a stage of 16-bit ones
    uint32_t shared_bytes;
    uint32_t n_resident;  // thread blocks that a multiprocessor has at once
};

// Where a thread block's arrays lie in its dynamic shared memory, in bytes. Rows begin at 0.
struct RowsLayout {
    uint32_t values;   // [channel][token] in FP16, of layers that are not latent
    uint32_t partial;  // [share of the channels][column][token] sums of products
    uint32_t weights;  // [column][token] in FP16
    uint32_t pages;
    uint32_t total;
};
constexpr uint32_t kKeyShares = 4;  // of the channels, by warps
constexpr uint32_t kRowPad = 8;     // numbers after a row: neighbours begin in other banks
constexpr RowsLayout rows_layout(const LayerArg &layer, uint32_t page_bytes) {
    constexpr uint32_t kRow = kRowsTokens + kRowPad;
    RowsLayout layout{};
    layout.values = 2 * kRowsTokens * (layer.head_dim + kRowPad);
    const uint32_t value_rows = layer.is_latent ? 0 : layer.value_dim;
    layout.partial = layout.values + 2 * value_rows * kRow;
    layout.weights = layout.partial + 4 * kKeyShares * kRowsColumns * kRow;
    layout.pages = layout.weights + 2 * kRowsColumns * kRow;
    layout.total = layout.pages + page_bytes;
    return layout;
}

}  // namespace cuda
}  // namespace lk

#endif
