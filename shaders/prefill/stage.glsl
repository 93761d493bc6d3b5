// Attention of many columns: the shape of a workgroup, and the tokens whose scores it holds at once.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_STAGE_GLSL
#define LK_SHADERS_PREFILL_STAGE_GLSL

#if defined LK_SLOTS
#include "shaders/prefill/slot_shape.glsl"
#elif defined LK_LATENT && defined LK_MATRIX
#include "shaders/prefill/latent_matrix_shape.glsl"
#elif defined LK_LATENT
#include "shaders/prefill/latent_shape.glsl"
#elif defined LK_MATRIX
#include "shaders/prefill/matrix_shape.glsl"
#else
#include "shaders/prefill/shape.glsl"
#endif

// Tokens of a page, or of the slots.
struct Stage {
    uint first_token;  // position
    uint first_tile;   // of the page
    uint n_tokens;
};

#endif
