// Attention of few query columns by a tensor core, where all packed pages of a layer have one
// shape: a workgroup takes a work item, its teams take tiles of 16-bit rows and packed pages in
// turn. push.h says how the dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/matrix_codes.glsl"

#include "shaders/decode/teams.glsl"

void attend_rows(Unit unit) {
    const uint n_rounds = push.n_row_rounds + push.n_own_row_rounds;
    [[dont_unroll]] for (uint first = 0u; first < n_rounds; first += LK_DECODE_ROUNDS) {
        find_row_tiles(unit, first);
        const uint n = min(n_rounds - first, LK_DECODE_ROUNDS);
        [[dont_unroll]] for (uint round = 0u; round < n; ++round)
            attend_row_tile(unit, load_row_tile(round * kTeams + team));
    }
}

void attend_pages(Unit unit) {
    [[dont_unroll]] for (uint first = 0u; first < push.n_pieces; first += kLookups) {
        find_pages(unit, first);
        Page page = load_page(team);
        begin_page(page);
        const uint n = min(push.n_pieces - first, kLookups);
        [[dont_unroll]] for (uint at = 0u; at < n; at += kTeams) {
            const Page next = load_page(at + kTeams + team);
            attend_page(unit, page, next);
            page = next;
        }
    }
}

void main() {
    find_lane();
    const Unit unit = find_unit(gl_WorkGroupID.x, kColumns);
    load_queries(unit);
    take_queries();
    clear_outputs();
    attend_rows(unit);
    attend_pages(unit);
    merge_teams();
    if (unit.item.n_parts == 1u)
        store_outputs(unit);
    else
        store_part(unit);
}
