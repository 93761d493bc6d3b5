// Attention of layers whose values are channels of their keys or of another dim: how a launch is
// cut into thread blocks. The host reads it, too.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_GRID_H
#define LK_CUDA_ROWS_GRID_H

#include "cuda/launch.h"

namespace lk {
namespace cuda {

constexpr uint32_t kRowsWarps = 16;
constexpr uint32_t kRowsThreads = 32 * kRowsWarps;
constexpr uint32_t kSideWarps = kRowsWarps / 2;
constexpr uint32_t kRowsColumns = 16;  // query columns of a thread block, or twice as many
constexpr uint32_t kMostRowsColumns = 2 * kRowsColumns;
constexpr uint32_t kMostRowsTokens = 128;  // of a stage: a packed page's codes are one
constexpr uint32_t kMostRowsSplits = 512;

struct RowsGrid {
    uint32_t n_columns;       // query columns of a thread block
    uint32_t n_tiles;         // thread blocks that the columns of the longest sequence need
    uint32_t stage_tokens;    // of FP16 tiles
    uint32_t partial_tokens;  // most of a stage; less than a page's: codes are not multiplied
    uint32_t page_bytes;      // of a packed page whose codes are multiplied
    uint32_t slot_bytes;
    uint32_t n_slots;
    uint32_t shared_bytes;
    uint32_t key_shares;  // of the channels, whose products are added up
    uint32_t copy_bytes;  // of the copy of a packed page that becomes rows, 0 without place
    bool keeps_copy;      // for several stages
    bool divides_warps;   // into key warps and value warps
    bool unpacks;         // packed pages become rows of channels
};

// Where a thread block's arrays lie in its dynamic shared memory, in bytes. Slots begin at 0.
struct RowsLayout {
    uint32_t queries;  // [strip][16 columns][lane] B operands
    uint32_t minima;   // [column][warp] sums of products with minima
    uint32_t weights;  // [column][token] in FP16; of two stages where warps are divided
    uint32_t partial;  // [share of the channels][column][token] sums of products; of 16 columns
                       // at once where packed pages become rows
    uint32_t copy;     // of a packed page: where those sums are, if it is not kept meanwhile
    uint32_t total;
};
constexpr uint32_t kQuadTokens = 64;
// Quads of tokens of a stage of rows of channels that is no shorter.
constexpr uint32_t stage_quads(uint32_t stage_tokens) { return stage_tokens > kQuadTokens ? 2 : 1; }
// Shares of the channels of keys, by warps, whose products are added up.
constexpr uint32_t kKeyShares = 4;
constexpr uint32_t key_shares(uint32_t n_quads) {
    return n_quads > 1 ? kKeyShares / 2 : kKeyShares;
}
// Numbers after a column's: lanes reach different banks.
constexpr uint32_t kPartialPad = 4;
constexpr uint32_t kWeightPad = 8;
constexpr uint32_t rows_weight_bytes(const RowsGrid &grid) {
    return 2 * grid.n_columns * (grid.partial_tokens + kWeightPad);
}
constexpr RowsLayout rows_layout(const LayerArg &layer, const RowsGrid &grid) {
    RowsLayout layout{};
    const uint32_t columns = grid.n_columns;
    layout.queries = grid.n_slots * grid.slot_bytes;
    layout.minima = layout.queries + 2 * columns * layer.head_dim;
    layout.weights = layout.minima + (grid.unpacks ? 0 : 4 * kRowsWarps * columns);
    layout.partial = layout.weights + (grid.divides_warps ? 2 : 1) * rows_weight_bytes(grid);
    const uint32_t products = grid.divides_warps
                                  ? 0
                                  : 4 * grid.key_shares * (grid.unpacks ? kRowsColumns : columns) *
                                        (grid.partial_tokens + kPartialPad);
    layout.copy = layout.partial + (grid.keeps_copy ? products : 0);
    const uint32_t end = layout.copy + grid.copy_bytes;
    layout.total = layout.partial + products > end ? layout.partial + products : end;
    return layout;
}

}  // namespace cuda
}  // namespace lk

#endif
