// Attention of many columns by a tensor core: queries in FP16. A power of two brings a query below 1
// and is part of the factor of its scores.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_MATRIX_QUERIES_GLSL
#define LK_SHADERS_PREFILL_MATRIX_QUERIES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/store.glsl"

// Of the lane's columns.
vec4 score_factors;  // from products to scores
vec4 center_scores;  // the scores of the keys' center, which was taken off the keys

struct ColumnFactors {
    float factor;
    float center_score;
    float is_beyond;
};
shared ColumnFactors shared_factors[kColumns];

// A quad loads a pair of columns, each lane every fourth eight of their channels.
const uint kEights = kHeadDim / 8u;

uint first_column_of_quad() { return 16u * team + 2u * row(); }

struct QueryRows {
    Address first;
    Address second;
};
Address query_row(Mask mask, uint column) {
    const QueryColumn query = query_column(mask, mask.first_column + column);
    return column < mask.n_columns ? tensor_row(push.q, query.token, query.head) : Address(0u);
}
RawEight load_query(Address from, uint channel) {
    if (is_null(from))
        return RawEight(uvec4(0u), uvec4(0u));
    return load_eight(from, push.q.dtype, channel);
}
vec2 query_pair(RawEight first, RawEight second, uint i) {
    return uintBitsToFloat(uvec2(float_bits_of(first, push.q.dtype, i),
                                 float_bits_of(second, push.q.dtype, i)));
}

float load_factor(Address factors, uint kv_head, uint channel, float without) {
    return is_null(factors) ? without : ConstFloats(factors).at[kv_head * kHeadDim + channel];
}

// Of a pair of columns.
struct PairBounds {
    vec2 center;   // product with the center of the keys
    vec2 highest;  // element times its scale
    vec2 beyond;   // 1: the query is beyond the limit
};
PairBounds find_bounds(Mask mask, QueryRows rows) {
    const LayerInfo layer = mask.layer;
    PairBounds bounds = PairBounds(vec2(0.0), vec2(0.0), vec2(0.0));
    for (uint eight = quad_lane(); eight < kEights; eight += 4u) {
        const RawEight first = load_query(rows.first, 8u * eight);
        const RawEight second = load_query(rows.second, 8u * eight);
        for (uint i = 0u; i < 8u; ++i) {
            const uint channel = 8u * eight + i;
            const vec2 pair = query_pair(first, second, i);
            if (is_beyond_limit(layer, pair.x))
                bounds.beyond.x = 1.0;
            if (is_beyond_limit(layer, pair.y))
                bounds.beyond.y = 1.0;
            bounds.center += pair * load_factor(layer.key_centers, mask.kv_head, channel, 0.0);
            bounds.highest = max(bounds.highest, abs(pair) * load_factor(layer.key_scales, mask.kv_head,
                                                                         channel, 1.0));
        }
    }
    return PairBounds(quad_total(bounds.center), quad_max(bounds.highest), quad_max(bounds.beyond));
}

void store_factors(Mask mask, PairBounds bounds, ivec2 exponents) {
    const float factor = score_factor(mask.layer);
    if (quad_lane() == 0u)
        [[unroll]] for (uint i = 0u; i < 2u; ++i) {
            const bool beyond = bounds.beyond[i] > 0.0;
            shared_factors[first_column_of_quad() + i] =
                ColumnFactors(factor * power(exponents[i]), beyond ? 0.0 : factor * bounds.center[i],
                              bounds.beyond[i]);
        }
}

// A query beyond the layer's limit counts as zeros until the end.
void load_queries(Mask mask) {
    QueryRows rows = QueryRows(query_row(mask, first_column_of_quad()),
                               query_row(mask, first_column_of_quad() + 1u));
    const PairBounds bounds = find_bounds(mask, rows);
    const ivec2 exponents = ivec2(clamp(exponent_above(bounds.highest.x), -100, 100),
                                  clamp(exponent_above(bounds.highest.y), -100, 100));
    const vec2 factors = vec2(power(-exponents.x), power(-exponents.y));
    if (bounds.beyond.x > 0.0)
        rows.first = Address(0u);
    if (bounds.beyond.y > 0.0)
        rows.second = Address(0u);
    const uint pair = 4u * team + row() % 4u;
    for (uint eight = quad_lane(); eight < kEights; eight += 4u) {
        const RawEight first = load_query(rows.first, 8u * eight);
        const RawEight second = load_query(rows.second, 8u * eight);
        for (uint i = 0u; i < 8u; ++i) {
            const uint channel = 8u * eight + i;
            const float scale = load_factor(mask.layer.key_scales, mask.kv_head, channel, 1.0);
            const uint word = packHalf2x16(query_pair(first, second, i) * scale * factors);
            shared_queries[query_index(channel, pair)][row() / 4u] = word;
        }
    }
    store_factors(mask, bounds, exponents);
    barrier();
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        const ColumnFactors own = shared_factors[lane_column(i)];
        score_factors[i] = own.factor;
        center_scores[i] = own.center_score;
        is_beyond[i] = own.is_beyond > 0.0;
    }
}

#endif
