// The FP16 values of the half page that a workgroup packs, by its slots: from a 16-bit half page or
// from staged tokens.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_SOURCE_GLSL
#define LK_SHADERS_PACK_SOURCE_GLSL

#extension GL_EXT_shader_8bit_storage : require

#include "layout.glsl"
#include "tensor.glsl"

layout(push_constant) uniform PushBlock { JobPush push; };
layout(buffer_reference, std430, buffer_reference_align = 1) readonly buffer ConstBytes {
    uint8_t at[];
};
layout(buffer_reference, std430, buffer_reference_align = 1) writeonly buffer Bytes {
    uint8_t at[];
};

PackJob job;
ClassInfo half_class;  // that it becomes

shared uint slot_channels[LK_MAX_HEAD_DIM];

uint page_tiles() { return half_class.page_tokens / LK_TILE_TOKENS; }
uint n_strips() { return half_class.head_dim / LK_STRIP_CHANNELS; }

bool is_staged() { return job.source_class == LK_STAGED; }
// Are the slots in another order than the channels?
bool is_ordered() {
    return half_class.ranking != 0u || half_class.permutes || !is_null(half_class.permutation);
}

// A channel's value.
uint channel_half(uint channel, uint token) {
    const ClassInfo c = half_class;
    const uint offset = is_staged() ? token * c.head_dim + channel
                                    : raw_offset(c.is_value, c.page_tokens, token, channel);
    return uint(ConstHalves(job.source).at[offset]);
}
uint slot_half(uint slot, uint token) { return channel_half(slot_channels[slot], token); }

// A lane's registers of a tile at 16 bits.
uvec4 load_tile(uint strip, uint tile, uint lane) {
    if (!is_staged() && !is_ordered())
        return ConstQuads(job.source).at[(strip * page_tiles() + tile) * LK_LANES + lane];
    uvec4 registers;
    for (uint r = 0u; r < LK_TILE_WORDS; ++r) {
        uint halves[2];
        for (uint i = 0u; i < 2u; ++i) {
            const bool is_value = half_class.is_value;
            const uint slot = strip * LK_STRIP_CHANNELS + lane_slot(is_value, lane, r, i);
            const uint token = tile * LK_TILE_TOKENS + lane_token(is_value, lane, r, i);
            halves[i] = slot_half(slot, token);
        }
        registers[r] = halves[0] | halves[1] << 16;
    }
    return registers;
}

#endif
