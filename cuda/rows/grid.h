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
    uint32_t partial_tokens;  // most of a stage: a packed page's where codes are multiplied
    uint32_t weight_stride;   // numbers from a column's weights to the next one's
    uint32_t page_bytes;  // of a page of codes, which are multiplied; two stages if slots are less
    uint32_t slot_bytes;
    uint32_t n_slots;
    uint32_t shared_bytes;
    uint32_t key_shares;    // of the channels, whose products are added up
    uint32_t copy_bytes;    // of the copy of a packed page that becomes rows, 0 without place
    bool keeps_copy;        // for several stages
    bool divides_warps;     // into key warps and value warps
    bool unpacks;           // packed pages become rows of channels
    bool overlays_weights;  // a column's weights replace the first share of its products
};

// Where a thread block's arrays lie in its dynamic shared memory, in bytes. Slots begin at 0.
struct RowsLayout {
    uint32_t queries;  // [strip][16 columns][lane] B operands
    uint32_t minima;   // [column][warp] sums of products with minima
    uint32_t weights;  // [column][token] in FP16; of two stages where warps are divided; where
                       // partial is, if they replace products
    uint32_t partial;  // [share of the channels][column][token] sums of products; of 16 columns
                       // at once where packed pages become rows
    uint32_t copy;     // of a packed page: where those sums are, if it is not kept meanwhile
    uint32_t total;
};
constexpr uint32_t kQuadTokens = 64;
// Quads of tokens of a stage of rows of channels that is no shorter.
constexpr uint32_t stage_quads(uint32_t stage_tokens) { return stage_tokens > kQuadTokens ? 2 : 1; }
// Most shares of the channels of keys, by warps, whose products are added up.
constexpr uint32_t kKeyShares = 4;
// Numbers after a column's: lanes reach different banks.
constexpr uint32_t kPartialPad = 4;
constexpr uint32_t kWeightPad = 8;
constexpr uint32_t kOutputPad = 4;
constexpr uint32_t partial_stride(const RowsGrid &grid) {
    return grid.partial_tokens + kPartialPad;
}
constexpr uint32_t rows_weight_bytes(const RowsGrid &grid) {
    return 2 * grid.n_columns * grid.weight_stride;
}
// The output, [column][channel], which takes the place of slots, or of all arrays, at the end.
constexpr uint32_t rows_output_bytes(const LayerArg &layer, const RowsGrid &grid) {
    return 4 * grid.n_columns * (layer.value_dim + kOutputPad);
}
constexpr RowsLayout rows_layout(const LayerArg &layer, const RowsGrid &grid) {
    RowsLayout layout{};
    const uint32_t columns = grid.n_columns;
    layout.queries = grid.n_slots * grid.slot_bytes;
    layout.minima = layout.queries + 2 * columns * layer.head_dim;
    const bool has_minima = grid.overlays_weights ? grid.page_bytes != 0 : !grid.unpacks;
    layout.weights = layout.minima + (has_minima ? 4 * kRowsWarps * columns : 0);
    const uint32_t weighed = grid.overlays_weights ? 0 : grid.divides_warps ? 2 : 1;  // stages
    layout.partial = layout.weights + weighed * rows_weight_bytes(grid);
    const uint32_t products =
        grid.divides_warps
            ? 0
            : 4 * grid.key_shares * (grid.unpacks ? kRowsColumns : columns) * partial_stride(grid);
    layout.copy = layout.partial + (grid.keeps_copy ? products : 0);
    const uint32_t ends[] = {layout.partial + products, layout.copy + grid.copy_bytes,
                             rows_output_bytes(layer, grid)};
    for (const uint32_t end : ends)
        layout.total = end > layout.total ? end : layout.total;
    return layout;
}

}  // namespace cuda
}  // namespace lk

#endif
