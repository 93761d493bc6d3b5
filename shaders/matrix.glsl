// Cooperative matrices of a tensor core: tiles of 16 x 16 in FP16, times 8 columns, summed in FP32.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_MATRIX_GLSL
#define LK_SHADERS_MATRIX_GLSL

#pragma use_vulkan_memory_model
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#define Matrix fcoopmatNV<16, gl_ScopeSubgroup, 16, 16>
#define ColumnMatrix fcoopmatNV<16, gl_ScopeSubgroup, 16, 8>
#define SumMatrix fcoopmatNV<32, gl_ScopeSubgroup, 16, 8>

SumMatrix zero_sums() { return SumMatrix(0.0); }

#endif
