// Decode attention: whose the columns of a work item are, and where its parts lie.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_UNIT_GLSL
#define LK_SHADERS_DECODE_UNIT_GLSL

#include "attend_output.glsl"

layout(push_constant, std430) uniform Push { DecodePush push; };

struct Unit {
    StepTable step;
    LayerInfo layer;
    WorkItem item;
    uint group_size;
    uint first_column;  // of the sequence's
    uint n_columns;
    uint n_history;
    uint n_new;  // that are in rows
};
Unit find_unit(uint index, uint columns_of_item) {
    Unit unit;
    unit.step = load_step(push.step);
    unit.layer = load_layer(unit.step, push.layer);
    unit.item = load_item(push.items, index);
    unit.group_size = unit.layer.n_query_heads / unit.layer.n_kv_heads;
    unit.first_column = unit.item.column_tile * columns_of_item;
    unit.n_columns = min(unit.item.n_new * unit.group_size - unit.first_column, columns_of_item);
    unit.n_history = load_sequence(unit.step, unit.item.sequence).n_history;
    unit.n_new = unit.item.new_in_blocks ? unit.item.n_new : 0u;
    return unit;
}

// Row `index` of the item: those of its two runs of raw rows come first.
uint item_row(WorkItem item, uint index) {
    if (index < item.raw_count[0])
        return item.raw_begin[0] + index;
    index -= item.raw_count[0];
    return index < item.raw_count[1] ? item.raw_begin[1] + index
                                     : item.packed_begin + index - item.raw_count[1];
}

struct ColumnPlace {
    uint token;  // of the batch
    uint head;
};
ColumnPlace place_column(Unit unit, uint column) {
    const uint i = (unit.first_column + column) / unit.group_size;
    const uint head = unit.first_column + column - i * unit.group_size;  // of the group
    return ColumnPlace(unit.item.first_new + i, unit.item.kv_head * unit.group_size + head);
}

// Partial results of a unit, as floats.
struct Parts {
    Address outputs;  // [n_parts][n_columns][head_dim]
    Address tops;     // [n_parts][n_columns]
    Address sums;
};
Parts find_parts(Unit unit, uint head_dim) {
    Parts parts;
    parts.outputs = address_at(push.partials, unit.item.first_partial, 4u);
    const uint n = unit.item.n_parts * unit.n_columns;
    parts.tops = address_at(parts.outputs, n, 4u * head_dim);
    parts.sums = address_at(parts.tops, n, 4u);
    return parts;
}

#endif
