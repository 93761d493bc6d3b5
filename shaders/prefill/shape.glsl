// Attention of many columns: how a workgroup is cut, and its shared memory.
//
// A product is of rows of 16 k and the columns of the workgroup: tokens are the rows of keys and
// channels their k, channels are the rows of values and tokens their k. An invocation has four
// neighbouring columns and every kRowGroups-th row. k lie in K order, in which those of a lane of a
// packed tile are neighbours.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SHAPE_GLSL
#define LK_SHADERS_PREFILL_SHAPE_GLSL

#include "format/format_const.h"
#include "shaders/push.h"
#include "shaders/prefill/limits.h"

layout(local_size_x = LK_TILE_THREADS) in;
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 128u;
layout(constant_id = LK_SPEC_COLUMNS) const uint kColumns = 64u;
layout(constant_id = LK_SPEC_VALUE_DIM) const uint kValueDim = 128u;

const uint kStageTokens = LK_MAX_PAGE_TOKENS;  // whose scores are held at once
const uint kStrips = kHeadDim / LK_STRIP_CHANNELS;
const uint kValueStrips = kValueDim / LK_STRIP_CHANNELS;
const uint kTileQuads = LK_TILE_TOKENS / 4u;  // of k
const uint kColumnGroups = kColumns / 4u;
const uint kRowGroups = LK_TILE_THREADS / kColumnGroups;
const uint kScoreRows = kStageTokens / kRowGroups;
const uint kScoreGroups = kRowGroups;  // that have scores

// Where rows of channels leave invocations without work, they take tiles of tokens in turn.
const uint kPhases = kRowGroups < kValueDim ? 1u : kRowGroups / kValueDim;
const uint kPhaseGroups = kRowGroups / kPhases;
const uint kOutputRows = (kValueDim + kPhaseGroups - 1u) / kPhaseGroups;
// Above 128 channels shared memory holds half of a tile's k, above 256 a quarter.
const uint kValueQuads = kValueDim > 256u   ? kTileQuads / 4u
                         : kValueDim > 128u ? kTileQuads / 2u
                                            : kTileQuads;

// A row is followed by a free vector, so that neighbouring rows lie in other banks; rows of one
// vector do so without.
const uint kKeyStride = kTileQuads + 1u;
const uint kValueStride = kValueQuads > 1u ? kValueQuads + 1u : 1u;
const uint kKeyRowsQuads = kStageTokens * kKeyStride;
const uint kRowsQuads =
    kValueDim > 128u && kValueDim <= 256u ? 256u * kValueStride : kKeyRowsQuads;

shared vec4 tile_rows[kRowsQuads];  // [row][quads of k]: keys or values
shared vec4 shared_columns[kPhases * LK_TILE_TOKENS * kColumnGroups];  // [phase][k]: the columns
shared uint shared_raises;  // has a score passed its column's reference by too much?

// The invocation's position.
uint column_group() { return gl_LocalInvocationIndex % kColumnGroups; }
uint row_group() { return gl_LocalInvocationIndex / kColumnGroups; }
uint phase() { return row_group() / kPhaseGroups; }
uint phase_group() { return row_group() % kPhaseGroups; }
uint lane_column(uint i) { return 4u * column_group() + i; }
uint score_row(uint i) { return row_group() + i * kRowGroups; }
uint output_channel(uint i) { return phase_group() + i * kPhaseGroups; }
bool is_first_row() { return row_group() == 0u; }

// Four columns of four k, times four k of a row.
vec4 add_products(vec4 sums, vec4 row, mat4 columns) {
    sums += row.x * columns[0];
    sums += row.y * columns[1];
    sums += row.z * columns[2];
    sums += row.w * columns[3];
    return sums;
}
mat4 load_columns(uint phase, uint quad) {
    const uint at = (phase * LK_TILE_TOKENS + 4u * quad) * kColumnGroups + column_group();
    return mat4(shared_columns[at], shared_columns[at + kColumnGroups],
                shared_columns[at + 2u * kColumnGroups], shared_columns[at + 3u * kColumnGroups]);
}

#endif
