// shaders/decode/matrix.glsl without cooperative matrices: the same products through shared memory,
// so that a device without them runs the kernel that needs them. A product is a barrier of the
// workgroup.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_GLSL
#define LK_SHADERS_DECODE_MATRIX_GLSL

#extension GL_EXT_control_flow_attributes : require

#define Matrix uvec4
#define ColumnMatrix uvec2
#define SumMatrix vec4

SumMatrix zero_sums() { return SumMatrix(0.0); }
Matrix matrix_of(uvec4 registers) { return registers; }
ColumnMatrix column_matrix(uvec2 pairs) { return pairs; }

shared uvec4 shared_registers[kThreads];     // of a lane: its registers
shared uvec2 shared_columns_of[kThreads];

SumMatrix multiply_add(Matrix a, ColumnMatrix b, SumMatrix c) {
    const uint first = team * LK_LANES;
    barrier();
    shared_registers[thread()] = a;
    shared_columns_of[thread()] = b;
    barrier();
    [[dont_unroll]] for (uint k = 0u; k < 16u; k += 2u) {
        const uint a_lane = first + row() * 4u + k % 8u / 2u;
        const uint word = k / 8u;
        const vec2 low = unpackHalf2x16(shared_registers[a_lane][2u * word]);
        const vec2 high = unpackHalf2x16(shared_registers[a_lane][2u * word + 1u]);
#ifdef LK_MATRIX_USES
        const uint b_lane = first + 8u * quad_lane() + k % 8u / 2u;
        const vec2 left = unpackHalf2x16(shared_columns_of[b_lane][word]);
        const vec2 right = unpackHalf2x16(shared_columns_of[b_lane + 4u][word]);
        const vec2 even = vec2(left.x, right.x);
        const vec2 odd = vec2(left.y, right.y);
#else
        const uint b_lane = first + k % 8u * 4u + quad_lane();
        const vec2 even = unpackHalf2x16(shared_columns_of[b_lane][word]);
        const vec2 odd = unpackHalf2x16(shared_columns_of[b_lane + 4u][word]);
#endif
        c += vec4(low.x * even + low.y * odd, high.x * even + high.y * odd);
    }
    return c;
}

#endif
