// Number formats, so that every backend gets the same bits: by integer arithmetic on the host, by
// instructions of the same meaning on a device.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_FP16_H
#define LK_FORMAT_FP16_H

#include <cstdint>
#include <cstring>

#include "format/both.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

namespace lk {

LK_BOTH float bits_to_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
#endif
}
LK_BOTH uint32_t float_to_bits(float f) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(f);
#else
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return bits;
#endif
}

// Rounded by themselves, never fused with an operation next to them.
LK_BOTH float multiply_exact(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
LK_BOTH float subtract_exact(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fsub_rn(a, b);
#else
    return a - b;
#endif
}

// Exact. Infinity and NaN carry over.
LK_BOTH float half_to_float(uint32_t h) {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(static_cast<unsigned short>(h)));
#else
    const uint32_t sign = (h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1Fu;
    const uint32_t mantissa = h & 0x3FFu;
    if (exponent == 0x1F)
        return bits_to_float(sign | 0x7F800000u | (mantissa << 13));
    if (exponent)
        return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
    // A subnormal is mantissa * 2^-24, which FP32 holds as a normal number.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return bits_to_float(sign | float_to_bits(magnitude));
#endif
}

// The nearest FP16 number, ties to even. What would round to 65520 or more becomes +-65504 and
// sets *saturated. The input is finite.
LK_BOTH uint32_t round_to_half(float f, bool *saturated) {
#ifdef __CUDA_ARCH__
    const uint32_t bits = __half_as_ushort(__float2half_rn(f));
    *saturated = (bits & 0x7FFFu) == 0x7C00u;
    return *saturated ? bits - 1 : bits;
#else
    const uint32_t bits = float_to_bits(f);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    *saturated = magnitude >= 0x477FF000u;
    if (*saturated)
        return sign | 0x7BFFu;
    if (magnitude < 0x33000000u)  // below half of the smallest subnormal
        return sign;
    if (magnitude < 0x38800000u) {  // subnormal result
        const uint32_t shift = 126 - (magnitude >> 23);
        const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
        const uint32_t kept = mantissa >> shift;
        const uint32_t rest = mantissa & ((1u << shift) - 1);
        const uint32_t half = 1u << (shift - 1);
        const uint32_t up = rest > half || (rest == half && (kept & 1));
        return sign | (kept + up);
    }
    const uint32_t rebased = magnitude - (112u << 23);
    const uint32_t rounded = rebased + 0xFFFu + ((rebased >> 13) & 1u);
    return sign | (rounded >> 13);
#endif
}

// e4m3fnuz: sign, 4 exponent bits with bias 8, 3 mantissa bits; no infinity, no -0; 0x80 NaN. A
// device reads it as FP16 with an exponent bias of 15.
LK_BOTH float f8_to_float(uint32_t v) {
#ifdef __CUDA_ARCH__
    return 128.0f * half_to_float((v & 0x80u) << 8 | (v & 0x7Fu) << 7);
#else
    const uint32_t exponent = (v >> 3) & 0xFu;
    const uint32_t mantissa = v & 7u;
    const float magnitude = exponent ? bits_to_float(((exponent + 119) << 23) | (mantissa << 20))
                                     : static_cast<float>(mantissa) * 0x1p-10f;
    return (v & 0x80u) ? -magnitude : magnitude;
#endif
}

// The e4m3fnuz number next to f, or f itself: away from zero or towards it. Saturates at +-240.
LK_BOTH uint32_t round_to_f8(float f, bool away) {
    constexpr uint32_t kMax = 0x7F;  // 240
    const float magnitude = f < 0 ? -f : f;
    uint32_t code = magnitude < 0x1p-7f ? static_cast<uint32_t>(magnitude * 0x1p10f)
                                        : (float_to_bits(magnitude) >> 20) - (119u << 3);
    code = magnitude >= 240.0f ? kMax : code;
    if (away && code < kMax && f8_to_float(code) != magnitude)
        ++code;
    return f < 0 && code ? code | 0x80u : code;
}

#ifndef __CUDACC__

constexpr uint16_t kHalfMax = 0x7BFF;  // 65504

// round_to_half(); leaves *saturated alone unless f saturates.
inline uint16_t float_to_half(float f, bool *saturated) {
    bool is_beyond = false;
    const uint32_t bits = round_to_half(f, &is_beyond);
    if (is_beyond)
        *saturated = true;
    return static_cast<uint16_t>(bits);
}

inline bool half_is_finite(uint16_t h) { return (h & 0x7C00u) != 0x7C00u; }
inline bool float_is_finite(float f) { return (float_to_bits(f) & 0x7F800000u) != 0x7F800000u; }

// FP16 values in the order of their values; -0 is right below +0.
inline int32_t half_order(uint16_t h) {
    return (h & 0x8000u) ? -1 - static_cast<int32_t>(h & 0x7FFFu) : static_cast<int32_t>(h);
}

// The largest e4m3fnuz value not above f, or the smallest not below f.
inline uint8_t float_to_f8_down(float f) { return static_cast<uint8_t>(round_to_f8(f, f < 0)); }
inline uint8_t float_to_f8_up(float f) { return static_cast<uint8_t>(round_to_f8(f, f > 0)); }

#endif

}  // namespace lk

#endif
