// SPDX-License-Identifier: Apache-2.0
#include "bound.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace lk;

namespace {

constexpr double kRounding = 0x1p-11;    // of FP16, relative
constexpr double kSubnormal = 0x1p-25;   // of FP16, of the largest
constexpr double kAccumulate = 0x1p-22;  // of a step of a tensor core
constexpr double kExponent = 0x1p-21;
constexpr double kFloat = 0x1p-24;  // of an FP32 sum, for each term
constexpr double kCap = 0x1p-18;    // of tanh
constexpr double kDeviations = 8;

// A NaN is worse than anything.
bool is_worse(double share, double than) {
    return std::isnan(share) ? !std::isnan(than) : share > than;
}

void widen(std::vector<float> *reach, const std::vector<float> &by) {
    for (size_t c = 0; c < reach->size(); ++c)
        (*reach)[c] = std::max((*reach)[c], by[c]);
}

std::vector<float> staged_reach(const Scene &scene, const SceneSequence &sequence, uint32_t kv_head,
                                const std::vector<uint16_t> &staged, uint32_t dim) {
    std::vector<float> reach(dim);
    const size_t first =
        (static_cast<size_t>(kv_head) * scene.n_tokens() + sequence.first_new) * dim;
    for (size_t i = 0; i < static_cast<size_t>(sequence.n_new) * dim; ++i)
        reach[i % dim] = std::max(reach[i % dim], std::fabs(half_to_float(staged[first + i])));
    return reach;
}

}  // namespace

TensorCoreBound::Reach TensorCoreBound::reach_of(const Scene &scene, const SceneSequence &sequence,
                                                 uint32_t kv_head) {
    const Case &c = scene.parameters();
    Reach reach;
    reach.values.resize(c.output_dim());
    // Values of a latent layer are the first channels of its keys.
    for (const SceneBlock &block : sequence.blocks) {
        reach.keys.push_back(block.pages[2 * kv_head].reach);
        widen(&reach.values, block.pages[2 * kv_head + (c.latent ? 0 : 1)].reach);
    }
    if (!sequence.is_draft()) {
        reach.keys.push_back(
            staged_reach(scene, sequence, kv_head, scene.staged_keys(), c.head_dim));
        widen(&reach.values, c.latent ? reach.keys.back()
                                      : staged_reach(scene, sequence, kv_head,
                                                     scene.staged_values(), c.output_dim()));
    }
    return reach;
}

TensorCoreBound::Error TensorCoreBound::logit_error(const Scene &scene, const float *q,
                                                    const float *changed_q, const Reach &reach,
                                                    const float *centers) {
    const Case &parameters = scene.parameters();
    const uint32_t head_dim = parameters.head_dim;
    const double rotations = parameters.rotated ? std::log2(parameters.key_rotation()) + 2 : 0;
    double q_squares = 0;
    for (uint32_t c = 0; c < head_dim; ++c)
        q_squares += static_cast<double>(changed_q[c]) * static_cast<double>(changed_q[c]);
    const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
    Error worst = {0, 0};
    for (const std::vector<float> &block : reach.keys) {
        double sum = 0;
        double squares = 0;
        double largest = 0;
        double reach_squares = 0;
        for (uint32_t c = 0; c < head_dim; ++c) {
            const double product =
                std::fabs(static_cast<double>(changed_q[c]) * static_cast<double>(block[c]));
            reach_squares += static_cast<double>(block[c]) * static_cast<double>(block[c]);
            sum += product;
            squares += product * product;
            largest = std::max(largest, product);
        }
        const double deviation = scale * kRounding * std::sqrt(squares);
        const double rounded = std::min(kDeviations * deviation, scale * 3 * kRounding * sum);
        const double most =
            rounded +
            scale * ((head_dim / 16 + 4) * kAccumulate * sum + kExponent * sum +
                     head_dim * kSubnormal * largest + (parameters.scales ? kFloat * sum : 0) +
                     rotations * kFloat * std::sqrt(q_squares * reach_squares));
        worst = {std::max(worst.most, most), std::max(worst.deviation, deviation)};
    }
    double centered = 0;
    for (uint32_t c = 0; centers && c < head_dim; ++c)
        centered += std::fabs(static_cast<double>(q[c]) * static_cast<double>(centers[c]));
    worst.most += scale * centered * (head_dim * kFloat + kExponent);
    worst.most += static_cast<double>(parameters.soft_cap) * kCap;
    return worst;
}

TensorCoreBound::Error TensorCoreBound::output_error(const Scene &scene, const Error &logit,
                                                     double n_keys, double magnitude,
                                                     double reach) {
    const lk_dtype dtype = scene.parameters().dtype;
    const double rounding = dtype == LK_F32 ? 0x1p-22 : dtype == LK_F16 ? 0x1p-11 : 0x1p-8;
    const double weights = std::expm1(2 * logit.most) * magnitude;
    const double values =
        (3 * kRounding + n_keys * kSubnormal + (n_keys / 16 + 8) * kAccumulate) * reach +
        kRounding * magnitude;
    const double out = rounding * (magnitude + weights + values) + kSubnormal;
    const double deviation[] = {logit.deviation * magnitude, kRounding * reach,
                                rounding * magnitude};
    return {weights + values + out,
            std::sqrt(deviation[0] * deviation[0] + deviation[1] * deviation[1] +
                      deviation[2] * deviation[2])};
}

TensorCoreBound::TensorCoreBound(const Scene &scene, const Outputs &reference,
                                 const Outputs &magnitudes)
    : reference_(reference) {
    const Case &c = scene.parameters();
    for (const SceneSequence &sequence : scene.sequences()) {
        std::vector<Reach> reach;
        for (uint32_t head = 0; head < c.n_kv_heads; ++head)
            reach.push_back(reach_of(scene, sequence, head));
        for (size_t at = static_cast<size_t>(sequence.first_new) * scene.n_query_heads();
             at < static_cast<size_t>(sequence.first_new + sequence.n_new) * scene.n_query_heads();
             ++at) {
            const Reach &own = reach[at % scene.n_query_heads() / c.group];
            const size_t first = at % scene.n_query_heads() / c.group * c.head_dim;
            const Error logit = logit_error(scene, &scene.q_values()[at * c.head_dim],
                                            &scene.changed_q_values()[at * c.head_dim], own,
                                            c.centers ? &scene.key_centers()[first] : nullptr);
            const double lse = c.has_lse ? static_cast<double>(std::fabs(reference.lse[at])) : 0;
            lses_.push_back(logit.most + kRounding + kExponent * lse);
            const auto n_keys = static_cast<double>(sequence.n_history + sequence.n_new);
            for (uint32_t channel = 0; channel < c.output_dim(); ++channel)
                outputs_.push_back(
                    output_error(scene, logit, n_keys,
                                 static_cast<double>(magnitudes.out[at * c.output_dim() + channel]),
                                 static_cast<double>(own.values[channel])));
        }
    }
}

TensorCoreBound::Closeness TensorCoreBound::measure(const Outputs &fast) const {
    Closeness all = {0, 0, 0, 0, 0};
    double errors = 0;
    double allowed = 0;
    for (size_t i = 0; i < outputs_.size(); ++i) {
        const double error =
            std::fabs(static_cast<double>(fast.out[i]) - static_cast<double>(reference_.out[i]));
        if (is_worse(error / outputs_[i].most, all.output)) {
            all.output = error / outputs_[i].most;
            all.worst_output = i;
        }
        errors += error * error;
        allowed += outputs_[i].deviation * outputs_[i].deviation;
    }
    all.spread = std::sqrt(errors / allowed);
    for (size_t i = 0; i < reference_.lse.size(); ++i) {
        const double error =
            std::fabs(static_cast<double>(fast.lse[i]) - static_cast<double>(reference_.lse[i]));
        if (is_worse(error / lses_[i], all.lse)) {
            all.lse = error / lses_[i];
            all.worst_lse = i;
        }
    }
    return all;
}

std::string TensorCoreBound::compare(const Outputs &fast) const {
    const Closeness all = measure(fast);
    char text[160] = "";
    const auto differs = [&](const char *name, size_t i, const std::vector<float> &found,
                             const std::vector<float> &expected, double bound) {
        std::snprintf(text, sizeof text, "%s %zu is %g, not %g within %g", name, i,
                      static_cast<double>(found[i]), static_cast<double>(expected[i]), bound);
    };
    if (!(all.output <= 1))
        differs("output", all.worst_output, fast.out, reference_.out,
                outputs_[all.worst_output].most);
    else if (!(all.lse <= 1))
        differs("lse", all.worst_lse, fast.lse, reference_.lse, lses_[all.worst_lse]);
    else if (!(all.spread <= 1))
        std::snprintf(text, sizeof text,
                      "the root mean square of the errors is %.3g times what is allowed",
                      all.spread);
    return text;
}
