// Attention of many columns over slots: queries in FP16, in registers of matrices. A power of two
// brings a query below 1 and is part of the factor of its scores.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SLOT_QUERIES_GLSL
#define LK_SHADERS_PREFILL_SLOT_QUERIES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/store.glsl"

ColumnMatrix queries[2u * kMostStrips];  // [strip][matrix]

// Of the lane's columns.
vec4 score_factors;  // from products to scores
vec4 center_scores;  // the scores of the keys' center, which was taken off the keys

Address query_rows[4];  // 0: the column does not exist, or its query counts as zeros

void find_query_rows(Mask mask) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        const uint column = lane_column(i);
        const QueryColumn query = query_column(mask, mask.first_column + column);
        query_rows[i] = column < mask.n_columns ? tensor_row(push.q, query.token, query.head)
                                                : Address(0u);
    }
}
vec4 load_queries_of(uint channel) {
    vec4 loaded = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        if (!is_null(query_rows[i]))
            loaded[i] = load_element(query_rows[i], push.q.dtype, channel);
    return loaded;
}
float load_factor(Address factors, uint kv_head, uint channel, float without) {
    return is_null(factors) ? without : ConstFloats(factors).at[kv_head * kHeadDim + channel];
}

// The columns' factors, and which of them are beyond the layer's limit. A lane has every eighth
// channel. What the loop over stages reads is written as a whole: numbers that an index chooses lie
// in local memory, also in that loop.
vec4 find_factors(Mask mask) {
    const LayerInfo layer = mask.layer;
    vec4 center = vec4(0.0);
    vec4 highest = vec4(0.0);
    vec4 beyond = vec4(0.0);
    for (uint channel = row(); channel < kHeadDim; channel += 8u) {
        const vec4 loaded = load_queries_of(channel);
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            if (is_beyond_limit(layer, loaded[i]))
                beyond[i] = 1.0;
        center += loaded * load_factor(layer.key_centers, mask.kv_head, channel, 0.0);
        highest = max(highest, abs(loaded) * load_factor(layer.key_scales, mask.kv_head, channel, 1.0));
    }
    center = column_total(center);
    highest = column_max(highest);
    beyond = column_max(beyond);
    const float factor = score_factor(layer);
    vec4 units;
    vec4 inverse_units;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        const int exponent = clamp(exponent_above(highest[i]), -100, 100);
        units[i] = power(-exponent);
        inverse_units[i] = power(exponent);
        if (beyond[i] > 0.0)
            query_rows[i] = Address(0u);
    }
    is_beyond = greaterThan(beyond, vec4(0.0));
    score_factors = factor * inverse_units;
    center_scores = mix(factor * center, vec4(0.0), is_beyond);
    return units;
}

void load_queries(Mask mask) {
    find_query_rows(mask);
    const vec4 units = find_factors(mask);
    [[unroll]] for (uint strip = 0u; strip < kMostStrips; ++strip)
        if (strip < kStrips) {
            const uint channel = strip * LK_STRIP_CHANNELS + row();
            const vec4 low = load_queries_of(channel) * units *
                             load_factor(mask.layer.key_scales, mask.kv_head, channel, 1.0);
            const vec4 high = load_queries_of(channel + 8u) * units *
                              load_factor(mask.layer.key_scales, mask.kv_head, channel + 8u, 1.0);
            queries[2u * strip] =
                column_matrix(uvec2(packHalf2x16(low.xy), packHalf2x16(high.xy)));
            queries[2u * strip + 1u] =
                column_matrix(uvec2(packHalf2x16(low.zw), packHalf2x16(high.zw)));
        }
}

#endif
