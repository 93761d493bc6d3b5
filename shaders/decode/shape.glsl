// Decode attention: how a workgroup is cut, and the memory that its invocations share.
//
// 32 invocations are a team, which takes pages of its own, or strips of its own of pages that all
// teams of the workgroup share: one team is slow with a page of 512 channels. They lie in a tile as a
// tensor core's lanes do: lane 4 g + t has rows g and g + 8, and k 2t, 2t + 1, 2t + 8, 2t + 9. The
// sums of the four lanes of a quad for the same rows are added up so that each lane gets a quarter of
// the sums: number i of them goes to lane i % 4. So with four columns, lane 4 g + t ends up with
// column t.
//
// No exchange and no barrier depends on a condition that was read from memory: the bounds of such
// loops are constants or pushed (shaders/lanes.glsl).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_SHAPE_GLSL
#define LK_SHADERS_DECODE_SHAPE_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/limits.h"
#include "format/format_const.h"
#include "shaders/push.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;

#include "shaders/lanes.glsl"

layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 128u;
#ifdef LK_MATRIX
#define kValueDim kHeadDim
#else
layout(constant_id = LK_SPEC_VALUE_DIM) const uint kValueDim = 128u;
const uint kValueStrips = kValueDim / LK_STRIP_CHANNELS;
#endif
layout(constant_id = LK_SPEC_COLUMNS) const uint kColumns = 4u;  // 1, 2, 4 or 8
// 0: one group in a page, FP16 numbers.
layout(constant_id = LK_SPEC_GROUPED) const uint kGrouped = 1u;

// Teams that share a page: 1, or all of the workgroup.
layout(constant_id = LK_SPEC_PAGE_TEAMS) const uint kPageTeams = 1u;
const uint kPages = kTeams / kPageTeams;  // that are taken at once

const uint kStrips = kHeadDim / LK_STRIP_CHANNELS;  // of keys
const uint kTeamStrips = (kStrips + kPageTeams - 1u) / kPageTeams;
const uint kPageTiles = LK_MAX_PAGE_TOKENS / LK_TILE_TOKENS;

// Columns of a lane, and lanes of a quad that differ in their columns.
#ifdef LK_MATRIX
const uint kQuadColumns = 4u;
const uint kColumnSets = 2u;
#else
const uint kQuadColumns = kColumns < 4u ? kColumns : 4u;
const uint kColumnSets = kColumns / kQuadColumns;
#endif
const uint kSlots = 4u * kQuadColumns;                    // tokens of a lane and column
const uint kScores = kSlots * kColumnSets;                // of a lane: [slot][set]
const uint kSlotStep = 4u / kQuadColumns;
const uint kKvTiles = kPages * LK_DECODE_ROUNDS;           // that are looked up at once

// The team's place among those that share its page, and its page among those that are taken at once.
uint team_of_page() { return kPageTeams > 1u ? team : 0u; }
uint page_of_team() { return kPageTeams > 1u ? 0u : team; }
// The team's strips of keys.
uint first_strip() { return min(team_of_page() * kTeamStrips, kStrips); }
uint end_strip() { return min(first_strip() + kTeamStrips, kStrips); }
// Stores of all teams of the page to shared memory are there for the others.
void page_sync() {
    if (kPageTeams > 1u)
        barrier();
    else
        team_sync();
}

// Column number `set` of lane t of a quad: of a tensor core's sums, some may be after the last.
uint column_of(uint t, uint set) {
#ifdef LK_MATRIX
    return 2u * t + set;
#else
    return t % kQuadColumns + 4u * set;
#endif
}
bool is_column(uint column) { return column < kColumns; }
// A slot's tile and row of 8 in the tile.
uint slot_of_lane() { return kQuadColumns < 4u ? quad_lane() / kQuadColumns : 0u; }
uint slot_index(uint slot) { return slot * kSlotStep + slot_of_lane(); }
uint slot_tile(uint slot) { return slot_index(slot) >> 1; }
uint slot_row(uint slot) { return slot_index(slot) & 1u; }
uint slot_token(uint slot) { return slot_index(slot) * 8u + row(); }

// Outputs of a lane for a pair of strips: of channel 8 number + row() of the pair.
const uint kOutputs = kColumns;
uint sum_index(uint i) { return (4u * i + quad_lane()) / kColumns; }
uint output_column(uint i) { return (4u * i + quad_lane()) % kColumns; }

// Number t of the four, summed over the lanes of the quad.
float quad_sum(vec4 x) {
    const bool is_odd = (lane & 1u) != 0u;
    const bool is_high = (lane & 2u) != 0u;
    const vec2 own = is_odd ? x.yw : x.xz;
    const vec2 half_sum = own + exchange(is_odd ? x.xz : x.yw, 1u);
    return (is_high ? half_sum.y : half_sum.x) + exchange(is_high ? half_sum.x : half_sum.y, 2u);
}

// Over the lanes that have the same column.
float column_sum(float x) {
    [[unroll]] for (uint bit = 0u; bit < kLaneBits; ++bit)
        if (1u << bit >= kQuadColumns)
            x += exchange(x, 1u << bit);
    return x;
}
float column_max(float x) {
    [[unroll]] for (uint bit = 0u; bit < kLaneBits; ++bit)
        if (1u << bit >= kQuadColumns)
            x = max(x, exchange(x, 1u << bit));
    return x;
}
float team_sum(float x) {
    [[unroll]] for (uint bit = 0u; bit < kLaneBits; ++bit)
        x += exchange(x, 1u << bit);
    return x;
}
float team_max(float x) {
    [[unroll]] for (uint bit = 0u; bit < kLaneBits; ++bit)
        x = max(x, exchange(x, 1u << bit));
    return x;
}

#endif
