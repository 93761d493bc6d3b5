// Do the components of cooperative matrices lie as NVIDIA's do? Lane 4g + t has of A rows g and
// g + 8, of each k 2t, 2t + 1, 2t + 8, 2t + 9; of B k g and g + 8, of each columns 2t, 2t + 1, with
// LK_MATRIX_USES column g, of it k as of A; of C rows g and g + 8, columns 2t, 2t + 1. A workgroup of
// one subgroup; push.h has the rest.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "format/format_const.h"
#include "shaders/decode/matrix.glsl"
#include "shaders/tensor.glsl"

layout(local_size_x = LK_LANES) in;
layout(push_constant, std430) uniform Push { MatrixProbePush push; };

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer MatrixValues {
    float16_t at[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer SumValues {
    float at[];
};

void main() {
    Matrix a;
    ColumnMatrix b;
    SumMatrix c;
    coopMatLoadNV(a, MatrixValues(push.values).at, 0u, 16u, false);
    coopMatLoadNV(b, MatrixValues(push.values).at, 0u, 8u, false);
    coopMatLoadNV(c, SumValues(push.sums).at, 0u, 8u, false);
    const uint lane = gl_LocalInvocationIndex;
    const uint g = lane >> 2;
    const uint t = lane & 3u;
    bool fits = a.length() == 8 && b.length() == 4 && c.length() == 4;
    for (uint i = 0u; i < 8u && fits; ++i)
        fits = uint(a[i]) == (g + 8u * (i / 4u)) * 16u + 2u * t + 8u * (i / 2u % 2u) + i % 2u;
    for (uint i = 0u; i < 4u && fits; ++i) {
        const uint expected = (g + 8u * (i / 2u)) * 8u + 2u * t + i % 2u;
#ifdef LK_MATRIX_USES
        const uint expected_column = (2u * t + i % 2u + 8u * (i / 2u)) * 8u + g;
#else
        const uint expected_column = expected;
#endif
        fits = uint(b[i]) == expected_column && uint(c[i]) == expected;
    }
    Words(push.fits).at[lane] = fits ? 1u : 0u;
}
