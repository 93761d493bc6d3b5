// The parts of split decode attention become outputs: a workgroup takes a column. push.h has the
// dispatch.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/decode/work_tile.glsl"
#include "shaders/merge_splits.glsl"

void main() {
    const Unit unit = find_unit(gl_WorkGroupID.x, kColumns);
    const uint column = gl_WorkGroupID.y;
    if (column >= unit.n_columns)
        return;
    const Parts parts = find_parts(unit, kHeadDim);
    const ColumnParts own = ColumnParts(
        address_at(parts.outputs, column, 4u * kHeadDim), address_at(parts.tops, column, 4u),
        address_at(parts.sums, column, 4u), 4u * kHeadDim * unit.n_columns, 4u * unit.n_columns,
        unit.item.n_parts);
    Total total;
    const vec4 quad = merge_parts(own, total);
    const ColumnPlace place = place_column(unit, column);
    store_column(push.outputs, push.lse, push.lse_token_stride, push.lse_head_stride, unit.layer,
                 place.token, place.head, total, quad);
}
