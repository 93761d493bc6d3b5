// Attention of uneven layers with packed pages that become FP16: products of rows of channels.
//
// Matrices are loaded from rows: transposed for keys, as they lie for values.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_ROW_PRODUCTS_CUH
#define LK_CUDA_ROWS_ROW_PRODUCTS_CUH

#include "cuda/rows/channel_rows.cuh"
#include "cuda/rows/products.cuh"

namespace lk {
namespace cuda {

// The order of weights, as PlainOrder of attend.cuh.
struct RowOrder {
    RowShape shape;
    bool has_few_shares;  // of the channels, as always in stages of two quads

    static constexpr bool kHasMinima = false;
    __device__ __forceinline__ uint32_t token_at(uint32_t place) const {
        return shape.token_at(place);
    }
    __device__ __forceinline__ uint32_t n_shares() const {
        return shape.n_quads > 1 || has_few_shares ? kKeyShares / 2 : kKeyShares;
    }
};

// The lane's row of a matrix of 16 channels and 16 places, as load_matrices() takes it: matrices
// of keys follow in the places first, those of values in the channels.
__device__ __forceinline__ uint32_t matrix_row(const RowShape &shape, bool is_value) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t matrix = lane / 8;
    const uint32_t eighth = is_value ? matrix % 2 : matrix / 2;
    return shape.at(8 * eighth + lane % 8, 16 * (is_value ? matrix / 2 : matrix % 2));
}

// S of a stage of rows, in shares: a warp has 16 tokens and a share of the channels.
class KeyRows {
  public:
    __device__ __forceinline__ KeyRows(const RowsBlock &block, const RowOrder &order,
                                       uint32_t rows) {
        const RowShape &shape = order.shape;
        const uint32_t n_shares = order.n_shares();
        tile_ = threadIdx.x / kWarp / n_shares;
        share_ = threadIdx.x / kWarp % n_shares;
        exists_ = tile_ < shape.n_tiles();
        const uint32_t n = (block.key_strips + n_shares - 1) / n_shares;
        const uint32_t first = min(share_ * n, block.key_strips);
        const uint32_t end = exists_ ? min(first + n, block.key_strips) : first;
        const uint32_t at =
            shape.tile_at(rows + matrix_row(shape, false), tile_) + first * shape.strip_bytes();
        const uint32_t queries = shared_address(block.queries) + first * block.query_strip_bytes() +
                                 16 * (threadIdx.x % kWarp);
        if (block.is_wide())
            multiply<true>(at, queries, end - first, shape.strip_bytes());
        else
            multiply<false>(at, queries, end - first, shape.strip_bytes());
    }
    // Products of 16 columns go to partials; those of 16 more take their place.
    __device__ __forceinline__ void store(float *partials, uint32_t stride) {
        if (exists_)
            store_products<false>(
                partials + share_ * kRowsColumns * stride + tile_ * LK_TILE_TOKENS, stride,
                products_, 1);
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                products_[n][i] = products_[kNarrowEights + n][i];
    }

  private:
    template <bool kWide>
    __device__ __forceinline__ void multiply(uint32_t at, uint32_t query, uint32_t n,
                                             uint32_t strip_bytes) {
        constexpr uint32_t kQueryBytes = ColumnOperands<kWide>::kSixteens * kTileBytes;
        // The second of two chains of sums is where wide products have their upper columns.
        float(&odd)[kNarrowEights][4] =
            reinterpret_cast<float(&)[kNarrowEights][4]>(products_[kNarrowEights]);
        const auto step = [&](auto &sums) {
            uint32_t a[4];
            load_matrices_transposed(a, at);
            load_queries<kWide>(query).multiply(a, sums);
            at += strip_bytes;
            query += kQueryBytes;
        };
#pragma unroll 1
        for (; n > 1; n -= 2) {
            step(products_);
            if constexpr (kWide)
                step(products_);
            else
                step(odd);
        }
        if (n)
            step(products_);
        if constexpr (!kWide)
#pragma unroll
            for (int i = 0; i < kNarrowEights; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    products_[i][j] += odd[i][j];
    }

    float products_[kEights][4] = {};
    uint32_t tile_;
    uint32_t share_;
    bool exists_;
};

// O of a stage of rows, which are keys or values.
template <bool kWide, int kStrips, int kN>
__device__ __forceinline__ void multiply_value_rows(const RowShape &shape, uint32_t rows,
                                                    const ValueWork &work,
                                                    StripSums<kStrips, kN> &out) {
    uint32_t at[kStrips];
#pragma unroll
    for (int i = 0; i < kStrips; ++i)
        at[i] = rows + own_strip<kStrips>(work, i) * shape.strip_bytes() + matrix_row(shape, true);
#pragma unroll(kWide ? 1 : 2)
    for (uint32_t tile = 0; tile < shape.n_tiles(); ++tile) {
        const ColumnOperands<kWide> weights = work.operands<kWide>(tile);
#pragma unroll
        for (int i = 0; i < kStrips; ++i) {
            uint32_t a[4];
            load_matrices(a, shape.tile_at(at[i], tile));
            weights.multiply(a, out[i]);
        }
    }
}

}  // namespace cuda
}  // namespace lk

#endif
