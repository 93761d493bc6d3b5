// The quantizer of docs/FORMAT.md, sections 8 and 9, bit for bit: FP32 results are rounded as
// rounding.glsl says.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_QUANTIZE_GLSL
#define LK_SHADERS_QUANTIZE_GLSL

#include "numbers.glsl"
#include "rounding.glsl"

// Both FP16 numbers of a word, as numbers without sign in the order of their values; -0 stands
// right below +0.
uint ordered_pair(uint pair) {
    const uint negative = pair >> 15 & 0x10001u;
    return pair ^ (negative * 0x7FFFu | 0x80008000u);
}
// One of them back, with -0 as +0.
uint half_of_order(uint order) {
    const uint h = order ^ ((order & 0x8000u) != 0u ? 0x8000u : 0xFFFFu);
    return h == 0x8000u ? 0u : h;
}

// A range and a minimum as they are stored, in the lower and the upper half of a word.
float number_to_float(uint bits, bool is_f8) {
    return is_f8 ? f8_to_float(bits) : half_to_float(bits);
}
float range_of(uint parameters, bool is_f8) { return number_to_float(parameters & 0xFFFFu, is_f8); }
float minimum_of(uint parameters, bool is_f8) { return number_to_float(parameters >> 16, is_f8); }

// Of a group whose lowest and highest values these are: FP16 bits, no -0.
uint make_parameters(uint low, uint high, bool is_f8) {
    uint minimum_bits = low;
    float minimum = half_to_float(low);
    if (is_f8) {
        minimum_bits = float_to_f8(minimum, minimum < 0.0);
        minimum = f8_to_float(minimum_bits);
    }
    // An FP8 minimum that saturates can stand above the highest value.
    precise const float spread = half_to_float(high) - minimum;
    const float range = spread > 0.0 ? spread : 0.0;
    bool saturated;
    const uint range_bits = is_f8 ? float_to_f8(range, true)
                                  : float_to_half(floatBitsToUint(range), saturated);
    return range_bits | minimum_bits << 16;
}

// RN32(1 / (2^bits - 1)); half of it is rounded alike.
float step_factor(uint bits) {
    return uintBitsToFloat(bits == 1u   ? 0x3F800000u
                           : bits == 2u ? 0x3EAAAAABu
                           : bits == 3u ? 0x3E124925u
                           : bits == 4u ? 0x3D888889u
                                        : 0x3B808081u);
}

// What codes are made with.
struct Quantizer {
    float minimum;  // above all values when the range is 0, so that every code is 0
    float range;
};
Quantizer make_quantizer(uint parameters, bool is_f8) {
    const float range = range_of(parameters, is_f8);
    return Quantizer(range > 0.0 ? minimum_of(parameters, is_f8) : 1e6, range);
}

// The number of thresholds that the value reaches, by halving: they do not descend.
uint quantize(float value, Quantizer q, uint bits) {
    const float half_step = 0.5 * step_factor(bits);
    precise const float distance = value - q.minimum;
    uint code = 0u;
    for (uint count = 1u << bits - 1u; count > 0u; count >>= 1) {
        precise const float threshold = float(2u * (code + count) - 1u) * q.range * half_step;
        code += distance >= threshold ? count : 0u;
    }
    return code;
}

float dequantize(uint code, float range, float minimum, uint bits) {
    precise const float step = range * step_factor(bits);
    precise const float offset = float(code) * step;
    precise const float value = minimum + offset;
    return value;
}

#endif
