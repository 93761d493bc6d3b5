// Attention of few query columns over blocks of native formats: a workgroup takes a work item, its
// teams take the item's KV tiles in turn, each its own or all the same one. push.h says how the
// dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/values.glsl"

#include "shaders/decode/teams.glsl"

void attend_kv_tile(WorkTile work_tile, KvTile kv_tile) {
    multiply_keys(kv_tile);
    begin_values(kv_tile);
    weigh(work_tile, kv_tile);
    multiply_values(work_tile, kv_tile);
}

void main() {
    find_lane();
    const WorkTile work_tile = find_work_tile(gl_WorkGroupID.x, kColumns);
    load_queries(work_tile);
    clear_outputs();
    for (uint first = 0u; first < push.n_kv_tiles; first += kKvTiles) {
        find_kv_tiles(work_tile, first);
        const uint n = min(push.n_kv_tiles - first, kKvTiles);
        for (uint at = 0u; at < n; at += kPages)
            attend_kv_tile(work_tile, load_kv_tile(at + page_of_team()));
    }
    merge_teams();
    if (work_tile.item.n_splits == 1u)
        store_outputs(work_tile);
    else
        store_split(work_tile);
}
