// The FP16 values of the page that a workgroup packs, where they are new tokens: rows of channels
// in shared memory.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_ROWS_GLSL
#define LK_SHADERS_PACK_ROWS_GLSL

// Four words more than the channels take: lanes that read eight tokens at once find them in
// different banks.
const uint kRowWords = kMostHeadDim / 2u + 4u;
shared uint rows[LK_MAX_PAGE_TOKENS * kRowWords];

// Offsets in the rows, in FP16 numbers.
uint source_token_offset(uint token) { return token * 2u * kRowWords; }
uint source_channel_offset(uint channel) { return channel; }
uint source_f16(uint offset) { return rows[offset / 2u] >> 16u * (offset & 1u) & 0xFFFFu; }

// Words with the lower and the higher number of each register that a lane has of a strip's first
// tile, and where the numbers lie in them.
struct LaneOffsets {
    uvec4 low;
    uvec4 high;
    uvec4 low_shift;
    uvec4 high_shift;
};
uvec2 channels_of(uint first, uint second) {
    return is_ordered() ? uvec2(slot_offsets[first], slot_offsets[second]) : uvec2(first, second);
}
LaneOffsets lane_offsets(uint strip, uint lane) {
    const uint slot = strip * LK_STRIP_CHANNELS;
    const uint row = LK_TILE_ROW(lane, 0u);
    const uint k = LK_TILE_K(lane, 0u);
    LaneOffsets at;
    if (page_format.is_value) {
        const uvec2 channels = channels_of(slot + row, slot + row + 8u);
        const uvec2 tokens = uvec2(k, k + 8u) * kRowWords;
        at.low = (channels / 2u).xyxy + tokens.xxyy;
        at.high = at.low + kRowWords;
        at.low_shift = (16u * (channels & 1u)).xyxy;
        at.high_shift = at.low_shift;
        return at;
    }
    const uvec2 first = channels_of(slot + k, slot + k + 8u);
    const uvec2 second = channels_of(slot + k + 1u, slot + k + 9u);
    const uvec2 tokens = uvec2(row, row + 8u) * kRowWords;
    at.low = (first / 2u).xxyy + tokens.xyxy;
    at.high = (second / 2u).xxyy + tokens.xyxy;
    at.low_shift = (16u * (first & 1u)).xxyy;
    at.high_shift = (16u * (second & 1u)).xxyy;
    return at;
}

uvec4 load_words(uvec4 at) { return uvec4(rows[at.x], rows[at.y], rows[at.z], rows[at.w]); }

// A lane's registers of a tile at 16 bits: as they lie, by pairs of channels, or by values.
uvec4 load_tile(LaneOffsets at, uint strip, uint tile, uint lane) {
    const uint first = tile * LK_TILE_TOKENS * kRowWords;
    const uvec4 low = load_words(at.low + first);
    if (!page_format.is_value && !is_ordered())
        return low;
    return low >> at.low_shift & 0xFFFFu | load_words(at.high + first) >> at.high_shift << 16;
}

#endif
