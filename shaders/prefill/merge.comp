// The parts of split tile attention become outputs: a workgroup takes a column. push.h has the
// dispatch.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/merge_splits.glsl"
#include "shaders/prefill/split.glsl"

void main() {
    const Sight sight = find_unit(gl_WorkGroupID.z, gl_WorkGroupID.y);
    const uint column = gl_WorkGroupID.x;
    if (column >= sight.sequence.n_new * sight.group_size)
        return;
    const TilePart first = find_part(gl_WorkGroupID.z, gl_WorkGroupID.y, sight.layer.n_kv_heads,
                                     column / kColumns, 0u, kColumns, kHeadDim);
    const uint in_tile = column % kColumns;
    const uint part_bytes = part_floats(kColumns, kHeadDim) * 4u;
    const ColumnParts own = ColumnParts(
        address_at(first.outputs, in_tile, 4u * kHeadDim), address_at(first.references, in_tile, 4u),
        address_at(first.sums, in_tile, 4u), part_bytes, part_bytes, push.n_splits);
    Total total;
    const vec4 quad = merge_parts(own, total);
    const ColumnPlace place = place_column(sight, column);
    store_column(push.outputs, push.lse, push.lse_token_stride, push.lse_head_stride, sight.layer,
                 place.token, place.head, total, quad);
}
