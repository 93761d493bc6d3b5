// Ranges and minima of a page: docs/FORMAT.md, sections 7 and 9.2 to 9.7.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_GROUPS_CUH
#define LK_CUDA_PACK_GROUPS_CUH

#include "cuda/pack/image.cuh"
#include "cuda/pack/quantize.cuh"

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

// Lowest and highest values that a lane has met, each as two words of two FP16 numbers: one for the
// lower and one for the upper 8 of k, or, by row, one for each of its two rows.
struct Extremes {
    uint32_t low[2] = {kPlusInfinities, kPlusInfinities};
    uint32_t high[2] = {kMinusInfinities, kMinusInfinities};

    __device__ void add(uint32_t i, uint32_t word) {
        low[i] = lower(low[i], word);
        high[i] = higher(high[i], word);
    }
    // A lane takes the extremes of the lane whose number differs in the bits of `lanes`.
    __device__ void join(uint32_t lanes) {
        for (uint32_t i = 0; i < 2; ++i) {
            low[i] = lower(low[i], __shfl_xor_sync(kAllLanes, low[i], lanes));
            high[i] = higher(high[i], __shfl_xor_sync(kAllLanes, high[i], lanes));
        }
    }
};

// 16 neighbouring entries of the metadata, and the tiles that they are for, by index.
struct GroupTiles {
    uint32_t first_entry;
    uint32_t first;
    uint32_t step;
    uint32_t count;
};

// Lines, strips or rows of tiles, and the groups along each.
__device__ inline uint32_t n_lines(const FormatInfo &c) {
    return c.is_token_axis ? c.page_tokens / LK_TILE_TOKENS : c.head_dim / LK_STRIP_CHANNELS;
}
__device__ inline GroupTiles group_tiles(const FormatInfo &c, uint32_t line, uint32_t group) {
    const uint32_t page_tiles = c.page_tokens / LK_TILE_TOKENS;
    if (!c.is_token_axis) {  // [strip][group of tokens]
        const uint32_t count = c.group / LK_TILE_TOKENS;
        return {(line * c.n_groups + group) * LK_STRIP_CHANNELS, line * page_tiles + group * count,
                1, line < c.strips[kPlane16] ? 0 : count};
    }
    // [group of slots][tile]; slots of 16 bits do not count.
    const uint32_t group_strips = c.group / LK_STRIP_CHANNELS;
    const uint32_t first = max(group * group_strips, uint32_t{c.strips[kPlane16]});
    const uint32_t end = min((group + 1) * group_strips, c.head_dim / LK_STRIP_CHANNELS);
    return {(group * page_tiles + line) * LK_TILE_TOKENS, first * page_tiles + line, page_tiles,
            first < end ? end - first : 0};
}

template <bool kByRow>
__device__ inline Extremes find_extremes(const uint4 *slots, const GroupTiles &at, uint32_t lane) {
    Extremes extremes;
    const uint4 *next = slots + at.first * LK_LANES + lane;
#pragma unroll 4
    for (uint32_t i = 0; i < at.count; ++i) {
        const uint4 tile = *next;
        next += at.step * LK_LANES;
        extremes.add(0, tile.x);
        extremes.add(kByRow ? 1 : 0, tile.y);
        extremes.add(kByRow ? 0 : 1, tile.z);
        extremes.add(1, tile.w);
    }
    for (uint32_t lanes = kByRow ? 1 : 4; lanes < (kByRow ? 4 : kWarp); lanes *= 2)
        extremes.join(lanes);
    return extremes;
}

__device__ inline void store_parameter(uint8_t *array, uint32_t parameter_bytes, uint32_t entry,
                                       uint32_t bits) {
    if (parameter_bytes == bytes_of_parameter(Metadata::kF8))
        array[entry] = static_cast<uint8_t>(bits);
    else
        reinterpret_cast<uint16_t *>(array)[entry] = static_cast<uint16_t>(bits);
}

// Of 16 neighbouring entries a lane keeps one: the four of its k lie together, or the two of its
// rows. Other lanes keep none.
template <bool kByRow>
struct LaneEntry {
    uint32_t index;     // among those that lie together
    uint32_t position;  // among the 16
    bool exists;

    __device__ explicit LaneEntry(uint32_t lane)
        : index(kByRow ? lane % 4 : lane / 4),
          position(kByRow ? 2 * (lane / 4) + index : 4 * (lane % 4) + index),
          exists(index < (kByRow ? 2 : 4)) {}

    // Its k, or its row.
    __device__ uint32_t fixed() const {
        const uint32_t lane = threadIdx.x % kWarp;
        return kByRow ? LK_TILE_ROW(lane, index) : LK_TILE_K(lane, index & 2) + index % 2;
    }
    __device__ Parameters parameters(const Extremes &e, float margin, Metadata metadata) const {
        const uint32_t i = kByRow ? index : index / 2;
        uint32_t low = i ? e.low[1] : e.low[0];
        uint32_t high = i ? e.high[1] : e.high[0];
        if (kByRow) {
            low = lower(low, low >> 16);
            high = higher(high, high >> 16);
        } else {
            low >>= 16 * (index % 2);
            high >>= 16 * (index % 2);
        }
        return make_parameters(low & 0xFFFFu, high & 0xFFFFu, margin, metadata);
    }
};

// The share of its range that is cut off at each end of a group at these tiles; 0 unless all codes
// of the group have 2 bits. k as in takes_deviation().
__device__ inline float group_margin(const FormatInfo &c, const GroupTiles &at, uint32_t line,
                                     uint32_t k) {
    const uint32_t end_of_twos = c.head_dim / LK_STRIP_CHANNELS - c.strips[kPlane1];
    const uint32_t first_of_twos = end_of_twos - c.strips[kPlane2];
    const uint32_t first = c.is_token_axis ? at.first / at.step : line;
    const uint32_t end = c.is_token_axis ? first + at.count : line + 1;
    if (first < first_of_twos || end > end_of_twos)
        return 0;
    const uint32_t in_plane =
        (first - first_of_twos) * LK_STRIP_CHANNELS + (c.is_token_axis ? 0 : k);
    return in_plane < 2u * c.n_shared ? 0 : c.clip_margin;
}

// Do the groups at these tiles have 1-bit codes that are measured by mean and deviation? The
// lane's entry is for slot k of the strip where groups run along tokens.
__device__ inline bool takes_deviation(const FormatInfo &c, const GroupTiles &at, uint32_t line,
                                       uint32_t k) {
    if (!c.by_deviation || !at.count)
        return false;
    const uint32_t first_of_ones = c.head_dim / LK_STRIP_CHANNELS - c.strips[kPlane1];
    if (c.is_token_axis)
        return !(at.count & (at.count - 1)) && at.first / at.step >= first_of_ones;
    if (line >= first_of_ones)
        return true;
    const uint32_t first_of_twos = first_of_ones - c.strips[kPlane2];
    const uint32_t in_plane = (line - first_of_twos) * LK_STRIP_CHANNELS + k;
    return line >= first_of_twos && in_plane < c.n_shared;
}

// The values of the group of one entry, in the order in which they are added up: down the rows of
// its tiles, or by row along k. `fixed` is the entry's own k or row.
template <bool kByRow>
struct GroupValues {
    const uint16_t *tiles;
    GroupTiles at;
    uint32_t fixed;

    __device__ uint32_t count() const { return at.count * LK_TILE_TOKENS; }
    __device__ float value(uint32_t i) const {
        const uint32_t moving = i % LK_TILE_TOKENS;
        const uint32_t row = kByRow ? fixed : moving;
        const uint32_t k = kByRow ? moving : fixed;
        const uint32_t tile = at.first + i / LK_TILE_TOKENS * at.step;
        const uint32_t in_tile =
            LK_TILE_LANE(row, k) * kLaneValues + (LK_TILE_REGISTER(row, k)) * 2 + (LK_TILE_HALF(k));
        return half_to_float(tiles[tile * (LK_LANES * kLaneValues) + in_tile]);
    }
    // The count is a power of two, so the last step is exact.
    __device__ float mean() const {
        float sum = 0;
        for (uint32_t i = 0; i < count(); ++i)
            sum = __fadd_rn(sum, value(i));
        return __fdiv_rn(sum, static_cast<float>(count()));
    }
    __device__ float deviation(float midpoint) const {
        float sum = 0;
        for (uint32_t i = 0; i < count(); ++i)
            sum = __fadd_rn(sum, fabsf(subtract_exact(value(i), midpoint)));
        return __fdiv_rn(sum, static_cast<float>(count()));
    }
    __device__ Parameters parameters(Metadata metadata) const {
        const float midpoint = mean();
        return deviation_parameters(midpoint, deviation(midpoint), metadata);
    }
};

// Find and store the ranges and minima, by warps; groups [entries] is in shared memory.
template <bool kByRow>
__device__ inline void measure_groups(const uint4 *slots, const FormatInfo &c, uint8_t *metadata,
                                      Group *groups) {
    const uint32_t lane = threadIdx.x % kWarp;
    const LaneEntry<kByRow> entry(lane);
    for (uint32_t line = threadIdx.x / kWarp; line < n_lines(c); line += blockDim.x / kWarp) {
        for (uint32_t group = 0; group < c.n_groups; ++group) {
            const GroupTiles at = group_tiles(c, line, group);
            const Extremes extremes = find_extremes<kByRow>(slots, at, lane);
            if (!entry.exists)
                continue;
            Parameters p = {};
            if (takes_deviation(c, at, line, entry.fixed()))
                p = GroupValues<kByRow>{reinterpret_cast<const uint16_t *>(slots), at,
                                        entry.fixed()}
                        .parameters(metadata_of(c));
            else if (at.count)
                p = entry.parameters(extremes, group_margin(c, at, line, entry.fixed()),
                                     metadata_of(c));
            const uint32_t index = at.first_entry + entry.position;
            store_parameter(metadata, c.parameter_bytes, index, p.range_bits);
            store_parameter(metadata + c.minima_offset, c.parameter_bytes, index, p.minimum_bits);
            groups[index] = make_group(p, c);
        }
    }
}

}  // namespace cuda
}  // namespace lk

#endif
