// FP32 results are rounded to the nearest number, ties to even: what is packed has the same bytes
// on every device.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_ROUNDING_GLSL
#define LK_SHADERS_ROUNDING_GLSL

#extension GL_EXT_spirv_intrinsics : require

// RoundingModeRTE, the capability and the mode, of 32 bits.
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4467], 4462, 32);

#endif
