// Attention of many columns over slots: queries in FP16, in registers of matrices. A power of two
// brings a query below 1 and is part of the factor of its scores; so does its sign, so that factors
// are not negative.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SLOT_QUERIES_GLSL
#define LK_SHADERS_PREFILL_SLOT_QUERIES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/destination.glsl"
#include "shaders/prefill/logits.glsl"

Matrix queries[kMostStrips];

// Of the lane's columns.
vec2 score_factors;  // from products to scores
vec2 center_scores;  // the scores of the keys' center, which was taken off the keys
vec2 pre_factors;    // the same of scores that the soft-cap is yet to cap
vec2 pre_centers;
bvec2 is_beyond;     // the query is beyond the limit

Address query_rows[2];  // 0: the column does not exist, or its query counts as zeros

void find_query_rows(Mask mask) {
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        const uint column = lane_column(i);
        const QueryColumn query = query_column(mask, mask.first_column + column);
        query_rows[i] = column < mask.n_columns ? tensor_row(push.q, query.token, query.head)
                                                : Address(0u);
    }
}
vec2 load_queries_of(uint channel) {
    vec2 loaded = vec2(0.0);
    [[unroll]] for (uint i = 0u; i < 2u; ++i)
        if (!is_null(query_rows[i]))
            loaded[i] = load_element(query_rows[i], push.q.dtype, channel);
    return loaded;
}
float load_factor(Address factors, uint kv_head, uint channel, float without) {
    return is_null(factors) ? without : ConstFloats(factors).at[kv_head * kHeadDim + channel];
}

// The columns' factors, and which of them are beyond the layer's limit. A lane has every fourth
// channel. What the loop over stages reads is written as a whole: numbers that an index chooses lie
// in local memory, also in that loop.
vec2 find_factors(Mask mask) {
    const LayerInfo layer = mask.layer;
    vec2 center = vec2(0.0);
    vec2 highest = vec2(0.0);
    vec2 beyond = vec2(0.0);
    for (uint channel = quad_lane(); channel < kHeadDim; channel += 4u) {
        const vec2 loaded = load_queries_of(channel);
        [[unroll]] for (uint i = 0u; i < 2u; ++i)
            if (is_beyond_limit(layer, loaded[i]))
                beyond[i] = 1.0;
        center += loaded * load_factor(layer.key_centers, mask.kv_head, channel, 0.0);
        highest = max(highest, abs(loaded) * load_factor(layer.key_scales, mask.kv_head, channel, 1.0));
    }
    center = quad_total(center);
    highest = quad_max(highest);
    beyond = quad_max(beyond);
    const float factor = score_factor(layer);
    vec2 units;
    vec2 inverse_units;
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        const int exponent = clamp(exponent_above(highest[i]), -100, 100);
        units[i] = power(-exponent);
        inverse_units[i] = power(exponent);
        if (beyond[i] > 0.0)
            query_rows[i] = Address(0u);
    }
    is_beyond = greaterThan(beyond, vec2(0.0));
    score_factors = abs(factor) * inverse_units;
    center_scores = mix(factor * center, vec2(0.0), is_beyond);
    pre_factors = score_factors;
    pre_centers = center_scores;
    if (layer.soft_cap > 0.0) {
        score_factors = vec2(1.0);
        center_scores = vec2(0.0);
    }
    return factor < 0.0 ? -units : units;
}

// Of a pair of channels the words of both columns.
uvec2 load_query_pair(Mask mask, vec2 units, uint channel) {
    const vec2 first = load_queries_of(channel) * units *
                       load_factor(mask.layer.key_scales, mask.kv_head, channel, 1.0);
    const vec2 second = load_queries_of(channel + 1u) * units *
                        load_factor(mask.layer.key_scales, mask.kv_head, channel + 1u, 1.0);
    return uvec2(packHalf2x16(vec2(first.x, second.x)), packHalf2x16(vec2(first.y, second.y)));
}

// One copy of the loads, whose results go where a constant index says: a matrix that an index chooses
// lies in local memory, also in the loop over stages.
void load_queries(Mask mask) {
    find_query_rows(mask);
    const vec2 units = find_factors(mask);
    [[unroll]] for (uint i = 0u; i < kMostStrips; ++i)
        queries[i] = matrix_of(uvec4(0u));
    [[dont_unroll]] for (uint strip = 0u; strip < kStrips; ++strip) {
        const uint channel = strip * LK_STRIP_CHANNELS + lane_pair();
        const Matrix loaded = matrix_of(uvec4(load_query_pair(mask, units, channel),
                                              load_query_pair(mask, units, channel + 8u)));
        [[unroll]] for (uint i = 0u; i < kMostStrips; ++i)
            if (i == strip)
                queries[i] = loaded;
    }
}

#endif
