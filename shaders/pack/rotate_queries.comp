// Queries of layers whose keys are rotated, rotated like them, for shaders that load them by channels.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/pack/limits.h"
#include "shaders/push.h"

layout(local_size_x = LK_ROTATE_THREADS) in;
layout(push_constant) uniform PushBlock { RotateQueriesPush push; };

#include "shaders/rotate.glsl"
#include "shaders/tensor.glsl"

shared uint shared_beyond[LK_ROTATE_THREADS];  // of rows of the workgroup: 1: becomes NaN

struct Row {
    bool exists;
    uint in_workgroup;
    uint index;
    uint channel;  // of the invocation's first
};
Row find_row() {
    const uint n_eights = push.head_dim / 8u;
    const uint n_at_once = LK_ROTATE_THREADS / n_eights;
    const uint in_workgroup = gl_LocalInvocationIndex / n_eights;
    const uint index = push.first_row + gl_WorkGroupID.x * n_at_once + in_workgroup;
    return Row(in_workgroup < n_at_once && index < push.n_rows, in_workgroup, index,
               gl_LocalInvocationIndex % n_eights * 8u);
}

bool is_beyond(float q) {
    return push.query_limit > 0.0 &&
           (floatBitsToUint(q) & 0x7FFFFFFFu) > floatBitsToUint(push.query_limit);
}

float scale_query(float q, uint kv_head, uint channel) {
    if (push.query_limit == 0.0)
        q = cut_for_rotation(q);
    if (is_null(push.key_scales))
        return q;
    precise const float scaled = q * ConstFloats(push.key_scales).at[kv_head * push.head_dim + channel];
    return scaled;
}

// Notes in shared memory whether an element is beyond the limit.
FloatEight load_queries(Row row) {
    const uint head = row.index % push.n_heads;
    const Address from = tensor_row(push.q, row.index / push.n_heads, head);
    const RawEight raw = load_eight(from, push.q.dtype, row.channel);
    FloatEight queries;
    for (uint i = 0u; i < 8u; ++i) {
        const float q = uintBitsToFloat(float_bits_of(raw, push.q.dtype, i));
        if (is_beyond(q))
            shared_beyond[row.in_workgroup] = 1u;
        const float scaled = scale_query(q, head / push.group_size, row.channel + i);
        if (i < 4u)
            queries.low[i] = scaled;
        else
            queries.high[i - 4u] = scaled;
    }
    return queries;
}

void main() {
    const Row row = find_row();
    shared_beyond[gl_LocalInvocationIndex] = 0u;
    barrier();
    FloatEight queries = FloatEight(vec4(0.0), vec4(0.0));
    if (row.exists)
        queries = load_queries(row);
    barrier();
    queries = rotate_eight(queries, push.key_rotation);
    if (!row.exists)
        return;
    const bool is_nan = shared_beyond[row.in_workgroup] != 0u;
    const Address to = address_at(push.rotated, row.index, 4u * push.head_dim);
    Quads(to).at[row.channel / 4u] = is_nan ? uvec4(0x7FC00000u) : floatBitsToUint(queries.low);
    Quads(to).at[row.channel / 4u + 1u] = is_nan ? uvec4(0x7FC00000u) : floatBitsToUint(queries.high);
}
