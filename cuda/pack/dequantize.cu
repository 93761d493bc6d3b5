// Dequantization: the tokens of a page go back to 16 bits, docs/FORMAT.md, section 8. A warp takes
// a tile.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"
#include "cuda/pack/f16_page.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kDequantizeThreads = 256;

// Stored channel -> channel: the page's own permutation, the one of its format, or null.
__device__ const uint8_t *channel_order(const FormatInfo &c, const DequantizeJob &job) {
    return reinterpret_cast<const uint8_t *>(c.permutes ? job.metadata + c.permutation_offset
                                                        : c.permutation);
}

// Write a lane's values of slots to their channels.
template <bool kIsValue>
__device__ void store_values(const uint32_t (&values)[4], uint32_t strip, uint32_t tile,
                             uint32_t lane, const uint8_t *order, uint32_t head_dim,
                             const Steps &tokens, const Steps &channels, uint16_t *target) {
    for (uint32_t i = 0; i < kLaneValues; ++i) {
        const uint32_t row = LK_TILE_ROW(lane, i / 2);
        const uint32_t k = LK_TILE_K(lane, i / 2) + i % 2;
        const uint32_t slot = strip * LK_STRIP_CHANNELS + (kIsValue ? row : k);
        const uint32_t token = tile * LK_TILE_TOKENS + (kIsValue ? k : row);
        target[tokens.offset(token) +
               channels.offset(order ? load_channel(order, head_dim, slot) : slot)] =
            static_cast<uint16_t>(values[i / 2] >> (16 * (i % 2)));
    }
}

template <bool kIsValue>
__device__ void dequantize_page(const FormatInfo &c, const DequantizeJob &job,
                                uint32_t target_tokens) {
    const auto *payload = reinterpret_cast<const uint8_t *>(job.payload);
    const auto *metadata = reinterpret_cast<const uint8_t *>(job.metadata);
    const uint8_t *order = channel_order(c, job);
    const Steps tokens = raw_token_steps(kIsValue);
    const Steps channels = raw_channel_steps(kIsValue, target_tokens);
    const uint32_t lane = threadIdx.x % LK_LANES;
    const uint32_t n_strips = c.head_dim / LK_STRIP_CHANNELS;
    const uint32_t n_tiles = (job.n_tokens + LK_TILE_TOKENS - 1) / LK_TILE_TOKENS;
    for (uint32_t i = threadIdx.x / LK_LANES; i < n_strips * n_tiles; i += blockDim.x / LK_LANES) {
        uint32_t values[4];
        load_values<kIsValue>(c, payload, metadata, i % n_strips, i / n_strips, lane, values);
        store_values<kIsValue>(values, i % n_strips, i / n_strips, lane, order, c.head_dim, tokens,
                               channels, reinterpret_cast<uint16_t *>(job.target));
    }
}

__global__ void __launch_bounds__(kDequantizeThreads)
    dequantize_kernel(const DequantizeJob *jobs, const FormatInfo *formats) {
    const DequantizeJob job = jobs[blockIdx.x];
    const FormatInfo &c = formats[job.source_format];
    const uint32_t target_tokens = formats[job.target_format].page_tokens;
    if (c.is_value)
        dequantize_page<true>(c, job, target_tokens);
    else
        dequantize_page<false>(c, job, target_tokens);
}

}  // namespace

cudaError_t launch_dequantize(const DequantizeJob *jobs, uint32_t n_jobs, const FormatInfo *formats,
                              cudaStream_t stream) {
    if (!n_jobs)
        return cudaSuccess;
    dequantize_kernel<<<n_jobs, kDequantizeThreads, 0, stream>>>(jobs, formats);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
