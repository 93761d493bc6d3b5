// Cooperative matrices of a tensor core: tiles of 16 x 16 in FP16, times 8 columns, summed in FP32.
// They are made of a lane's registers in the order for which decode/matrix_probe.comp checks the
// device. A tile is four words as a page has them; columns are two, the lane's pair of columns of
// k g and of k g + 8; lane 4 g + t has columns 2t and 2t + 1, and of sums rows g and g + 8 of them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_GLSL
#define LK_SHADERS_DECODE_MATRIX_GLSL

#pragma use_vulkan_memory_model
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#define Matrix fcoopmatNV<16, gl_ScopeSubgroup, 16, 16>
#define ColumnMatrix fcoopmatNV<16, gl_ScopeSubgroup, 16, 8>
#define SumMatrix fcoopmatNV<32, gl_ScopeSubgroup, 16, 8>

SumMatrix zero_sums() { return SumMatrix(0.0); }

Matrix matrix_of(uvec4 registers) {
    const f16vec2 r0 = unpackFloat2x16(registers.x);
    const f16vec2 r1 = unpackFloat2x16(registers.y);
    const f16vec2 r2 = unpackFloat2x16(registers.z);
    const f16vec2 r3 = unpackFloat2x16(registers.w);
    Matrix a;
    a[0] = r0.x;
    a[1] = r0.y;
    a[2] = r2.x;
    a[3] = r2.y;
    a[4] = r1.x;
    a[5] = r1.y;
    a[6] = r3.x;
    a[7] = r3.y;
    return a;
}

ColumnMatrix column_matrix(uvec2 pairs) {
    const f16vec2 low = unpackFloat2x16(pairs.x);
    const f16vec2 high = unpackFloat2x16(pairs.y);
    ColumnMatrix b;
    b[0] = low.x;
    b[1] = low.y;
    b[2] = high.x;
    b[3] = high.y;
    return b;
}

SumMatrix multiply_add(Matrix a, ColumnMatrix b, SumMatrix c) { return coopMatMulAddNV(a, b, c); }

#endif
