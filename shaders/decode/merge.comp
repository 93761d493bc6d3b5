// The splits of decode attention become outputs: a workgroup takes up to LK_MERGE_CHANNELS channels of
// a column, since an invocation that has tens of splits waits for their loads one after the other.
// push.h has the dispatch.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/decode/limits.h"
#include "shaders/decode/work_tile.glsl"
#include "shaders/merge_splits.glsl"

void main() {
    const WorkTile work_tile = find_work_tile(gl_WorkGroupID.x, kColumns);
    const uint column = gl_WorkGroupID.y;
    if (column >= work_tile.n_columns)
        return;
    const Splits splits = find_splits(work_tile, kHeadDim);
    const ColumnSplits own = ColumnSplits(
        address_at(splits.outputs, column, 4u * kHeadDim), address_at(splits.row_maxes, column, 4u),
        address_at(splits.sums, column, 4u), 4u * kHeadDim * work_tile.n_columns, 4u * work_tile.n_columns,
        work_tile.item.n_splits);
    Total total;
    const uint first_quad = gl_WorkGroupID.z * kOwnQuads;
    const vec4 quad = merge_splits(own, first_quad, total);
    const QueryColumn query = query_column(work_tile, column);
    store_column(push.outputs, push.lse, push.lse_token_stride, push.lse_head_stride, work_tile.layer,
                 query.token, query.head, first_quad, total, quad);
}
