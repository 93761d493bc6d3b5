// Number formats by integer arithmetic, so that every backend gets the same bits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_FP16_H
#define LK_FORMAT_FP16_H

#include <cstdint>
#include <cstring>

namespace lk {

constexpr uint16_t kHalfMax = 0x7BFF;  // 65504

inline float bits_to_float(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}
inline uint32_t float_to_bits(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return bits;
}

// Exact. Infinity and NaN carry over.
inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1Fu;
    const uint32_t mantissa = h & 0x3FFu;
    if (exponent == 0x1F)
        return bits_to_float(sign | 0x7F800000u | (mantissa << 13));
    if (exponent)
        return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
    // A subnormal is mantissa * 2^-24, which FP32 holds as a normal number.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return bits_to_float(sign | float_to_bits(magnitude));
}

// Nearest, ties to even; finite values beyond +-65504 saturate and set *saturated (what would
// round to 65520 or more). The input is finite.
inline uint16_t float_to_half(float f, bool *saturated) {
    const uint32_t bits = float_to_bits(f);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude >= 0x477FF000u) {
        *saturated = true;
        return static_cast<uint16_t>(sign | kHalfMax);
    }
    if (magnitude < 0x33000000u)  // below half of the smallest subnormal
        return sign;
    if (magnitude < 0x38800000u) {  // subnormal result
        const uint32_t shift = 126 - (magnitude >> 23);
        const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
        const uint32_t kept = mantissa >> shift;
        const uint32_t rest = mantissa & ((1u << shift) - 1);
        const uint32_t half = 1u << (shift - 1);
        const uint32_t up = rest > half || (rest == half && (kept & 1));
        return static_cast<uint16_t>(sign | (kept + up));
    }
    const uint32_t rebased = magnitude - (112u << 23);
    const uint32_t rounded = rebased + 0xFFFu + ((rebased >> 13) & 1u);
    return static_cast<uint16_t>(sign | (rounded >> 13));
}

inline bool half_is_finite(uint16_t h) { return (h & 0x7C00u) != 0x7C00u; }
inline bool float_is_finite(float f) { return (float_to_bits(f) & 0x7F800000u) != 0x7F800000u; }

// FP16 values in the order of their values; -0 stands right below +0.
inline int32_t half_order(uint16_t h) {
    return (h & 0x8000u) ? -1 - static_cast<int32_t>(h & 0x7FFFu) : static_cast<int32_t>(h);
}

// e4m3fnuz: sign, 4 exponent bits with bias 8, 3 mantissa bits; no infinity, no -0; 0x80 NaN.
inline float f8_to_float(uint8_t v) {
    const uint32_t exponent = (v >> 3) & 0xFu;
    const uint32_t mantissa = v & 7u;
    const float magnitude = exponent ? bits_to_float(((exponent + 119) << 23) | (mantissa << 20))
                                     : static_cast<float>(mantissa) * 0x1p-10f;
    return (v & 0x80u) ? -magnitude : magnitude;
}

// The largest e4m3fnuz value not above f, or the smallest not below f. Saturates at +-240.
// Zero is 0x00.
uint8_t float_to_f8_down(float f);
uint8_t float_to_f8_up(float f);

}  // namespace lk

#endif
