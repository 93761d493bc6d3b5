// Frequencies of rotary positions, as transformers has them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_ROPE_H
#define LLAMA_ROPE_H

#include <cstdint>
#include <vector>

#include "config.h"

namespace llama {

enum class RopeKind { kDefault, kLinear, kLlama3, kYarn };

struct Rope {
    RopeKind kind = RopeKind::kDefault;
    std::uint32_t head_dim = 0;  // even
    double theta = 0;            // above 1
    double factor = 1;           // how many times longer contexts become, at least 1
    double original_tokens = 0;  // of the contexts before that
    // Llama 3: wavelengths above original_tokens / low_frequency are stretched by the factor, those
    // below original_tokens / high_frequency are kept.
    double low_frequency = 0, high_frequency = 0;
    // YaRN: channels that turn more than beta_fast times in original_tokens are kept, those below
    // beta_slow are stretched.
    double beta_fast = 32, beta_slow = 1;
    double attention_factor = 0;        // the amplitude; 0 = by mscale, or by factor
    double mscale = 0, mscale_all = 0;  // 0 = not given
    bool is_truncated = true;           // the bounds are whole channels

    Rotation rotation() const;
    std::vector<double> frequencies() const;  // [head_dim / 2], radians a position
    double amplitude() const;
};

}  // namespace llama

#endif
