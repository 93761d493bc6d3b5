// The quantizer of docs/FORMAT.md, sections 7.3 and 9, bit for bit: FP32 results are rounded as
// rounding.glsl says.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_QUANTIZE_GLSL
#define LK_SHADERS_PACK_QUANTIZE_GLSL

#include "shaders/floats.glsl"
#include "shaders/rounding.glsl"

// Both FP16 numbers of a word, as numbers without sign in the order of their values; -0 stands
// right below +0.
uint ordered_pair(uint pair) {
    const uint negative = pair >> 15 & 0x10001u;
    return pair ^ (negative * 0x7FFFu | 0x80008000u);
}
uvec4 ordered_pairs(uvec4 pairs) {
    return uvec4(ordered_pair(pairs.x), ordered_pair(pairs.y), ordered_pair(pairs.z),
                 ordered_pair(pairs.w));
}
// These pairs back as FP16.
uvec4 pairs_of_order(uvec4 ordered) {
    const uvec4 negative = ~ordered >> 15 & 0x10001u;
    return ordered ^ (negative * 0x7FFFu | 0x80008000u);
}
// One of these numbers back as FP16, with -0 as +0.
uint half_of_order(uint order) {
    const uint h = order ^ ((order & 0x8000u) != 0u ? 0x8000u : 0xFFFFu);
    return h == 0x8000u ? 0u : h;
}

// A minimum as stored: the nearest FP16 number, or the next FP8 number below; zero has no sign.
uint minimum_bits(float minimum, bool is_f8) {
    bool saturated;
    const uint bits = is_f8 ? float_to_f8(minimum, minimum < 0.0)
                            : float_to_half(floatBitsToUint(minimum), saturated);
    return bits == 0x8000u ? 0u : bits;
}
// The nearest FP16 number, or the next FP8 number above.
uint range_bits(float range, bool is_f8) {
    bool saturated;
    return is_f8 ? float_to_f8(range, true) : float_to_half(floatBitsToUint(range), saturated);
}

// A group's parameters: its range and its minimum as they are stored, in the lower and the upper
// half of a word. low and high: FP16 bits of its lowest and highest values, no -0; margin: the share
// of the range that is cut off at each end.
uint make_parameters(uint low, uint high, float margin, bool is_f8) {
    precise const float whole = half_to_float(high) - half_to_float(low);
    precise const float cut = whole * margin;
    precise const float lowest = half_to_float(low) + cut;
    precise const float highest = half_to_float(high) - cut;
    const uint minimum = minimum_bits(lowest, is_f8);
    // An FP8 minimum that saturates can stand above the highest value.
    precise const float spread =
        highest - (is_f8 ? f8_to_float(minimum) : half_to_float(minimum));
    return range_bits(max(spread, 0.0), is_f8) | minimum << 16;
}
// Parameters of 1-bit codes, from a group's mean and mean absolute deviation.
uint make_deviation_parameters(float midpoint, float deviation, bool is_f8) {
    precise const float minimum = midpoint - deviation;
    return range_bits(2.0 * deviation, is_f8) | minimum_bits(minimum, is_f8) << 16;
}

// The parameters of four groups as codes are made with them.
struct Quantizer {
    vec4 minimum;  // above all values when the range is 0, so that every code is 0
    vec4 range;
    vec4 inverse;  // near 1 / range
};

// 1 / f up to 1e-5, of FP16 numbers above 0.
vec4 near_inverse(vec4 f) {
    vec4 inverse = uintBitsToFloat(0x7EF311C7u - floatBitsToUint(f));
    inverse *= 2.0 - f * inverse;
    return inverse * (2.0 - f * inverse);
}

Quantizer make_quantizer(uvec4 parameters, bool is_f8) {
    const uvec4 lower = parameters & 0xFFFFu;
    const uvec4 upper = parameters >> 16;
    const vec4 range = is_f8 ? f8s_to_floats(lower) : f16_to_floats(lower);
    const vec4 minimum = is_f8 ? f8s_to_floats(upper) : f16_to_floats(upper);
    const bvec4 is_flat = equal(range, vec4(0.0));
    return Quantizer(mix(minimum, vec4(1e6), is_flat), range,
                     mix(near_inverse(range), vec4(0.0), is_flat));
}

// Constants of codes of some bits, the highest being `top`: top - 9/16.
float guess_span(uint bits) { return float((1u << bits) - 1u) - 0.5625; }

// The codes of four values, each of its group.
//
// In steps, y = (value - minimum) / range * top, the code is y + 1/2 rounded down, up to rounding
// errors. The guess is y - 1/2, at most 5/16 and a rounding error away, rounded to nearest: the
// code or one below it. One comparison with the threshold above the guess decides, by the rule.
uvec4 quantize(vec4 values, Quantizer q, uint bits) {
    const float integers = 8388608.0;  // 2^23 + a number has the number's integer in its low bits
    const float span = guess_span(bits);
    precise const vec4 distance = values - q.minimum;
    const vec4 guess = clamp(distance * q.inverse * span - 0.25, 0.0, span - 0.25);
    precise const vec4 sum = guess + integers;
    precise const vec4 midpoint = sum - (integers - 0.5);  // the rounded guess + 1/2
    // midpoint * range is exact, and twice half the step is rounded as the step is.
    precise const vec4 threshold = midpoint * q.range * code_step(bits);
    return (floatBitsToUint(sum) & 0xFFu) + uvec4(greaterThanEqual(distance, threshold));
}

// The lowest FP16 value, by its place in ordered_pair(), whose distance from a minimum, rounded,
// reaches a threshold above 0; -0 counts as +0.
//
// The distance rounds up to the threshold from halfway below it. That limit, minimum + threshold
// less half a unit, is found with its rounding error; the lowest value is the FP16 number next to
// it or the one above.
uint lowest_reaching(float threshold, float minimum) {
    const uint kMinusZero = 0x7FFFu;
    precise const float half_unit =
        0.5 * (threshold - uintBitsToFloat(floatBitsToUint(threshold) - 1u));
    precise const float sum = minimum + threshold;
    precise const float part = sum - minimum;
    precise const float error = (minimum - (sum - part)) + (threshold - part);
    precise const float limit = sum + (error - half_unit);
    bool saturated;
    const uint bits = float_to_half(floatBitsToUint(limit), saturated);
    precise const float distance = half_to_float(bits) - minimum;
    const uint order = ordered_pair(bits) & 0xFFFFu;
    const bool is_zero = (bits & 0x7FFFu) == 0u;
    if (distance >= threshold)
        return is_zero ? kMinusZero : order;
    return is_zero ? kMinusZero + 2u : order + 1u;
}

// Of a group's values, those from which on codes of 1 bit are 1, and codes of 2 bits 1, 2 and 3, in
// the order of the 16 bits of two words. By comparison with them codes follow quantize()'s rule.
uvec2 thresholds_of(uint parameters, bool is_f8, bool has_ones, bool has_twos) {
    const Quantizer q = make_quantizer(uvec4(parameters), is_f8);
    uvec2 found = uvec2(0xFFFFFFFFu);  // above all finite values
    if (q.range.x == 0.0)
        return found;
    if (has_ones) {
        precise const float half_range = 0.5 * q.range.x;
        found.x = lowest_reaching(half_range, q.minimum.x);
    }
    if (has_twos) {
        precise const vec4 steps = vec4(0.5, 1.5, 2.5, 0.0) * q.range * code_step(2u);
        found.x = found.x & 0xFFFFu | lowest_reaching(steps.x, q.minimum.x) << 16;
        found.y = lowest_reaching(steps.y, q.minimum.x) | lowest_reaching(steps.z, q.minimum.x) << 16;
    }
    return found;
}

// The highest bit of each 16 bits of the result: is the number of `ordered` that of `least` or above?
uvec4 reach(uvec4 ordered, uvec4 least) {
    const uint kHighest = 0x80008000u;
    const uvec4 lower = (ordered | kHighest) - (least & ~kHighest);
    return (ordered & ~least | ~(ordered ^ least) & lower) & kHighest;
}

#endif
