// Attention of many columns over slots, by a tensor core: how a workgroup is cut, and its shared memory.
// Teams, columns and sums are those of matrix_shape.glsl.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SLOT_SHAPE_GLSL
#define LK_SHADERS_PREFILL_SLOT_SHAPE_GLSL

#include "format/format_const.h"
#include "shaders/push.h"
#include "shaders/prefill/limits.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 128u;
layout(constant_id = LK_SPEC_COLUMNS) const uint kColumns = 128u;

#include "shaders/lanes.glsl"
#include "shaders/decode/matrix.glsl"

const uint kStageTokens = LK_SLOT_STAGE_TOKENS;
const uint kStageTiles = kStageTokens / LK_TILE_TOKENS;
const uint kStrips = kHeadDim / LK_STRIP_CHANNELS;
const uint kMostStrips = LK_SLOT_HEAD_DIM / LK_STRIP_CHANNELS;
const uint kScoreRows = 2u * kStageTiles;
const uint kOutputRows = 2u * kMostStrips;  // those after kHeadDim are not there

#include "shaders/prefill/matrix_lanes.glsl"

// A stage's keys, then its values, as registers of matrices, [tile][strip][lane]. Twice: a stage is
// stored while the one before it is multiplied.
const uint kSideQuads = kStageTiles * kStrips * LK_LANES;
shared uvec4 shared_tiles[4u * kSideQuads];

#endif
