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

// Eight channels of a column, as FP32 bits: find the column's largest, or store them as FP16.
void take_eight(uint column, uint eight, bool stores, FloatBitsEight bits) {
    if (!stores) {
        const uvec4 four = largest_of(bits);
        const uvec2 two = max(four.xy, four.zw);
        atomicMax(shared_largest[column], max(two.x, two.y));
        return;
    }
    const float factor = inverse_power(column);
    const vec4 low = factor * uintBitsToFloat(bits.low);
    const vec4 high = factor * uintBitsToFloat(bits.high);
    const uint first = column * kQuads + 2u * eight;
    store_query_quad(first, uvec2(packHalf2x16(low.xy), packHalf2x16(low.zw)));
    store_query_quad(first + 1u, uvec2(packHalf2x16(high.xy), packHalf2x16(high.zw)));
}

void take_all_eights(Mask mask, bool stores) {
    for (uint i = gl_LocalInvocationIndex; i < kColumns * kEights; i += kThreads) {
        const uint column = i / kEights;
        const uint eight = i % kEights;
        FloatBitsEight bits = FloatBitsEight(uvec4(0u), uvec4(0u));
        if (column < mask.n_columns && !(stores && is_column_beyond(mask, column))) {
            const QueryColumn query = query_column(mask, mask.first_column + column);
            const Address row = tensor_row(push.q, query.token, query.head);
            bits = float_bits_of_eight(load_eight(row, push.q.dtype, 8u * eight), push.q.dtype);
        }
        take_eight(column, eight, stores, bits);
    }
}

vec4 column_factors;  // from products to scores

void take_queries(Mask mask) {
    if (gl_LocalInvocationIndex < kColumns)
        shared_largest[gl_LocalInvocationIndex] = 0u;
    // One copy of the code: the largest first, then all queries.
    [[dont_unroll]] for (uint pass = 0u; pass < 2u; ++pass) {
        barrier();
        take_all_eights(mask, pass != 0u);
    }
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        column_factors[i] = score_factor(mask.layer) * column_power(lane_column(i));
        is_beyond[i] = is_column_beyond(mask, lane_column(i));
    }
}

#endif
