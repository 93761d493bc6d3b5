// Packing a page whose FP16 values are in shared memory: permute the channels if the page format
// says so, find the ranges and minima, and write each strip by a warp that holds its lanes' words
// in registers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_PAGE_CUH
#define LK_CUDA_PACK_PAGE_CUH

#include "cuda/pack/rank.cuh"
#include "cuda/pack/words.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kPackThreads = 1024;  // at most

// Where a page goes.
struct PageBytes {
    uint8_t *payload;
    uint8_t *metadata;
    const uint64_t *query_stats;  // u64 [head_dim] for kRankedByQueryRange
};

// Shared memory of a thread block, in bytes. The offsets suit every kind of image. Groups are
// measured once the slots have their places, over what these were found with.
struct Space {
    uint32_t groups;
    uint32_t scores;
    uint32_t boosted;
    uint32_t slot_offsets;
    uint32_t end;
};
LK_BOTH Space make_space(uint32_t head_dim, uint32_t page_tokens, uint32_t n_entries) {
    Space space;
    space.groups = space.scores = 2 * page_tokens * image_row_values(head_dim);
    space.boosted = space.scores + 4 * head_dim;
    space.slot_offsets = space.boosted + LK_MAX_HEAD_DIM / 8;
    const uint32_t slots_end = space.slot_offsets + 2 * head_dim;
    const uint32_t groups_end = space.groups + n_entries * static_cast<uint32_t>(sizeof(Group));
    space.end = slots_end > groups_end ? slots_end : groups_end;
    return space;
}
// Threads of a thread block: a warp for every kWarpTiles tiles, or as many as there can be.
constexpr uint32_t pack_threads(uint32_t head_dim, uint32_t page_tokens) {
    const uint32_t n_tiles = head_dim * page_tokens / (LK_STRIP_CHANNELS * LK_TILE_TOKENS);
    const uint32_t n_threads = (n_tiles + kWarpTiles - 1) / kWarpTiles * kWarp;
    return n_threads < kPackThreads ? n_threads : kPackThreads;
}
static_assert(kPackThreads / kWarp * kMostWarpTiles * kTileValues >=
                  LK_MAX_HEAD_DIM * LK_MAX_PAGE_TOKENS,
              "the warps of a thread block hold the largest page");

// The thread block's page format, in shared memory.
__device__ inline void load_format(FormatInfo *c, const FormatInfo *format) {
    if (threadIdx.x < sizeof *c / 16)
        reinterpret_cast<uint4 *>(c)[threadIdx.x] =
            reinterpret_cast<const uint4 *>(format)[threadIdx.x];
    __syncthreads();
}

// Write n tokens of a 16-bit page, whole tiles from a token on; values and order are theirs.
__device__ inline void write_raw_tokens(const uint16_t *values, const ValueOrder &order,
                                        const FormatInfo &c, uint8_t *payload, uint32_t first_token,
                                        uint32_t n_tokens) {
    const auto *permutation = reinterpret_cast<const uint8_t *>(c.permutation);
    auto *vectors = reinterpret_cast<uint4 *>(payload);
    const uint32_t page_tiles = c.page_tokens / LK_TILE_TOKENS;
    const uint32_t n_tiles = n_tokens / LK_TILE_TOKENS;
    const uint32_t n_vectors = uint32_t{c.head_dim} * n_tokens / kLaneValues;
    for (uint32_t i = threadIdx.x; i < n_vectors; i += blockDim.x) {
        const uint32_t lane = i % LK_LANES;
        const uint32_t tile = i / LK_LANES % n_tiles;
        const uint32_t strip = i / LK_LANES / n_tiles;
        uint32_t numbers[kLaneValues];
        for (uint32_t j = 0; j < kLaneValues; ++j) {
            const uint32_t row = LK_TILE_ROW(lane, j / 2);
            const uint32_t k = LK_TILE_K(lane, j / 2) + j % 2;
            const uint32_t slot = strip * LK_STRIP_CHANNELS + (c.is_value ? row : k);
            const uint32_t token = tile * LK_TILE_TOKENS + (c.is_value ? k : row);
            const uint32_t channel =
                permutation ? load_channel(permutation, c.head_dim, slot) : slot;
            numbers[j] = values[order.tokens.offset(token) + order.channels.offset(channel)];
        }
        vectors[(strip * page_tiles + first_token / LK_TILE_TOKENS + tile) * LK_LANES + lane] =
            make_uint4(numbers[0] | numbers[1] << 16, numbers[2] | numbers[3] << 16,
                       numbers[4] | numbers[5] << 16, numbers[6] | numbers[7] << 16);
    }
}

// Are the slots of its pages in another order than the channels?
__device__ inline bool is_ordered(const FormatInfo &c) {
    return c.ranking != kNotRanked || c.permutation || c.permutes;
}

__device__ inline void channel_position(const Image &image, const FormatInfo &c, uint8_t *metadata,
                                        uint16_t *slot_offsets, uint32_t slot, uint32_t channel) {
    slot_offsets[slot] = static_cast<uint16_t>(image.order.channels.offset(channel));
    if (c.permutes)
        store_channel(metadata + c.permutation_offset, c.head_dim, slot, channel);
}

// Find where each slot's channel lies: by the page's own permutation, the one of its format, or
// none.
__device__ inline void order_channels(const Image &image, const FormatInfo &c,
                                      const PageBytes &page, const RankSpace &rank_space,
                                      uint16_t *slot_offsets) {
    const auto *permutation = reinterpret_cast<const uint8_t *>(c.permutation);
    if (c.ranking != kNotRanked)
        score_channels(image.values, c, page.query_stats, rank_space);
    for (uint32_t i = threadIdx.x; i < c.head_dim; i += blockDim.x) {
        if (c.ranking != kNotRanked)
            channel_position(image, c, page.metadata, slot_offsets,
                             ranked_slot(rank_space, c.n_ranked, i), i);
        else
            channel_position(image, c, page.metadata, slot_offsets, i,
                             permutation ? load_channel(permutation, c.head_dim, i) : i);
    }
    __syncthreads();
}

// Put the values into the order of stored channels, in place. Keys that are in another order than
// the channels are in rows.
__device__ inline void arrange_values(const Image &image, const FormatInfo &c,
                                      const PageBytes &page, const Space &space, uint8_t *shared) {
    auto *slots = reinterpret_cast<uint4 *>(shared);
    const uint32_t lane = threadIdx.x % kWarp;
    if (!is_ordered(c)) {
        if (!image.is_rows)
            return;
        if (c.is_value)
            arrange_slots(RowsReader<true>(image, lane), c, slots);
        else
            arrange_slots(RowsReader<false>(image, lane), c, slots);
        return;
    }
    auto *slot_offsets = reinterpret_cast<uint16_t *>(shared + space.slot_offsets);
    const RankSpace rank_space = {reinterpret_cast<uint32_t *>(shared + space.scores),
                                  reinterpret_cast<uint32_t *>(shared + space.boosted)};
    order_channels(image, c, page, rank_space, slot_offsets);
    if (c.is_value)
        arrange_slots(SlotsReader<true>(image, slot_offsets, lane), c, slots);
    else
        arrange_slots(SlotsReader<false>(rows_image(image.values, c), slot_offsets, lane), c,
                      slots);
}

template <bool kByRow>
__device__ void pack_slots(const uint4 *slots, const FormatInfo &c, const PageBytes &page,
                           Group *groups) {
    measure_groups<kByRow>(slots, c, page.metadata, groups);
    __syncthreads();
    for (uint32_t strip = threadIdx.x / kWarp; strip < c.head_dim / LK_STRIP_CHANNELS;
         strip += blockDim.x / kWarp)
        write_strip<kByRow>(
            {c, slots, groups, page.payload, find_strip(c, strip), strip, threadIdx.x % kWarp});
}

// Pack a page of less than 16 bits. The image is at the beginning of the shared memory.
__device__ inline void pack_image(const Image &image, const FormatInfo &c, const PageBytes &page,
                                  const Space &space, uint8_t *shared) {
    const auto *slots = reinterpret_cast<const uint4 *>(shared);
    arrange_values(image, c, page, space, shared);
    auto *groups = reinterpret_cast<Group *>(shared + space.groups);
    if (c.is_token_axis && !c.is_value)
        pack_slots<true>(slots, c, page, groups);
    else
        pack_slots<false>(slots, c, page, groups);
}

}  // namespace cuda
}  // namespace lk

#endif
