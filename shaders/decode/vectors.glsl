// Decode attention: the loads of a KV tile's codes: 16 bytes at a time; of values at 1 bit, the 8
// bytes that a lane has of a strip.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_VECTORS_GLSL
#define LK_SHADERS_DECODE_VECTORS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/kv_tiles.glsl"

uint strip_bits(KvTile kv_tile, uint strip) {
    return strip < kv_tile.end16 ? 16u : strip < kv_tile.end8 ? 8u : strip < kv_tile.end4 ? 4u : 2u;
}
// Vectors of 32 lanes before a strip of the keys.
uint vectors_before(KvTile kv_tile, uint strip) {
    const uint in16 = min(strip, kv_tile.end16);
    const uint in8 = min(strip, kv_tile.end8) - in16;
    const uint in4 = min(strip, kv_tile.end4) - in16 - in8;
    return 7u * in16 + 3u * in8 + in4 + strip;
}
uvec4 load_vector(Address payload, uint vector) {
    return ConstQuads(payload).at[vector * LK_LANES + lane];
}

// The vectors of the team's strips of a KV tile's packed keys in their order, one of them ahead.
struct KeyVectors {
    uvec4 next;
    uint index;  // of it
    uint last;
};
KeyVectors begin_vectors(KvTile kv_tile) {
    KeyVectors vectors;
    const uint first = max(kv_tile.end16, first_strip());
    vectors.last = max(vectors_before(kv_tile, end_strip()), 1u) - 1u;
    vectors.index = min(vectors_before(kv_tile, first), vectors.last);
    if (first < end_strip())
        vectors.next = load_vector(kv_tile.key_payload, vectors.index);
    return vectors;
}
uvec4 take_vector(KvTile kv_tile, inout KeyVectors vectors) {
    const uvec4 words = vectors.next;
    vectors.index = min(vectors.index + 1u, vectors.last);
    vectors.next = load_vector(kv_tile.key_payload, vectors.index);
    return words;
}

// Vectors of a strip.
uint value_vectors_of(uint bits) { return max(bits / 2u, 1u); }
uvec4 load_value_vector(KvTile kv_tile, uint bits, uint vector) {
    if (bits == 1u)
        return uvec4(ConstPairs(kv_tile.value_payload).at[vector * LK_LANES + lane], 0u, 0u);
    return load_vector(kv_tile.value_payload, vector);
}

// At 16 bits, of a tile. Tiles that a page has not, whose tokens are masked, are read as its last one.
uint f16_vector(KvTile kv_tile, uint strip, uint tile) {
    return strip * kv_tile.n_tiles + min(tile, kv_tile.n_tiles - 1u);
}
uvec4 load_f16_keys(KvTile kv_tile, uint strip, uint tile) {
    return load_vector(kv_tile.key_payload, f16_vector(kv_tile, strip, tile));
}
uvec4 load_f16_value(KvTile kv_tile, uint strip, uint tile) {
    return load_vector(kv_tile.value_payload,
                       f16_vector(kv_tile, min(strip, kValueStrips - 1u), tile));
}

// Pairs of strips of values that each team of a page has, at most, and where those of a page of one
// group end.
uint team_value_steps() { return (push.n_value_steps + kPageTeams - 1u) / kPageTeams; }
uint end_value_strip() {
    return kPageTeams > 1u ? min(2u * (team_of_page() + 1u) * team_value_steps(), kValueStrips)
                           : kValueStrips;
}

// The vectors of a pair of strips at 16 bits.
uvec4 f16_values[2][kPageTiles];
void load_f16_values(KvTile kv_tile, uint strip) {
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        [[unroll]] for (uint s = 0u; s < 2u; ++s)
            f16_values[s][tile] = load_f16_value(kv_tile, strip + s, tile);
}

// The first vectors of a pair of strips, ahead of their use.
uvec4 value_vectors[2];

void begin_value_vectors(KvTile kv_tile, uint strip) {
    if (kIsF16) {
        if (kv_tile.n_tiles != 0u)
            load_f16_values(kv_tile, strip);
        return;
    }
    const uint n = value_vectors_of(kv_tile.value_bits);
    [[unroll]] for (uint s = 0u; s < 2u; ++s)
        value_vectors[s] = kv_tile.value_bits < 16u
                               ? load_value_vector(kv_tile, kv_tile.value_bits,
                                                   min(strip + s, kValueStrips - 1u) * n)
                               : uvec4(0u);
}

// Replace the vectors of the pair by those after vector v.
void take_value_vectors(KvTile kv_tile, uint bits, uint strip, uint v) {
    const uint n = value_vectors_of(bits);
    const uint next = v + 1u < n ? strip * n + v + 1u : (strip + 2u) * n;
    [[unroll]] for (uint s = 0u; s < 2u; ++s)
        value_vectors[s] = load_value_vector(kv_tile, bits, min(next + s * n, kValueStrips * n - 1u));
}

// Values of missing tokens need not be numbers: make them 0.
uint keep_tokens(uint word, uint token, uint n_tokens) {
    return token + 1u < n_tokens ? word : token < n_tokens ? word & 0xFFFFu : 0u;
}
uvec4 keep_tile(KvTile kv_tile, uvec4 words, uint tile, uint n_tokens) {
    const uint in_page = min(tile, kv_tile.n_tiles - 1u) * LK_TILE_TOKENS;
    const uint token = kv_tile.first_token + in_page + 2u * quad_lane();
    return uvec4(keep_tokens(words.x, token, n_tokens), keep_tokens(words.y, token, n_tokens),
                 keep_tokens(words.z, token + 8u, n_tokens),
                 keep_tokens(words.w, token + 8u, n_tokens));
}

#endif
