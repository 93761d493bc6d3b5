// Attention of few query columns over rows of direct classes: a workgroup takes a work item, its
// teams take the item's pieces in turn. push.h says how the dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/values.glsl"

#include "shaders/decode/teams.glsl"

void attend_piece(Unit unit, Piece piece) {
    multiply_keys(piece);
    begin_values(piece);
    weigh(unit, piece);
    multiply_values(unit, piece);
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
