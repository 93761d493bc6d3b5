// Attention of many columns: the outputs of an invocation's four columns, or those of a split, by the
// output_channel(i) of the shape.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_STORE_GLSL
#define LK_SHADERS_PREFILL_STORE_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/destination.glsl"
#include "shaders/prefill/scores.glsl"

vec4 outputs[kOutputRows];  // not yet divided by the sum of weights
bvec4 is_beyond;            // of the invocation's columns: the query is beyond the limit

// The sums of weights are those of all tokens, relative to `base`. The columns take turns as the first
// component: what an index chooses would lie in local memory, from the first product on.
void store_columns(Mask mask, uint tile, vec4 base) {
    vec4 sums = mix(sum, vec4(kBeyond), is_beyond);
    for (uint i = 0u; i < 4u; ++i) {
        const uint column = lane_column(i);
        Destination to;
        if (column < mask.n_columns)
            to = store_total(mask, tile, column, Total(base.x, sums.x));
        base = base.yzwx;
        sums = sums.yzwx;
        [[unroll]] for (uint at = 0u; at < kOutputRows; ++at) {
            const uint channel = output_channel(at);
            if (column < mask.n_columns && channel < kValueDim)
                store_element(to.row, to.dtype, channel,
                              output_of(to.total, outputs[at].x * to.factor));
            outputs[at] = outputs[at].yzwx;
        }
    }
}

#endif
