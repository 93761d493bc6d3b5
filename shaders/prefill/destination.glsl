// Attention of many columns: where a column's outputs go, and its LSE. The shape says by is_first_row()
// which of a column's invocations stores what it has once.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_DESTINATION_GLSL
#define LK_SHADERS_PREFILL_DESTINATION_GLSL

#include "shaders/output.glsl"
#include "shaders/prefill/split.glsl"
#include "shaders/prefill/stage.glsl"

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
    const TileSplit split = own_split(mask, tile, kColumns, kValueDim);
    if (is_first_row()) {
        store_element(split.references, LK_DTYPE_F32, column, total.reference);
        store_element(split.sums, LK_DTYPE_F32, column, total.sum);
    }
    return Destination(address_at(split.outputs, column, 4u * kValueDim), LK_DTYPE_F32, 1.0,
                       Total(0.0, 1.0));
}

Destination store_total(Mask mask, uint tile, uint column, Total total) {
    Destination to;
    if (push.n_splits > 1u)
        to = store_split_total(mask, tile, column, total);
    else
        to = store_column_total(mask, column, total);
    return to;
}

#endif
