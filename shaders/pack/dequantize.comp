// Dequantization: the tokens of a page go back to 16 bits, docs/FORMAT.md, section 8. A team of 32
// threads takes a tile.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_8bit_storage : require

#include "shaders/rounding.glsl"
#include "shaders/tensor.glsl"
#include "shaders/dequantize.glsl"

layout(local_size_x_id = LK_SPEC_THREADS) in;  // a multiple of LK_LANES
layout(push_constant) uniform PushBlock { JobPush push; };

// The channel of a stored channel: by the page's own permutation, the one of its format, or none.
uint channel_of(FormatInfo c, DequantizeJob job, uint slot) {
    const Address order =
        c.permutes ? address_add(job.metadata, c.permutation_offset) : c.permutation;
    return is_null(order) ? slot : load_channel(order, c.head_dim, slot);
}

void store_row(FormatInfo c, DequantizeJob job, uint target_tokens, vec4 values, uint strip, uint tile,
               uint lane, uint row_register) {
    for (uint i = 0u; i < 4u; ++i) {
        const uint r = row_register + (i & 2u);
        const uint slot = strip * LK_STRIP_CHANNELS + lane_slot(c.is_value, lane, r, i & 1u);
        const uint token = tile * LK_TILE_TOKENS + lane_token(c.is_value, lane, r, i & 1u);
        bool saturated;
        const uint bits = float_to_half(floatBitsToUint(values[i]), saturated);
        const uint at =
            raw_offset(c.is_value, target_tokens, token, channel_of(c, job, slot));
        F16Values(job.target).at[at] = uint16_t(bits);
    }
}

void main() {
    const DequantizeJob job = load_dequantize_job(push.jobs, gl_WorkGroupID.x);
    const FormatInfo c = load_format(push.formats, job.source_format);
    const uint target_tokens = load_format(push.formats, job.target_format).page_tokens;
    const uint lane = gl_LocalInvocationIndex % LK_LANES;
    const uint n_strips = c.head_dim / LK_STRIP_CHANNELS;
    const uint n_tiles = (job.n_tokens + LK_TILE_TOKENS - 1u) / LK_TILE_TOKENS;
    for (uint i = gl_LocalInvocationIndex / LK_LANES; i < n_strips * n_tiles;
         i += gl_WorkGroupSize.x / LK_LANES) {
        const uint strip = i % n_strips;
        const uint tile = i / n_strips;
        const LaneValues values = load_values(c, find_strip(c, strip), job.payload, job.metadata,
                                              tile, lane);
        store_row(c, job, target_tokens, values.low, strip, tile, lane, 0u);
        store_row(c, job, target_tokens, values.high, strip, tile, lane, 1u);
    }
}
