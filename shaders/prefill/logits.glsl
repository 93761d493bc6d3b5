// Attention of many columns: from products of queries and keys to scores, powers of two.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_LOGITS_GLSL
#define LK_SHADERS_PREFILL_LOGITS_GLSL

#include "shaders/output.glsl"

// A reference is raised when a score passes it by more; powers of two. More would cost digits of exp2.
const float kHeadroom = 8.0;
// Weights are multiplied by matrices in FP16, this much larger; kHeadroom more still fits.
const float kWeightExponent = 7.0;
const float kLargestExponent = 60.0;  // of the soft-cap's tanh

// The factor from products to scores; in the simplest case it includes the base of exp2.
float score_factor(LayerInfo layer) {
    return layer.soft_cap > 0.0 ? layer.scale : layer.scale * kLog2E;
}
vec4 cap_scores(LayerInfo layer, vec4 products) {
    const vec4 exponent = products * (2.0 * kLog2E / layer.soft_cap);
    const vec4 power = exp2(clamp(exponent, -kLargestExponent, kLargestExponent));
    return layer.soft_cap * kLog2E * (1.0 - 2.0 / (power + 1.0));  // of tanh
}

#endif
