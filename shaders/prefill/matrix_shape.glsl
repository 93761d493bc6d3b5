// Attention of many columns by a tensor core: how a workgroup is cut, and its shared memory.
//
// A team has 16 columns, two matrices of 8. Products are of tiles, as packed pages have them, and
// columns: tokens are the rows of keys and channels those of values. Lane 4 g + t has of all sums
// rows g and g + 8, and columns 2t and 2t + 1 of both matrices, as four: those of the first, then
// those of the second. Such sums of keys, in FP16, are the columns that values are multiplied by.
//
// Loops over strips and tiles have literal bounds and conditions of constants, so that glslc unrolls
// them: drivers keep an array of matrices in local memory where they leave the loop.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_MATRIX_SHAPE_GLSL
#define LK_SHADERS_PREFILL_MATRIX_SHAPE_GLSL

#include "format/format_const.h"
#include "shaders/push.h"
#include "shaders/prefill/limits.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;  // 2 kColumns
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 128u;
layout(constant_id = LK_SPEC_COLUMNS) const uint kColumns = 128u;  // a power of two

#include "shaders/lanes.glsl"
#include "shaders/decode/matrix.glsl"

const uint kStageTokens = LK_MATRIX_STAGE_TOKENS;  // that are multiplied at once
const uint kStageTiles = kStageTokens / LK_TILE_TOKENS;
const uint kStrips = kHeadDim / LK_STRIP_CHANNELS;
const uint kValueDim = kHeadDim;  // attend.comp alone has layers with other values
const uint kValueStrips = kStrips;
const uint kMostStrips = LK_MATRIX_HEAD_DIM / LK_STRIP_CHANNELS;
const uint kScoreRows = 2u * kStageTiles;
const uint kOutputRows = 2u * kMostStrips;  // those after kHeadDim are not there

// The lane's registers of a stage's keys or values, [tile][strip][lane].
shared uvec4 shared_tiles[kStageTiles * kStrips * LK_LANES];

// Queries in FP16, [channel][team][pair of columns of a matrix], one word of each matrix. Channels
// that follow each other have other banks for the same pair.
const uint kPairs = kColumns / 4u;
const uint kBankRows = kPairs < 16u ? kPairs / 4u : 4u;
shared uvec2 shared_queries[kHeadDim * kPairs];
uint query_index(uint channel, uint pair) {
    return channel * kPairs + (pair ^ channel % kBankRows * 4u);
}

uint lane_column(uint i) {
    return 16u * team + 8u * (i / 2u) + 2u * quad_lane() + i % 2u;
}
// Row number i of the lane, in tiles that follow each other.
uint lane_row(uint i) { return 8u * i + row(); }
uint score_row(uint i) { return lane_row(i); }
uint output_channel(uint i) { return lane_row(i); }
bool is_first_row() { return row() == 0u; }

#endif
