// Attention of few query columns over rows of direct classes: a workgroup takes a work item, its
// teams take the item's pieces in turn. push.h says how the dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "decode_values.glsl"

void attend_piece(Unit unit, Piece piece) {
    multiply_keys(piece);
    begin_values(piece);
    weigh(unit, piece);
    multiply_values(unit, piece);
}

// What the teams have gathered, together.
shared float shared_tops[kTeams * kColumns];  // [team][column], then weights
shared float shared_sums[kTeams * kColumns];
shared Total shared_totals[kColumns];

void merge_teams() {
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        const float sum = column_sum(sums_of_weights[set]);
        const uint column = column_of(quad_lane(), set);
        if (row() == 0u && is_column(column)) {
            shared_tops[team * kColumns + column] = tops[set];
            shared_sums[team * kColumns + column] = sum;
        }
    }
    barrier();
    const uint column = gl_LocalInvocationIndex;
    if (column < kColumns) {
        Total total = Total(kNothing, 0.0);
        for (uint i = 0u; i < kTeams; ++i)
            total.reference = max(total.reference, shared_tops[i * kColumns + column]);
        for (uint i = 0u; i < kTeams; ++i) {
            const float weight = exp2(shared_tops[i * kColumns + column] - total.reference);
            shared_tops[i * kColumns + column] = weight;
            total.sum += shared_sums[i * kColumns + column] * weight;
        }
        shared_totals[column] = total;
    }
    barrier();
}

float merged_output(uint column, uint channel) {
    float sum = 0.0;
    for (uint i = 0u; i < kTeams; ++i)
        sum += shared_outputs[(i * kHeadDim + channel) * kColumns + column] *
               shared_tops[i * kColumns + column];
    return sum;
}

void store_outputs(Unit unit) {
    for (uint column = 0u; column < unit.n_columns; ++column) {
        Total total = shared_totals[column];
        const ColumnPlace place = place_column(unit, column);
        const float factor = add_sink(unit.layer, place.head, total) * inverse_sum(total);
        if (gl_LocalInvocationIndex == 0u)
            store_lse(push.lse, push.lse_token_stride, push.lse_head_stride, place.token,
                      place.head, total);
        const Address to = tensor_row(push.outputs, place.token, place.head);
        for (uint channel = gl_LocalInvocationIndex; channel < kHeadDim; channel += kThreads)
            store_element(to, push.outputs.dtype, channel, merged_output(column, channel) * factor);
    }
}

void store_part(Unit unit) {
    const Parts parts = find_parts(unit, kHeadDim);
    const uint first = unit.item.part * unit.n_columns;
    for (uint column = 0u; column < unit.n_columns; ++column)
        for (uint channel = gl_LocalInvocationIndex; channel < kHeadDim; channel += kThreads)
            Words(parts.outputs).at[(first + column) * kHeadDim + channel] =
                floatBitsToUint(merged_output(column, channel));
    const uint column = gl_LocalInvocationIndex;
    if (column < unit.n_columns) {
        Words(parts.tops).at[first + column] = floatBitsToUint(shared_totals[column].reference);
        Words(parts.sums).at[first + column] = floatBitsToUint(shared_totals[column].sum);
    }
}

void main() {
    find_lane();
    const Unit unit = find_unit(gl_WorkGroupID.x, kColumns);
    load_queries(unit);
    clear_outputs();
    for (uint first = 0u; first < push.n_pieces; first += kPieces) {
        find_pieces(unit, first);
        const uint n = min(push.n_pieces - first, kPieces);
        for (uint at = 0u; at < n; at += kTeams)
            attend_piece(unit, load_piece(at + team));
    }
    merge_teams();
    if (unit.item.n_parts == 1u)
        store_outputs(unit);
    else
        store_part(unit);
}
