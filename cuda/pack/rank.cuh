// The order of channels that a page chooses: docs/FORMAT.md, section 10.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_RANK_CUH
#define LK_CUDA_PACK_RANK_CUH

#include "cuda/pack/image.cuh"
#include "cuda/pack/quantize.cuh"

namespace lk {
namespace cuda {

enum Ranking : uint32_t { kNotRanked, kRankedByKey, kRankedByQueryRange };

// The sum of |K| in the order of tokens, rounded after each addition.
__device__ inline float key_score(const uint16_t *column, uint32_t row_values,
                                  uint32_t page_tokens) {
    float sum = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < page_tokens; first += LK_TILE_TOKENS) {
#pragma unroll
        for (uint32_t token = 0; token < LK_TILE_TOKENS; ++token)
            sum = __fadd_rn(sum, fabsf(half_to_float(column[token * row_values])));
        column += LK_TILE_TOKENS * row_values;
    }
    return sum;
}

__device__ inline float query_range_score(const uint16_t *column, uint32_t row_values,
                                          uint32_t page_tokens, uint64_t query_sum) {
    float low = INFINITY;
    float high = -INFINITY;
    for (uint32_t token = 0; token < page_tokens; ++token) {
        const float value = half_to_float(column[token * row_values]);
        low = fminf(low, value);
        high = fmaxf(high, value);
    }
    return multiply_exact(__ull2float_rn(query_sum), subtract_exact(high, low));
}

// Channels from first to end whose score is at least this one. Scores are not negative, so their
// bits have their order. All bounds are multiples of 16.
__device__ inline uint32_t count_from(const uint32_t *scores, uint32_t first, uint32_t end,
                                      uint32_t score) {
    const auto *vectors = reinterpret_cast<const uint4 *>(scores);
    uint32_t n = 0;
#pragma unroll 4
    for (uint32_t i = first / 4; i < end / 4; ++i) {
        const uint4 others = vectors[i];
        n += (others.x >= score) + (others.y >= score);
        n += (others.z >= score) + (others.w >= score);
    }
    return n;
}

// Channels ahead of this one: of equal scores the lower channel is ahead.
__device__ inline uint32_t count_ahead(const uint32_t *scores, uint32_t head_dim,
                                       uint32_t channel) {
    const uint32_t score = scores[channel];
    const uint32_t first = channel & ~15u;
    const uint32_t end = first + 16;
    uint32_t n = count_from(scores, 0, first, score) + count_from(scores, end, head_dim, score + 1);
    for (uint32_t c = first; c < end; ++c)
        n += scores[c] >= score + (c > channel ? 1 : 0) && c != channel;
    return n;
}

// Shared memory of a ranking.
struct RankSpace {
    uint32_t *scores;   // [head_dim]
    uint32_t *boosted;  // [head_dim / 32 rounded up] a bit for each channel
};

// Of keys in rows.
__device__ inline void score_channels(const uint16_t *keys, const FormatInfo &c,
                                      const uint64_t *query_stats, const RankSpace &space) {
    const uint32_t row_values = image_row_values(c.head_dim);
    for (uint32_t channel = threadIdx.x; channel < c.head_dim; channel += blockDim.x) {
        const float score = c.ranking == kRankedByKey
                                ? key_score(keys + channel, row_values, c.page_tokens)
                                : query_range_score(keys + channel, row_values, c.page_tokens,
                                                    query_stats[channel]);
        space.scores[channel] = float_to_bits(score) & 0x7FFFFFFFu;  // 0 times -0 is 0 too
    }
    __syncthreads();
    for (uint32_t first = threadIdx.x & ~31u; first < c.head_dim; first += blockDim.x) {
        const uint32_t channel = first + threadIdx.x % kWarp;
        const bool boosts =
            channel < c.head_dim && count_ahead(space.scores, c.head_dim, channel) < c.n_ranked;
        const uint32_t bits = __ballot_sync(kAllLanes, boosts);
        if (threadIdx.x % kWarp == 0)
            space.boosted[first / kWarp] = bits;
    }
    __syncthreads();
}

// The slot of a channel: boosted channels ascending, then the others ascending.
__device__ inline uint32_t ranked_slot(const RankSpace &space, uint32_t n_ranked,
                                       uint32_t channel) {
    uint32_t n_boosted = 0;  // below the channel
    for (uint32_t i = 0; i < channel / kWarp; ++i)
        n_boosted += __popc(space.boosted[i]);
    const uint32_t bits = space.boosted[channel / kWarp];
    const uint32_t bit = channel % kWarp;
    n_boosted += __popc(bits & ((1u << bit) - 1));
    return bits >> bit & 1 ? n_boosted : n_ranked + channel - n_boosted;
}

}  // namespace cuda
}  // namespace lk

#endif
