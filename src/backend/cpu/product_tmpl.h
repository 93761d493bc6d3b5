// Products of FP32 matrices in register blocks.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_PRODUCT_TMPL_H
#define LK_BACKEND_CPU_PRODUCT_TMPL_H

#include "backend/cpu/simd.h"

namespace lk {
namespace cpu {
namespace {

// Element (row, k) at data[row * row_stride + k * k_stride].
struct Matrix {
    const float *data;
    int64_t row_stride;
    int64_t k_stride;
};

constexpr uint32_t kTileHeight = 4;                      // rows of A in registers
constexpr uint32_t kTileVectors = LK_SIMD_TILE_VECTORS;  // vectors of B

// Accumulate kTileHeight x N vectors of C += A * B; rows of A and C by pointers, B's in the order
// of b_rows.
template <uint32_t N>
LK_INLINE void multiply_tile(const float *const *a, int64_t k_stride, const float *b,
                             const uint32_t *b_rows, uint32_t n_k, float *const *c, bool add) {
    Vf sums[kTileHeight][N];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kTileHeight; ++i)
#pragma GCC unroll 4
        for (uint32_t j = 0; j < N; ++j)
            sums[i][j] = add ? load<Vf>(c[i] + j * kWidth) : Vf{};
    for (uint32_t k = 0; k < n_k; ++k) {
        const float *b_row = b + b_rows[k];
        Vf columns[N];
#pragma GCC unroll 4
        for (uint32_t j = 0; j < N; ++j)
            columns[j] = load<Vf>(b_row + j * kWidth);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < kTileHeight; ++i) {
            const Vf value = broadcast(a[i][k * k_stride]);
#pragma GCC unroll 4
            for (uint32_t j = 0; j < N; ++j)
                sums[i][j] += value * columns[j];
        }
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kTileHeight; ++i)
#pragma GCC unroll 4
        for (uint32_t j = 0; j < N; ++j)
            store(c[i] + j * kWidth, sums[i][j]);
}

// C [n_m][width] (+)= A [n_m][n_k] * B [n_k][width]; rows by tables of offsets. n_m is a multiple
// of kTileHeight, width of kWidth.
struct Product {
    const float *a;
    const uint32_t *a_rows;
    int64_t k_stride;  // of A
    const float *b;
    const uint32_t *b_rows;
    float *c;
    const uint32_t *c_rows;
    uint32_t n_m;
    uint32_t n_k;
    uint32_t width;
    bool add;
};

// Rows of B that stay in the first cache while all rows of A pass.
constexpr uint32_t kTileDepth = 256;

// kTileHeight rows, n_k of k from k on, n vectors from x on.
LK_INLINE void multiply_rows(const Product &p, uint32_t m, uint32_t k, uint32_t n_k, uint32_t x,
                             uint32_t n) {
    const float *a[kTileHeight];
    float *c[kTileHeight];
    for (uint32_t i = 0; i < kTileHeight; ++i) {
        a[i] = p.a + p.a_rows[m + i] + k * p.k_stride;
        c[i] = p.c + p.c_rows[m + i] + x;
    }
    const float *b = p.b + x;
    const uint32_t *b_rows = p.b_rows + k;
    const bool add = p.add || k;
    switch (n) {
        case 1: multiply_tile<1>(a, p.k_stride, b, b_rows, n_k, c, add); break;
        case 2: multiply_tile<2>(a, p.k_stride, b, b_rows, n_k, c, add); break;
        case 3: multiply_tile<3>(a, p.k_stride, b, b_rows, n_k, c, add); break;
        default: multiply_tile<4>(a, p.k_stride, b, b_rows, n_k, c, add); break;
    }
}

inline void multiply(const Product &p) {
    for (uint32_t x = 0; x < p.width;) {
        const uint32_t vectors = (p.width - x) / kWidth;
        const uint32_t n = vectors < kTileVectors ? vectors : kTileVectors;
        for (uint32_t k = 0; k < p.n_k; k += kTileDepth)
            for (uint32_t m = 0; m < p.n_m; m += kTileHeight)
                multiply_rows(p, m, k, p.n_k - k < kTileDepth ? p.n_k - k : kTileDepth, x, n);
        x += n * kWidth;
    }
}

// Offsets of rows that follow each other.
inline void row_offsets(uint32_t n, int64_t stride, uint32_t *offsets) {
    for (uint32_t i = 0; i < n; ++i)
        offsets[i] = i * static_cast<uint32_t>(stride);
}

// Products of rows: out[r][i] = a row i . x row r, n floats each, a multiple of kWidth.
struct RowProduct {
    const float *a;
    uint32_t a_stride;
    const float *x;
    uint32_t x_stride;
    uint32_t n;
    float *out;
    uint32_t out_stride;
};

// Of 4 rows of a, as many at once as registers have sums.
template <uint32_t kRows>
LK_INLINE void dot_row_block(const RowProduct &p) {
    constexpr uint32_t kHeight = LK_SIMD_SUMS / kRows < 4 ? LK_SIMD_SUMS / kRows : 4;
    Vf4 folded[kRows][4];
    for (uint32_t first = 0; first < 4; first += kHeight) {
        Vf sums[kHeight][kRows] = {};
        for (uint32_t k = 0; k < p.n; k += kWidth) {
            Vf x[kRows];
#pragma GCC unroll 4
            for (uint32_t r = 0; r < kRows; ++r)
                x[r] = load<Vf>(p.x + r * p.x_stride + k);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < kHeight; ++i) {
                const Vf row = load<Vf>(p.a + (first + i) * uint64_t{p.a_stride} + k);
#pragma GCC unroll 4
                for (uint32_t r = 0; r < kRows; ++r)
                    sums[i][r] += row * x[r];
            }
        }
#pragma GCC unroll 4
        for (uint32_t r = 0; r < kRows; ++r)
            for (uint32_t i = 0; i < kHeight; ++i)
                folded[r][first + i] = fold_vector(sums[i][r]);
    }
    for (uint32_t r = 0; r < kRows; ++r) {
        transpose4(folded[r]);
        store(p.out + r * p.out_stride,
              (folded[r][0] + folded[r][1]) + (folded[r][2] + folded[r][3]));
    }
}

// n_a: rows of a, taken 4 at a time.
inline void dot_rows(const RowProduct &p, uint32_t n_a, uint32_t n_rows) {
    by_rows<4>(n_rows, [&](auto rows, uint32_t r) {
        RowProduct block = p;
        block.x += r * uint64_t{p.x_stride};
        block.out += r * uint64_t{p.out_stride};
        for (uint32_t i = 0; i < n_a; i += 4) {
            dot_row_block<decltype(rows)::value>(block);
            block.a += 4 * uint64_t{p.a_stride};
            block.out += 4;
        }
    });
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
