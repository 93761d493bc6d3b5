// Decode attention on a tensor core: weights and values of a page whose form is pushed, and the way
// of such a page from the products with its keys to its outputs.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_FORMS_GLSL
#define LK_SHADERS_DECODE_MATRIX_FORMS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/matrix_form_keys.glsl"

// Weights, with the ranges of a channel group, to value_columns. Returns the factor of products with
// codes; midpoints: the summand that joins them.
float fold_weights(vec4 weights[kPageTiles], out vec2 midpoints) {
    const int exponent = exponent_of_values();
    const uint ranges_word = team * kTeamWords;
    const float scale = power(kLargeExponent - exponent) * parameter_scale();
    store_value_parameters(ranges_word, parameters_of(page_parameters.values.ranges),
                           parameters_of(page_parameters.values.minima));
    team_sync();
    midpoints = vec2(0.0);
    SumMatrix code_midpoints = zero_sums();
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile) {
        const vec4 parameters = value_parameters(ranges_word, tile);
        const vec2 range = parameters.xz;
        const vec2 midpoint = parameters.yw;
        midpoints += weights[tile].xy * midpoint.x + weights[tile].zw * midpoint.y;
        const float unit = tile_factor(kValueBits, tile);
        const vec2 factors = range * scale / vec2(unit, unit * half_factor(kValueBits));
        value_columns[tile] = column_matrix(uvec2(pack_pair(weights[tile].xy * factors.x),
                                                  pack_pair(weights[tile].zw * factors.y)));
        code_midpoints = multiply_add(midpoint_matrix(kValueBits, unit), value_columns[tile],
                                      code_midpoints);
    }
    const float step_scale = power(exponent - kLargeExponent) * step_of(kValueBits);
    midpoints = vec2(column_sum(midpoints.x), column_sum(midpoints.y)) * parameter_scale() -
                vec2(code_midpoints[0], code_midpoints[1]) * step_scale;
    return step_scale * power(24);
}

// The strips of a channel group, whose weights are folded.
void multiply_value_group(Page page, Page next, uint group, float step_scale, vec2 midpoints,
                          vec2 factors) {
    const uvec4 none = uvec4(0u);
    const uint begin = group * value_group_strips();
    const uint end = min(begin + value_group_strips(), kStrips);
    if (kValueBits <= 2u) {
        [[dont_unroll]] for (uint strip = begin; strip < end; strip += 2u)
            multiply_two_value_strips(take_value_two(page, next), strip, end, step_scale, midpoints,
                                      factors);
    } else {
        [[dont_unroll]] for (uint strip = begin; strip < end; ++strip) {
            const TwoVectors two = take_value_two(page, next);
            uvec4 words[4] = uvec4[4](two.first, two.second, none, none);
            if (kValueBits == 8u) {
                const TwoVectors high = take_value_two(page, next);
                words[2] = high.first;
                words[3] = high.second;
            }
            multiply_value_strip(words, strip, step_scale, midpoints, factors);
        }
    }
}

// The page's first words are on their way; those of the next one are when it is done.
void attend_page(WorkTile work_tile, Page page, Page next) {
    const int key_exponent = exponent_of_keys();
    Column column[kColumnSets];
    columns_of_lane(column);
    const uvec2 hidden =
        hidden_of_lane(work_tile, column, page.is_there, page.first_token, kPageTiles);
    vec2 begins[kFolds];
    multiply_keys(page, next, key_exponent, begins);
    load_key_metadata(next);
    const vec2 key_factors = vec2(column[0].factor, column[1].factor);
    const vec2 shifts = vec2(column[0].shift, column[1].shift);
    const float unit_of_keys = power(key_exponent - kLargeExponent + 24);
    vec4 weights[kPageTiles];
    vec2 most = vec2(kHidden);
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        weights[tile] = score_tile(work_tile.layer, key_sums[tile],
                                   key_factors * (unit_of_keys / tile_factor(2u, tile)),
                                   begins[tile * kFolds / kPageTiles] * key_factors + shifts);
    if ((hidden.x | hidden.y) != 0u)
        [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
            weights[tile] = hide_scores(weights[tile], hidden, tile);
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        most = max(most, max(weights[tile].xy, weights[tile].zw));
    const vec2 factors = raise_row_maxes(most);
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        weights[tile] = weigh_tile(weights[tile]);
    [[dont_unroll]] for (uint group = 0u; group < n_value_groups(); ++group) {
        vec2 midpoints;
        if (group != 0u)
            team_sync();  // before the ranges of the group before it are overwritten
        const float step_scale = fold_weights(weights, midpoints);
        const bool is_last = group + 1u == n_value_groups();
        Page from = page;
        if (is_last)
            from = next;
        load_value_metadata(from, is_last ? 0u : group + 1u);
        multiply_value_group(page, next, group, step_scale, midpoints, factors);
    }
    next_two -= page_twos();
    team_sync();
}

#endif
