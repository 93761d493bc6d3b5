// The rotation of keys and queries: n neighbouring channels times Hadamard's matrix, over sqrt(n), n
// being a power of two from 16 to 512. Each stage rounds once, so every backend has the same bits.
//
// An invocation has eight channels of a row, the next one of the workgroup the next eight. Rows have
// multiples of n channels, and the workgroup LK_ROTATE_THREADS.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_ROTATE_GLSL
#define LK_SHADERS_ROTATE_GLSL

#include "shaders/floats.glsl"
#include "shaders/rounding.glsl"
#include "shaders/pack/limits.h"

// Elements are cut to this magnitude before they are scaled and rotated, NaN to +kRotationLimit: no sum
// leaves FP32 then. kRotationLimit of src/format/rotation.h.
const float kRotationLimit = 2147483648.0;
float cut_for_rotation(float f) {
    const float below = f < kRotationLimit ? f : kRotationLimit;
    return below > -kRotationLimit ? below : -kRotationLimit;
}

struct FloatEight {
    vec4 low;
    vec4 high;
};

shared FloatEight shared_eights[LK_ROTATE_THREADS];

// The stages of channels of one invocation.
FloatEight rotate_own(FloatEight x) {
    precise vec4 low = x.low;
    precise vec4 high = x.high;
    low = vec4(low.x + low.y, low.x - low.y, low.z + low.w, low.z - low.w);
    high = vec4(high.x + high.y, high.x - high.y, high.z + high.w, high.z - high.w);
    low = vec4(low.xy + low.zw, low.xy - low.zw);
    high = vec4(high.xy + high.zw, high.xy - high.zw);
    precise const vec4 sum = low + high;
    precise const vec4 difference = low - high;
    return FloatEight(sum, difference);
}

// The whole workgroup calls it; what invocations without a row have is not read by the others.
FloatEight rotate_eight(FloatEight x, uint n) {
    x = rotate_own(x);
    for (uint distance = 1u; distance < n / 8u; distance *= 2u) {
        barrier();
        shared_eights[gl_LocalInvocationIndex] = x;
        barrier();
        const FloatEight other = shared_eights[gl_LocalInvocationIndex ^ distance];
        const bool is_upper = (gl_LocalInvocationIndex & distance) != 0u;
        precise const vec4 low = other.low + (is_upper ? -x.low : x.low);
        precise const vec4 high = other.high + (is_upper ? -x.high : x.high);
        x = FloatEight(low, high);
    }
    precise const vec4 low = x.low * rotation_factor(n);
    precise const vec4 high = x.high * rotation_factor(n);
    return FloatEight(low, high);
}

#endif
