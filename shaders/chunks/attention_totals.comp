// Attention scores of chunks: the partial results of a column over the whole context. Eight columns a
// workgroup, each with 16 invocations that take chunks in turn.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/chunks/work_tile.glsl"

const uint kColumns = LK_ATTENTION_TOTAL_COLUMNS;
const uint kShares = 128u / kColumns;
layout(local_size_x = 128) in;

shared vec2 shared_partials[kShares][kColumns];

void main() {
    const uint i = gl_LocalInvocationIndex % kColumns;
    const uint share = gl_LocalInvocationIndex / kColumns;
    const uint column = gl_WorkGroupID.x * kColumns + i;
    vec2 total = vec2(kHidden, 0.0);
    for (uint chunk = share; chunk < push.n_chunks; chunk += kShares)
        total = join_partials(total, Partials(partials_of(gl_WorkGroupID.y, chunk)).at[column]);
    shared_partials[share][i] = total;
    barrier();
    if (share != 0u)
        return;
    for (uint other = 1u; other < kShares; ++other)
        total = join_partials(total, shared_partials[other][i]);
    Partials(partials_of(gl_WorkGroupID.y, push.n_chunks)).at[column] = total;
}
