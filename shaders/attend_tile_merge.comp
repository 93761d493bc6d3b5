// The parts of split tile attention become outputs: a workgroup takes a column. push.h has the
// dispatch.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "attend_output.glsl"
#include "tile_part.glsl"

layout(local_size_x_id = LK_SPEC_THREADS) in;
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 128u;
layout(constant_id = LK_SPEC_COLUMNS) const uint kColumns = 32u;

// Number `index` of part i's, when `numbers` is where the first part has them.
float load_number(Address numbers, uint i, uint index) {
    const uint part_bytes = part_floats(kColumns, kHeadDim) * 4u;
    return ConstFloats(address_at(numbers, i, part_bytes)).at[index];
}

float find_reference(TilePart first, uint column) {
    float reference = kHidden;
    for (uint i = 0u; i < push.n_splits; ++i)
        reference = max(reference, load_number(first.references, i, column));
    return reference;
}
float part_weight(TilePart first, uint i, uint column, float reference) {
    return exp2(load_number(first.references, i, column) - reference);
}

void main() {
    const Sight sight = find_unit(gl_WorkGroupID.z, gl_WorkGroupID.y);
    const uint all_columns = gl_WorkGroupID.x;
    if (all_columns >= sight.sequence.n_new * sight.group_size)
        return;
    const uint column = all_columns % kColumns;
    const TilePart first = find_part(gl_WorkGroupID.z, gl_WorkGroupID.y, sight.layer.n_kv_heads,
                                     all_columns / kColumns, 0u, kColumns, kHeadDim);
    const float reference = find_reference(first, column);
    Total total = Total(reference, 0.0);
    for (uint i = 0u; i < push.n_splits; ++i)
        total.sum +=
            part_weight(first, i, column, reference) * load_number(first.sums, i, column);
    const ColumnPlace place = place_column(sight, all_columns);
    const float factor = add_sink(sight.layer, place.head, total) * inverse_sum(total);
    if (gl_LocalInvocationIndex == 0u)
        store_lse(push.lse, push.lse_token_stride, push.lse_head_stride, place.token, place.head,
                  total);
    const Address row = tensor_row(push.outputs, place.token, place.head);
    for (uint c = gl_LocalInvocationIndex; c < kHeadDim; c += gl_WorkGroupSize.x) {
        float value = 0.0;
        for (uint i = 0u; i < push.n_splits; ++i)
            value += part_weight(first, i, column, reference) *
                     load_number(first.outputs, i, column * kHeadDim + c);
        store_element(row, push.outputs.dtype, c, value * factor);
    }
}
