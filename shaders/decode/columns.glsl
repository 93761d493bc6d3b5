// Decode attention: the query columns of a work item. store_query(channel, column, number), which
// an includer has, keeps the queries, brought below 1 by a power of two.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_COLUMNS_GLSL
#define LK_SHADERS_DECODE_COLUMNS_GLSL

#include "shaders/decode/shape.glsl"
#include "shaders/decode/work_tile.glsl"

struct Column {
    uint position;
    uvec2 ancestors;  // bit i: it sees new token i
    float factor;     // from products to scores in powers of two
    float shift;      // the score of the keys' center
};
shared Column shared_columns[kColumns];

Column make_column(Unit unit, uint column, float factor, float shift) {
    const uint i = (unit.first_column + column) / unit.group_size;
    Column made;
    made.position = unit.n_history + i;
    made.ancestors = uvec2(i < 31u ? (2u << i) - 1u : ~0u, i < 32u ? 0u : (2u << i - 32u) - 1u);
    made.factor = factor;
    made.shift = shift;
    if (unit.item.has_tree) {
        made.position = load_position(unit.step, unit.item.first_new + i);
        made.ancestors = load_ancestors(unit.step, unit.item.first_new + i);
    }
    return made;
}

void load_queries(Unit unit) {
    const uint kCount = (kHeadDim + LK_LANES - 1u) / LK_LANES;
    for (uint first = 0u; first < kColumns; first += kTeams) {
        const uint column = first + team;
        const bool is_real = column < unit.n_columns;
        const ColumnPlace place = place_column(unit, is_real ? column : 0u);
        const Address from = tensor_row(push.queries, place.token, place.head);
        const Address centers =
            address_at(unit.layer.key_centers, unit.item.kv_head, 4u * kHeadDim);
        const Address scales = address_at(unit.layer.key_scales, unit.item.kv_head, 4u * kHeadDim);
        const bool has_centers = !is_null(unit.layer.key_centers);
        const bool has_scales = !is_null(unit.layer.key_scales);
        float query[kCount];
        float most = 0.0;
        float center = 0.0;  // the lane's part of the query's product with the keys' center
        [[unroll]] for (uint i = 0u; i < kCount; ++i) {
            const uint channel = lane + i * LK_LANES;
            query[i] = 0.0;
            if (is_real && channel < kHeadDim)
                query[i] = load_element(from, push.queries.dtype, channel);
            if (has_centers && channel < kHeadDim)
                center = fma(query[i], ConstFloats(centers).at[channel], center);
            if (has_scales && channel < kHeadDim)
                query[i] *= ConstFloats(scales).at[channel];
            most = max(most, abs(query[i]));
        }
        center = team_sum(center);
        const int exponent = clamp(exponent_above(team_max(most)), -100, 100);
        [[unroll]] for (uint i = 0u; i < kCount; ++i) {
            const uint channel = lane + i * LK_LANES;
            if (column < kColumns && channel < kHeadDim)
                store_query(channel, column, query[i] * power(-exponent));
        }
        if (lane == 0u && column < kColumns)
            shared_columns[column] = make_column(unit, is_real ? column : 0u,
                                                 unit.layer.scale * kLog2E * power(exponent),
                                                 unit.layer.scale * kLog2E * center);
    }
}

bool in_window(Unit unit, Column column, uint at) {
    return unit.layer.window_tokens == 0u || at + unit.layer.window_tokens > column.position ||
           at < unit.layer.window_sink_tokens;
}
bool sees(Unit unit, Column column, uint token) {
    if (token < unit.n_history)
        return in_window(unit, column, token);
    const uint i = token - unit.n_history;
    if (i >= unit.n_new || (column.ancestors[i >> 5] >> (i & 31u) & 1u) == 0u)
        return false;
    if (unit.item.has_tree)
        token = load_position(unit.step, unit.item.first_new + i);
    return in_window(unit, column, token);
}
// Is any token of [first, end) hidden from any column?
bool hides(Unit unit, uint first, uint end) {
    if (end > unit.n_history + (unit.n_new == 1u ? 1u : 0u))
        return true;
    const uint latest = unit.n_history + unit.item.n_new - 1u;
    return unit.layer.window_tokens != 0u && end > unit.layer.window_sink_tokens &&
           first + unit.layer.window_tokens <= latest;
}

#endif
