// Decode attention: the tokens and heads of the columns of a work item, and the addresses of its splits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_WORK_TILE_GLSL
#define LK_SHADERS_DECODE_WORK_TILE_GLSL

#include "shaders/output.glsl"

layout(push_constant, std430) uniform Push { DecodePush push; };

struct WorkTile {
    StepTable step;
    LayerInfo layer;
    WorkItem item;
    uint group_size;
    uint first_column;  // of the sequence's
    uint n_columns;
    uint n_history;
    uint n_new;  // that are in blocks
};
WorkTile find_work_tile(uint index, uint columns_of_item) {
    WorkTile work_tile;
    work_tile.step = load_step(push.step);
    work_tile.layer = load_layer(work_tile.step, push.layer);
    work_tile.item = load_item(push.items, index);
    work_tile.group_size = work_tile.layer.n_query_heads / work_tile.layer.n_kv_heads;
    work_tile.first_column = work_tile.item.column_tile * columns_of_item;
    work_tile.n_columns = min(work_tile.item.n_new * work_tile.group_size - work_tile.first_column, columns_of_item);
    work_tile.n_history = load_sequence(work_tile.step, work_tile.item.sequence).n_history;
    work_tile.n_new = work_tile.item.new_in_blocks ? work_tile.item.n_new : 0u;
    return work_tile;
}

// Block `index` of the item: those of its two runs of raw blocks come first.
uint item_block(WorkItem item, uint index) {
    if (index < item.raw_count[0])
        return item.raw_begin[0] + index;
    index -= item.raw_count[0];
    return index < item.raw_count[1] ? item.raw_begin[1] + index
                                     : item.packed_begin + index - item.raw_count[1];
}

struct QueryColumn {
    uint token;  // of the batch
    uint head;
};
QueryColumn query_column(WorkTile work_tile, uint column) {
    const uint i = (work_tile.first_column + column) / work_tile.group_size;
    const uint head = work_tile.first_column + column - i * work_tile.group_size;  // of the group
    return QueryColumn(work_tile.item.first_new + i, work_tile.item.kv_head * work_tile.group_size + head);
}

// Partial results of a work tile, as floats.
struct Splits {
    Address outputs;  // [n_splits][n_columns][value_dim]
    Address row_maxes;     // [n_splits][n_columns]
    Address sums;
};
Splits find_splits(WorkTile work_tile, uint value_dim) {
    Splits splits;
    splits.outputs = address_at(push.partials, work_tile.item.first_partial, 4u);
    const uint n = work_tile.item.n_splits * work_tile.n_columns;
    splits.row_maxes = address_at(splits.outputs, n, 4u * value_dim);
    splits.sums = address_at(splits.row_maxes, n, 4u);
    return splits;
}

#endif
