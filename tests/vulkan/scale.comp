// Work of a host next to lowkey: to[i] = from[i] * factor.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(local_size_x = 64) in;

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer From {
    float at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer To {
    float at[];
};
layout(push_constant) uniform Push {
    uvec2 from;
    uvec2 to;
    uint n;
    float factor;
};

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < n)
        To(to).at[i] = From(from).at[i] * factor;
}
