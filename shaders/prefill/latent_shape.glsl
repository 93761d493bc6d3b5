// Attention over latents: how a workgroup is cut, and its shared memory.
//
// A tile of keys, 16 tokens, becomes FP16 in shared memory once, with its channels in their own
// order: it is multiplied by the queries, and its first channels by the weights. A word has a
// channel of tokens t and t + 8, which a lane of a packed tile has both.
//
// For scores an invocation has a word of tokens, two columns, and every LK_LATENT_SHARES-th quad of
// channels. For outputs it has four columns and a quad of channels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_LATENT_SHAPE_GLSL
#define LK_SHADERS_PREFILL_LATENT_SHAPE_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "format/format_const.h"
#include "shaders/push.h"
#include "shaders/prefill/limits.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;  // kThreads
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 576u;
layout(constant_id = LK_SPEC_COLUMNS) const uint kColumns = 16u;
layout(constant_id = LK_SPEC_VALUE_DIM) const uint kValueDim = 512u;

const uint kThreads = LK_LATENT_COLUMN_THREADS * kColumns;
const uint kStageTokens = LK_TILE_TOKENS;
const uint kStrips = kHeadDim / LK_STRIP_CHANNELS;
const uint kValueStrips = 0u;
const uint kColumnGroups = kColumns / 4u;
const uint kRowGroups = kThreads / kColumnGroups;  // as many as values have quads, at most
const uint kScoreRows = 1u;                        // of the invocations whose row is a token
const uint kScoreGroups = LK_TILE_TOKENS;
const uint kOutputRows = 4u;

const uint kQuads = kHeadDim / 4u;
const uint kQuadStride = kQuads + 1u;  // words of other tokens lie in other banks
const uint kTokenWords = LK_TILE_TOKENS / 2u;

shared uvec4 shared_keys[kTokenWords * kQuadStride];  // [word of tokens][quad]
shared uvec2 shared_queries[kColumns * kQuads];       // [column][quad]
shared uint shared_largest[kColumns];                 // bits of the columns' largest magnitudes
shared uint shared_raises;  // has a score passed its column's reference by too much?
// Sums of a share's channels [share][token], then weights [token], of four columns each.
shared vec4 tile_rows[LK_LATENT_SHARES * LK_TILE_TOKENS * kColumnGroups];

// The invocation's position.
uint column_group() { return gl_LocalInvocationIndex % kColumnGroups; }
uint row_group() { return gl_LocalInvocationIndex / kColumnGroups; }
uint lane_column(uint i) { return 4u * column_group() + i; }
uint score_row(uint i) { return row_group() + i * kRowGroups; }
bool has_score() { return row_group() < LK_TILE_TOKENS; }
uint output_channel(uint i) { return 4u * row_group() + i; }
bool is_first_row() { return row_group() == 0u; }

void store_pair(uint word, uint channel, uint pair) {
    shared_keys[word * kQuadStride + channel / 4u][channel % 4u] = pair;
}
void store_pairs(uint strip, uint lane_of_tile, uvec4 pairs) {
    const uint first = strip * LK_STRIP_CHANNELS;
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        store_pair(LK_TILE_ROW(lane_of_tile, 0u), first + LK_TILE_K(lane_of_tile, i & 2u) + (i & 1u),
                   pairs[i]);
}

void store_query_quad(uint at, uvec2 words) { shared_queries[at] = words; }

#endif
