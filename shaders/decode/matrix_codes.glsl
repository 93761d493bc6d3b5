// Decode attention on a tensor core: products of a packed page's codes, where all pages of a layer
// have one plain form.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_CODES_GLSL
#define LK_SHADERS_DECODE_MATRIX_CODES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/matrix_products.glsl"

struct PageParameters {
    Parameters keys[kFoldTasks];
    uvec2 channels[kFoldTasks];  // words with those of the slots
    Parameters values;
};
PageParameters page_parameters;

Parameters load_page_parameters(Address metadata, uint at, uint minima_bytes) {
    return Parameters(ConstPairs(metadata).at[at],
                   ConstPairs(address_add(metadata, minima_bytes)).at[at]);
}
void load_metadata(Page page) {
    const Parameters none = Parameters(uvec2(0u), uvec2(0u));
    page_parameters.values = none;
    if (page.is_there)
        page_parameters.values =
            load_page_parameters(page.value_metadata, lane, 2u * LK_MAX_PAGE_TOKENS);
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = lane + i * LK_LANES;
        page_parameters.keys[i] = none;
        page_parameters.channels[i] = uvec2(0u);
        if (page.is_there && task < 4u * kStrips) {
            page_parameters.keys[i] = load_page_parameters(page.key_metadata, task, 2u * kHeadDim);
            if (kPermutation != LK_PERMUTATION_NONE) {
                const uint at = task / 4u * 4u + task % 4u / 2u;
                page_parameters.channels[i] = uvec2(ConstWords(page.permutation).at[at],
                                                 ConstWords(page.permutation).at[at + 2u]);
            }
        }
    }
}
// The loads that the first page needs first.
void begin_page(Page page) {
    load_metadata(page);
    coming[0] = load_two(page, 0u);
    coming[1] = load_two(page, 1u);
    next_two = 2u;
}

vec4 parameters_of(uvec2 words) { return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y)); }
float largest_of(uvec2 words) {
    const vec4 x = parameters_of(words);
    return max(max(x.x, x.y), max(x.z, x.w));
}
int exponent_of_keys() {
    float most = largest_of(page_parameters.keys[0].ranges);
    if (kFoldTasks > 1u)
        most = max(most, largest_of(page_parameters.keys[kFoldTasks - 1u].ranges));
    return exponent_above(team_max(most));
}

// Queries in the order of the page's slots, times its ranges; and the lane's part of their products
// with minimum + range / 2.
void fold_queries(int exponent, out vec2 products[kPairs]) {
    [[unroll]] for (uint pair = 0u; pair < kPairs; ++pair)
        products[pair] = vec2(0.0);
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = lane + i * LK_LANES;
        const uint strip = task / 4u;
        if (strip < kStrips) {
            const uint bits = key_bits(strip);
            const vec4 ranges = parameters_of(page_parameters.keys[i].ranges);
            const vec4 midpoints = 0.5 * ranges + parameters_of(page_parameters.keys[i].minima);
            const float step = step_of(bits) * power(kLargeExponent - exponent);
            const vec4 factors = ranges * vec4(vec2(step), vec2(step / half_factor(bits)));
            const uvec4 channels = slot_channels(page_parameters.channels[i], strip, task % 4u);
            uint queries_of[kSlotWords];
            load_query_words(channels, queries_of);
            uint words[kSlotWords];
            [[unroll]] for (uint pair = 0u; pair < kPairs; ++pair)
                [[unroll]] for (uint slot = 0u; slot < 4u; ++slot) {
                    const vec2 queries = unpack_pair(queries_of[pair * 4u + slot]);
                    products[pair] += queries * midpoints[slot];
                    words[slot * kPairs + pair] = pack_pair(queries * factors[slot]);
                }
            store_slot_words(team * kTeamWords + (strip * LK_STRIP_CHANNELS + 2u * (task % 4u)) * kPairs, words);
        }
    }
}

// Zeros after the last strip.
ColumnMatrix folded_columns(uint strip) {
    const uint at = team * kTeamWords +
                    (min(strip, kStrips - 1u) * LK_STRIP_CHANNELS + row()) * kPairs + pair_of_lane();
    uvec2 words = uvec2(team_word(at), team_word(at + 8u * kPairs));
    if (strip >= kStrips)
        words = uvec2(0u);
    return column_matrix(words);
}

SumMatrix key_midpoints;

// The vectors of a strip of 4 or 8 bits, of which those of the team's tiles come first.
uvec4[4] part_of_strip(uvec4 words[4], uint bits) {
    if (has_second_part()) {
        words[0] = words[bits / 4u];
        words[1] = words[bits / 4u + 1u];
    }
    return words;
}

void multiply_key_strip(uvec4 words[4], uint bits, uint strip) {
    const ColumnMatrix columns = folded_columns(strip);
    key_midpoints = multiply_add(midpoint_matrix(bits, 1.0), columns, key_midpoints);
    [[unroll]] for (uint tile = 0u; tile < kTeamTiles; ++tile)
        key_sums[tile] =
            multiply_add(matrix_of(code_registers(words, bits, tile)), columns, key_sums[tile]);
}

// Products of the queries and the page's keys, up to factors: a tile's sums times power(
// exponent - kLargeExponent + 24), by 4 less in odd tiles. Returns where scores begin.
vec2 multiply_keys(Page page, Page next, int exponent) {
    vec2 products[kPairs];
    fold_queries(exponent, products);
    team_sync();
    key_midpoints = zero_sums();
    [[unroll]] for (uint tile = 0u; tile < kTeamTiles; ++tile)
        key_sums[tile] = zero_sums();
    const uvec4 none = uvec4(0u);
    [[dont_unroll]] for (uint strip = 0u; strip < kKeyEnd8; ++strip) {
        const TwoVectors low = take_key_two(page, next);
        const TwoVectors high = take_key_two(page, next);
        const uvec4 words[4] = uvec4[4](low.first, low.second, high.first, high.second);
        multiply_key_strip(part_of_strip(words, 8u), 8u, strip);
    }
    [[dont_unroll]] for (uint strip = kKeyEnd8; strip < kKeyEnd4; ++strip) {
        const TwoVectors two = take_key_two(page, next);
        const uvec4 words[4] = uvec4[4](two.first, two.second, none, none);
        multiply_key_strip(part_of_strip(words, 4u), 4u, strip);
    }
    [[dont_unroll]] for (uint strip = kKeyEnd4; strip < kStrips; strip += 2u) {
        const TwoVectors two = take_key_two(page, next);
        const uvec4 words = part_of_words(two.first);
        const uvec4 next_words = part_of_words(two.second);
        multiply_key_strip(uvec4[4](words, none, none, none), 2u, strip);
        multiply_key_strip(uvec4[4](next_words, none, none, none), 2u, strip + 1u);
    }
    const vec2 begin = sum_products(products);
    return begin - vec2(key_midpoints[0], key_midpoints[1]) * power(exponent - kLargeExponent);
}

// Weights, with the values' ranges, to value_columns. Returns the factor of products with codes;
// midpoints: the summand that joins them.
float fold_weights(vec4 weights[kPageTiles], int exponent, out vec2 midpoints) {
    const float scale = power(kLargeExponent - exponent);
    midpoints = vec2(0.0);
    SumMatrix code_midpoints = zero_sums();
    [[unroll]] for (uint tile = 0u; tile < kTeamTiles; ++tile) {
        const vec4 parameters = value_parameters(team * kTeamWords, tile);
        const vec2 range = parameters.xz;
        const vec2 midpoint = parameters.yw;
        midpoints += weights[tile].xy * midpoint.x + weights[tile].zw * midpoint.y;
        const vec2 factors = range * scale / vec2(tile_factor(kValueBits, tile),
                                                  tile_factor(kValueBits, tile) * half_factor(kValueBits));
        value_columns[tile] = column_matrix(uvec2(pack_pair(weights[tile].xy * factors.x),
                                                  pack_pair(weights[tile].zw * factors.y)));
        code_midpoints = multiply_add(midpoint_matrix(kValueBits, tile_factor(kValueBits, tile)),
                                    value_columns[tile], code_midpoints);
    }
    const float step_scale = power(exponent - kLargeExponent) * step_of(kValueBits);
    midpoints = vec2(column_sum(midpoints.x), column_sum(midpoints.y)) -
              vec2(code_midpoints[0], code_midpoints[1]) * step_scale;
    return step_scale * power(24);
}

// Nothing is compared with it where strips come in pairs.
const uint kValueEnd = kStrips % 2u == 0u ? ~0u : kStrips;

void multiply_values(Page page, Page next, float step_scale, vec2 midpoints, vec2 factors) {
    const uvec4 none = uvec4(0u);
    if (kValueBits == 2u) {
        [[dont_unroll]] for (uint strip = 0u; strip < kStrips; strip += 2u)
            multiply_two_value_strips(take_value_two(page, next), strip, kValueEnd, step_scale,
                                      midpoints, factors);
    } else {
        [[dont_unroll]] for (uint strip = 0u; strip < kStrips; ++strip) {
            const TwoVectors two = take_value_two(page, next);
            uvec4 words[4] = uvec4[4](two.first, two.second, none, none);
            if (kValueBits == 8u) {
                const TwoVectors high = take_value_two(page, next);
                words[2] = high.first;
                words[3] = high.second;
            }
            multiply_value_strip(part_of_strip(words, kValueBits), strip, step_scale, midpoints, factors);
        }
    }
    next_two -= page_twos();
}

// The page's first words are on their way; those of the next one are when it is done.
void attend_page(WorkTile work_tile, Page page, Page next) {
    const int key_exponent = exponent_of_keys();
    const int value_exponent = exponent_above(team_max(largest_of(page_parameters.values.ranges)));
    Column column[kColumnSets];
    columns_of_lane(column);
    const uvec2 hidden =
        hidden_of_lane(work_tile, column, page.is_there, page.first_token + first_tile() * LK_TILE_TOKENS, kTeamTiles);
    const vec2 begin = multiply_keys(page, next, key_exponent);
    team_sync();
    store_value_parameters(team * kTeamWords, parameters_of(page_parameters.values.ranges),
                           parameters_of(page_parameters.values.minima));
    load_metadata(next);
    const vec2 key_factors = vec2(column[0].factor, column[1].factor);
    const vec2 shifts = begin * key_factors + vec2(column[0].shift, column[1].shift);
    const float unit_of_keys = power(key_exponent - kLargeExponent + 24);
    vec4 weights[kPageTiles];
    vec2 most = vec2(kHidden);
    [[unroll]] for (uint tile = 0u; tile < kTeamTiles; ++tile) {
        weights[tile] = score_tile(work_tile.layer, key_sums[tile],
                                   key_factors * (unit_of_keys / tile_factor(2u, tile)), shifts);
    }
    if ((hidden.x | hidden.y) != 0u)
        [[unroll]] for (uint tile = 0u; tile < kTeamTiles; ++tile)
            weights[tile] = hide_scores(weights[tile], hidden, tile);
    [[unroll]] for (uint tile = 0u; tile < kTeamTiles; ++tile)
        most = max(most, max(weights[tile].xy, weights[tile].zw));
    const vec2 factors = raise_row_maxes(most);
    [[unroll]] for (uint tile = 0u; tile < kTeamTiles; ++tile)
        weights[tile] = weigh_tile(weights[tile]);
    team_sync();
    vec2 midpoints;
    const float unit_of_values = fold_weights(weights, value_exponent, midpoints);
    multiply_values(page, next, unit_of_values, midpoints, factors);
    team_sync();
}

#endif
