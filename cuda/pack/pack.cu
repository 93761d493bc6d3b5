// Packing: a thread block takes a page from 16 bits to its page format.
//
// It copies the page to shared memory, permutes the channels if the page format says so, finds the
// ranges and minima, and writes each strip by a warp that holds its lanes' words in registers.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"
#include "cuda/pack/rank.cuh"
#include "cuda/pack/words.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kMaxThreads = 1024;

// Shared memory of a thread block, in bytes. The offsets suit every kind of image. Groups are
// measured once the slots have their places, over what these were found with.
struct Space {
    uint32_t groups;
    uint32_t scores;
    uint32_t boosted;
    uint32_t slot_offsets;
    uint32_t end;
};
LK_BOTH Space make_space(uint32_t head_dim, uint32_t page_tokens, uint32_t n_parameters) {
    Space space;
    space.groups = space.scores = 2 * page_tokens * image_row_values(head_dim);
    space.boosted = space.scores + 4 * head_dim;
    space.slot_offsets = space.boosted + LK_MAX_HEAD_DIM / 8;
    const uint32_t slots_end = space.slot_offsets + 2 * head_dim;
    const uint32_t groups_end = space.groups + n_parameters * static_cast<uint32_t>(sizeof(Group));
    space.end = slots_end > groups_end ? slots_end : groups_end;
    return space;
}

// Copy the source to a 16-bit page, through global memory alone: a 16-bit page may be longer than a
// packed one.
__device__ void copy_page(const PackJob &job, const FormatInfo &c) {
    const auto *permutation = reinterpret_cast<const uint8_t *>(c.permutation);
    const ValueOrder order =
        job.source_format == kStaged ? rows_order(c.head_dim) : strips_order(c);
    const auto *source = reinterpret_cast<const uint16_t *>(job.source);
    auto *vectors = reinterpret_cast<uint4 *>(job.payload);
    const uint32_t page_tiles = c.page_tokens / LK_TILE_TOKENS;
    const uint32_t n_vectors = uint32_t{c.head_dim} * c.page_tokens / kLaneValues;
    for (uint32_t i = threadIdx.x; i < n_vectors; i += blockDim.x) {
        const uint32_t lane = i % LK_LANES;
        const uint32_t first_slot = i / LK_LANES / page_tiles * LK_STRIP_CHANNELS;
        const uint32_t first_token = i / LK_LANES % page_tiles * LK_TILE_TOKENS;
        uint32_t values[kLaneValues];
        for (uint32_t j = 0; j < kLaneValues; ++j) {
            const uint32_t row = LK_TILE_ROW(lane, j / 2);
            const uint32_t k = LK_TILE_K(lane, j / 2) + j % 2;
            const uint32_t slot = first_slot + (c.is_value ? row : k);
            const uint32_t token = first_token + (c.is_value ? k : row);
            values[j] =
                source[order.tokens.offset(token) +
                       order.channels.offset(
                           permutation ? load_channel(permutation, c.head_dim, slot) : slot)];
        }
        vectors[i] = make_uint4(values[0] | values[1] << 16, values[2] | values[3] << 16,
                                values[4] | values[5] << 16, values[6] | values[7] << 16);
    }
}

// Are the slots of its pages in another order than the channels?
__device__ bool is_ordered(const FormatInfo &c) {
    return c.ranking != kNotRanked || c.permutation || c.permutes;
}

// Copy the source to shared memory. Returns how the values lie there.
__device__ ValueOrder copy_values(const PackJob &job, const FormatInfo &c, uint16_t *values) {
    const auto *source = reinterpret_cast<const uint8_t *>(job.source);
    bool is_rows = true;
    if (job.source_format == kStaged) {
        copy_rows(values, source, c);
    } else if (is_ordered(c) && !c.is_value) {
        copy_keys_to_rows(values, source, c);
    } else {
        copy_strips(values, source, c);
        is_rows = false;
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    return is_rows ? rows_order(image_row_values(c.head_dim)) : strips_order(c);
}

__device__ void channel_position(const Image &image, const FormatInfo &c, uint8_t *metadata,
                                 uint16_t *slot_offsets, uint32_t slot, uint32_t channel) {
    slot_offsets[slot] = static_cast<uint16_t>(image.order.channels.offset(channel));
    if (c.permutes)
        store_channel(metadata + c.permutation_offset, c.head_dim, slot, channel);
}

// Find where each slot's channel lies: by the page's own permutation, the one of its format, or
// none.
__device__ void order_channels(const Image &image, const FormatInfo &c, const PackJob &job,
                               const RankSpace &rank_space, uint16_t *slot_offsets) {
    const auto *permutation = reinterpret_cast<const uint8_t *>(c.permutation);
    auto *metadata = reinterpret_cast<uint8_t *>(job.metadata);
    if (c.ranking != kNotRanked)
        score_channels(image, c, reinterpret_cast<const uint64_t *>(job.query_stats), rank_space);
    for (uint32_t i = threadIdx.x; i < c.head_dim; i += blockDim.x) {
        if (c.ranking != kNotRanked)
            channel_position(image, c, metadata, slot_offsets,
                             ranked_slot(rank_space, c.n_ranked, i), i);
        else
            channel_position(image, c, metadata, slot_offsets, i,
                             permutation ? load_channel(permutation, c.head_dim, i) : i);
    }
    __syncthreads();
}

// Put the values into the order of stored channels, in place.
__device__ void arrange_values(const Image &image, const FormatInfo &c, const PackJob &job,
                               const Space &space, uint8_t *shared) {
    auto *slots = reinterpret_cast<uint4 *>(shared);
    const uint32_t lane = threadIdx.x % kWarp;
    if (!is_ordered(c)) {
        if (job.source_format != kStaged)
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
    order_channels(image, c, job, rank_space, slot_offsets);
    if (c.is_value)
        arrange_slots(SlotsReader<true>(image, slot_offsets, lane), c, slots);
    else
        arrange_slots(SlotsReader<false>(image, slot_offsets, lane), c, slots);
}

template <bool kByRow>
__device__ void pack_page(const uint4 *slots, const FormatInfo &c, const PackJob &job,
                          Group *groups) {
    measure_groups<kByRow>(slots, c, reinterpret_cast<uint8_t *>(job.metadata), groups);
    __syncthreads();
    for (uint32_t strip = threadIdx.x / kWarp; strip < c.head_dim / LK_STRIP_CHANNELS;
         strip += blockDim.x / kWarp)
        write_strip<kByRow>({c, slots, groups, reinterpret_cast<uint8_t *>(job.payload),
                             find_strip(c, strip), strip, threadIdx.x % kWarp});
}

__global__ void __launch_bounds__(kMaxThreads)
    pack_kernel(const PackJob *jobs, const FormatInfo *formats) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ FormatInfo c;
    const PackJob job = jobs[blockIdx.x];
    if (threadIdx.x < sizeof c / 16)
        reinterpret_cast<uint4 *>(&c)[threadIdx.x] =
            reinterpret_cast<const uint4 *>(formats + job.target_format)[threadIdx.x];
    __syncthreads();
    if (c.is_raw) {
        copy_page(job, c);
        return;
    }
    const Space space = make_space(c.head_dim, c.page_tokens, 0);  // the end is the launch's
    auto *values = reinterpret_cast<uint16_t *>(shared);
    const Image image = {values, copy_values(job, c, values)};
    const auto *slots = reinterpret_cast<const uint4 *>(shared);
    arrange_values(image, c, job, space, shared);
    auto *groups = reinterpret_cast<Group *>(shared + space.groups);
    if (c.is_token_axis && !c.is_value)
        pack_page<true>(slots, c, job, groups);
    else
        pack_page<false>(slots, c, job, groups);
}

}  // namespace

uint32_t pack_shared_bytes(uint32_t head_dim, uint32_t page_tokens, uint32_t n_parameters) {
    return make_space(head_dim, page_tokens, n_parameters).end;
}

cudaError_t launch_pack(const PackJob *jobs, uint32_t n_jobs, const FormatInfo *formats,
                        uint32_t head_dim, uint32_t page_tokens, uint32_t n_parameters,
                        cudaStream_t stream) {
    if (!n_jobs)
        return cudaSuccess;
    const uint32_t packed_tokens =
        page_tokens < LK_MAX_PAGE_TOKENS ? page_tokens : LK_MAX_PAGE_TOKENS;
    const uint32_t n_bytes = pack_shared_bytes(head_dim, packed_tokens, n_parameters);
    const uint32_t n_tiles = head_dim * packed_tokens / (LK_STRIP_CHANNELS * LK_TILE_TOKENS);
    const uint32_t n_threads = (n_tiles + kWarpTiles - 1) / kWarpTiles * kWarp;
    const cudaError_t error = cudaFuncSetAttribute(
        pack_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(n_bytes));
    if (error != cudaSuccess)
        return error;
    pack_kernel<<<n_jobs, n_threads, n_bytes, stream>>>(jobs, formats);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
