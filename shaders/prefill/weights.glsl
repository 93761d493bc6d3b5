// Attention of many columns: rows of weights in FP32. The workgroup finds out with one barrier
// whether a reference is to be raised.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_WEIGHTS_GLSL
#define LK_SHADERS_PREFILL_WEIGHTS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/store.glsl"

// The highest of all invocations become references. tile_rows is free before and after.
void raise_references(vec4 highest) {
    tile_rows[gl_LocalInvocationIndex] = highest;
    barrier();
    if (gl_LocalInvocationIndex == 0u)
        shared_raises = 0u;
    for (uint i = 0u; i < kScoreGroups; ++i)
        highest = max(highest, tile_rows[i * kColumnGroups + column_group()]);
    barrier();
    const vec4 raised = max(reference, highest);
    const vec4 shrink = exp2(reference - raised);
    reference = raised;
    sum *= shrink;
    [[unroll]] for (uint i = 0u; i < kOutputRows; ++i)
        outputs[i] *= shrink;
}

void clear_outputs() {
    reference = vec4(kHidden);
    sum = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < kOutputRows; ++i)
        outputs[i] = vec4(0.0);
}

// Sums of weights over all rows, in their order.
void add_stats() {
    tile_rows[gl_LocalInvocationIndex] = sum;
    barrier();
    sum = vec4(0.0);
    for (uint i = 0u; i < kScoreGroups; ++i)
        sum += tile_rows[i * kColumnGroups + column_group()];
    barrier();
}

// Scores become weights. All invocations have left the products of keys when it returns.
void weigh() {
    const vec4 highest = find_highest();
    if (any(greaterThan(highest, reference + kHeadroom)))
        shared_raises = 1u;
    barrier();
    if (shared_raises != 0u)
        raise_references(highest);
    weigh_scores(reference);
}

#endif
