// Sums of |Q| that rank the key channels of pages. They are integers and an invocation has its
// channels to itself, so they are the same on every device.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/rounding.glsl"
#include "shaders/tensor.glsl"

layout(local_size_x = LK_QUERY_STATS_THREADS) in;
layout(push_constant) uniform PushBlock { QueryStatsPush push; };

// |q| in units of 2^-24 once it is FP16, low word first.
uvec2 magnitude(float q) {
    bool saturated;
    const uint bits = float_to_half(floatBitsToUint(q), saturated) & 0x7FFFu;
    const uint exponent = bits >> 10;
    const uint mantissa = bits & 0x3FFu;
    const uint shift = max(exponent, 1u) - 1u;
    const uint parameter = exponent == 0u ? mantissa : mantissa | 0x400u;
    return uvec2(parameter << shift, parameter >> 1u >> 31u - shift);
}

void main() {
    const uint head = gl_WorkGroupID.y;
    const uint kv_head = push.first_head + head;
    const uint first = gl_WorkGroupID.x * push.tokens_per_sum;
    const uint end = min(first + push.tokens_per_sum, push.n_tokens);
    const Address sums = address_add(address_at(push.sums, gl_WorkGroupID.x, push.stride_bytes),
                                     8u * head * push.head_dim);
    for (uint c = gl_LocalInvocationIndex; c < push.head_dim; c += LK_QUERY_STATS_THREADS) {
        precise float scale = 1.0;
        if (!is_null(push.key_scales))
            scale = ConstFloats(push.key_scales).at[kv_head * push.head_dim + c];
        uvec2 sum = uvec2(0u);
        for (uint token = first; token < end; ++token)
            for (uint h = 0u; h < push.group_size; ++h) {
                const Address row = tensor_row(push.q, push.first_token + token,
                                               kv_head * push.group_size + h);
                precise float q = load_element(row, push.q.dtype, c) * scale;
                sum = sum_add(sum, magnitude(q));
            }
        Pairs(sums).at[c] = sum;
    }
}
