// FP16 values and codes as rows and k of tiles, and how tiles lie in strips (docs/FORMAT.md).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_PACK_TILES_H
#define LK_BACKEND_CPU_PACK_TILES_H

#include <cstdint>

namespace lk {
namespace cpu {

// Rows of `stride` FP16 values each. Numbers of rows and columns are multiples of 16.
struct HalfRows {
    const uint16_t *values;
    uint64_t stride;
};

// Column c of n_columns, n_rows values, to out + (places ? places[c] : c) * n_rows.
void transpose_rows(const HalfRows &rows, uint32_t n_rows, uint32_t n_columns,
                    const uint16_t *places, uint16_t *out);

// The lowest and the highest value of each column, or of each row; -0 counts as 0.
void find_column_extremes(const HalfRows &rows, uint32_t n_rows, uint32_t n_columns, uint16_t *low,
                          uint16_t *high);
void find_row_extremes(const HalfRows &rows, uint32_t n_rows, uint32_t n_columns, uint16_t *low,
                       uint16_t *high);

// 16 rows of 16 values to a tile at 16 bits, or back.
void write_raw_tile(const HalfRows &rows, uint16_t *tile);
void read_raw_tile(const uint16_t *tile, uint16_t *values, uint64_t stride);

// The words of a strip of a plane of `bits`, 1, 2, 4 or 8, that holds (code >> shift) & (2^bits -
// 1) of codes [tile][row][k].
void write_plane(const uint16_t *codes, uint32_t page_tokens, uint32_t bits, uint32_t shift,
                 uint8_t *strip);
// The same back; with a shift the bits are added to those of the codes below.
void read_plane(const uint8_t *strip, uint32_t page_tokens, uint32_t bits, uint32_t shift,
                uint16_t *codes);

}  // namespace cpu
}  // namespace lk

#endif
