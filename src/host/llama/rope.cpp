// SPDX-License-Identifier: Apache-2.0
#include "rope.h"

#include <algorithm>
#include <cmath>

namespace llama {
namespace {

const double kTurn = 2 * std::acos(-1.0);

double llama3(const Rope &rope, double frequency) {
    const double turns = rope.original_tokens * frequency / kTurn;
    const double kept = (turns - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
    const double share = std::clamp(kept, 0.0, 1.0);
    return (1 - share) * frequency / rope.factor + share * frequency;
}

// The channel, as a real number, that turns so often in the original contexts.
double channel_of(const Rope &rope, double turns) {
    return rope.head_dim * std::log(rope.original_tokens / (turns * kTurn)) /
           (2 * std::log(rope.theta));
}

double mscale_of(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

}  // namespace

Rotation Rope::rotation() const { return {frequencies(), amplitude()}; }

std::vector<double> Rope::frequencies() const {
    const std::size_t half = head_dim / 2;
    double low = 0, high = 0;
    if (kind == RopeKind::kYarn) {
        low = channel_of(*this, beta_fast);
        high = channel_of(*this, beta_slow);
        low = std::max(is_truncated ? std::floor(low) : low, 0.0);
        high = std::min(is_truncated ? std::ceil(high) : high, head_dim - 1.0);
        if (low == high)
            high += 0.001;
    }
    std::vector<double> out(half);
    for (std::size_t i = 0; i < half; ++i) {
        const double own = std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
        switch (kind) {
            case RopeKind::kDefault: out[i] = own; break;
            case RopeKind::kLinear: out[i] = own / factor; break;
            case RopeKind::kLlama3: out[i] = llama3(*this, own); break;
            case RopeKind::kYarn: {
                const double ramp = (static_cast<double>(i) - low) / (high - low);
                const double share = std::clamp(ramp, 0.0, 1.0);  // of what is stretched
                out[i] = own / factor * share + own * (1 - share);
                break;
            }
        }
    }
    return out;
}

double Rope::amplitude() const {
    if (kind != RopeKind::kYarn)
        return 1;
    if (attention_factor != 0)
        return attention_factor;
    if (mscale != 0 && mscale_all != 0)
        return mscale_of(factor, mscale) / mscale_of(factor, mscale_all);
    return mscale_of(factor, 1);
}

}  // namespace llama
