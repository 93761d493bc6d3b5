// SPDX-License-Identifier: Apache-2.0
#include "stats/attention.h"

#include <algorithm>
#include <cmath>

namespace lk {

namespace {

constexpr uint32_t kGroup = 128;  // channels of a token that share a range

}  // namespace

void quantize_vector(const float *values, uint32_t head_dim, uint32_t bits, float *out) {
    const auto levels = static_cast<float>((1u << bits) - 1);
    for (uint32_t first = 0; first < head_dim; first += kGroup) {
        const uint32_t end = std::min(head_dim, first + kGroup);
        const float low = *std::min_element(values + first, values + end);
        const float high = *std::max_element(values + first, values + end);
        const float range = half_nearest(high - low);
        for (uint32_t c = first; c < end; ++c) {
            const float code = range > 0 ? (values[c] - low) / range * levels + 0.5f : 0;
            out[c] = low + std::min(std::floor(code), levels) * range / levels;
        }
    }
}

void read_exact(const Samples &samples, uint32_t token, uint32_t head, float *out) {
    const void *row = samples.vector(token, head);
    for (uint32_t c = 0; c < samples.head_dim; ++c) {
        if (samples.tensor.dtype == LK_F32) {
            out[c] = static_cast<const float *>(row)[c];
        } else {
            const uint16_t bits = static_cast<const uint16_t *>(row)[c];
            out[c] = samples.tensor.dtype == LK_F16
                         ? half_to_float(bits)
                         : bits_to_float(static_cast<uint32_t>(bits) << 16);
        }
    }
}

void attend_query(const LogitRule &rule, const float *query, uint32_t query_head, uint32_t i,
                  uint32_t head_dim, const float *keys, float *weights) {
    float products[kColumns];
    float top = rule.sink_logits() ? rule.sink_logits()[query_head] : -INFINITY;
    for (uint32_t first = 0; first <= i; first += kColumns) {
        multiply(query, keys + static_cast<uint64_t>(first) * head_dim, head_dim, products);
        for (uint32_t j = first; j <= i && j < first + kColumns; ++j) {
            weights[j] = rule.is_visible(i, j) ? rule.logit(products[j - first]) : -INFINITY;
            top = std::max(top, weights[j]);
        }
    }
    double sum = rule.sink_logits() ? std::exp(double{rule.sink_logits()[query_head] - top}) : 0;
    for (uint32_t j = 0; j <= i; ++j) {
        weights[j] = std::exp(weights[j] - top);
        sum += double{weights[j]};
    }
    for (uint32_t j = 0; j <= i; ++j)
        weights[j] = static_cast<float>(double{weights[j]} / sum);
}

void weigh_values(const float *weights, uint32_t n, const float *values, uint32_t head_dim,
                  float *out) {
    std::fill(out, out + head_dim, 0.0f);
    for (uint32_t j = 0; j < n; ++j)
        for (uint32_t c = 0; c < head_dim; ++c)
            out[c] += weights[j] * values[static_cast<size_t>(j) * head_dim + c];
}

double square_distance(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t c = 0; c < n; ++c)
        sum += (double{a[c]} - double{b[c]}) * (double{a[c]} - double{b[c]});
    return sum;
}

}  // namespace lk
