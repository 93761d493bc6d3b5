// The order of channels of a page: docs/FORMAT.md, section 10.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_RANK_GLSL
#define LK_SHADERS_PACK_RANK_GLSL

#include "pack_source.glsl"
#include "rounding.glsl"

shared uint scores[LK_MAX_HEAD_DIM];  // bits of FP32 numbers, which are not negative
shared uint boosted[LK_MAX_HEAD_DIM / 32u];  // a bit for each channel

// The sum of |K| in the order of tokens, rounded after each addition.
float key_score(uint channel) {
    precise float sum = 0.0;
    for (uint token = 0u; token < half_class.page_tokens; ++token)
        sum += half_to_float(channel_half(channel, token) & 0x7FFFu);
    return sum;
}

// Channels ahead of this one: of equal scores the lower channel is ahead.
uint count_ahead(uint channel) {
    const uint score = scores[channel];
    uint n = 0u;
    for (uint other = 0u; other < half_class.head_dim; ++other)
        n += scores[other] > score || (scores[other] == score && other < channel) ? 1u : 0u;
    return n;
}

void rank_channels() {
    if (gl_LocalInvocationIndex < LK_MAX_HEAD_DIM / 32u)
        boosted[gl_LocalInvocationIndex] = 0u;
    for (uint c = gl_LocalInvocationIndex; c < half_class.head_dim; c += gl_WorkGroupSize.x)
        scores[c] = floatBitsToUint(key_score(c));
    barrier();
    for (uint c = gl_LocalInvocationIndex; c < half_class.head_dim; c += gl_WorkGroupSize.x)
        if (count_ahead(c) < half_class.n_ranked)
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
    return (bits >> bit & 1u) != 0u ? n_boosted : half_class.n_ranked + channel - n_boosted;
}

// Find the channel of each slot: by the page's own order, the class's, or none. All threads.
void order_channels() {
    const bool is_ranked = half_class.ranking != 0u;
    const bool is_fixed = !is_null(half_class.permutation);
    if (is_ranked)
        rank_channels();
    for (uint i = gl_LocalInvocationIndex; i < half_class.head_dim; i += gl_WorkGroupSize.x) {
        const uint slot = is_ranked ? ranked_slot(i) : i;
        uint channel = i;
        if (!is_ranked && is_fixed)
            channel = uint(ConstBytes(half_class.permutation).at[i]);
        slot_channels[slot] = channel;
        if (half_class.permutes)
            Bytes(job.metadata).at[half_class.permutation_offset + slot] = uint8_t(channel);
    }
    barrier();
}

#endif
