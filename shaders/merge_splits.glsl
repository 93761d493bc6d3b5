// Partial results of a column become one: a workgroup computes the weights of the splits, then its
// invocations each take four channels of every n-th split, always in the same order. A workgroup has
// up to LK_MERGE_CHANNELS channels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_MERGE_SPLITS_GLSL
#define LK_SHADERS_MERGE_SPLITS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/output.glsl"

layout(local_size_x_id = LK_SPEC_THREADS) in;  // a power of two, at least a quarter of its channels
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 128u;  // of outputs
layout(constant_id = LK_SPEC_COLUMNS) const uint kColumns = 4u;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer ConstFloatQuads {
    vec4 at[];
};

const uint kQuads = kHeadDim / 4u;
const uint kMostQuads = LK_MERGE_CHANNELS / 4u;
const uint kOwnQuads = kQuads < kMostQuads ? kQuads : kMostQuads;  // of a workgroup
const uint kSplitGroups = gl_WorkGroupSize.x / kOwnQuads;
const uint kWeights = 1024u;  // of splits whose weights are computed at once
const uint kEarly = 4u;       // outputs that an invocation loads before the weights are known

shared float shared_weights[kWeights];
shared vec4 shared_quads[gl_WorkGroupSize.x];

// A column's numbers in each split; the strides lead to those of the next split.
struct ColumnSplits {
    Address outputs;  // [head_dim], not divided by the sum
    Address references;
    Address sums;
    uint output_stride;  // bytes
    uint value_stride;
    uint n;
};

float split_value(Address parameters, ColumnSplits splits, uint split) {
    return ConstFloats(address_at(parameters, split, splits.value_stride)).at[0];
}
vec4 split_quad(ColumnSplits splits, uint split, uint quad) {
    return ConstFloatQuads(address_at(splits.outputs, split, splits.output_stride)).at[quad];
}

// Over the first n invocations, of x to all: the sum, or the greatest.
float reduce(float x, uint n, bool adds) {
    barrier();
    shared_quads[gl_LocalInvocationIndex].x = x;
    uint distance = gl_WorkGroupSize.x;
    while (distance >= 2u * n)
        distance /= 2u;
    for (distance /= 2u; distance > 0u; distance /= 2u) {
        barrier();
        if (gl_LocalInvocationIndex < distance) {
            const float other = shared_quads[gl_LocalInvocationIndex + distance].x;
            x = adds ? x + other : max(x, other);
            shared_quads[gl_LocalInvocationIndex].x = x;
        }
    }
    barrier();
    return shared_quads[0].x;
}

// Returns four channels of the sum of weighted outputs, 4 (first_quad + i) and up, to the first
// kOwnQuads invocations. What does not depend on weights is loaded first, all at once.
vec4 merge_splits(ColumnSplits splits, uint first_quad, out Total total) {
    const uint quad = gl_LocalInvocationIndex % kOwnQuads;
    const uint group = gl_LocalInvocationIndex / kOwnQuads;
    const bool is_there = group < kSplitGroups && first_quad + quad < kQuads;
    const uint own = gl_LocalInvocationIndex;
    float own_reference = kHidden;
    float own_sum = 0.0;
    if (own < splits.n) {
        own_reference = split_value(splits.references, splits, own);
        own_sum = split_value(splits.sums, splits, own);
    }
    vec4 early[kEarly];
    [[unroll]] for (uint i = 0u; i < kEarly; ++i) {
        early[i] = vec4(0.0);
        if (is_there && group + i * kSplitGroups < splits.n)
            early[i] = split_quad(splits, group + i * kSplitGroups, first_quad + quad);
    }
    float reference = own_reference;
    for (uint i = own + gl_WorkGroupSize.x; i < splits.n; i += gl_WorkGroupSize.x)
        reference = max(reference, split_value(splits.references, splits, i));
    total.reference = reduce(reference, splits.n, false);
    float sum = 0.0;
    vec4 outputs = vec4(0.0);
    for (uint first = 0u; first < splits.n; first += kWeights) {
        const uint n = min(kWeights, splits.n - first);
        barrier();
        for (uint i = own; i < n; i += gl_WorkGroupSize.x) {
            if (first + i != own) {
                own_reference = split_value(splits.references, splits, first + i);
                own_sum = split_value(splits.sums, splits, first + i);
            }
            shared_weights[i] = exp2(own_reference - total.reference);
            sum += shared_weights[i] * own_sum;
        }
        barrier();
        if (first == 0u)
            [[unroll]] for (uint i = 0u; i < kEarly; ++i)
                if (group + i * kSplitGroups < n)
                    outputs += shared_weights[group + i * kSplitGroups] * early[i];
        const uint n_early = first == 0u ? kEarly * kSplitGroups : 0u;
        if (is_there)
            for (uint i = group + n_early; i < n; i += kSplitGroups)
                outputs += shared_weights[i] * split_quad(splits, first + i, first_quad + quad);
    }
    total.sum = reduce(sum, splits.n, true);
    barrier();
    shared_quads[gl_LocalInvocationIndex] = outputs;
    barrier();
    if (group == 0u)
        for (uint i = 1u; i < min(kSplitGroups, splits.n); ++i)
            outputs += shared_quads[i * kOwnQuads + quad];
    return outputs;
}

// The column of token and head, with its learned sink, to the output and the LSEs.
void store_column(PushTensor outputs, Address lse, uint lse_token_stride, uint lse_head_stride,
                  LayerInfo layer, uint token, uint head, uint first_quad, Total total, vec4 quad) {
    const float factor = add_sink(layer, head, total) * inverse_sum(total);
    if (gl_LocalInvocationIndex == 0u && first_quad == 0u)
        store_lse(lse, lse_token_stride, lse_head_stride, token, head, total);
    const uint own = first_quad + gl_LocalInvocationIndex;
    if (gl_LocalInvocationIndex >= kOwnQuads || own >= kQuads)
        return;
    const Address to = tensor_row(outputs, token, head);
    for (uint i = 0u; i < 4u; ++i)
        store_element(to, outputs.dtype, 4u * own + i, output_of(total, quad[i] * factor));
}

#endif
