// Attention of many columns: the outputs of an invocation's four columns, or those of a split, by the
// output_channel(i) of the shape.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_STORE_GLSL
#define LK_SHADERS_PREFILL_STORE_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/scores.glsl"
#include "shaders/prefill/split.glsl"

vec4 outputs[kOutputRows];  // not yet divided by the sum of weights
bvec4 is_beyond;            // of the invocation's columns: the query is beyond the limit

// Where a column's channels go, times the factor, once its total is stored.
struct Destination {
    Address row;
    uint dtype;
    float factor;
    Total total;
};

Destination store_column_total(Mask mask, uint column, Total total) {
    const QueryColumn query = query_column(mask, mask.first_column + column);
    const float shrink = add_sink(mask.layer, query.head, total);
    if (is_first_row())
        store_lse(push.lse, push.lse_token_stride, push.lse_head_stride, query.token, query.head,
                  total);
    return Destination(tensor_row(push.outputs, query.token, query.head), push.outputs.dtype,
                       shrink * inverse_sum(total), total);
}

Destination store_split_total(Mask mask, uint tile, uint column, Total total) {
    const TileSplit split = own_split(mask, tile, kColumns, kHeadDim);
    if (is_first_row()) {
        store_element(split.references, LK_DTYPE_F32, column, total.reference);
        store_element(split.sums, LK_DTYPE_F32, column, total.sum);
    }
    return Destination(address_at(split.outputs, column, 4u * kHeadDim), LK_DTYPE_F32, 1.0,
                       Total(0.0, 1.0));
}

// The sums of weights are those of all tokens, relative to `base`.
void store_columns(Mask mask, uint tile, vec4 base) {
    const vec4 sums = sum;  // what an index chooses lies in local memory
    const bvec4 are_beyond = is_beyond;
    for (uint i = 0u; i < 4u; ++i) {
        const uint column = lane_column(i);
        if (column >= mask.n_columns)
            continue;
        const Total total = Total(base[i], are_beyond[i] ? kBeyond : sums[i]);
        Destination to;
        if (push.n_splits > 1u)
            to = store_split_total(mask, tile, column, total);
        else
            to = store_column_total(mask, column, total);
        [[unroll]] for (uint at = 0u; at < kOutputRows; ++at) {
            const uint channel = output_channel(at);
            if (channel < kHeadDim)
                store_element(to.row, to.dtype, channel,
                              output_of(to.total, outputs[at][i] * to.factor));
        }
    }
}

#endif
