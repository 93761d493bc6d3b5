// The FP16 values of the page that a workgroup packs, by stored channels: from a 16-bit page or
// from staged tokens. With LK_NEW_TOKENS they are rows of new tokens at job.source, in a tensor or
// in the staging area, and the includer has other push constants.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_SOURCE_GLSL
#define LK_SHADERS_PACK_SOURCE_GLSL

#extension GL_EXT_shader_8bit_storage : require

#include "shaders/floats.glsl"
#include "shaders/layout.glsl"
#include "shaders/push.h"
#include "shaders/tensor.glsl"

layout(constant_id = LK_SPEC_HEAD_DIM) const uint kMostHeadDim = 256u;  // of the dispatch

#ifndef LK_NEW_TOKENS
layout(push_constant) uniform PushBlock { JobPush push; };
#endif
layout(buffer_reference, std430, buffer_reference_align = 1) writeonly buffer Bytes {
    uint8_t at[];
};

PackJob job;
FormatInfo page_format;  // of the packed page

// Where the values of slots lie in the source: add source_token_offset().
shared uint slot_offsets[kMostHeadDim];

uint page_tiles() { return page_format.page_tokens / LK_TILE_TOKENS; }
uint n_strips() { return page_format.head_dim / LK_STRIP_CHANNELS; }

// Are the slots in another order than the channels?
bool is_ordered() {
    return page_format.ranking != 0u || page_format.permutes || !is_null(page_format.permutation);
}

#ifdef LK_NEW_TOKENS
uint row_values;      // FP16 numbers from a row to the next one
bool has_infinities;  // among the tokens of the workgroup, or NaNs: zeros are packed for both
bool is_staged() { return true; }

uvec4 without_infinities(uvec4 pairs) {
    return has_infinities ? pairs & ~((not_finite(pairs) >> 15) * 0xFFFFu) : pairs;
}
#else
bool is_staged() { return job.source_format == LK_STAGED; }
uvec4 without_infinities(uvec4 pairs) { return pairs; }
#endif

// Offsets in the source, in FP16 numbers.
uint source_token_offset(uint token) {
#ifdef LK_NEW_TOKENS
    return token * row_values;
#else
    return is_staged() ? token * page_format.head_dim
                       : raw_token_offset(page_format.is_value, token);
#endif
}
uint source_channel_offset(uint channel) {
    return is_staged()
               ? channel
               : raw_channel_offset(page_format.is_value, page_format.page_tokens, channel);
}
uint source_f16(uint offset) {
    return without_infinities(uvec4(ConstF16(job.source).at[offset])).x;
}

// Offsets of the lower and the higher number of each register that a lane has of a strip's first
// tile.
struct LaneOffsets {
    uvec4 low;
    uvec4 high;
};
LaneOffsets lane_offsets(uint strip, uint lane) {
    const uint slot = strip * LK_STRIP_CHANNELS;
    const uint row = LK_TILE_ROW(lane, 0u);
    const uint k = LK_TILE_K(lane, 0u);
    LaneOffsets at;
    if (page_format.is_value) {
        const uvec2 slots = uvec2(slot_offsets[slot + row], slot_offsets[slot + row + 8u]);
        const uvec2 first = uvec2(source_token_offset(k), source_token_offset(k + 8u));
        const uvec2 second = uvec2(source_token_offset(k + 1u), source_token_offset(k + 9u));
        at.low = slots.xyxy + first.xxyy;
        at.high = slots.xyxy + second.xxyy;
        return at;
    }
    const uvec2 first = uvec2(slot_offsets[slot + k], slot_offsets[slot + k + 8u]);
    const uvec2 second = uvec2(slot_offsets[slot + k + 1u], slot_offsets[slot + k + 9u]);
    const uvec2 tokens = uvec2(source_token_offset(row), source_token_offset(row + 8u));
    at.low = first.xxyy + tokens.xyxy;
    at.high = second.xxyy + tokens.xyxy;
    return at;
}

uvec4 load_words(uvec4 offsets) {
    ConstWords words = ConstWords(job.source);
    return uvec4(words.at[offsets.x / 2u], words.at[offsets.y / 2u], words.at[offsets.z / 2u],
                 words.at[offsets.w / 2u]);
}
uvec4 load_f16(uvec4 at) {
    ConstF16 values = ConstF16(job.source);
    return uvec4(values.at[at.x], values.at[at.y], values.at[at.z], values.at[at.w]);
}

// A lane's registers of a tile at 16 bits: as they lie, by pairs of channels, or by values.
uvec4 load_tile(LaneOffsets at, uint strip, uint tile, uint lane) {
    if (!is_staged() && !is_ordered())
        return ConstQuads(job.source).at[(strip * page_tiles() + tile) * LK_LANES + lane];
    const uint tile_offset = tile * source_token_offset(LK_TILE_TOKENS);
    if (!page_format.is_value && !is_ordered())
        return without_infinities(load_words(at.low + tile_offset));
    return without_infinities(load_f16(at.low + tile_offset) |
                              load_f16(at.high + tile_offset) << 16);
}

#endif
