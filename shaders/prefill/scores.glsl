// Attention of many columns: from products of queries and keys to weights, of an invocation's four
// columns and its rows of a stage, which score_row(i) and lane_column(i) of the shape number.
//
// A weight is a power of two relative to its column's reference, which is an earlier score and is
// raised when a score passes it by more than kHeadroom: most stages leave the outputs unchanged.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SCORES_GLSL
#define LK_SHADERS_PREFILL_SCORES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/logits.glsl"
#include "shaders/prefill/mask.glsl"
#include "shaders/prefill/stage.glsl"

vec4 scores[kScoreRows];    // of the invocation's rows and columns, then weights
vec4 reference;             // of the columns
vec4 sum;                   // of the invocation's weights
uvec4 positions;            // of the columns
uvec4 reaches;              // positions of the last tokens that they attend to

// The token of an invocation's column; columns that do not exist repeat the last one.
uint column_token(Mask mask, uint i) {
    const uint column = min(lane_column(i), mask.n_columns - 1u);
    return (mask.first_column + column) / mask.group_size;
}
void find_positions(Mask mask) {
    uvec4 own_positions;
    uvec4 own_reaches;
    for (uint i = 0u; i < 4u; ++i) {
        const uint token = column_token(mask, i);
        own_positions[i] = mask.sequence.has_tree
                               ? load_position(mask.step, mask.sequence.first_new + token)
                               : mask.sequence.n_history + token;
        own_reaches[i] = mask.sequence.has_tree ? own_positions[i] : find_reach(mask, token);
    }
    positions = own_positions;
    reaches = own_reaches;
}

// Are all tokens of a stage visible to all columns?
bool all_are_visible(Mask mask, uint first_token, uint n_tokens) {
    const LayerInfo layer = mask.layer;
    const uint end = first_token + n_tokens;
    const uint linear_end = mask.sequence.has_tree ? mask.sequence.n_history
                                                    : mask.first_position + 1u;
    return n_tokens == kStageTokens && end <= linear_end &&
           (layer.window_tokens == 0u || first_token + layer.window_tokens > mask.last_position ||
            end <= layer.window_sink_tokens);
}

// Bit i of a column's ancestors: new token i is visible to it.
struct Ancestors {
    uvec4 low;
    uvec4 high;
};
Ancestors load_column_ancestors(Mask mask) {
    Ancestors ancestors;
    for (uint i = 0u; i < 4u; ++i) {
        const uint token = mask.sequence.first_new + column_token(mask, i);
        const uvec2 bits = load_ancestors(mask.step, token);
        ancestors.low[i] = bits.x;
        ancestors.high[i] = bits.y;
    }
    return ancestors;
}

bvec4 is_position_visible(LayerInfo layer, uint key) {
    const bvec4 comes_before = lessThanEqual(uvec4(key), reaches);
    if (layer.window_tokens == 0u || key < layer.window_sink_tokens)
        return comes_before;
    const bvec4 in_window = greaterThan(uvec4(key + layer.window_tokens), positions);
    return bvec4(uvec4(comes_before) & uvec4(in_window));
}
bvec4 is_visible(Mask mask, Ancestors ancestors, uint token) {
    const SequenceInfo sequence = mask.sequence;
    if (!sequence.has_tree || token < sequence.n_history)
        return is_position_visible(mask.layer, token);
    const uint i = token - sequence.n_history;
    const uvec4 bits = (i < 32u ? ancestors.low : ancestors.high) >> (i & 31u) & 1u;
    const uint key = load_position(mask.step, sequence.first_new + i);
    return bvec4(bits & uvec4(is_position_visible(mask.layer, key)));
}

void hide_scores(Mask mask, uint first_token, uint n_tokens) {
    Ancestors ancestors = Ancestors(uvec4(0u), uvec4(0u));
    if (mask.sequence.has_tree)
        ancestors = load_column_ancestors(mask);
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i) {
        const uint row = score_row(i);
        bvec4 seen = bvec4(false);
        if (row < n_tokens)
            seen = is_visible(mask, ancestors, first_token + row);
        scores[i] = mix(vec4(kHidden), scores[i], seen);
    }
}

vec4 find_highest() {
    vec4 highest = vec4(kHidden);
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i)
        highest = max(highest, scores[i]);
    return highest;
}

// Products become scores.
void shape_scores(Mask mask, Stage stage) {
    if (mask.layer.soft_cap > 0.0) {
        [[unroll]] for (uint i = 0u; i < kScoreRows; ++i)
            scores[i] = cap_scores(mask.layer, scores[i]);
    }
    if (!all_are_visible(mask, stage.first_token, stage.n_tokens))
        hide_scores(mask, stage.first_token, stage.n_tokens);
}

// Scores become weights, relative to `base`.
void weigh_scores(vec4 base) {
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i) {
        const vec4 weights = exp2(scores[i] - base);
        scores[i] = mix(vec4(0.0), weights, greaterThan(scores[i], vec4(kHidden)));
        sum += scores[i];
    }
}

#endif
