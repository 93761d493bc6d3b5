// Attention of long steps: where the values of a page lie in its slot.
//
// Tiles lie as in 16-bit pages. Matrices are what warpgroups multiply: 8 rows of 16 bytes, those of
// keys with 8 channels of a token, those of values with 8 tokens of a channel. The matrices of a
// stage lie together, so that one copy brings them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_SLOTS_CUH
#define LK_CUDA_PREFILL_SLOTS_CUH

#include "cuda/fragment.cuh"
#include "cuda/prefill/pass.cuh"

namespace lk {
namespace cuda {

// The K page or the V page of a slot.
struct SlotPage {
    uint8_t *bytes;
    uint32_t head_dim;
    uint32_t is_value;
    uint32_t has_matrices;

    // Tokens whose values a kernel reads of a page of n: it hides the keys after the last.
    __device__ uint32_t read_tokens(uint32_t n) const {
        constexpr uint32_t kRead = kGroupStageTokens;
        return has_matrices && is_value ? (n + kRead - 1) / kRead * kRead : n;
    }
    __device__ uint8_t *tile(uint32_t strip, uint32_t at) const {
        return bytes + (strip * (kSlotTokens / LK_TILE_TOKENS) + at) * kTileBytes;
    }
    // The matrix of register r of the lanes of a tile, of which each has four bytes.
    __device__ uint8_t *matrix(uint32_t strip, uint32_t at, uint32_t r) const {
        constexpr uint32_t kStage = kGroupStageTokens / 8;
        const uint32_t channels = 2 * strip + (is_value ? r % 2 : r / 2);
        const uint32_t tokens = 2 * at + (is_value ? r / 2 : r % 2);
        const uint32_t index =
            is_value ? tokens * (head_dim / 8) + channels
                     : (tokens / kStage * (head_dim / 8) + channels) * kStage + tokens % kStage;
        return bytes + index * kMatrixBytes;
    }
    // Store a tile. Whole warps.
    __device__ void store(uint32_t strip, uint32_t at, const uint32_t (&a)[4]) const {
        const uint32_t lane = threadIdx.x % kWarp;
        if (!has_matrices) {
            reinterpret_cast<uint4 *>(tile(strip, at))[lane] = make_uint4(a[0], a[1], a[2], a[3]);
            return;
        }
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r)
            reinterpret_cast<uint32_t *>(matrix(strip, at, r))[lane] = a[r];
    }
};

__device__ inline SlotPage slot_page(const PagePass &pass, uint32_t head_dim, uint32_t pair,
                                     uint32_t page, uint32_t side) {
    return {slot_tiles(pass, head_dim, pair, page, side), head_dim, side, pass.has_matrices};
}

}  // namespace cuda
}  // namespace lk

#endif
