// SPDX-License-Identifier: Apache-2.0
#include "format/quantize.h"

namespace lk {

namespace {

float mean(const float *values, uint32_t n) {
    float sum = 0;
    for (uint32_t i = 0; i < n; ++i)
        sum += values[i];
    return sum / static_cast<float>(n);
}

}  // namespace

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

Parameters make_deviation_parameters(const float *values, uint32_t n, Metadata metadata) {
    const float mean_value = mean(values, n);
    float distances[LK_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < n; ++i) {
        const float distance = values[i] - mean_value;
        distances[i] = distance < 0 ? -distance : distance;
    }
    return deviation_parameters(mean_value, mean(distances, n), metadata);
}

uint32_t quantize(float value, const Parameters &p, uint32_t bits) {
    if (p.range == 0)
        return 0;
    const uint32_t top = top_code(bits);
    const float distance = value - p.minimum;
    const auto threshold = [&](uint32_t k) {
        return code_threshold(static_cast<float>(k) - 0.5f, p.range, code_step(bits));
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
