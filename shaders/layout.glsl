// Where the bytes of a half page lie: docs/FORMAT.md, sections 3 to 7.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_LAYOUT_GLSL
#define LK_SHADERS_LAYOUT_GLSL

#include "format/format_const.h"
#include "tables.glsl"

const uint kLaneHalves = 8u;  // of a tile

uint plane_bits(uint plane) { return plane == 0u ? 16u : plane == 1u ? 8u : 6u - plane; }

// Where a strip's codes lie in the payload.
struct StripPlace {
    uint bits;         // 3: the low two bits are at offset, the third at high_offset
    uint offset;       // bytes
    uint high_offset;  // of a strip of 3 bits
    uint in_plane;     // index among the strips of its plane
};
StripPlace find_strip(ClassInfo c, uint strip) {
    const uint bit_bytes = 2u * c.page_tokens;  // of a strip, for each bit of its width
    uint offset = 0u;
    uint plane = 0u;
    while (strip >= c.strips[plane]) {
        strip -= c.strips[plane];
        offset += bit_bytes * plane_bits(plane) * c.strips[plane];
        ++plane;
    }
    const uint bits = plane_bits(plane);
    const uint low_bytes = bit_bytes * (bits == 3u ? 2u : bits);
    const uint high_offset = offset + low_bytes * c.strips[plane] + bit_bytes * strip;
    return StripPlace(bits, offset + low_bytes * strip, high_offset, strip);
}

// Words of a lane in a strip of 1, 2, 4, 8 or 16 bits, and where they lie in it.
uint lane_words(uint page_tokens, uint bits) { return page_tokens * bits / 64u; }
uint strip_word_index(uint n_words, uint lane, uint word) {
    const uint vector = word / LK_VECTOR_WORDS * LK_LANES + lane;
    return n_words < LK_VECTOR_WORDS ? lane * n_words + word
                                     : vector * LK_VECTOR_WORDS + word % LK_VECTOR_WORDS;
}

// Register r of a tile is a lane's word 4 tile + r at 16 bits. At fewer bits that word is folded
// into word >> fold_steps(bits), and its two codes begin at this bit of the word's halves.
uint fold_steps(uint bits) { return uint(4 - findMSB(bits)); }
uint fold_bit(uint word, uint bits) {
    return bits * (bitfieldReverse(word) >> 1u >> (31u - fold_steps(bits)));
}

// Words of strips in memory. All of a half page lies at multiples of 16 bytes.
uint load_strip_word(Address strip, uint n_words, uint lane, uint word) {
    return ConstWords(strip).at[strip_word_index(n_words, lane, word)];
}

// A tile's codes of 1, 2, 4 or 8 bits, in the low bits of the halves of each register.
uvec4 load_codes(Address strip, uint page_tokens, uint bits, uint tile, uint lane) {
    const uint n_words = lane_words(page_tokens, bits);
    const uint mask = ((1u << bits) - 1u) * 0x10001u;
    const uint first = LK_TILE_WORDS * tile;
    const uint steps = fold_steps(bits);
    const uint low = load_strip_word(strip, n_words, lane, first >> steps);
    uint high = low;
    if (bits == 8u)
        high = load_strip_word(strip, n_words, lane, (first >> steps) + 1u);
    return uvec4(low >> fold_bit(first, bits), low >> fold_bit(first + 1u, bits),
                 high >> fold_bit(first + 2u, bits), high >> fold_bit(first + 3u, bits)) & mask;
}

// Where (token, channel) lies in a half page at 16 bits, in halves: a lane's word and its half.
uint raw_offset(bool is_value, uint page_tokens, uint token, uint channel) {
    const uint tile = channel / LK_STRIP_CHANNELS * (page_tokens / LK_TILE_TOKENS) +
                      token / LK_TILE_TOKENS;
    const uint row = (is_value ? channel : token) % LK_TILE_TOKENS;
    const uint k = (is_value ? token : channel) % LK_TILE_TOKENS;
    return (tile * LK_LANES + LK_TILE_LANE(row, k)) * kLaneHalves + 2u * LK_TILE_REGISTER(row, k) +
           LK_TILE_HALF(k);
}

// Slot in the strip and token in the tile of half `half` of a lane's register r.
uint lane_slot(bool is_value, uint lane, uint r, uint half_index) {
    return is_value ? LK_TILE_ROW(lane, r) : LK_TILE_K(lane, r) + half_index;
}
uint lane_token(bool is_value, uint lane, uint r, uint half_index) {
    return is_value ? LK_TILE_K(lane, r) + half_index : LK_TILE_ROW(lane, r);
}

// Ranges and minima come by 16 that lie together. The first of those for (strip, tile):
uint first_entry(ClassInfo c, uint strip, uint tile) {
    const uint entries =
        c.is_token_axis
            ? strip * LK_STRIP_CHANNELS / c.group * (c.page_tokens / LK_TILE_TOKENS) + tile
            : strip * c.n_groups + tile * LK_TILE_TOKENS / c.group;
    return entries * LK_STRIP_CHANNELS;
}

// Of the 16, a lane's lie together: the four of its k, or, of keys with ranges by token, the two of
// its rows. Which of them is that of a register's half?
bool scales_by_row(ClassInfo c) { return c.is_token_axis && !c.is_value; }
uint lane_entry(bool by_row, uint lane) { return by_row ? 2u * (lane >> 2) : 4u * (lane & 3u); }
uint part_of_entry(bool by_row, uint r, uint half_index) {
    return by_row ? r & 1u : (r & 2u) + half_index;
}

// Shared slots: pairs of a 1-bit partner and a 3-bit outlier, whose highest bit lies with the
// partner. slot counts in the 2-bit plane.
uint shared_bits(ClassInfo c, uint slot) {
    return slot >= 2u * c.n_shared ? 2u : slot < c.n_shared ? 1u : 3u;
}

#endif
