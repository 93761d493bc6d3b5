// Decode attention: the query columns of a work item.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_COLUMNS_GLSL
#define LK_SHADERS_DECODE_COLUMNS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/shape.glsl"
#include "shaders/decode/work_tile.glsl"
#include "shaders/floats.glsl"

layout(constant_id = LK_SPEC_ROTATION) const uint kRotation = 0u;

// Keeps an element of a query, which a power of two has brought below 1. The includer defines it.
void store_query(uint channel, uint column, float value);

struct Column {
    uint position;
    uvec2 ancestors;  // bit i: new token i is visible
    float factor;     // from products to scores in powers of two
    float shift;      // the score of the keys' center
    bool is_beyond;   // the query is beyond the layer's limit, and counts as zeros until the end
};
shared Column shared_columns[kColumns];

// A lane has every 32nd channel of a query. The stages of rotation across lanes come first.
const uint kLaneChannels = (kHeadDim + LK_LANES - 1u) / LK_LANES;
void rotate_query(inout float query[kLaneChannels]) {
    [[unroll]] for (uint bit = 0u; bit < kLaneBits; ++bit)
        if (1u << bit < kRotation)
            [[unroll]] for (uint i = 0u; i < kLaneChannels; ++i) {
                const float other = exchange(query[i], 1u << bit);
                query[i] = (lane >> bit & 1u) != 0u ? other - query[i] : other + query[i];
            }
    [[unroll]] for (uint step = 1u; step < kLaneChannels; step *= 2u)
        if (LK_LANES * step < kRotation)
            [[unroll]] for (uint i = 0u; i < kLaneChannels; ++i)
                if ((i & step) == 0u) {
                    const float low = query[i];
                    query[i] = low + query[i + step];
                    query[i + step] = low - query[i + step];
                }
    [[unroll]] for (uint i = 0u; i < kLaneChannels; ++i)
        query[i] *= rotation_factor(kRotation);
}

Column make_column(WorkTile work_tile, uint column, float factor, float shift, bool is_beyond) {
    const uint i = (work_tile.first_column + column) / work_tile.group_size;
    Column made;
    made.position = work_tile.n_history + i;
    made.ancestors = uvec2(i < 31u ? (2u << i) - 1u : ~0u, i < 32u ? 0u : (2u << i - 32u) - 1u);
    made.factor = factor;
    made.shift = shift;
    made.is_beyond = is_beyond;
    if (work_tile.item.has_tree) {
        made.position = load_position(work_tile.step, work_tile.item.first_new + i);
        made.ancestors = load_ancestors(work_tile.step, work_tile.item.first_new + i);
    }
    return made;
}

void load_queries(WorkTile work_tile) {
    for (uint first = 0u; first < kColumns; first += kTeams) {
        const uint column = first + team;
        const bool is_real = column < work_tile.n_columns;
        const QueryColumn source = query_column(work_tile, is_real ? column : 0u);
        const Address from = tensor_row(push.q, source.token, source.head);
        const Address centers =
            address_at(work_tile.layer.key_centers, work_tile.item.kv_head, 4u * kHeadDim);
        const Address scales = address_at(work_tile.layer.key_scales, work_tile.item.kv_head, 4u * kHeadDim);
        const bool has_centers = !is_null(work_tile.layer.key_centers);
        const bool has_scales = !is_null(work_tile.layer.key_scales);
        float query[kLaneChannels];
        float beyond = 0.0;
        [[unroll]] for (uint i = 0u; i < kLaneChannels; ++i) {
            const uint channel = lane + i * LK_LANES;
            query[i] = 0.0;
            if (is_real && channel < kHeadDim)
                query[i] = load_element(from, push.q.dtype, channel);
            if (is_beyond_limit(work_tile.layer, query[i]))
                beyond = 1.0;
        }
        const bool is_beyond = team_max(beyond) > 0.0;
        float most = 0.0;
        float center = 0.0;  // the lane's part of the query's product with the keys' center
        [[unroll]] for (uint i = 0u; i < kLaneChannels; ++i) {
            const uint channel = lane + i * LK_LANES;
            if (is_beyond)
                query[i] = 0.0;
            if (has_centers && channel < kHeadDim)
                center = fma(query[i], ConstFloats(centers).at[channel], center);
            if (has_scales && channel < kHeadDim)
                query[i] *= ConstFloats(scales).at[channel];
        }
        if (kRotation != 0u)
            rotate_query(query);
        [[unroll]] for (uint i = 0u; i < kLaneChannels; ++i)
            most = max(most, abs(query[i]));
        center = team_sum(center);
        const int exponent = clamp(exponent_above(team_max(most)), -100, 100);
        [[unroll]] for (uint i = 0u; i < kLaneChannels; ++i) {
            const uint channel = lane + i * LK_LANES;
            if (column < kColumns && channel < kHeadDim)
                store_query(channel, column, query[i] * power(-exponent));
        }
        if (lane == 0u && column < kColumns)
            shared_columns[column] = make_column(work_tile, is_real ? column : 0u,
                                                 work_tile.layer.scale * kLog2E * power(exponent),
                                                 work_tile.layer.scale * kLog2E * center,
                                                 is_beyond);
    }
}

bool in_window(WorkTile work_tile, Column column, uint at) {
    return work_tile.layer.window_tokens == 0u || at + work_tile.layer.window_tokens > column.position ||
           at < work_tile.layer.window_sink_tokens;
}
bool is_visible(WorkTile work_tile, Column column, uint token) {
    if (token < work_tile.n_history)
        return in_window(work_tile, column, token);
    const uint i = token - work_tile.n_history;
    if (i >= work_tile.n_new || (column.ancestors[i >> 5] >> (i & 31u) & 1u) == 0u)
        return false;
    if (work_tile.item.has_tree)
        token = load_position(work_tile.step, work_tile.item.first_new + i);
    return in_window(work_tile, column, token);
}
// Is any token of [first, end) hidden from any column?
bool hides(WorkTile work_tile, uint first, uint end) {
    if (end > work_tile.n_history + (work_tile.n_new == 1u ? 1u : 0u))
        return true;
    const uint latest = work_tile.n_history + work_tile.item.n_new - 1u;
    return work_tile.layer.window_tokens != 0u && end > work_tile.layer.window_sink_tokens &&
           first + work_tile.layer.window_tokens <= latest;
}

#endif
