// The rotation of keys: blocks of n channels times H / sqrt(n), H being Sylvester's Hadamard matrix
// (docs/FORMAT.md, section 9.1).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_ROTATION_H
#define LK_FORMAT_ROTATION_H

#include "format/both.h"

#include <cstdint>

namespace lk {

// n: the largest power of two that divides the head dim.
constexpr uint32_t rotation_channels(uint32_t head_dim) { return head_dim & (0u - head_dim); }

// Elements of keys and queries are cut to this magnitude before they are scaled and rotated, NaN to
// +kRotationLimit, so that no sum leaves FP32. Without a rotation, a key that is cut would saturate
// under any scale.
constexpr float kRotationLimit = 0x1p31f;

// RN32(1 / sqrt(n)), n being a power of two from 16 to 512.
LK_BOTH constexpr float rotation_factor(uint32_t n) {
    constexpr float kSqrtHalf = 0x1.6a09e6p-1f;
    float factor = 1;
    for (; n > 2; n /= 4)
        factor *= 0.5f;
    return n == 2 ? factor * kSqrtHalf : factor;
}

#ifndef __CUDACC__

inline float cut_for_rotation(float f) {
    const float below = f < kRotationLimit ? f : kRotationLimit;
    return below > -kRotationLimit ? below : -kRotationLimit;
}

// Rotate blocks of n numbers. Every backend adds in this order, so that their FP32 keys are equal.
template <class Number>
void rotate_blocks(Number *numbers, uint32_t n_numbers, uint32_t n) {
    const auto factor = static_cast<Number>(rotation_factor(n));
    for (uint32_t half = 1; half < n; half *= 2)
        for (uint32_t first = 0; first < n_numbers; first += 2 * half) {
            Number *__restrict__ a = numbers + first;
            Number *__restrict__ b = a + half;
            for (uint32_t i = 0; i < half; ++i) {
                const Number sum = a[i] + b[i];
                b[i] = a[i] - b[i];
                a[i] = sum;
            }
        }
    for (uint32_t i = 0; i < n_numbers; ++i)
        numbers[i] *= factor;
}

#endif

}  // namespace lk

#endif
