// Number formats by integer arithmetic: the same bits on every device, whatever it does with
// subnormal numbers and however it rounds. FP16 and FP8 numbers lie in the low bits of a uint.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_FLOATS_GLSL
#define LK_SHADERS_FLOATS_GLSL

const uint kHalfMax = 0x7BFFu;       // 65504
const uint kHalfInfinity = 0x7C00u;  // larger magnitudes are NaN
const uint kF8Max = 0x7Fu;           // 240

bool half_is_finite(uint h) { return (h & 0x7C00u) != 0x7C00u; }
bool float_is_finite(uint float_bits) { return (float_bits & 0x7F800000u) != 0x7F800000u; }
// Of two numbers in each word: the highest bit of those that are infinite or NaN.
uvec4 not_finite(uvec4 pairs) { return (pairs & 0x7C007C00u) + 0x04000400u & 0x80008000u; }

// Exact, of finite numbers.
vec4 f16_to_floats(uvec4 h) {
    const uvec4 shifted = (h & 0x7FFFu) << 13;
    const vec4 normal = uintBitsToFloat(shifted + (112u << 23));
    // A subnormal gets a leading one, which is taken away as the number 2^-14.
    const vec4 subnormal = uintBitsToFloat(shifted + (113u << 23)) - 1.0 / 16384.0;
    const vec4 f = mix(normal, subnormal, lessThan(shifted, uvec4(1u << 23)));
    return uintBitsToFloat(floatBitsToUint(f) | (h & 0x8000u) << 16);
}
float half_to_float(uint h) { return f16_to_floats(uvec4(h)).x; }

// half_to_float() of any number: infinity and NaN carry over.
float half_input_to_float(uint h) {
    const uint special = (h & 0x8000u) << 16 | 0x7F800000u | (h & 0x3FFu) << 13;
    return half_is_finite(h) ? half_to_float(h) : uintBitsToFloat(special);
}

// Nearest, ties to even; finite values beyond +-65504 saturate (what would round to 65520 or more).
// The input is finite.
uint float_to_half(uint float_bits, out bool saturated) {
    const uint sign = float_bits >> 16 & 0x8000u;
    const uint magnitude = float_bits & 0x7FFFFFFFu;
    saturated = magnitude >= 0x477FF000u;
    const bool is_normal = magnitude >= 0x38800000u;
    const uint parameter = is_normal ? magnitude - (112u << 23) : magnitude & 0x7FFFFFu | 0x800000u;
    const uint shift = is_normal ? 13u : min(126u - (magnitude >> 23), 31u);
    const uint is_odd = parameter >> shift & 1u;
    const uint rounded = parameter + (1u << shift - 1u) - 1u + is_odd >> shift;
    return sign | (saturated ? kHalfMax : rounded);
}

// The same of any number, for outputs: beyond 65504 as above, infinity and NaN stay.
uint float_to_half_output(float f) {
    const uint bits = floatBitsToUint(f);
    const uint special = kHalfInfinity | ((bits & 0x7FFFFFu) != 0u ? 0x200u : 0u);
    bool saturated;
    const uint h = float_to_half(bits, saturated);
    return float_is_finite(bits) ? h : bits >> 16 & 0x8000u | special;
}

uint float_to_bf16(float f) {
    const uint bits = floatBitsToUint(f);
    const uint special = bits >> 16 | ((bits & 0x7FFFFFu) != 0u ? 0x40u : 0u);
    return float_is_finite(bits) ? bits + 0x7FFFu + (bits >> 16 & 1u) >> 16 : special;
}
float bf16_to_float(uint b) { return uintBitsToFloat(b << 16); }

// e4m3fnuz, whose exponent bias is 8. Exact. A subnormal gets a leading one, which is taken away as
// the number 2^-7.
vec4 f8s_to_floats(uvec4 v) {
    const uvec4 shifted = (v & 0x7Fu) << 20;
    const vec4 normal = uintBitsToFloat(shifted + (119u << 23));
    const vec4 subnormal = uintBitsToFloat(shifted + (120u << 23)) - 1.0 / 128.0;
    const vec4 f = mix(normal, subnormal, lessThan(shifted, uvec4(1u << 23)));
    return uintBitsToFloat(floatBitsToUint(f) | (v & 0x80u) << 24);
}
float f8_to_float(uint v) { return f8s_to_floats(uvec4(v)).x; }

// Two FP8 numbers in the low bytes of a word's two 16 bits, and the four of a word, as the FP16 numbers
// that have their bits: smaller by kF8Scale.
const float kF8Scale = 128.0;
uint f8_pair_bits(uint word) { return (word & 0x800080u) << 8 | (word & 0x7F007Fu) << 7; }
vec2 f8_pair(uint word) { return unpackHalf2x16(f8_pair_bits(word)); }
uvec2 f8_quad_bits(uint word) {
    return uvec2(f8_pair_bits(word & 0xFFu | (word & 0xFF00u) << 8),
                 f8_pair_bits(word >> 16 & 0xFFu | word >> 8 & 0xFF0000u));
}
vec4 f8_quad(uint word) {
    const uvec2 pairs = f8_quad_bits(word);
    return vec4(unpackHalf2x16(pairs.x), unpackHalf2x16(pairs.y));
}

// The e4m3fnuz number next to f, or f itself: away from zero or towards it. Saturates at +-240.
// |f| is 0 or at least 2^-24.
uint float_to_f8(float f, bool away) {
    const float magnitude = abs(f);
    uint code = magnitude < 1.0 / 128.0 ? uint(magnitude * 1024.0)
                                   : (floatBitsToUint(magnitude) >> 20) - (119u << 3);
    code = magnitude >= 240.0 ? kF8Max : code;
    if (away && code < kF8Max && f8_to_float(code) != magnitude)
        ++code;
    return f < 0.0 && code != 0u ? code | 0x80u : code;
}

// The step between codes of a range of 1: RN32(1 / (2^bits - 1)).
float code_step(uint bits) {
    return uintBitsToFloat(bits == 1u   ? 0x3F800000u
                           : bits == 2u ? 0x3EAAAAABu
                           : bits == 3u ? 0x3E124925u
                           : bits == 4u ? 0x3D888889u
                                        : 0x3B808081u);
}

// RN32(1 / sqrt(n)) of a power of two.
float rotation_factor(uint n) {
    const uint log2_n = uint(findMSB(n));
    const uint bits = (log2_n & 1u) != 0u ? 0x3F3504F3u : 0x3F800000u;
    return uintBitsToFloat(bits - (log2_n / 2u << 23));
}

#endif
