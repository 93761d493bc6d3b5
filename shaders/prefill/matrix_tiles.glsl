// Attention of many columns by a tensor core: tiles of keys and values as registers of matrices,
// loaded while the tiles before are multiplied, and put into shared memory for all teams.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_MATRIX_TILES_GLSL
#define LK_SHADERS_PREFILL_MATRIX_TILES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/channels.glsl"

const uint kStageLanes = kStageTiles * kStrips * LK_LANES;
const uint kLoads = (kStageLanes + kThreads - 1u) / kThreads;  // of an invocation in a stage
const uint kMostAhead = 2u;                                    // more would take too many registers

LaneWords loaded_words[kMostAhead];

Stage stage_of(EntryView page, uint first) {
    return Stage(page.first_token + first, first / LK_TILE_TOKENS,
                 min(kStageTokens, page.n_tokens - first));
}

// Load number i of the invocation.
struct StageLane {
    bool exists;
    bool has_tokens;
    uint stage_tile;
    TileLane at;
};
StageLane stage_lane(Stage stage, uint i) {
    const uint position = i * kThreads + gl_LocalInvocationIndex;
    const uint tile = position / LK_LANES / kStrips;
    StageLane found;
    found.exists = position < kStageLanes;
    found.has_tokens = found.exists && tile * LK_TILE_TOKENS < stage.n_tokens;
    found.stage_tile = tile;
    found.at = TileLane(stage.first_tile + tile, position / LK_LANES % kStrips, position % LK_LANES);
    return found;
}

LaneWords load_stage_lane(Side side, Stage stage, uint i) {
    const StageLane own = stage_lane(stage, i);
    if (!own.has_tokens)
        return LaneWords(uvec4(0u), uvec4(0u));
    return load_side(side, own.at);
}

uvec4 registers_of(LaneValues values) {
    return uvec4(packHalf2x16(values.low.xy), packHalf2x16(values.high.xy),
                 packHalf2x16(values.low.zw), packHalf2x16(values.high.zw));
}
// Of a page that is not staged.
uvec4 tile_registers(Side side, TileLane at, LaneWords words) {
    if (shared_strips[uint(side.is_value)][at.strip].bits == 16u)
        return words.codes;
    return registers_of(dequantize_side(side, at, words));
}

// Memory after the last token may hold NaNs, which a weight of 0 would not take away: the words of
// the pairs of tokens 2t and 2t + 8 that are kept.
uvec2 kept_tokens(Stage stage, StageLane own) {
    const uint first = LK_TILE_TOKENS * own.stage_tile + LK_TILE_K(own.at.lane, 0u);
    const uvec2 tokens = uvec2(first, first + 8u);
    return mix(uvec2(0u), uvec2(0xFFFFu), lessThan(tokens, uvec2(stage.n_tokens))) |
           mix(uvec2(0u), uvec2(0xFFFF0000u), lessThan(tokens + 1u, uvec2(stage.n_tokens)));
}

// Two channels of staged values belong to two rows of the tile.
void store_staged_values(uint tile, TileLane at, uvec4 words, uvec2 kept) {
    const uvec2 even = (words.xz & 0xFFFFu | words.yw << 16) & kept;
    const uvec2 odd = (words.xz >> 16 | words.yw & 0xFFFF0000u) & kept;
    const uint channel = 2u * LK_TILE_ROW(at.lane, 0u);
    const uint high = channel / 8u;
    const uint first = tile + LK_TILE_LANE(channel, LK_TILE_K(at.lane, 0u));
    const uint second = tile + LK_TILE_LANE(channel + 1u, LK_TILE_K(at.lane, 0u));
    shared_tiles[first][high] = even.x;
    shared_tiles[first][high + 2u] = even.y;
    shared_tiles[second][high] = odd.x;
    shared_tiles[second][high + 2u] = odd.y;
}

void store_stage_lane(Side side, Stage stage, uint i, LaneWords words) {
    const StageLane own = stage_lane(stage, i);
    if (!own.exists)
        return;
    const uint tile = (own.stage_tile * kStrips + own.at.strip) * LK_LANES;
    const uvec2 kept = side.is_value ? kept_tokens(stage, own) : uvec2(~0u);
    if (side.is_value && side.is_staged) {
        store_staged_values(tile, own.at, words.codes, kept);
        return;
    }
    uvec4 registers = words.codes;
    if (own.has_tokens && !side.is_staged)
        registers = tile_registers(side, own.at, words);
    shared_tiles[tile + own.at.lane] = registers & kept.xxyy;
}

void load_tiles(Side side, Stage stage) {
    if (kLoads <= kMostAhead)
        [[unroll]] for (uint i = 0u; i < kMostAhead; ++i)
            if (i < kLoads)
                loaded_words[i] = load_stage_lane(side, stage, i);
}
void store_tiles(Side side, Stage stage) {
    if (kLoads <= kMostAhead) {
        [[unroll]] for (uint i = 0u; i < kMostAhead; ++i)
            if (i < kLoads)
                store_stage_lane(side, stage, i, loaded_words[i]);
    } else {
        for (uint i = 0u; i < kLoads; ++i)
            store_stage_lane(side, stage, i, load_stage_lane(side, stage, i));
    }
}

#endif
