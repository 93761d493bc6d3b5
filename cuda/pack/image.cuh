// The FP16 values of a page that is being packed, in shared memory.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_IMAGE_CUH
#define LK_CUDA_PACK_IMAGE_CUH

#include "cuda/fragment.cuh"
#include "cuda/pack/f16_page.cuh"

namespace lk {
namespace cuda {

// How values lie, by channels: in the strips of a 16-bit page, or in rows of tokens.
struct ValueOrder {
    Steps tokens;
    Steps channels;
};
LK_BOTH ValueOrder strips_order(const FormatInfo &c) {
    return {raw_token_steps(c.is_value), raw_channel_steps(c.is_value, c.page_tokens)};
}
LK_BOTH ValueOrder rows_order(uint32_t row_values) {
    return {linear_steps(row_values), linear_steps(1)};
}

// The values in shared memory, as they come.
struct Image {
    const uint16_t *values;
    ValueOrder order;
    bool is_rows;
};

// Rows are a multiple of 16 bytes apart that is no multiple of 32: the 8 rows of a matrix load
// begin in different banks.
LK_BOTH constexpr uint32_t image_row_values(uint32_t head_dim) { return head_dim + 8; }

LK_BOTH Image rows_image(const uint16_t *values, const FormatInfo &c) {
    return {values, rows_order(image_row_values(c.head_dim)), true};
}

// Copy a 16-bit page of the same shape; all threads of the thread block.
__device__ inline void copy_strips(uint16_t *image, const uint8_t *source, const FormatInfo &c) {
    const uint32_t to = shared_address(image);
    const uint32_t n_bytes = 2u * c.head_dim * c.page_tokens;
    for (uint32_t byte = 16 * threadIdx.x; byte < n_bytes; byte += 16 * blockDim.x)
        copy_async(to + byte, source + byte);
}

// Copy the keys of a 16-bit page to rows of tokens, in which slots in any order are found with
// fewer bank conflicts.
__device__ inline void copy_keys_to_rows(uint16_t *image, const uint8_t *source,
                                         const FormatInfo &c) {
    const auto *vectors = reinterpret_cast<const uint4 *>(source);
    auto *words = reinterpret_cast<uint32_t *>(image);
    const uint32_t row_words = image_row_values(c.head_dim) / 2;
    const uint32_t page_tiles = c.page_tokens / LK_TILE_TOKENS;  // a power of two
    const uint32_t n_vectors = c.head_dim * c.page_tokens / kLaneValues;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n_vectors; i += blockDim.x) {
        const uint4 vector = vectors[i];
        const uint32_t lane = i % LK_LANES;
        const uint32_t tile = i / LK_LANES & (page_tiles - 1);
        const uint32_t strip = i / LK_LANES >> __popc(page_tiles - 1);
        uint32_t *row = words + (tile * LK_TILE_TOKENS + LK_TILE_ROW(lane, 0)) * row_words +
                        (strip * LK_STRIP_CHANNELS + LK_TILE_K(lane, 0)) / 2;
        uint32_t *next_row = row + 8 * row_words;
        row[0] = vector.x;
        next_row[0] = vector.y;
        row[4] = vector.z;
        next_row[4] = vector.w;
    }
}

// Copy staged tokens to rows. A thread takes the same 16 bytes of every token_step-th token.
__device__ inline void copy_rows(uint16_t *image, const uint8_t *source, const FormatInfo &c) {
    const uint32_t n_tokens = c.page_tokens;  // read once: the copies may change memory
    const uint32_t row_vectors = c.head_dim / kLaneValues;
    const uint32_t row_bytes = 16 * row_vectors;
    const uint32_t image_row_bytes = 2 * image_row_values(c.head_dim);
    const uint32_t token_step = blockDim.x / row_vectors;
    const uint32_t in_row = 16 * (threadIdx.x % row_vectors);
    const uint32_t first = threadIdx.x / row_vectors;
    if (first >= token_step)
        return;
    uint32_t to = shared_address(image) + first * image_row_bytes + in_row;
    source += first * row_bytes + in_row;
#pragma unroll 4
    for (uint32_t token = first; token < n_tokens; token += token_step) {
        copy_async(to, source);
        to += token_step * image_row_bytes;
        source += token_step * row_bytes;
    }
}

// A tile of rows of tokens whose slots are its channels, by a matrix load of the whole warp.
template <bool kIsValue>
class RowsReader {
  public:
    __device__ RowsReader(const Image &image, uint32_t lane)
        : tile_bytes_(2 * image.order.tokens.sixteen) {
        // Each lane points at row lane % 8 of a matrix. The second matrix is rows 8-15 of the
        // tile, which are tokens of keys and channels of values; the third is its upper k.
        const uint32_t second = lane / 8 % 2 * 8;
        const uint32_t third = lane / 16 * 8;
        first_ = shared_address(image.values +
                                image.order.tokens.one * (lane % 8 + (kIsValue ? third : second)) +
                                (kIsValue ? second : third));
    }
    __device__ void load(uint32_t strip, uint32_t tile, uint32_t (&registers)[4]) const {
        const uint32_t address = first_ + tile * tile_bytes_ + strip * (2 * LK_STRIP_CHANNELS);
        if (kIsValue)
            load_matrices_transposed(registers, address);
        else
            load_matrices(registers, address);
    }

  private:
    uint32_t first_;
    uint32_t tile_bytes_;
};

// A tile of slots in any order, a value at a time. slot_offsets: of the slots' channels.
template <bool kIsValue>
class SlotsReader {
  public:
    __device__ SlotsReader(const Image &image, const uint16_t *slot_offsets, uint32_t lane)
        : image_(image), slot_offsets_(slot_offsets), lane_(lane) {
        for (uint32_t r = 0; r < 4; ++r)
            token_offsets_[r] =
                image.order.tokens.offset(kIsValue ? LK_TILE_K(lane, r) : LK_TILE_ROW(lane, r));
    }
    __device__ void load(uint32_t strip, uint32_t tile, uint32_t (&registers)[4]) const {
        const uint16_t *values = image_.values + tile * image_.order.tokens.sixteen;
        const uint16_t *slots = slot_offsets_ + strip * LK_STRIP_CHANNELS;
        for (uint32_t r = 0; r < 4; ++r) {
            const uint32_t slot = kIsValue ? LK_TILE_ROW(lane_, r) : LK_TILE_K(lane_, r);
            const uint32_t low = token_offsets_[r] + slots[slot];
            const uint32_t high =
                kIsValue ? low + image_.order.tokens.one : token_offsets_[r] + slots[slot + 1];
            registers[r] = __byte_perm(values[low], values[high], 0x5410);
        }
    }

  private:
    const Image &image_;
    const uint16_t *slot_offsets_;
    uint32_t lane_;
    uint32_t token_offsets_[4];  // of the lane's registers; for values, of the lower number of each
};

constexpr uint32_t kWarpTiles = 8;      // that a warp holds at once
constexpr uint32_t kMostWarpTiles = 9;  // the same of pages of more than 512 channels

// Put the tiles of a reader into their slots, over the image: tiles at 16 bits,
// [strip][tile][lane]. The warps of the thread block hold all tiles at once.
template <typename Reader>
__device__ inline void arrange_slots(const Reader &reader, const FormatInfo &c, uint4 *slots) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t page_tiles = c.page_tokens / LK_TILE_TOKENS;
    const uint32_t n_tiles = c.head_dim / LK_STRIP_CHANNELS * page_tiles;
    const uint32_t warp_tiles =
        n_tiles <= blockDim.x / kWarp * kWarpTiles ? kWarpTiles : kMostWarpTiles;
    const uint32_t first = threadIdx.x / kWarp * warp_tiles;
    const uint32_t end = min(first + warp_tiles, n_tiles);
    const uint32_t tile_mask = page_tiles - 1;  // a power of two less one
    const uint32_t tile_bits = __popc(tile_mask);
    uint32_t registers[kMostWarpTiles][4];
#pragma unroll
    for (uint32_t i = 0; i < kMostWarpTiles; ++i)
        if (first + i < end)
            reader.load((first + i) >> tile_bits, (first + i) & tile_mask, registers[i]);
    __syncthreads();
    uint4 *to = slots + first * LK_LANES + lane;
#pragma unroll
    for (uint32_t i = 0; i < kMostWarpTiles; ++i)
        if (first + i < end)
            to[i * LK_LANES] =
                make_uint4(registers[i][0], registers[i][1], registers[i][2], registers[i][3]);
    __syncthreads();
}

}  // namespace cuda
}  // namespace lk

#endif
