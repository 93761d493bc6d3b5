// Cosines of embeddings and a query: a workgroup takes a chunk. push.h has the dispatch.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/tensor.glsl"

const uint kThreads = 64u;
// A sum of squares between these bounds has lost nothing to FP32's range.
const float kLeastSquares = 8.27180613e-25;  // 2^-80
const float kMostSquares = 1.32922800e36;    // 2^120
const uint kInfinity = 0x7F800000u;
layout(local_size_x = 64) in;
layout(push_constant) uniform PushBlock { CosinePush push; };

shared vec3 shared_sums[kThreads];

// Products, squares of the chunk, squares of the query; the invocations add them up as a binary
// tree, in order.
vec3 join_sums(vec3 own) {
    const uint i = gl_LocalInvocationIndex;
    barrier();
    shared_sums[i] = own;
    for (uint n = kThreads / 2u; n != 0u; n /= 2u) {
        barrier();
        if (i < n)
            shared_sums[i] += shared_sums[i + n];
    }
    barrier();
    return shared_sums[0];
}
vec2 join_most(vec2 own) {
    const uint i = gl_LocalInvocationIndex;
    barrier();
    shared_sums[i] = vec3(own, 0.0);
    for (uint n = kThreads / 2u; n != 0u; n /= 2u) {
        barrier();
        if (i < n)
            shared_sums[i] = max(shared_sums[i], shared_sums[i + n]);
    }
    barrier();
    return shared_sums[0].xy;
}

vec2 load_pair(Address row, Address query, uint channel) {
    return vec2(load_element(row, push.embeddings.dtype, channel),
                load_element(query, push.query.dtype, channel));
}

// Of rows over powers of two.
vec3 sum_rows(Address row, Address query, vec2 factors) {
    vec3 sums = vec3(0.0);
    for (uint c = gl_LocalInvocationIndex; c < push.n_channels; c += kThreads) {
        const vec2 pair = load_pair(row, query, c) * factors;
        sums += vec3(pair.x * pair.y, pair * pair);
    }
    return join_sums(sums);
}

// The factors that bring the greatest magnitudes of both embeddings near to 1.
vec2 find_factors(Address row, Address query) {
    vec2 most = vec2(0.0);
    for (uint c = gl_LocalInvocationIndex; c < push.n_channels; c += kThreads)
        most = max(most, abs(load_pair(row, query, c)));
    most = join_most(most);
    const uvec2 exponents = clamp(floatBitsToUint(most) >> 23, uvec2(1u), uvec2(253u));
    return uintBitsToFloat((254u - exponents) << 23);
}

// The check reads bits: compilers may take a NaN for a number.
bool all_finite(Address row, Address query) {
    uint wild = 0u;
    for (uint c = gl_LocalInvocationIndex; c < push.n_channels; c += kThreads) {
        const vec2 pair = load_pair(row, query, c);
        if (!float_is_finite(floatBitsToUint(pair.x)) || !float_is_finite(floatBitsToUint(pair.y)))
            wild = 1u;
    }
    return join_most(vec2(float(wild), 0.0)).x == 0.0;
}

bool is_in_range(float squares) { return squares >= kLeastSquares && squares <= kMostSquares; }

float find_cosine(vec3 sums) {
    return clamp(sums.x / (sqrt(sums.y) * sqrt(sums.z)), -1.0, 1.0);
}

void main() {
    const Address query = push.query.data;
    for (uint chunk = gl_WorkGroupID.x; chunk < push.n_chunks; chunk += gl_NumWorkGroups.x) {
        const Address row = tensor_row(push.embeddings, chunk, 0u);
        vec3 sums = sum_rows(row, query, vec2(1.0));
        uint score = floatBitsToUint(find_cosine(sums));
        if (!is_in_range(sums.y) || !is_in_range(sums.z)) {
            const bool are_finite = all_finite(row, query);
            sums = sum_rows(row, query, find_factors(row, query));
            const bool have_direction = are_finite && sums.y > 0.0 && sums.z > 0.0;
            score = have_direction ? floatBitsToUint(find_cosine(sums)) : kInfinity | 0x400000u;
        }
        if (gl_LocalInvocationIndex == 0u)
            Words(tensor_row(push.scores, chunk, 0u)).at[0] = score;
    }
}
