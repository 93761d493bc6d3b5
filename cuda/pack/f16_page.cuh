// Where FP16 values lie: in a 16-bit page, or in rows of tokens. A token's and a channel's
// offset add up, and each is a sum over the bits of its index.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_F16_PAGE_CUH
#define LK_CUDA_PACK_F16_PAGE_CUH

#include "cuda/dequantize.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kLaneValues = 8;  // of a tile
constexpr uint32_t kTileValues = kLaneValues * LK_LANES;

// Offsets, in FP16 numbers, of indices 1, 2, 8 and 16 along tokens or channels.
struct Steps {
    uint32_t one;
    uint32_t two;
    uint32_t eight;
    uint32_t sixteen;

    LK_BOTH uint32_t offset(uint32_t index) const {
        return (index & 1) * one + (index >> 1 & 3) * two + (index >> 3 & 1) * eight +
               (index >> 4) * sixteen;
    }
};

// The steps along the rows and along the k of tiles.
LK_BOTH constexpr Steps row_steps(uint32_t tile_step) {
    return {LK_TILE_LANE(1, 0) * kLaneValues, LK_TILE_LANE(2, 0) * kLaneValues,
            LK_TILE_REGISTER(8, 0) * 2, tile_step};
}
LK_BOTH constexpr Steps k_steps(uint32_t tile_step) {
    return {1, LK_TILE_LANE(0, 2) * kLaneValues, LK_TILE_REGISTER(0, 8) * 2, tile_step};
}
LK_BOTH constexpr Steps linear_steps(uint32_t step) {
    return {step, 2 * step, 8 * step, 16 * step};
}

// The steps along the tokens and the channels of a 16-bit page.
LK_BOTH Steps raw_token_steps(bool is_value) {
    return is_value ? k_steps(kTileValues) : row_steps(kTileValues);
}
LK_BOTH Steps raw_channel_steps(bool is_value, uint32_t page_tokens) {
    const uint32_t strip = LK_STRIP_CHANNELS * page_tokens;
    return is_value ? row_steps(strip) : k_steps(strip);
}

}  // namespace cuda
}  // namespace lk

#endif
