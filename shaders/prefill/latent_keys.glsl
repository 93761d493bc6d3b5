// Attention over latents: from a tile of a page, or of staged tokens, to FP16 in shared memory.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_LATENT_KEYS_GLSL
#define LK_SHADERS_PREFILL_LATENT_KEYS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/sides.glsl"

const uint kLargestHalf = 65504u;
const uint kStripsAtOnce = kThreads / LK_LANES;
const uint kRounds = (kStrips + kStripsAtOnce - 1u) / kStripsAtOnce;

TileLane lane_of_round(uint tile, uint round) {
    return TileLane(tile, gl_LocalInvocationIndex / LK_LANES + round * kStripsAtOnce,
                    gl_LocalInvocationIndex % LK_LANES);
}

// The lane's four channels: the lower token in the lower half of each word.
uvec4 pair_tokens(uvec4 registers) {
    const uvec2 first = registers.xz & 0xFFFFu | registers.yw << 16;
    const uvec2 second = registers.xz >> 16 | registers.yw & 0xFFFF0000u;
    return uvec4(first.x, second.x, first.y, second.y);
}
uvec4 pair_values(LaneValues values) {
    const vec4 low = clamp(values.low, -float(kLargestHalf), float(kLargestHalf));
    const vec4 high = clamp(values.high, -float(kLargestHalf), float(kLargestHalf));
    return uvec4(packHalf2x16(vec2(low.x, high.x)), packHalf2x16(vec2(low.y, high.y)),
                 packHalf2x16(vec2(low.z, high.z)), packHalf2x16(vec2(low.w, high.w)));
}
uvec4 lane_pairs(Side keys, TileLane at, LaneWords words) {
    if (keys.is_staged || shared_strips[0][at.strip].bits == 16u)
        return pair_tokens(words.codes);
    return pair_values(dequantize_side(keys, at, words));
}

// Memory after the last token may hold NaNs, which a weight of 0 would not take away.
uint existing_halves(uint lane, uint n_tokens) {
    const uint token = LK_TILE_ROW(lane, 0u);
    return (token < n_tokens ? 0xFFFFu : 0u) | (token + 8u < n_tokens ? 0xFFFF0000u : 0u);
}

// The includer's: the channels of a lane's slots, which begin at `first`, of keys that permute them.
uvec4 lane_channels(Side keys, uint first);

void store_channels(Side keys, bool permutes, TileLane at, uvec4 pairs) {
    if (!permutes) {
        store_pairs(at.strip, at.lane, pairs);
        return;
    }
    const uvec4 channels =
        lane_channels(keys, at.strip * LK_STRIP_CHANNELS + LK_TILE_K(at.lane, 0u));
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        store_pair(LK_TILE_ROW(at.lane, 0u), channels[i], pairs[i]);
}

void store_lane(Side keys, TileLane at, uint n_tokens, LaneWords words) {
    store_channels(keys, !is_null(permutation_of(keys)), at,
                   lane_pairs(keys, at, words) & existing_halves(at.lane, n_tokens));
}

// The first n_tokens of a tile, in rounds of some strips each. Unrolled, the kernel has twice as much
// code.
void store_tile(Side keys, uint tile, uint n_tokens) {
    [[dont_unroll]] for (uint round = 0u; round < kRounds; ++round) {
        const TileLane at = lane_of_round(tile, round);
        if (at.strip < kStrips)
            store_lane(keys, at, n_tokens, load_side(keys, at));
    }
}

#endif
