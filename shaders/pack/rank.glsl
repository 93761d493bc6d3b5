// The order of channels of a page: docs/FORMAT.md, section 10.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_RANK_GLSL
#define LK_SHADERS_PACK_RANK_GLSL

#include "shaders/pack/source.glsl"
#include "shaders/rounding.glsl"

const uint kBoostedWords = (kMostHeadDim + 31u) / 32u;

shared uvec4 scores[kMostHeadDim / 4u];  // bits of FP32 numbers, which are not negative
shared uint boosted[kBoostedWords];      // a bit for each channel

// The sum of |K| in the order of tokens, rounded after each addition.
float key_score(uint channel) {
    const uint first = source_channel_offset(channel);
    precise float sum = 0.0;
    for (uint tile = 0u; tile < page_tiles(); ++tile) {
        const uint tile_offset = first + tile * source_token_offset(LK_TILE_TOKENS);
        for (uint token = 0u; token < LK_TILE_TOKENS; ++token)
            sum += half_to_float(source_f16(tile_offset + source_token_offset(token)) & 0x7FFFu);
    }
    return sum;
}

// The FP32 number next to a sum, ties to even.
float sum_to_float(uvec2 sum) {
    const int top = sum.y != 0u ? 32 + findMSB(sum.y) : findMSB(sum.x);
    if (top < 24)
        return float(sum.x);
    const uint shift = uint(top) - 23u;
    const uvec2 kept = shift < 32u ? uvec2(sum.x >> shift | sum.y << 1u << 31u - shift, 0u)
                                   : uvec2(sum.y >> shift - 32u, 0u);
    // The remainder of the rounding, from the highest bit on.
    const uint rest = 64u - shift;
    const uvec2 cut = rest < 32u ? uvec2(sum.x << rest, sum.y << rest | sum.x >> 1u >> 31u - rest)
                                 : uvec2(0u, sum.x << rest - 32u);
    const bool rises =
        cut.y > 0x80000000u || (cut.y == 0x80000000u && (cut.x != 0u || (kept.x & 1u) != 0u));
    return uintBitsToFloat((126u + uint(top) << 23) + kept.x + (rises ? 1u : 0u));
}

// The sum of |Q| times the range of K over the page.
float query_range_score(uint channel) {
    const uint first = source_channel_offset(channel);
    float low = half_to_float(source_f16(first));
    float high = low;
    for (uint token = 1u; token < page_format.page_tokens; ++token) {
        const float value = half_to_float(source_f16(first + source_token_offset(token)));
        low = min(low, value);
        high = max(high, value);
    }
    precise float range = high - low;
    precise float score = sum_to_float(ConstPairs(job.query_stats).at[channel]) * range;
    return score;
}

// Channels ahead of this one: of equal scores the lower channel is ahead.
uint count_ahead(uint channel) {
    const uvec4 score = uvec4(scores[channel / 4u][channel % 4u]);
    uvec4 n = uvec4(0u);
    for (uint i = 0u; i < page_format.head_dim / 4u; ++i) {
        const uvec4 others = 4u * i + uvec4(0u, 1u, 2u, 3u);
        const uvec4 least = score + uvec4(greaterThanEqual(others, uvec4(channel)));
        n += uvec4(greaterThanEqual(scores[i], least));
    }
    return n.x + n.y + n.z + n.w;
}

void rank_channels() {
    if (gl_LocalInvocationIndex < kBoostedWords)
        boosted[gl_LocalInvocationIndex] = 0u;
    for (uint c = gl_LocalInvocationIndex; c < page_format.head_dim; c += gl_WorkGroupSize.x)
        scores[c / 4u][c % 4u] =
            floatBitsToUint(page_format.ranking == 1u ? key_score(c) : query_range_score(c)) &
            0x7FFFFFFFu;  // 0 times -0 is 0 too
    barrier();
    for (uint c = gl_LocalInvocationIndex; c < page_format.head_dim; c += gl_WorkGroupSize.x)
        if (count_ahead(c) < page_format.n_ranked)
            atomicOr(boosted[c / 32u], 1u << c % 32u);
    barrier();
}

// The slot of a channel: boosted channels ascending, then the others ascending.
uint ranked_slot(uint channel) {
    uint n_boosted = 0u;  // below the channel
    for (uint i = 0u; i < channel / 32u; ++i)
        n_boosted += bitCount(boosted[i]);
    const uint bits = boosted[channel / 32u];
    const uint bit = channel % 32u;
    n_boosted += bitCount(bits & (1u << bit) - 1u);
    return (bits >> bit & 1u) != 0u ? n_boosted : page_format.n_ranked + channel - n_boosted;
}

// In the page's own permutation.
void store_channel(uint slot, uint channel) {
    const Address permutation = address_add(job.metadata, page_format.permutation_offset);
    if (page_format.head_dim > LK_BYTE_CHANNELS)
        F16Values(permutation).at[slot] = uint16_t(channel);
    else
        Bytes(permutation).at[slot] = uint8_t(channel);
}

// Find where the values of each slot's channel lie: by the page's own permutation, the one of its
// format, or none. All threads.
void order_channels() {
    const bool is_ranked = page_format.ranking != 0u;
    const bool is_fixed = !is_ranked && !is_null(page_format.permutation);
    if (is_ranked)
        rank_channels();
    for (uint i = gl_LocalInvocationIndex; i < page_format.head_dim; i += gl_WorkGroupSize.x) {
        const uint slot = is_ranked ? ranked_slot(i) : i;
        const uint channel = is_fixed ? load_channel(page_format.permutation, page_format.head_dim, i) : i;
        slot_offsets[slot] = source_channel_offset(channel);
        if (page_format.permutes)
            store_channel(slot, channel);
    }
    barrier();
}

#endif
