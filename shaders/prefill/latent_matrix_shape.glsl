// Attention over latents by a tensor core: how a workgroup is cut, and its shared memory.
//
// A workgroup has 16 columns, two matrices of 8. A stage of keys, two tiles of 16 tokens, becomes FP16
// in shared memory once. A word has a channel of tokens t and t + 8, and a lane of a tile has four
// words in two pairs. So the words of a lane are rows of keys after pair_tokens(), and rows of values
// as they are, of which the k 2t and 2t + 1 are tokens t and t + 8.
//
// For products of keys a team has one tile and every kShares-th strip, for those of values every
// LK_LATENT_TEAMS-th strip. Lane 4 g + t has of the scores, which are the first team's alone, tokens g
// and g + 8 of both tiles, and of outputs two neighbouring channels of a strip; of all these columns
// 2t, 2t + 1, 2t + 8 and 2t + 9.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_LATENT_MATRIX_SHAPE_GLSL
#define LK_SHADERS_PREFILL_LATENT_MATRIX_SHAPE_GLSL

#include "format/format_const.h"
#include "shaders/push.h"
#include "shaders/prefill/limits.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;  // LK_LANES LK_LATENT_TEAMS
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 576u;
layout(constant_id = LK_SPEC_VALUE_DIM) const uint kValueDim = 512u;

#include "shaders/lanes.glsl"
#include "shaders/decode/matrix.glsl"

const uint kColumns = LK_LATENT_MATRIX_COLUMNS;
const uint kStageTiles = LK_LATENT_STAGE_TILES;
const uint kStageTokens = kStageTiles * LK_TILE_TOKENS;
const uint kStrips = kHeadDim / LK_STRIP_CHANNELS;
const uint kValueStrips = 0u;
const uint kShares = LK_LATENT_TEAMS / kStageTiles;  // of a tile's strips
// Of a team: loops over them have literal bounds, so that glslc unrolls them.
const uint kMostTeamKeys = LK_MAX_HEAD_DIM / LK_STRIP_CHANNELS / kShares;
const uint kMostTeamOutputs = LK_MOST_LATENT_VALUES / LK_STRIP_CHANNELS / LK_LATENT_TEAMS;
const uint kScoreRows = 2u * kStageTiles;
const uint kOutputRows = 2u * kMostTeamOutputs;
const uint kQuads = kHeadDim / 4u;

const uint kTilePairs = 2u * LK_LANES * kStrips;
shared uvec2 shared_pairs[kStageTiles * kTilePairs];  // [tile][strip][lane][pair]; queries before
uint tile_place;                                      // where the pairs of a tile begin
// Sums of products over a team's strips, [share][token][t].
shared vec4 tile_rows[kShares * kStageTokens * 4u];
const uint kTileWeights = 8u * kColumns;
shared uint shared_weights[kStageTiles * kTileWeights];  // [tile][matrix][word of tokens][column]
shared uint shared_largest[kColumns];                    // bits of the columns' largest magnitudes
shared vec4 shared_shrinks[4u];                          // of t: what outputs are multiplied by
shared uint shared_raises;                               // were references raised?

uint lane_column(uint i) { return 8u * (i / 2u) + 2u * quad_lane() + i % 2u; }
uint score_row(uint i) { return row() + 8u * i; }
uint team_share() { return team % kShares; }
uint team_tile() { return team / kShares; }
uint team_strip(uint i) { return team + LK_LATENT_TEAMS * i; }
uint output_channel(uint i) {
    return LK_STRIP_CHANNELS * team_strip(i / 2u) + 2u * (row() & 3u) + 8u * (row() >> 2) + i % 2u;
}
bool is_first_row() { return team == 0u && row() == 0u; }

// Lanes that read the same pair at once have other banks.
uint pair_index(uint strip, uint lane_of_tile, uint pair) {
    return (strip * LK_LANES + lane_of_tile) * 2u + (pair ^ (lane_of_tile >> 3 & 1u));
}

void store_pairs(uint strip, uint lane_of_tile, uvec4 pairs) {
    shared_pairs[tile_place + pair_index(strip, lane_of_tile, 0u)] = pairs.xy;
    shared_pairs[tile_place + pair_index(strip, lane_of_tile, 1u)] = pairs.zw;
}
void store_pair(uint word, uint channel, uint pair) {
    const uint in_strip = channel % LK_STRIP_CHANNELS;
    const uint lane_of_tile = 4u * word + in_strip % 8u / 2u;
    const uint at = pair_index(channel / LK_STRIP_CHANNELS, lane_of_tile, in_strip / 8u);
    shared_pairs[tile_place + at][channel % 2u] = pair;
}

void store_query_quad(uint at, uvec2 words) { shared_pairs[at] = words; }

#endif
