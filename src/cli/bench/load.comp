// Reads a range once, 16 bytes at a time, and nothing else: what the command compares with, and
// what empties L2.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(local_size_x = 256) in;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Range {
    uvec4 at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Sink {
    uint word;
};
layout(push_constant) uniform Push {
    uvec2 range;
    uvec2 sink;
    uint n_vectors;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    uint i = gl_GlobalInvocationID.x;
    uvec4 bits = uvec4(0);
    for (; i + 3 * stride < n_vectors; i += 4 * stride)
        bits ^= Range(range).at[i] ^ Range(range).at[i + stride] ^ Range(range).at[i + 2 * stride] ^
                Range(range).at[i + 3 * stride];
    for (; i < n_vectors; i += stride)
        bits ^= Range(range).at[i];
    // What is read must matter for the loads to stay.
    if ((bits.x ^ bits.y ^ bits.z ^ bits.w) == 0x9E3779B9)
        Sink(sink).word = bits.x;
}
