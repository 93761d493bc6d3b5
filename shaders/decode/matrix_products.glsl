// Decode attention on a tensor core: what the products of pages of all forms share.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_PRODUCTS_GLSL
#define LK_SHADERS_DECODE_MATRIX_PRODUCTS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/matrix_pages.glsl"

// Channels of slots 2t, 2t + 1, 2t + 8, 2t + 9 of a strip.
uvec4 slot_channels(uvec2 words, uint strip, uint t) {
    if (kPermutation == LK_PERMUTATION_NONE)
        return strip * LK_STRIP_CHANNELS + 2u * t + uvec4(0u, 1u, 8u, 9u);
    const uvec2 channels = words >> (t & 1u) * 16u;
    return uvec4(channels.x, channels.x >> 8, channels.y, channels.y >> 8) & 0xFFu;
}

// The lane's pair of the columns' products, summed over all lanes.
vec2 sum_products(vec2 products[kPairs]) {
    const bool is_odd = (lane & 1u) != 0u;
    const bool is_high = (lane & 2u) != 0u;
    vec2 sum = products[0];
    if (kPairs == 1u) {
        sum += exchange(sum, 1u);
        sum += exchange(sum, 2u);
    } else if (kPairs == 2u) {
        const vec2 other = products[kPairs - 1u];
        sum = (is_odd ? other : sum) + exchange(is_odd ? sum : other, 1u);
        sum += exchange(sum, 2u);
    } else {
        vec2 pair_sums[2];
        [[unroll]] for (uint i = 0u; i < 2u; ++i) {
            const vec2 low = products[i];
            const vec2 high = products[(2u + i) % kPairs];
            pair_sums[i] = (is_high ? high : low) + exchange(is_high ? low : high, 2u);
        }
        sum = (is_odd ? pair_sums[1] : pair_sums[0]) + exchange(is_odd ? pair_sums[0] : pair_sums[1], 1u);
    }
    [[unroll]] for (uint distance = 4u; distance < LK_LANES; distance *= 2u)
        sum += exchange(sum, distance);
    return sum;
}

// The midpoint of the codes as they are multiplied, of all rows.
Matrix midpoint_matrix(uint bits, float factor) {
    const float midpoint = 0.5 * float((1u << bits) - 1u) * factor;
    const uint low = pack_pair(vec2(midpoint));
    const uint high = pack_pair(vec2(midpoint * half_factor(bits)));
    return matrix_of(uvec4(low, low, high, high));
}

// Of a strip of 2 bits the words of the team's tiles, which come first then.
uvec4 part_of_words(uvec4 words) {
    return has_second_part() ? words.zwzw : words;
}

SumMatrix key_sums[kPageTiles];
ColumnMatrix value_columns[kPageTiles];

// The lane's ranges and minima of values, four of each, to the team's words: of each token its range
// and its midpoint, of tokens row() and row() + 8 of a tile side by side.
void store_value_parameters(uint first_word, vec4 ranges, vec4 minima) {
    const vec4 midpoints = 0.5 * ranges + minima;
    const uint at = first_word / 4u + lane / 4u * 8u + 2u * quad_lane();
    shared_words[at] = floatBitsToUint(vec4(ranges.x, midpoints.x, ranges.z, midpoints.z));
    shared_words[at + 1u] = floatBitsToUint(vec4(ranges.y, midpoints.y, ranges.w, midpoints.w));
}
vec4 value_parameters(uint first_word, uint tile) {
    return uintBitsToFloat(shared_words[first_word / 4u + (first_tile() + tile) * 8u + row()]);
}

// A strip's outputs.
void multiply_value_strip(uvec4 words[4], uint strip, float step_scale, vec2 midpoints, vec2 factors) {
    SumMatrix even = zero_sums();
    SumMatrix odd = zero_sums();
    [[unroll]] for (uint tile = 0u; tile < kTeamTiles; tile += 2u) {
        even = multiply_add(matrix_of(code_registers(words, kValueBits, tile)), value_columns[tile],
                            even);
        odd = multiply_add(matrix_of(code_registers(words, kValueBits, tile + 1u)),
                           value_columns[tile + 1u], odd);
    }
    add_outputs(strip, factors, (sums_of(even) + sums_of(odd)) * step_scale + midpoints.xyxy);
}

// Those of two strips of 1 or 2 bits, of which the second may lie at `end`. Side by side they take
// each tile's columns in turn, which a tensor core needs in another order than lanes have them.
void multiply_two_value_strips(TwoVectors two, uint strip, uint end, float step_scale,
                               vec2 midpoints, vec2 factors) {
    const uvec4 none = uvec4(0u);
    const uvec4 first_words[4] = uvec4[4](part_of_words(two.first), none, none, none);
    const uvec4 second_words[4] = uvec4[4](part_of_words(two.second), none, none, none);
    SumMatrix first = zero_sums();
    SumMatrix second = zero_sums();
    [[unroll]] for (uint tile = 0u; tile < kTeamTiles; ++tile) {
        first = multiply_add(matrix_of(code_registers(first_words, kValueBits, tile)),
                             value_columns[tile], first);
        second = multiply_add(matrix_of(code_registers(second_words, kValueBits, tile)),
                              value_columns[tile], second);
    }
    add_outputs(strip, factors, sums_of(first) * step_scale + midpoints.xyxy);
    if (strip + 1u < end)
        add_outputs(strip + 1u, factors, sums_of(second) * step_scale + midpoints.xyxy);
}

#endif
