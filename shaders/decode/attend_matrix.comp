// Attention of few query columns by a tensor core, where all packed pages of a dispatch have one
// form: a workgroup takes a work item, its teams take tiles of 16-bit blocks and packed pages in
// turn. push.h says how the dispatch is cut into workgroups. With LK_FORMS the form is pushed, else
// pages are plain (src/backend/vulkan/decode_rules.h) and their widths are constants.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#ifdef LK_FORMS
#include "shaders/decode/matrix_forms.glsl"
#else
#include "shaders/decode/matrix_codes.glsl"
#endif

#include "shaders/decode/teams.glsl"

void attend_f16_blocks(WorkTile work_tile) {
    const uint n_rounds = push.n_f16_rounds + push.n_own_f16_rounds;
    [[dont_unroll]] for (uint first = 0u; first < n_rounds; first += LK_DECODE_ROUNDS) {
        find_f16_tiles(work_tile, first);
        const uint n = min(n_rounds - first, LK_DECODE_ROUNDS);
        [[dont_unroll]] for (uint round = 0u; round < n; ++round)
            attend_f16_tile(work_tile, load_f16_tile(round * kTeams + team));
    }
}

// A page is looked up while the one before it is multiplied, and its block before that.
void attend_pages(WorkTile work_tile, Page page, uvec4 next_block) {
    begin_page(page);
    [[dont_unroll]] for (uint at = 0u; at < push.n_kv_tiles; at += kPagesAtOnce) {
        const Page next = find_page(work_tile, next_block);
        next_block = load_page_block(work_tile, at + 2u * kPagesAtOnce + team / kPageParts);
        attend_page(work_tile, page, next);
        page = next;
    }
}

void main() {
    find_lane();
    const WorkTile work_tile = find_work_tile(gl_WorkGroupID.x, kColumns);
    const uvec4 block = load_page_block(work_tile, team / kPageParts);
    const uvec4 next_block = load_page_block(work_tile, kPagesAtOnce + team / kPageParts);
    load_queries(work_tile);
    take_queries();
#ifdef LK_FORMS
    find_form();
#endif
    clear_outputs();
    const Page page = find_page(work_tile, block);
    attend_f16_blocks(work_tile);
    attend_pages(work_tile, page, next_block);
    merge_teams();
    if (work_tile.item.n_splits == 1u)
        store_outputs(work_tile);
    else
        store_split(work_tile);
}
