// Shrinking: strips of 2b bits become strips of b bits by merging neighbouring words of a lane,
// docs/FORMAT.md, section 11. A workgroup takes a page of a run and reads it whole before it
// writes, since a page may shrink into its own beginning.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require

#include "format/format_const.h"
#include "shaders/tables.glsl"

const uint kThreads = 256u;  // as attention needs
layout(local_size_x = 256) in;
layout(push_constant) uniform PushBlock { JobPush push; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads {
    uvec4 at[];
};

// Vectors of 16 bytes of the largest page after the step: 576 channels of 128 tokens at 4 bits.
const uint kMaxVectors = LK_MAX_HEAD_DIM * LK_MAX_PAGE_TOKENS * 4u / 8u / 16u / kThreads;

uvec4 merge_vectors(uint bits, uvec4 low, uvec4 high) {
    const uvec4 even = uvec4(low.xz, high.xz);
    const uvec4 odd = uvec4(low.yw, high.yw);
    return bits == 4u ? LK_MERGE_8_TO_4(even, odd) : LK_MERGE_4_TO_2(even, odd);
}

// Vector i of the narrow strips comes from two of the wide ones: a lane's vectors 2v and 2v + 1,
// where lanes have whole vectors; else two neighbours.
uvec4 narrow_vector(ShrinkJob job, uint i) {
    const bool is_whole = job.page_tokens * job.bits / 64u >= LK_VECTOR_WORDS;
    const uint first = is_whole ? i / LK_LANES * 2u * LK_LANES + i % LK_LANES : 2u * i;
    const uint second = first + (is_whole ? LK_LANES : 1u);
    return merge_vectors(job.bits, Quads(job.source).at[first], Quads(job.source).at[second]);
}

void main() {
    ShrinkJob job = load_shrink_job(push.jobs, gl_WorkGroupID.y);
    if (gl_WorkGroupID.x >= job.n_pages)
        return;
    job.source = address_at(job.source, gl_WorkGroupID.x, job.stride_bytes);
    job.target = address_at(job.target, gl_WorkGroupID.x, job.stride_bytes);
    // A strip of 16 channels: two bytes a bit and token.
    const uint n_vectors = job.n_strips * job.page_tokens * job.bits * 2u / 16u;
    uvec4 narrow[kMaxVectors];
    [[unroll]] for (uint n = 0u; n < kMaxVectors; ++n) {
        const uint i = n * kThreads + gl_LocalInvocationIndex;
        if (i < n_vectors)
            narrow[n] = narrow_vector(job, i);
    }
    memoryBarrierBuffer();
    barrier();
    [[unroll]] for (uint n = 0u; n < kMaxVectors; ++n) {
        const uint i = n * kThreads + gl_LocalInvocationIndex;
        if (i < n_vectors)
            Quads(job.target).at[i] = narrow[n];
    }
    for (uint i = gl_LocalInvocationIndex; i < job.tail_bytes / 16u; i += kThreads)
        Quads(job.target).at[n_vectors + i] = Quads(job.source).at[2u * n_vectors + i];
}
