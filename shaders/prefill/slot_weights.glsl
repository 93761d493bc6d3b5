// Attention of many columns over slots: from products of queries and keys to weights, in the registers
// of sums of matrices. References are those of scores.glsl.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SLOT_WEIGHTS_GLSL
#define LK_SHADERS_PREFILL_SLOT_WEIGHTS_GLSL

#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_vote : require

#include "shaders/prefill/slot_queries.glsl"

const float kHiddenProduct = -1e30;

SumMatrix scores[kStageEights];       // products of a stage, then weights
SumMatrix outputs[2u * kMostStrips];  // [strip][eight of channels], not yet divided by the sums
vec2 reference;                       // of the lane's columns
vec2 sum;                             // of the lane's weights
uvec2 reaches;                        // positions of the last tokens that the columns attend to

// Columns that do not exist repeat the last one.
void find_reaches(Mask mask) {
    uvec2 own;
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        const uint column = min(lane_column(i), mask.n_columns - 1u);
        own[i] = find_reach(mask, (mask.first_column + column) / mask.group_size);
    }
    reaches = own;
}

// Products become scores, of which the factors are 1.
void cap_stage(LayerInfo layer) {
    [[unroll]] for (uint i = 0u; i < kStageEights; ++i) {
        const vec4 capped = cap_scores(
            layer, vec4(scores[i][0], scores[i][1], scores[i][2], scores[i][3]) * pre_factors.xxyy +
                       pre_centers.xxyy);
        [[unroll]] for (uint e = 0u; e < 4u; ++e)
            scores[i][e] = capped[e];
    }
}

void raise_references(vec2 highest) {
    const vec2 raised = max(reference, quad_max(highest));
    const vec2 shrink = exp2(reference - raised);
    reference = raised;
    sum *= shrink;
    [[unroll]] for (uint i = 0u; i < 2u * kMostStrips; ++i)
        [[unroll]] for (uint e = 0u; e < 4u; ++e)
            outputs[i][e] *= shrink[e / 2u];
}

bool is_visible(uint first_token, uint i, uint e) {
    return first_token + 8u * i + lane_pair() + e % 2u <= reaches[e / 2u];
}

// Products become weights. Where lanes exchange through shared memory, all teams raise references.
void weigh(bool is_edge, uint first_token) {
    if (is_edge)
        [[unroll]] for (uint i = 0u; i < kStageEights; ++i)
            [[unroll]] for (uint e = 0u; e < 4u; ++e)
                if (!is_visible(first_token, i, e))
                    scores[i][e] = kHiddenProduct;
    vec2 highest = vec2(kHidden);
    [[unroll]] for (uint i = 0u; i < kStageEights; ++i)
        highest = max(highest, max(vec2(scores[i][0], scores[i][2]), vec2(scores[i][1], scores[i][3])));
    highest = highest * score_factors + center_scores;
    if (!kIsFree || subgroupAny(any(greaterThan(highest, reference + kHeadroom))))
        raise_references(highest);
    const vec2 offset = center_scores - reference + kWeightExponent;
    [[unroll]] for (uint i = 0u; i < kStageEights; ++i)
        [[unroll]] for (uint e = 0u; e < 4u; ++e) {
            float weight = exp2(fma(scores[i][e], score_factors[e / 2u], offset[e / 2u]));
            if (is_edge && !is_visible(first_token, i, e))
                weight = 0.0;
            sum[e / 2u] += weight;
            scores[i][e] = weight;
        }
}

#endif
