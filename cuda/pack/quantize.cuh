// The quantizer of docs/FORMAT.md, sections 7.3 and 9, bit for bit.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_QUANTIZE_CUH
#define LK_CUDA_PACK_QUANTIZE_CUH

#include <cmath>

#include "cuda/dequantize.cuh"

namespace lk {
namespace cuda {

// a * b + c, rounded once.
LK_BOTH float fuse(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return std::fma(a, b, c);
#endif
}

// The nearest number of 0 .. 1; NaN becomes 0.
LK_BOTH float saturate(float f) {
#ifdef __CUDA_ARCH__
    return __saturatef(f);
#else
    return f >= 1 ? 1.0f : f > 0 ? f : 0.0f;
#endif
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

// A group's parameters as quantize() needs them.
struct Quantizer {
    float minimum;  // infinite when the range is 0, so that every code is 0
    float range;
    float inverse;  // near 1 / range
};

// Constants of codes of some bits, the highest being `top`.
struct Width {
    float step;  // code_step()
    float span;  // a share of the range, less `shift`, times `span` rounds to 0 .. top - 1
    float shift;
};

LK_BOTH constexpr Width make_width(uint32_t bits) {
    const float top = static_cast<float>((1u << bits) - 1);
    return {code_step(bits), top - 0.5625f, 0.25f / (top - 0.5625f)};
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
    const float threshold = code_threshold(midpoint, q.range, width.step);
    return float_to_bits(sum + (distance >= threshold ? 1.0f : 0.0f));
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
    const float half_ulp = 0.5f * (threshold - bits_to_float(float_to_bits(threshold) - 1));
    const float sum = minimum + threshold;
    const float part = sum - minimum;
    const float error = (minimum - (sum - part)) + (threshold - part);
    const float limit = sum + (error - half_ulp);
    const uint32_t bits = __half_as_ushort(__float2half_rn(limit));
    if (subtract_exact(half_to_float(bits), minimum) >= threshold)
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

// A group has the thresholds of the widths that the page format has.
LK_BOTH Group make_group(const Parameters &p, const FormatInfo &c) {
    constexpr uint32_t kInfinities = 0x7C007C00;
    Group group = {p.minimum, p.range, {kInfinities, kInfinities}};
    if (p.range == 0) {
        group.minimum = INFINITY;
        return group;
    }
    if (c.strips[kPlane1])
        group.thresholds[0] = lowest_reaching(0.5f * p.range, p.minimum);
    if (c.strips[kPlane2]) {
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
