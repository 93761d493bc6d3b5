// Attention over latents: the queries of a workgroup, FP16 in shared memory. Those of a column are
// divided by a power of two, so that the largest has an exponent of 13.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_LATENT_QUERIES_GLSL
#define LK_SHADERS_PREFILL_LATENT_QUERIES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/store.glsl"
#include "shaders/tensor.glsl"

const uint kEights = kHeadDim / 8u;
const uint kLargestExponentOfHalfs = 13u;
const uint kLeastExponent = 40u;  // of FP32, where queries are not made larger any more

// Eight channels of a column.
struct QueryEight {
    uint column;
    uint eight;
    bool exists;
};
QueryEight find_eight(Mask mask, uint i) {
    const uint column = i / kEights;
    return QueryEight(column, i % kEights, column < mask.n_columns);
}
RawEight load_query_eight(Mask mask, QueryEight at) {
    const QueryColumn query = query_column(mask, mask.first_column + at.column);
    return load_eight(tensor_row(push.q, query.token, query.head), push.q.dtype, 8u * at.eight);
}

void find_largest(Mask mask) {
    for (uint i = gl_LocalInvocationIndex; i < kColumns * kEights; i += kThreads) {
        const QueryEight at = find_eight(mask, i);
        if (!at.exists)
            continue;
        const RawEight raw = load_query_eight(mask, at);
        uint largest = 0u;
        [[unroll]] for (uint e = 0u; e < 8u; ++e)
            largest = max(largest, float_bits_of(raw, push.q.dtype, e) & 0x7FFFFFFFu);
        atomicMax(shared_largest[at.column], largest);
    }
}

// The exponent of a column's largest query, as FP32 has it.
uint column_exponent(uint column) {
    return clamp(shared_largest[column] >> 23, kLeastExponent, 254u);
}
// What queries in shared memory are multiplied by, to have those of the column again.
float column_power(uint column) {
    return uintBitsToFloat(column_exponent(column) - kLargestExponentOfHalfs << 23);
}
float inverse_power(uint column) {
    return uintBitsToFloat(254u + kLargestExponentOfHalfs - column_exponent(column) << 23);
}

// A query beyond the layer's limit counts as one of zeros.
bool is_column_beyond(Mask mask, uint column) {
    return shared_largest[column] > floatBitsToUint(mask.layer.query_limit);
}

void store_queries(Mask mask) {
    for (uint i = gl_LocalInvocationIndex; i < kColumns * kEights; i += kThreads) {
        const QueryEight at = find_eight(mask, i);
        RawEight raw = RawEight(uvec4(0u), uvec4(0u));
        if (at.exists && !is_column_beyond(mask, at.column))
            raw = load_query_eight(mask, at);
        const float factor = inverse_power(at.column);
        uvec4 words;
        [[unroll]] for (uint e = 0u; e < 4u; ++e) {
            const float low = uintBitsToFloat(float_bits_of(raw, push.q.dtype, 2u * e));
            const float high = uintBitsToFloat(float_bits_of(raw, push.q.dtype, 2u * e + 1u));
            words[e] = packHalf2x16(factor * vec2(low, high));
        }
        const uint first = at.column * kQuads + 2u * at.eight;
        shared_queries[first] = words.xy;
        shared_queries[first + 1u] = words.zw;
    }
}

vec4 column_factors;  // from products to scores

void take_queries(Mask mask) {
    if (gl_LocalInvocationIndex < kColumns)
        shared_largest[gl_LocalInvocationIndex] = 0u;
    barrier();
    find_largest(mask);
    barrier();
    store_queries(mask);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        column_factors[i] = score_factor(mask.layer) * column_power(lane_column(i));
        is_beyond[i] = is_column_beyond(mask, lane_column(i));
    }
}

#endif
