// Attention of many columns: the keys and the values of a page, tile by tile. shape.glsl or, with
// LK_MATRIX, matrix_shape.glsl says how the workgroup is cut.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SIDES_GLSL
#define LK_SHADERS_PREFILL_SIDES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/stage.glsl"
#include "shaders/tensor.glsl"
#include "shaders/prefill/pages.glsl"
#include "shaders/dequantize.glsl"

// Strips of the pages that are loaded, of keys and of values, which pages of latents are not.
const uint kSides = kValueStrips > 0u ? 2u : 1u;
const uint kSideStrips = kStrips > kValueStrips ? kStrips : kValueStrips;
shared StripPosition shared_strips[kSides][kSideStrips];

// The keys or the values of a page.
struct Side {
    FormatInfo info;
    Address payload;
    Address metadata;
    bool is_value;
    bool is_staged;
};
Side find_side(Mask mask, EntryView page, bool is_value) {
    Side side;
    PageView view = page.keys;
    if (is_value)
        view = page.values;
    if (!page.is_staged)
        side.info = load_format(mask.step.formats, view.page_format);
    side.payload = view.payload;
    side.metadata = view.metadata;
    side.is_value = is_value;
    side.is_staged = page.is_staged;
    return side;
}

// The channels that slots of keys hold; null where a slot has its own.
Address permutation_of(Side keys) {
    if (keys.is_staged)
        return Address(0u);
    return keys.info.permutes ? address_add(keys.metadata, keys.info.permutation_offset)
                              : keys.info.permutation;
}
uint slot_channel(Address permutation, uint slot) {
    return is_null(permutation) ? slot : load_channel(permutation, kHeadDim, slot);
}

void place_strip(Side side, uint strip) {
    if (strip < (side.is_value ? kValueStrips : kStrips) && !side.is_staged)
        shared_strips[uint(side.is_value)][strip] = find_strip(side.info, strip);
}

// The positions of a page's strips. They are there after the next barrier.
void find_strips(Mask mask, EntryView page) {
    const uint i = gl_LocalInvocationIndex;
    const Side side = find_side(mask, page, i / kSideStrips == 1u);
    if (i < kSides * kSideStrips)
        place_strip(side, i % kSideStrips);
}

// A lane of a tile.
struct TileLane {
    uint tile;  // of the page
    uint strip;
    uint lane;
};

// Four words, each of two neighbouring channels of a token: of keys those of a tile. Staged tokens
// have no tiles: a lane takes two neighbouring channels of their values.
uvec4 load_staged(Side side, TileLane at) {
    const uint first_token = LK_TILE_TOKENS * at.tile;
    const uint first_channel = LK_STRIP_CHANNELS * at.strip;
    uvec4 words;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        const uint token = side.is_value ? LK_TILE_K(at.lane, i & 2u) + (i & 1u)
                                         : LK_TILE_ROW(at.lane, i & 1u);
        const uint channel =
            side.is_value ? 2u * LK_TILE_ROW(at.lane, 0u) : LK_TILE_K(at.lane, i & 2u);
        const uint row = (first_token + token) * (side.is_value ? kValueDim : kHeadDim);
        const uint element = row + first_channel + channel;
        words[i] = ConstWords(side.payload).at[element / 2u];
    }
    return words;
}

// Words of a tile that has tokens.
LaneWords load_side(Side side, TileLane at) {
    if (side.is_staged)
        return LaneWords(load_staged(side, at), uvec4(0u));
    return load_lane(side.info, shared_strips[uint(side.is_value)][at.strip], side.payload,
                     side.metadata, at.tile, at.lane);
}
// The values of them, of a page that is not staged.
LaneValues dequantize_side(Side side, TileLane at, LaneWords words) {
    return values_of(side.info, shared_strips[uint(side.is_value)][at.strip], side.payload, at.tile,
                     at.lane, words);
}

#endif
