// Attention of many columns over slots, by a tensor core: how a workgroup is cut, and its shared memory.
// A team has 16 columns, which are the rows of its matrices: a lane has two of them, of each a pair of
// every eight tokens or channels.
//
// With LK_SLOT_DIM the kernel has that head dim alone, and its loops no conditions.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SLOT_SHAPE_GLSL
#define LK_SHADERS_PREFILL_SLOT_SHAPE_GLSL

#include "format/format_const.h"
#include "shaders/push.h"
#include "shaders/prefill/limits.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;
#ifdef LK_SLOT_DIM
const uint kHeadDim = LK_SLOT_DIM;
#else
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 128u;
#endif
layout(constant_id = LK_SPEC_COLUMNS) const uint kColumns = 128u;

#include "shaders/lanes.glsl"
#include "shaders/decode/matrix.glsl"

const uint kStageTokens = LK_SLOT_STAGE_TOKENS;
const uint kStageTiles = kStageTokens / LK_TILE_TOKENS;
const uint kStageEights = kStageTokens / 8u;
const uint kStrips = kHeadDim / LK_STRIP_CHANNELS;
const uint kValueDim = kHeadDim;  // attend.comp alone has layers with other values
// Loops over strips have kMostStrips turns, so that glslc unrolls them, and leave out those after
// kStrips.
#ifdef LK_SLOT_DIM
const uint kMostStrips = LK_SLOT_DIM / LK_STRIP_CHANNELS;
#else
const uint kMostStrips = LK_SLOT_HEAD_DIM / LK_STRIP_CHANNELS;
#endif

uint lane_column(uint i) { return 16u * team + row() + 8u * i; }
// Of every eight, where the lane's pair begins.
uint lane_pair() { return 2u * quad_lane(); }
bool is_first_row() { return quad_lane() == 0u; }

// A stage's keys, then its values, as registers of matrices, [tile][strip][lane]. Twice: a stage is
// stored while the one before it is multiplied.
const uint kSideQuads = kStageTiles * kStrips * LK_LANES;
shared uvec4 shared_tiles[4u * kSideQuads];

#endif
