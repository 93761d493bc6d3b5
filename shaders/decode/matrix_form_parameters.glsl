// Decode attention on a tensor core: ranges, minima and permutation of a page whose form is pushed.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_FORM_PARAMETERS_GLSL
#define LK_SHADERS_DECODE_MATRIX_FORM_PARAMETERS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/matrix_products.glsl"

struct PageParameters {
    Parameters keys[kFoldTasks * kFolds];  // [task][pass][token group]
    uvec2 channels[kFoldTasks];            // words with those of the slots
    Parameters values;                     // of the channel group that is folded next
};
PageParameters page_parameters;

Parameters load_page_parameters(Address metadata, uint at, uint minima_bytes) {
    const Address minima = address_add(metadata, minima_bytes);
    if (kParameterBytes == 1u)
        return Parameters(uvec2(ConstWords(metadata).at[at], 0u), uvec2(ConstWords(minima).at[at], 0u));
    return Parameters(ConstPairs(metadata).at[at], ConstPairs(minima).at[at]);
}
// A word with the channels of four slots. Without a permutation slots hold the channels of their
// own numbers.
uint load_channels(Address permutation, uint at) {
    if (is_null(permutation))
        return 0x03020100u + 0x04040404u * at;
    return ConstWords(permutation).at[at];
}
void load_key_metadata(Page page) {
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = lane + i * LK_LANES;
        const bool is_there = page.is_there && task < 4u * kStrips;
        [[unroll]] for (uint fold = 0u; fold < kFolds; ++fold) {
            page_parameters.keys[i * kFolds + fold] = Parameters(uvec2(0u), uvec2(0u));
            const uint group = fold / kPassFolds * pass_groups() + fold % kPassFolds;
            if (is_there && fold % kPassFolds < pass_groups())
                page_parameters.keys[i * kFolds + fold] = load_page_parameters(
                    page.key_metadata, (task / 4u * n_key_groups() + group) * 4u + task % 4u,
                    key_minima_bytes());
        }
        page_parameters.channels[i] = uvec2(0u);
        if (is_there) {
            const uint at = task / 4u * 4u + task % 4u / 2u;
            page_parameters.channels[i] =
                uvec2(load_channels(page.permutation, at), load_channels(page.permutation, at + 2u));
        }
    }
}
void load_value_metadata(Page page, uint group) {
    page_parameters.values = Parameters(uvec2(0u), uvec2(0u));
    if (page.is_there)
        page_parameters.values = load_page_parameters(
            page.value_metadata, group * LK_LANES + lane, value_minima_bytes());
}
// The loads that the first page needs first.
void begin_page(Page page) {
    load_key_metadata(page);
    load_value_metadata(page, 0u);
    coming[0] = load_two(page, 0u);
    coming[1] = load_two(page, 1u);
    next_two = 2u;
}

// Of what parameters_of() returns; sums and factors are multiplied by it instead.
float parameter_scale() { return kParameterBytes == 1u ? kF8Scale : 1.0; }
vec4 parameters_of(uvec2 words) {
    if (kParameterBytes == 1u)
        return f8_quad(words.x);
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
}
float largest_of(uvec2 words) {
    const vec4 x = parameters_of(words);
    return max(max(x.x, x.y), max(x.z, x.w));
}
// Ranges in FP8 are below 2^8: no page needs their maximum.
const int kFloat8Exponent = 8;
int exponent_of_keys() {
    if (kParameterBytes == 1u)
        return kFloat8Exponent;
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < kFoldTasks * kFolds; ++i)
        most = max(most, largest_of(page_parameters.keys[i].ranges));
    return exponent_above(team_max(most));
}
int exponent_of_values() {
    if (kParameterBytes == 1u)
        return kFloat8Exponent;
    return exponent_above(team_max(largest_of(page_parameters.values.ranges)));
}

#endif
