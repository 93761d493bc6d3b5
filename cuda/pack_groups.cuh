// Ranges and minima of a half page: docs/FORMAT.md, sections 7 and 9.2 to 9.5.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_GROUPS_CUH
#define LK_CUDA_PACK_GROUPS_CUH

#include "pack_image.cuh"
#include "quantize.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kPlusInfinities = 0x7C007C00;
constexpr uint32_t kMinusInfinities = 0xFC00FC00;

__device__ __forceinline__ uint32_t lower(uint32_t a, uint32_t b) {
    return as_word(__hmin2(as_half2(a), as_half2(b)));
}
__device__ __forceinline__ uint32_t higher(uint32_t a, uint32_t b) {
    return as_word(__hmax2(as_half2(a), as_half2(b)));
}

// Lowest and highest values that a lane has met, each the halves of two words: one for the lower
// and one for the upper half of k, or, by row, one for each of its two rows.
struct Extremes {
    uint32_t low[2] = {kPlusInfinities, kPlusInfinities};
    uint32_t high[2] = {kMinusInfinities, kMinusInfinities};

    __device__ void add(uint32_t i, uint32_t word) {
        low[i] = lower(low[i], word);
        high[i] = higher(high[i], word);
    }
    // With the lanes whose numbers differ in the bits of `lanes`.
    __device__ void join(uint32_t lanes) {
        for (uint32_t i = 0; i < 2; ++i) {
            low[i] = lower(low[i], __shfl_xor_sync(kAllLanes, low[i], lanes));
            high[i] = higher(high[i], __shfl_xor_sync(kAllLanes, high[i], lanes));
        }
    }
};

// 16 neighbouring entries of the metadata, and the tiles that they are for.
struct GroupTiles {
    uint32_t first_entry;
    uint32_t strip;
    uint32_t tile;
    uint32_t n_strips;
    uint32_t n_tiles;
};

// Tasks of a half, and one of them.
__device__ inline uint32_t group_tasks(const ClassInfo &c) {
    return c.n_groups *
           (c.is_token_axis ? c.page_tokens / LK_TILE_TOKENS : c.head_dim / LK_STRIP_CHANNELS);
}
__device__ inline GroupTiles group_tiles(const ClassInfo &c, uint32_t task) {
    if (!c.is_token_axis) {  // [strip][group of tokens]
        const uint32_t strip = task / c.n_groups;
        const uint32_t n_tiles = c.group / LK_TILE_TOKENS;
        return {task * LK_STRIP_CHANNELS, strip, task % c.n_groups * n_tiles,
                strip < c.strips[0] ? 0u : 1u, n_tiles};
    }
    // [group of slots][tile]; slots of 16 bits do not count.
    const uint32_t n_tiles = c.page_tokens / LK_TILE_TOKENS;
    const uint32_t group_strips = c.group / LK_STRIP_CHANNELS;
    const uint32_t group_first = task / n_tiles * group_strips;
    const uint32_t end = min(group_first + group_strips, c.head_dim / LK_STRIP_CHANNELS);
    const uint32_t first = max(group_first, uint32_t{c.strips[0]});
    return {task * LK_TILE_TOKENS, first, task % n_tiles, first < end ? end - first : 0u, 1};
}

template <bool kByRow>
__device__ inline Extremes find_extremes(const Slots &slots, const GroupTiles &at, uint32_t lane) {
    Extremes extremes;
    for (uint32_t strip = at.strip; strip < at.strip + at.n_strips; ++strip) {
#pragma unroll 2
        for (uint32_t tile = at.tile; tile < at.tile + at.n_tiles; ++tile) {
            uint32_t registers[4];
            slots.load(strip, tile, lane, registers);
            for (uint32_t r = 0; r < 4; ++r)
                extremes.add(kByRow ? r % 2 : r / 2, registers[r]);
        }
    }
    for (uint32_t lanes = kByRow ? 1 : 4; lanes < (kByRow ? 4 : kWarp); lanes *= 2)
        extremes.join(lanes);
    return extremes;
}

__device__ inline void store_number(uint8_t *array, uint32_t number_bytes, uint32_t entry,
                                    uint32_t bits) {
    if (number_bytes == 1)
        array[entry] = static_cast<uint8_t>(bits);
    else
        reinterpret_cast<uint16_t *>(array)[entry] = static_cast<uint16_t>(bits);
}

// Of 16 neighbouring entries a lane keeps one: the four of its k lie together, or the two of its
// rows. Other lanes keep none.
template <bool kByRow>
struct LaneEntry {
    uint32_t part;   // among those that lie together
    uint32_t place;  // among the 16
    bool exists;

    __device__ explicit LaneEntry(uint32_t lane)
        : part(kByRow ? lane % 4 : lane / 4),
          place(kByRow ? 2 * (lane / 4) + part : 4 * (lane % 4) + part),
          exists(part < (kByRow ? 2 : 4)) {}

    __device__ Parameters parameters(const Extremes &e, bool is_f8) const {
        const uint32_t i = kByRow ? part : part / 2;
        uint32_t low = i ? e.low[1] : e.low[0];
        uint32_t high = i ? e.high[1] : e.high[0];
        if (kByRow) {
            low = lower(low, low >> 16);
            high = higher(high, high >> 16);
        } else {
            low >>= 16 * (part % 2);
            high >>= 16 * (part % 2);
        }
        return make_parameters(low & 0xFFFFu, high & 0xFFFFu, is_f8);
    }
};

// Find and store the ranges and minima, by warps; groups [entries] is in shared memory.
template <bool kByRow>
__device__ inline void measure_groups(const Slots &slots, const ClassInfo &c, uint8_t *metadata,
                                      Group *groups) {
    const uint32_t lane = threadIdx.x % kWarp;
    const LaneEntry<kByRow> entry(lane);
    const bool has_thresholds = c.strips[4] + c.strips[5] > 0;  // of 2 and 1 bits
    for (uint32_t task = threadIdx.x / kWarp; task < group_tasks(c); task += blockDim.x / kWarp) {
        const GroupTiles at = group_tiles(c, task);
        const Extremes extremes = find_extremes<kByRow>(slots, at, lane);
        if (entry.exists) {
            Parameters p = {};
            if (at.n_strips)
                p = entry.parameters(extremes, c.number_bytes == 1);
            const uint32_t index = at.first_entry + entry.place;
            store_number(metadata, c.number_bytes, index, p.range_bits);
            store_number(metadata + c.minima_offset, c.number_bytes, index, p.minimum_bits);
            groups[index] = make_group(p, has_thresholds);
        }
    }
}

}  // namespace cuda
}  // namespace lk

#endif
