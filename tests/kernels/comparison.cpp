// SPDX-License-Identifier: Apache-2.0
#include "comparison.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <algorithm>

namespace {

constexpr int kMostFailures = 20;

}  // namespace

Comparison::Comparison(const Device &device)
    : reference_(LK_CPU_REFERENCE_ONLY, 0), device_(device) {}

void Comparison::check(const Case &c) {
    current_case() = describe(c);
    const std::string message = run(c);
    ++n_cases_;
    if (message.empty())
        return;
    ++n_failures_;
    print_error("%s\n  %s\n", message.c_str(), describe(c).c_str());
}

bool Comparison::goes_on() const { return n_failures_ < kMostFailures; }

void Comparison::finish() const {
    print_message(
        "%d cases; of what is allowed, outputs take %.3f, their deviation %.3f, "
        "lse %.3f at most\n",
        n_cases_, most_.output, most_.spread, most_.lse);
    assert_int_equal(n_failures_, 0);
}

std::string Comparison::run(const Case &c) {
    const Scene scene(c);
    const Scene absolute(c, SceneValues::kMagnitudes);
    Outputs expected, magnitudes, first, second;
    std::string message;
    if (!run_scene(scene, reference_.device(), &expected, &message) ||
        !run_scene(absolute, reference_.device(), &magnitudes, &message))
        return message;
    {
        PlacedScene placed(scene, device_);
        if (!placed.run(&first, &message) || !placed.run(&second, &message))
            return message;
    }
    if (!(first == second))
        return "two runs differ";
    const TensorCoreBound bound(scene, expected, magnitudes);
    const TensorCoreBound::Closeness close = bound.measure(first);
    most_.output = std::max(most_.output, close.output);
    most_.spread = std::max(most_.spread, close.spread);
    most_.lse = std::max(most_.lse, close.lse);
    message = bound.compare(first);
    if (!message.empty())
        return message;
    Scene spoiled(c);
    spoiled.spoil_queries();
    if (!run_scene(spoiled, device_, &second, &message))
        return message;
    message = spoiled.restore_spoiled(expected, &second);
    return message.empty() ? bound.compare(second) : message;
}
