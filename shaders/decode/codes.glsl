// Decode attention: codes of a packed page as numbers, and their products.
//
// A word holds codes of even k in its low half and of odd k in its high half, so values come in
// pairs. A field at bit `position` is put below the exponent of 2^10 (FP16) or 2^23 (FP32); one
// multiply-add, exact, makes (code - midpoint) / 2^bits of it: at most 1/2, and never subnormal.
// For that, fields are brought to the bits 2 to 9: at 0 the midpoint would not be exact.
//
// With FP16 arithmetic a sum takes at most 16 products of either half of a pair before it goes on
// in FP32, and up to 16 more of the higher bits of shared stored channels. A product is kLarge / 2 at
// most, one of a higher bit 2/7 of kLarge, so a sum stays finite, and values that become subnormal,
// and may be lost, are below 2^-26 of the largest.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_CODES_GLSL
#define LK_SHADERS_DECODE_CODES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/shape.glsl"
#include "shaders/floats.glsl"
#include "shaders/tables.glsl"

// 0: no keys have shared stored channels.
layout(constant_id = LK_SPEC_SHARED) const uint kShared = 0u;
// Token groups of keys in a page, at most; pages have powers of two of them.
layout(constant_id = LK_SPEC_KEY_FOLDS) const uint kKeyGroups = LK_MAX_KEY_GROUPS;
// Of a range or a minimum in all packed pages of the layer: 1 = FP8, 2 = FP16; 0 = pages have either.
layout(constant_id = LK_SPEC_PARAMETER_BYTES) const uint kParameterBytes = 0u;
layout(constant_id = LK_SPEC_WIDTHS) const uint kWidths = ~0u;
bool has_keys(uint bits) { return (kWidths & LK_KEYS_OF(bits)) != 0u; }
bool has_values(uint bits) { return (kWidths & LK_VALUES_OF(bits)) != 0u; }
const bool kIsF16 = kWidths == 0u;  // no page is packed

const int kLargeExponent = 12;
const float kLarge = float(1 << kLargeExponent);
const uint kBlockStrips = 8u;  // of keys, that are summed in FP16 at once

#ifdef LK_FLOAT16
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define Pair f16vec2
#define Sum f16vec2
#define Float float16_t
const uint kFoldedQuads = (kColumns + 1u) / 2u;
#define FoldedQuad uvec4
Pair to_pair(vec2 x) { return f16vec2(x); }
void add_product(inout Sum sum, Pair a, Pair b) { sum = fma(a, b, sum); }
float total_of(Sum sum) { return float(sum.x) + float(sum.y); }
const Sum kZeroSum = f16vec2(0.0);
Pair half_pair(uint word) { return unpackFloat2x16(word); }
#else
#define Pair vec2
#define Sum float
#define Float float
const uint kFoldedQuads = kColumns;
#define FoldedQuad vec4
Pair to_pair(vec2 x) { return x; }
float total_of(Sum sum) { return sum; }
const Sum kZeroSum = 0.0;
Pair half_pair(uint word) { return unpackHalf2x16(word); }
#endif
void add_product(inout float sum, vec2 a, vec2 b) { sum = fma(a.y, b.y, fma(a.x, b.x, sum)); }

// 2^bits / (2^bits - 1): a range times it is the range of codes divided by 2^bits.
float code_range(uint bits) {
    const float n = float(1u << bits);
    return n / (n - 1.0);
}

// Those bits of codes that `kept` has.
Pair code_pair(uint word, uint position, uint bits, uint kept) {
    const float scale = 1.0 / float(1u << position + bits);
    const float midpoint = 0.5 * float(kept) / float(1u << bits);
    const uint mask = kept << position;
#ifdef LK_FLOAT16
    const f16vec2 biased = unpackFloat2x16(word & mask * 0x10001u | 0x64006400u);
    return fma(biased, f16vec2(scale), f16vec2(-1024.0 * scale - midpoint));
#else
    const vec2 biased = uintBitsToFloat(uvec2(word, word >> 16) & mask | 0x4B000000u);
    return fma(biased, vec2(scale), vec2(-8388608.0 * scale - midpoint));
#endif
}

// R0 to R3 of a tile, the tile-th of a vector: four words, at 1 bit two.
struct Tile {
    Pair r0, r1, r2, r3;
};
Tile code_tile(uvec4 words, uint bits, uint tile, uint kept) {
    const uint index = tile * bits / 4u;
    const uint word = words[index];
    const uint next = bits == 8u ? words[index + 1u] : word;
    uint position = 2u;
    if (bits <= 2u)
        position += 2u * (tile & 1u);
    if (bits == 1u)
        position += tile >> 1 & 1u;
    const uint next_position = bits == 8u ? position : position + 4u;
    return Tile(code_pair(word << 2, position, bits, kept),
                code_pair(word >> 6, position, bits, kept),
                code_pair(next << 2, next_position, bits, kept),
                code_pair(next >> 6, next_position, bits, kept));
}
Tile code_tile(uvec4 words, uint bits, uint tile) {
    return code_tile(words, bits, tile, (1u << bits) - 1u);
}

// The factors of the codes of a page: queries with the ranges of keys, [strip], or weights with the
// ranges of values, [team of the page][tile], then [t][column]: for k 2t, 2t + 1, 2t + 8, 2t + 9.
const uint kWeightTiles = kPageTeams * kPageTiles;
const uint kFoldedRows = 4u * (kStrips > kWeightTiles ? kStrips : kWeightTiles);
shared FoldedQuad shared_folded[kPages * kFoldedRows * kFoldedQuads];

const uint kFolded = 2u * kColumns;  // pairs of a lane: [column][lower or upper k]
uint folded_index(uint at) { return (page_of_team() * kFoldedRows + at) * kFoldedQuads; }
// Of the team's weights.
uint weight_row(uint at) { return 4u * kPageTiles * team_of_page() + at; }

void load_folded(uint at, out Pair folded[kFolded]) {
#ifdef LK_FLOAT16
    [[unroll]] for (uint i = 0u; i < kFoldedQuads; ++i) {
        const uvec4 words = shared_folded[folded_index(at) + i];
        [[unroll]] for (uint j = 0u; j < 4u; ++j)
            if (4u * i + j < kFolded)
                folded[4u * i + j] = unpackFloat2x16(words[j]);
    }
#else
    [[unroll]] for (uint i = 0u; i < kColumns; ++i) {
        const vec4 values = shared_folded[folded_index(at) + i];
        folded[2u * i] = values.xy;
        folded[2u * i + 1u] = values.zw;
    }
#endif
}
void store_folded_pair(uint at, uint column, uint k_upper, vec2 values) {
#ifdef LK_FLOAT16
    shared_folded[folded_index(at) + column / 2u][2u * (column % 2u) + k_upper] =
        packFloat2x16(f16vec2(values));
#else
    shared_folded[folded_index(at) + column][2u * k_upper] = values.x;
    shared_folded[folded_index(at) + column][2u * k_upper + 1u] = values.y;
#endif
}
// Of one k of 16 of a row's strip.
float folded_value(uint at, uint column, uint k) {
#ifdef LK_FLOAT16
    const uint word = shared_folded[folded_index(at) + column / 2u][2u * (column % 2u) + k / 8u];
    return unpackHalf2x16(word >> 16u * (k & 1u)).x;
#else
    return shared_folded[folded_index(at) + column][2u * (k / 8u) + (k & 1u)];
#endif
}

// Parameters for all lanes: while keys are multiplied, where pages have token groups, the ranges of a
// page for the queries of each group, in FP16 as four numbers of a row, [group][row of
// shared_folded]; later each team's of a group of values (values.glsl).
const uint kRanges = kGrouped != 0u ? kKeyGroups * 4u * kStrips : 0u;
const uint kValueParameters = LK_MAX_PAGE_TOKENS / 2u;  // of a team
const uint kTeamsParameters = kPageTeams * kValueParameters;
const uint kPageParameters = kRanges > kTeamsParameters ? kRanges : kTeamsParameters;
shared uvec2 shared_parameters[kPages * kPageParameters];
uint value_ranges_row;  // of shared_parameters: where the ranges of the group of values begin
uint range_index(uint group, uint row) {
    return page_of_team() * kPageParameters + group * 4u * kStrips + row;
}
uint value_parameters_begin() {
    return page_of_team() * kPageParameters + team_of_page() * kValueParameters;
}
void store_ranges(uint group, uint row, vec4 ranges) {
    shared_parameters[range_index(group, row)] =
        uvec2(packHalf2x16(ranges.xy), packHalf2x16(ranges.zw));
}
uvec2 load_ranges(uint group, uint row) { return shared_parameters[range_index(group, row)]; }
// Of one k of 16 of a row's strip.
float range_of(uint group, uint row, uint k) {
    return unpackHalf2x16(load_ranges(group, row)[k / 8u] >> 16u * (k & 1u)).x;
}

// Four neighbours of an array of ranges or minima, as they lie and as numbers.
uvec2 load_parameters(Address array, uint index, bool is_f8) {
    if (is_f8)
        return uvec2(ConstWords(array).at[index / 4u], 0u);
    return ConstPairs(array).at[index / 4u];
}
vec4 to_parameters(uvec2 words, bool is_f8) {
    if (is_f8)
        return f8_quad(words.x) * kF8Scale;
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
}
// The columns' queries.
shared Float shared_queries[kHeadDim * kColumns];  // [channel][column]
void store_query(uint channel, uint column, float value) {
    shared_queries[channel * kColumns + column] = Float(value);
}

float largest_of(vec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }

#endif
