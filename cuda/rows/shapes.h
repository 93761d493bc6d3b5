// Attention of uneven layers: what a launch has in shared memory, by how much of it a device has.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_SHAPES_H
#define LK_CUDA_ROWS_SHAPES_H

#include "cuda/rows/grid.h"

namespace lk {
namespace cuda {

// Of a thread block's shared memory, in addition to rows_layout(), which begins at a multiple of
// 128: the most that a kernel has.
constexpr uint32_t kRowsStaticBytes = 7296;

enum Method { kCodes, kTiles, kRows };  // codes that are multiplied; FP16 tiles; rows of channels
enum SlotFlags : uint32_t {
    kDividesWarps = 1,
    kHasCopy = 2,   // of a packed page that becomes rows
    kIsTight = 4,   // arrays that are not in use at once share memory
    kCutsPages = 8  // of codes into two stages
};
struct SlotShape {
    Method method;
    uint32_t n_columns;
    uint32_t n_slots;
    uint32_t stage_tokens;
    uint32_t key_shares;
    uint32_t flags;
};
// Preferred from the first to the last. Of rows, a stage costs much the same whatever its tokens,
// so that 32 of them without a copy of the page take less time than 16 with one. The copy of a page
// saves more than 32 columns do where stages have 64 tokens, and less where they have 32.
constexpr SlotShape kSlotShapes[] = {
    {kCodes, 32, 2, 64, 4, 0},
    {kCodes, 32, 2, 48, 4, 0},
    {kCodes, 32, 2, 32, 4, 0},
    {kCodes, 32, 1, 64, 4, 0},
    {kCodes, 32, 1, 32, 4, 0},
    {kCodes, 32, 1, 32, 4, kIsTight},
    {kCodes, 32, 1, 32, 4, kIsTight | kCutsPages},
    {kRows, 32, 1, 128, 2, kHasCopy},
    {kRows, 32, 1, 64, 4, kHasCopy},
    {kRows, 32, 1, 32, 4, kHasCopy | kIsTight},
    {kTiles, 32, 2, 64, 4, 0},
    {kTiles, 32, 2, 64, 4, kIsTight},
    {kTiles, 32, 2, 48, 4, 0},
    {kTiles, 32, 2, 32, 4, 0},
    {kTiles, 32, 1, 32, 4, 0},
    {kTiles, 32, 1, 32, 4, kIsTight},
    {kTiles, 32, 1, 16, 4, kIsTight},
    {kCodes, 16, 3, 48, 4, kDividesWarps},
    {kCodes, 16, 3, 32, 4, kDividesWarps},
    {kCodes, 16, 2, 64, 4, 0},
    {kCodes, 16, 2, 48, 4, 0},
    {kCodes, 16, 2, 32, 4, 0},
    {kCodes, 16, 1, 64, 4, 0},
    {kCodes, 16, 1, 32, 4, 0},
    {kCodes, 16, 3, 16, 4, kDividesWarps},
    {kCodes, 16, 1, 32, 4, kIsTight},
    {kCodes, 16, 1, 32, 4, kIsTight | kCutsPages},
    {kRows, 16, 1, 128, 2, kHasCopy},
    {kRows, 16, 1, 64, 4, kHasCopy},
    {kRows, 32, 1, 64, 4, 0},
    {kRows, 32, 1, 32, 4, kIsTight},
    {kRows, 16, 1, 32, 4, kHasCopy | kIsTight},
    {kRows, 16, 1, 32, 2, kHasCopy | kIsTight},
    {kRows, 16, 1, 64, 4, 0},
    {kRows, 16, 1, 32, 4, kIsTight},
    {kRows, 16, 1, 16, 4, kHasCopy | kIsTight},
    {kRows, 16, 1, 16, 4, kIsTight},
    {kTiles, 16, 2, 64, 4, 0},
    {kTiles, 16, 2, 48, 4, 0},
    {kTiles, 16, 2, 32, 4, 0},
    {kTiles, 16, 1, 48, 4, 0},
    {kTiles, 16, 1, 32, 4, 0},
    {kTiles, 16, 1, 16, 4, kIsTight},
};

// Bytes of a part of the largest page of codes: half of them, the ranges and the minima.
inline uint32_t part_bytes(const LayerArg &layer, const RowsPages &pages) {
    return (pages.coded_bytes + 4 * layer.head_dim) / 2;
}

// Can a layer with these pages have a shape? Stages of rows are no longer than packed pages, and
// with copies short ones cost more than 32 columns save. Slots for parts of pages have place for
// whole ones of 2 bits.
inline bool is_possible(const LayerArg &layer, const SlotShape &shape, const RowsPages &pages,
                        uint32_t n_columns) {
    const bool is_wide = shape.n_columns > kRowsColumns;
    if (is_wide && n_columns <= kRowsColumns)
        return false;
    if (shape.method == kCodes && shape.flags & kCutsPages)
        return pages.page_tokens == kMostRowsTokens &&
               part_bytes(layer, pages) >= layer.head_dim * (kMostRowsTokens / 4 + 4);
    if (shape.method == kCodes)
        return pages.coded_bytes;
    if (shape.method == kTiles)
        return !pages.packed_bytes;
    const bool is_short =
        shape.stage_tokens < kQuadTokens && shape.stage_tokens < pages.page_tokens;
    return pages.packed_bytes && shape.stage_tokens <= pages.page_tokens &&
           !(is_wide && is_short && shape.flags & kHasCopy);
}

inline RowsGrid shaped_grid(const LayerArg &layer, const SlotShape &shape, const RowsPages &pages,
                            uint32_t n_columns) {
    RowsGrid grid{};
    const bool has_codes = shape.method == kCodes;
    grid.n_columns = shape.n_columns;
    grid.n_tiles = (n_columns + shape.n_columns - 1) / shape.n_columns;
    grid.n_slots = shape.n_slots;
    grid.stage_tokens = shape.stage_tokens;
    grid.partial_tokens = has_codes ? kMostRowsTokens : shape.stage_tokens;
    grid.key_shares = shape.key_shares;
    grid.page_bytes = has_codes ? pages.coded_bytes : 0;
    grid.copy_bytes = shape.flags & kHasCopy ? pages.packed_bytes : 0;
    grid.keeps_copy = shape.stage_tokens < pages.page_tokens;
    grid.divides_warps = shape.flags & kDividesWarps;
    grid.unpacks = shape.method == kRows;
    const bool is_tight = shape.flags & kIsTight;
    grid.overlays_weights = is_tight && !grid.unpacks;
    grid.weight_stride =
        grid.overlays_weights ? 2 * partial_stride(grid) : grid.partial_tokens + kWeightPad;
    const uint32_t tiles =
        2 * shape.stage_tokens * (stored_dim(layer, false) + stored_dim(layer, true));
    const uint32_t output = is_tight ? 0 : rows_output_bytes(layer, grid) / shape.n_slots;
    const uint32_t page = shape.flags & kCutsPages ? part_bytes(layer, pages) : grid.page_bytes;
    const uint32_t most = tiles > page ? tiles : page;
    grid.slot_bytes = ((most > output ? most : output) + 15) / 16 * 16;
    grid.shared_bytes = rows_layout(layer, grid).total;
    return grid;
}

// The preferred shape that fits, for so many query columns of a KV head. shared_bytes: of a thread
// block. False where none fits.
inline bool choose_shape(const LayerArg &layer, const RowsPages &pages, uint32_t n_columns,
                         uint32_t shared_bytes, RowsGrid *grid) {
    for (const SlotShape &shape : kSlotShapes) {
        if (!is_possible(layer, shape, pages, n_columns))
            continue;
        *grid = shaped_grid(layer, shape, pages, n_columns);
        if (grid->shared_bytes + kRowsStaticBytes <= shared_bytes)
            return true;
    }
    return false;
}

}  // namespace cuda
}  // namespace lk

#endif
