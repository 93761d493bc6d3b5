// Where the bytes of a page lie: docs/FORMAT.md, sections 3 to 7.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_LAYOUT_GLSL
#define LK_SHADERS_LAYOUT_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "format/format_const.h"
#include "format/widths.h"
#include "shaders/tables.glsl"

const uint kLaneValues = 8u;  // of a tile
const uint kTileValues = kLaneValues * LK_LANES;

uint plane_bits(uint plane) { return LK_PLANE_BITS(plane); }

// Ranges and minima come by 16 that lie together. The first of those for (strip, tile) is the sum
// of these. Groups of tokens are powers of two.
uint strip_entry(FormatInfo c, uint strip) {
    return c.is_token_axis ? strip * LK_STRIP_CHANNELS / c.group * c.page_tokens
                           : strip * LK_STRIP_CHANNELS * c.n_groups;
}
uint tile_entry(FormatInfo c, uint tile) {
    return (c.is_token_axis ? tile : tile >> uint(findMSB(c.group)) - 4u) * LK_TILE_TOKENS;
}
uint first_entry(FormatInfo c, uint strip, uint tile) {
    return strip_entry(c, strip) + tile_entry(c, tile);
}

// Where a strip's codes lie in the payload.
struct StripPosition {
    uint bits;         // 3: the low two bits are at offset, the third at high_offset
    uint offset;       // bytes
    uint high_offset;  // of a strip of 3 bits
    uint in_plane;     // index among the strips of its plane
    uint first_entry;  // of its ranges and minima
};
StripPosition find_strip(FormatInfo c, uint strip) {
    const uint entry = strip_entry(c, strip);
    const uint bit_bytes = 2u * c.page_tokens;  // of a strip, for each bit of its width
    StripPosition position = StripPosition(0u, 0u, 0u, strip, entry);
    uint offset = 0u;
    uint in_plane = strip;  // wraps around after the strip's plane
    [[unroll]] for (uint plane = 0u; plane < LK_PLANE_COUNT; ++plane) {
        const uint bits = plane_bits(plane);
        const uint low_bytes = bit_bytes * LK_LOW_BITS(bits);
        const uint n = c.strips[plane];
        if (in_plane < n)
            position = StripPosition(bits, offset + low_bytes * in_plane,
                               offset + low_bytes * n + bit_bytes * in_plane, in_plane, entry);
        offset += bit_bytes * bits * n;
        in_plane -= n;
    }
    return position;
}

// Words of a lane in a strip of 1, 2, 4, 8 or 16 bits, and where they lie in it.
uint lane_words(uint page_tokens, uint bits) { return page_tokens * bits / 64u; }
uint strip_word_index(uint n_words, uint lane, uint word) {
    const uint vector = word / LK_VECTOR_WORDS * LK_LANES + lane;
    return n_words < LK_VECTOR_WORDS ? lane * n_words + word
                                     : vector * LK_VECTOR_WORDS + word % LK_VECTOR_WORDS;
}

// Below 8 bits, 4 / bits tiles share a word. The registers of a tile have their codes there at
// these bits of each 16 bits of the word: + 0, 8, 4 and 12.
uint tile_bit(uint tile, uint bits) {
    return bits == 4u ? 0u : bits == 2u ? 2u * (tile & 1u) : (tile & 1u) << 1 | tile >> 1 & 1u;
}

// Words of strips in memory. All strips of a page lie at multiples of 16 bytes.
uint load_strip_word(Address strip, uint n_words, uint lane, uint word) {
    return ConstWords(strip).at[strip_word_index(n_words, lane, word)];
}

// The words with a lane's codes of a tile, of 1, 2, 4 or 8 bits: two at 8 bits, else the first.
uvec2 load_code_words(Address strip, uint page_tokens, uint bits, uint tile, uint lane) {
    if (bits == 8u)
        return ConstPairs(strip).at[(tile / 2u * LK_LANES + lane) * 2u + tile % 2u];
    const uint n_words = lane_words(page_tokens, bits);
    return uvec2(load_strip_word(strip, n_words, lane, tile * bits / 4u), 0u);
}
// The codes of these words, in the low bits of each 16 bits of a register.
uvec4 codes_of(uvec2 words, uint bits, uint tile) {
    const uint mask = ((1u << bits) - 1u) * 0x10001u;
    if (bits == 8u)
        return uvec4(words.x, words.x >> 8, words.y, words.y >> 8) & mask;
    const uint word = words.x >> tile_bit(tile, bits);
    return uvec4(word, word >> 8, word >> 4, word >> 12) & mask;
}
uvec4 load_codes(Address strip, uint page_tokens, uint bits, uint tile, uint lane) {
    return codes_of(load_code_words(strip, page_tokens, bits, tile, lane), bits, tile);
}

// Where (token, channel) lies in a 16-bit page, in FP16 numbers: the sum of two offsets.
uint row_offset(uint row) {
    return LK_TILE_LANE(row, 0u) * kLaneValues + 2u * LK_TILE_REGISTER(row, 0u);
}
uint k_offset(uint k) {
    return LK_TILE_LANE(0u, k) * kLaneValues + 2u * LK_TILE_REGISTER(0u, k) + LK_TILE_HALF(k);
}
uint raw_token_offset(bool is_value, uint token) {
    const uint in_tile = token % LK_TILE_TOKENS;
    return token / LK_TILE_TOKENS * kTileValues +
           (is_value ? k_offset(in_tile) : row_offset(in_tile));
}
uint raw_channel_offset(bool is_value, uint page_tokens, uint channel) {
    const uint in_strip = channel % LK_STRIP_CHANNELS;
    return channel / LK_STRIP_CHANNELS * (LK_STRIP_CHANNELS * page_tokens) +
           (is_value ? row_offset(in_strip) : k_offset(in_strip));
}
uint raw_offset(bool is_value, uint page_tokens, uint token, uint channel) {
    return raw_token_offset(is_value, token) + raw_channel_offset(is_value, page_tokens, channel);
}

// Slot in the strip and token in the tile of half `half` of a lane's register r.
uint lane_slot(bool is_value, uint lane, uint r, uint half_index) {
    return is_value ? LK_TILE_ROW(lane, r) : LK_TILE_K(lane, r) + half_index;
}
uint lane_token(bool is_value, uint lane, uint r, uint half_index) {
    return is_value ? LK_TILE_K(lane, r) + half_index : LK_TILE_ROW(lane, r);
}

// Of the 16, a lane's lie together: the four of its k, or, of keys with ranges by token, the two of
// its rows.
bool scales_by_row(FormatInfo c) { return c.is_token_axis && !c.is_value; }
uint lane_entry(bool by_row, uint lane) { return by_row ? 2u * (lane >> 2) : 4u * (lane & 3u); }

// Shared slots: pairs of a 1-bit partner and a 3-bit outlier, whose highest bit lies with the
// partner. slot counts in the 2-bit plane.
uint shared_bits(FormatInfo c, uint slot) {
    return slot >= 2u * c.n_shared ? 2u : slot < c.n_shared ? 1u : 3u;
}

#endif
