// SPDX-License-Identifier: Apache-2.0
#include "format/quantize.h"

namespace lk {

namespace {

constexpr uint8_t kF8Max = 0x7F;  // 240

// Largest magnitude code whose value is at most |f|, and whether it equals |f|.
uint8_t f8_truncate(float magnitude, bool *exact) {
    uint32_t low = 0;
    uint32_t high = kF8Max;
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (f8_to_float(static_cast<uint8_t>(middle)) <= magnitude)
            low = middle;
        else
            high = middle - 1;
    }
    *exact = f8_to_float(static_cast<uint8_t>(low)) == magnitude;
    return static_cast<uint8_t>(low);
}

uint8_t f8_sign(uint8_t magnitude, bool negative) {
    return static_cast<uint8_t>(negative && magnitude ? magnitude | 0x80u : magnitude);
}

// away: towards larger magnitudes.
uint8_t f8_round(float f, bool away) {
    bool exact;
    const uint8_t code = f8_truncate(f < 0 ? -f : f, &exact);
    const bool step = away && !exact && code < kF8Max;
    return f8_sign(static_cast<uint8_t>(code + step), f < 0);
}

// The nearest FP16 number, or the next FP8 number below; zero has no sign.
void set_minimum(float minimum, Metadata metadata, Parameters *p) {
    if (metadata == Metadata::kF16) {
        bool saturated = false;
        const uint16_t bits = float_to_half(minimum, &saturated);
        p->minimum_bits = bits == 0x8000 ? uint16_t{0} : bits;
        p->minimum = half_to_float(p->minimum_bits);
    } else {
        p->minimum_bits = float_to_f8_down(minimum);
        p->minimum = f8_to_float(static_cast<uint8_t>(p->minimum_bits));
    }
}

// The nearest FP16 number, or the next FP8 number above.
void set_range(float range, Metadata metadata, Parameters *p) {
    if (metadata == Metadata::kF16) {
        bool saturated = false;
        p->range_bits = float_to_half(range, &saturated);
        p->range = half_to_float(p->range_bits);
    } else {
        p->range_bits = float_to_f8_up(range);
        p->range = f8_to_float(static_cast<uint8_t>(p->range_bits));
    }
}

float mean(const float *values, uint32_t n) {
    float sum = 0;
    for (uint32_t i = 0; i < n; ++i)
        sum += values[i];
    return sum / static_cast<float>(n);
}

}  // namespace

uint8_t float_to_f8_down(float f) { return f8_round(f, f < 0); }
uint8_t float_to_f8_up(float f) { return f8_round(f, f > 0); }

Extremes extremes(const uint16_t *values, uint64_t stride, uint32_t n) {
    uint16_t low = values[0];
    uint16_t high = values[0];
    for (uint32_t i = 1; i < n; ++i) {
        const uint16_t v = values[i * stride];
        if (half_order(v) < half_order(low))
            low = v;
        if (half_order(v) > half_order(high))
            high = v;
    }
    constexpr uint16_t kMinusZero = 0x8000;
    return {low == kMinusZero ? uint16_t{0} : low, high == kMinusZero ? uint16_t{0} : high};
}

Parameters make_parameters(Extremes e, Metadata metadata, float margin) {
    const float low = half_to_float(e.low);
    const float high = half_to_float(e.high);
    const float cut = (high - low) * margin;
    Parameters p;
    set_minimum(low + cut, metadata, &p);
    // Below -240 an e4m3fnuz minimum saturates and can stand above the highest value.
    const float spread = high - cut - p.minimum;
    set_range(spread > 0 ? spread : 0, metadata, &p);
    return p;
}

Parameters make_deviation_parameters(const float *values, uint32_t n, Metadata metadata) {
    const float middle = mean(values, n);
    float distances[LK_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < n; ++i) {
        const float distance = values[i] - middle;
        distances[i] = distance < 0 ? -distance : distance;
    }
    const float deviation = mean(distances, n);
    Parameters p;
    set_minimum(middle - deviation, metadata, &p);
    set_range(2 * deviation, metadata, &p);
    return p;
}

uint32_t quantize(float value, const Parameters &p, uint32_t bits) {
    if (p.range == 0)
        return 0;
    const uint32_t top = top_code(bits);
    const float factor = half_step_factor(bits);
    const float distance = value - p.minimum;
    // (2k-1) * range is exact in FP32: 9 bits times 11 bits.
    const auto threshold = [&](uint32_t k) {
        return static_cast<float>(2 * k - 1) * p.range * factor;
    };
    const float guess = distance / p.range * static_cast<float>(top) + 0.5f;
    uint32_t code = guess <= 0                         ? 0
                    : guess >= static_cast<float>(top) ? top
                                                       : static_cast<uint32_t>(guess);
    while (code < top && distance >= threshold(code + 1))
        ++code;
    while (code > 0 && distance < threshold(code))
        --code;
    return code;
}

}  // namespace lk
