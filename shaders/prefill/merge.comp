// The splits of prefill attention become outputs: a workgroup takes up to LK_MERGE_CHANNELS channels
// of a column. push.h has the dispatch.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/merge_splits.glsl"
#include "shaders/prefill/split.glsl"

const uint kParts = (kHeadDim + LK_MERGE_CHANNELS - 1u) / LK_MERGE_CHANNELS;

void main() {
    const uint sequence = gl_WorkGroupID.z / kParts;
#ifdef LK_SLOTS
    const Mask mask = find_work_tile(push.sequence, push.first_head + gl_WorkGroupID.y);
    const uint n_heads = gl_NumWorkGroups.y;
#else
    const Mask mask = find_work_tile(sequence, gl_WorkGroupID.y);
    const uint n_heads = mask.layer.n_kv_heads;
#endif
    const uint column = gl_WorkGroupID.x;
    if (column >= mask.sequence.n_new * mask.group_size)
        return;
    const TileSplit first = find_split(sequence, gl_WorkGroupID.y, n_heads,
                                     column / kColumns, 0u, kColumns, kHeadDim);
    const uint in_tile = column % kColumns;
    const uint split_bytes = split_floats(kColumns, kHeadDim) * 4u;
    const ColumnSplits own = ColumnSplits(
        address_at(first.outputs, in_tile, 4u * kHeadDim), address_at(first.references, in_tile, 4u),
        address_at(first.sums, in_tile, 4u), split_bytes, split_bytes, push.n_splits);
    Total total;
    const uint first_quad = gl_WorkGroupID.z % kParts * kOwnQuads;
    const vec4 quad = merge_splits(own, first_quad, total);
    const QueryColumn query = query_column(mask, column);
    store_column(push.outputs, push.lse, push.lse_token_stride, push.lse_head_stride, mask.layer,
                 query.token, query.head, first_quad, total, quad);
}
