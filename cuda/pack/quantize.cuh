// The quantizer of docs/FORMAT.md, sections 7.3 and 9, bit for bit.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_QUANTIZE_CUH
#define LK_CUDA_PACK_QUANTIZE_CUH

#include <cmath>
#include <cstring>

#include "cuda/dequantize.cuh"

namespace lk {
namespace cuda {

LK_BOTH uint32_t float_bits(float f) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(f);
#else
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return bits;
#endif
}

LK_BOTH float subtract_exact(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fsub_rn(a, b);
#else
    return a - b;
#endif
}

// a * b + c, rounded once.
LK_BOTH float fuse(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return std::fma(a, b, c);
#endif
}

// Into 0 .. 1; NaN becomes 0.
LK_BOTH float saturate(float f) {
#ifdef __CUDA_ARCH__
    return __saturatef(f);
#else
    return f >= 1 ? 1.0f : f > 0 ? f : 0.0f;
#endif
}

// Nearest, ties to even. What would round to 65520 or more becomes +-65504.
LK_BOTH uint32_t round_half(float f, bool *saturated) {
    const uint32_t bits = __half_as_ushort(__float2half_rn(f));
    *saturated = (bits & 0x7FFFu) == 0x7C00u;
    return *saturated ? bits - 1 : bits;
}

// The e4m3fnuz number next to f, or f itself: away from zero or towards it. Saturates at +-240.
LK_BOTH uint32_t round_f8(float f, bool away) {
    constexpr uint32_t kMax = 0x7F;
    const float magnitude = f < 0 ? -f : f;
    uint32_t code = magnitude < 0x1p-7f ? static_cast<uint32_t>(magnitude * 0x1p10f)
                                        : (float_bits(magnitude) >> 20) - (119u << 3);
    code = magnitude >= 240.0f ? kMax : code;
    if (away && code < kMax && f8_value(code) != magnitude)
        ++code;
    return f < 0 && code ? code | 0x80u : code;
}

// A group's range and minimum as they are stored, and what they stand for.
struct Parameters {
    uint32_t range_bits;
    uint32_t minimum_bits;
    float range;
    float minimum;
};

// The nearest FP16 number, or the next FP8 number below; zero has no sign.
LK_BOTH void set_minimum(float minimum, bool is_f8, Parameters *p) {
    constexpr uint32_t kMinusZero = 0x8000;
    bool saturated;
    p->minimum_bits = is_f8 ? round_f8(minimum, minimum < 0) : round_half(minimum, &saturated);
    p->minimum_bits = p->minimum_bits == kMinusZero ? 0 : p->minimum_bits;
    p->minimum = is_f8 ? f8_value(p->minimum_bits) : half_value(p->minimum_bits);
}

// The nearest FP16 number, or the next FP8 number above.
LK_BOTH void set_range(float range, bool is_f8, Parameters *p) {
    bool saturated;
    p->range_bits = is_f8 ? round_f8(range, true) : round_half(range, &saturated);
    p->range = is_f8 ? f8_value(p->range_bits) : half_value(p->range_bits);
}

// low and high: FP16 bits of the group's lowest and highest value; margin: the share of the range
// that is cut off at each end.
LK_BOTH Parameters make_parameters(uint32_t low, uint32_t high, float margin, bool is_f8) {
    const float cut = multiply_exact(subtract_exact(half_value(high), half_value(low)), margin);
    Parameters p;
    set_minimum(subtract_exact(half_value(low), -cut), is_f8, &p);
    // An FP8 minimum that saturates can stand above the highest value.
    const float spread = subtract_exact(subtract_exact(half_value(high), cut), p.minimum);
    set_range(spread > 0 ? spread : 0, is_f8, &p);
    return p;
}

LK_BOTH float near_inverse(float f) {
#ifdef __CUDA_ARCH__
    float r;
    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(f));
    return r;
#else
    return 1.0f / f;
#endif
}

LK_BOTH float as_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
#endif
}

// What codes are made with.
struct Quantizer {
    float minimum;  // infinite when the range is 0, so that every code is 0
    float range;
    float inverse;  // near 1 / range
};

// Constants of codes of some bits, the highest being `top`.
struct Width {
    float step;  // RN32(1 / top), twice the factor of docs/FORMAT.md, section 9.4
    float span;  // a share of the range, less `shift`, times `span` rounds to 0 .. top - 1
    float shift;
};

LK_BOTH constexpr Width make_width(uint32_t bits) {
    const float top = static_cast<float>((1u << bits) - 1);
    return {1.0f / top, top - 0.5625f, 0.25f / (top - 0.5625f)};
}

// The code of a value in the lower half of the word; the upper half is of no meaning.
//
// In steps, y = (value - minimum) / range * top, the code is y + 1/2 rounded down, up to rounding
// errors. The guess is y - 1/2, at most 5/16 and a rounding error away, rounded to nearest: the
// code or one below it. One comparison with the threshold above the guess decides, by the rule.
LK_BOTH uint32_t quantize(float value, const Quantizer &q, const Width &width) {
    constexpr float kIntegers = 0x1p23f;  // added to, a number becomes an integer in the low bits
    const float distance = subtract_exact(value, q.minimum);
    const float share = saturate(fuse(distance, q.inverse, -width.shift));
    const float sum = fuse(share, width.span, kIntegers);
    const float midpoint = sum - (kIntegers - 0.5f);  // the guess + 1/2
    // midpoint * range is exact, and twice the step factor rounds as the factor does.
    const float threshold = multiply_exact(multiply_exact(midpoint, q.range), width.step);
    return float_bits(sum + (distance >= threshold ? 1.0f : 0.0f));
}

// The FP16 number with an order: numbers ascend with their values, and there is one zero.
LK_BOTH int32_t half_order(uint32_t bits) {
    const auto magnitude = static_cast<int32_t>(bits & 0x7FFFu);
    return bits & 0x8000u ? -magnitude : magnitude;
}
LK_BOTH uint32_t half_of_order(int32_t order) {
    return static_cast<uint32_t>(order < 0 ? 0x8000 - order : order);
}

// The lowest FP16 value whose RN32(value - minimum) reaches a threshold, infinity if none does:
// with it a comparison of FP16 numbers is one by the rule. The threshold is above 0.
//
// The distance rounds up to the threshold from halfway below it. That limit, minimum + threshold
// less half a unit, is found with its rounding error; the lowest value is the FP16 number next to
// it or the one above.
LK_BOTH uint32_t lowest_reaching(float threshold, float minimum) {
    const float half_ulp = 0.5f * (threshold - as_float(float_bits(threshold) - 1));
    const float sum = minimum + threshold;
    const float part = sum - minimum;
    const float error = (minimum - (sum - part)) + (threshold - part);
    const float limit = sum + (error - half_ulp);
    const uint32_t bits = __half_as_ushort(__float2half_rn(limit));
    if (subtract_exact(half_value(bits), minimum) >= threshold)
        return bits;
    return half_of_order(half_order(bits) + 1);
}

// A group in shared memory: of 1-bit codes, the threshold 1; of 2-bit codes, 1 to 3.
struct alignas(16) Group {
    float minimum;
    float range;
    uint32_t thresholds[2];  // FP16 numbers: 1 bit; 2 bits, 1; 2; 3
};

LK_BOTH Quantizer make_quantizer(const Group &group) {
    return {group.minimum, group.range, near_inverse(group.range)};
}

// With the thresholds of the widths that the page format has.
LK_BOTH Group make_group(const Parameters &p, const FormatInfo &c) {
    constexpr uint32_t kInfinities = 0x7C007C00;
    Group group = {p.minimum, p.range, {kInfinities, kInfinities}};
    if (p.range == 0) {
        group.minimum = INFINITY;
        return group;
    }
    if (c.strips[5])
        group.thresholds[0] = lowest_reaching(0.5f * p.range, p.minimum);
    if (c.strips[4]) {
        const float half_step = 0.5f * make_width(2).step;
        const float one = multiply_exact(p.range, half_step);
        const float two = multiply_exact(3 * p.range, half_step);
        const float three = multiply_exact(5 * p.range, half_step);
        group.thresholds[0] = (group.thresholds[0] & 0xFFFFu) | lowest_reaching(one, p.minimum)
                                                                    << 16;
        group.thresholds[1] = lowest_reaching(two, p.minimum) | lowest_reaching(three, p.minimum)
                                                                    << 16;
    }
    return group;
}

}  // namespace cuda
}  // namespace lk

#endif
