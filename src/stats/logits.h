// Logits of one query against blocks of keys, with the layer's scale, cap and window.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_LOGITS_H
#define LK_STATS_LOGITS_H

#include <cmath>

#include "format/fp16.h"
#include "stats/samples.h"

namespace lk {

constexpr uint32_t kColumns = 32;  // of a block of keys, [head_dim][kColumns]

class LogitRule {
  public:
    explicit LogitRule(const lk_layer &layer)
        : layer_(layer),
          scale_(layer.scale != 0 ? layer.scale
                                  : 1 / std::sqrt(static_cast<float>(layer.head_dim))) {}

    const float *sink_logits() const { return layer_.sink_logits; }
    bool is_visible(uint32_t i, uint32_t j) const {
        return j <= i && (!layer_.window_tokens || i - j < layer_.window_tokens ||
                          j < layer_.window_sink_tokens);
    }
    float logit(float product) const {
        const float scaled = product * scale_;
        return layer_.soft_cap != 0 ? layer_.soft_cap * std::tanh(scaled / layer_.soft_cap)
                                    : scaled;
    }

  private:
    const lk_layer &layer_;
    float scale_;
};

// Put a token's key into its block.
inline void put_key(const float *key, uint32_t token, uint32_t head_dim, float *blocks) {
    float *block = blocks + token / kColumns * static_cast<uint64_t>(head_dim) * kColumns;
    for (uint32_t c = 0; c < head_dim; ++c)
        block[c * kColumns + token % kColumns] = key[c];
}

inline uint64_t block_elements(uint32_t n_tokens, uint32_t head_dim) {
    return ceil_div(n_tokens, kColumns) * head_dim * kColumns;
}

inline void read_floats(const Samples &samples, uint32_t token, uint32_t head, float *values) {
    uint16_t halfs[LK_MAX_HEAD_DIM];
    read_vector(samples, token, head, halfs);
    for (uint32_t c = 0; c < samples.head_dim; ++c)
        values[c] = half_to_float(halfs[c]);
}

// Products of a query with a block: [kColumns].
inline void multiply(const float *query, const float *block, uint32_t head_dim, float *products) {
    using F32x4 = float __attribute__((vector_size(16)));
    constexpr uint32_t kVectors = kColumns / 4;
    F32x4 sums[kVectors] = {};
    for (uint32_t c = 0; c < head_dim; ++c)
        for (uint32_t v = 0; v < kVectors; ++v) {
            F32x4 keys;
            std::memcpy(&keys, block + c * kColumns + v * 4, sizeof keys);
            sums[v] += query[c] * keys;
        }
    std::memcpy(products, sums, sizeof sums);
}

}  // namespace lk

#endif
