// The quantizer, bit for bit (docs/FORMAT.md, "Quantizer"). Inputs are finite FP16 values.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_QUANTIZE_H
#define LK_FORMAT_QUANTIZE_H

#include "format/layout.h"

namespace lk {

// Lowest and highest of a group, -0 taken as +0.
struct Extremes {
    uint16_t low;
    uint16_t high;
};
Extremes extremes(const uint16_t *values, uint64_t stride, uint32_t n);

// From the extremes moved towards each other, each by RN32(RN32(high - low) * margin).
inline Parameters make_parameters(Extremes extremes, Metadata metadata, float margin = 0) {
    return make_parameters(extremes.low, extremes.high, margin, metadata);
}

// What the two levels of a group of 1-bit codes are made from: its mean and mean absolute
// deviation, or its lowest and highest value as at other widths.
enum class OneBit : uint8_t { kDeviation = 1, kRange = 2 };

// How the groups of a page are measured where the format leaves a choice to the plan.
struct RangeRule {
    OneBit one_bit = OneBit::kDeviation;  // groups of 1-bit codes
    float clip = 1;  // groups of 2-bit codes keep this share of their range, about its midpoint
};
constexpr bool operator==(const RangeRule &a, const RangeRule &b) {
    return a.one_bit == b.one_bit && a.clip == b.clip;
}
constexpr bool operator!=(const RangeRule &a, const RangeRule &b) { return !(a == b); }
// What a clip cuts off a range at each end, as a share of it.
constexpr float clip_margin(float clip) { return (1 - clip) * 0.5f; }

// Levels one mean absolute deviation below and above the mean, for n values, a power of two.
Parameters make_deviation_parameters(const float *values, uint32_t n, Metadata metadata);

// The number of k in 1 .. top_code(bits) with
//   RN32(value - minimum) >= code_threshold(k - 1/2, range, code_step(bits)); 0 when range is 0.
uint32_t quantize(float value, const Parameters &parameters, uint32_t bits);

// What a code stands for, every operation rounded to FP32.
inline float dequantize(uint32_t code, float range, float minimum, uint32_t bits) {
    const float step = range * code_step(bits);
    const float offset = static_cast<float>(code) * step;
    return minimum + offset;
}

// One step down the ladder (PM-KVQ, equation 2): a code of 2b bits to b bits, b = 8, 4 or 2. Equals
// rounding code / (2^b + 1); chains equal the direct mapping.
constexpr uint32_t shrink_code(uint32_t code, uint32_t bits) {
    return bits == 8   ? (255 * code + 32895) >> 16
           : bits == 4 ? (15 * code + 135) >> 8
                       : (3 * code + 9) >> 4;
}

}  // namespace lk

#endif
