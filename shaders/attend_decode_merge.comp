// The parts of split decode attention become outputs: a workgroup takes a column. push.h has the
// dispatch.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "decode_unit.glsl"

layout(local_size_x_id = LK_SPEC_THREADS) in;
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 128u;
layout(constant_id = LK_SPEC_COLUMNS) const uint kColumns = 4u;

float load_float(Address floats, uint i) { return ConstFloats(floats).at[i]; }

void main() {
    const Unit unit = find_unit(gl_WorkGroupID.x, kColumns);
    const uint n_parts = unit.item.n_parts;
    const uint n = unit.n_columns;
    const uint column = gl_WorkGroupID.y;
    if (unit.item.part != 0u || n_parts == 1u || column >= n)
        return;
    const Parts parts = find_parts(unit, kHeadDim);
    Total total = Total(-1e30, 0.0);
    for (uint i = 0u; i < n_parts; ++i)
        total.reference = max(total.reference, load_float(parts.tops, i * n + column));
    const float reference = total.reference;
    for (uint i = 0u; i < n_parts; ++i)
        total.sum += load_float(parts.sums, i * n + column) *
                     exp2(load_float(parts.tops, i * n + column) - reference);
    const ColumnPlace place = place_column(unit, column);
    const float factor = add_sink(unit.layer, place.head, total) * inverse_sum(total);
    if (gl_LocalInvocationIndex == 0u)
        store_lse(push.lse, push.lse_token_stride, push.lse_head_stride, place.token, place.head, total);
    const Address to = tensor_row(push.outputs, place.token, place.head);
    for (uint channel = gl_LocalInvocationIndex; channel < kHeadDim; channel += gl_WorkGroupSize.x) {
        float sum = 0.0;
        for (uint i = 0u; i < n_parts; ++i)
            sum += load_float(parts.outputs, (i * n + column) * kHeadDim + channel) *
                   exp2(load_float(parts.tops, i * n + column) - reference);
        store_element(to, push.outputs.dtype, channel, sum * factor);
    }
}
