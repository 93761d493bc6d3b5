// SPDX-License-Identifier: Apache-2.0
#include "comparison.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <algorithm>
#include <deque>
#include <future>
#include <memory>
#include <thread>

namespace {

constexpr int kMostFailures = 20;

}  // namespace

// A case without its device.
struct Comparison::Expectation {
    explicit Expectation(const Case &c) : scene(c) {
        const Scene absolute(c, SceneValues::kMagnitudes);
        HostDevice reference(LK_CPU_REFERENCE_ONLY, 1);
        Outputs magnitudes;
        if (run_scene(scene, reference.device(), &outputs, &message) &&
            run_scene(absolute, reference.device(), &magnitudes, &message))
            bound = std::make_unique<TensorCoreBound>(scene, outputs, magnitudes);
    }

    Scene scene;  // with its queries spoiled, once it has run
    Outputs outputs;
    std::unique_ptr<TensorCoreBound> bound;
    std::string message;  // of a reference that failed
};

void Comparison::check(const std::vector<Case> &cases) {
    const size_t n_ahead = std::max(2u, std::thread::hardware_concurrency());
    std::deque<std::future<std::unique_ptr<Expectation>>> ahead;
    size_t next = 0;
    for (const Case &c : cases) {
        for (; next < cases.size() && ahead.size() < n_ahead; ++next)
            ahead.push_back(std::async(std::launch::async, [&cases, next] {
                return std::make_unique<Expectation>(cases[next]);
            }));
        current_case() = describe(c);
        const std::string message = run(*ahead.front().get());
        ahead.pop_front();
        ++n_cases_;
        if (message.empty())
            continue;
        print_error("%s\n  %s\n", message.c_str(), describe(c).c_str());
        if (++n_failures_ >= kMostFailures)
            return;
    }
}

void Comparison::finish() const {
    print_message(
        "%d cases; of what is allowed, outputs take %.3f, their deviation %.3f, "
        "lse %.3f at most\n",
        n_cases_, most_.output, most_.spread, most_.lse);
    assert_int_equal(n_failures_, 0);
}

std::string Comparison::run(Expectation &expectation) {
    if (!expectation.bound)
        return expectation.message;
    Outputs first, second;
    std::string message;
    {
        PlacedScene placed(expectation.scene, device_);
        if (!placed.run(&first, &message) || !placed.run(&second, &message))
            return message;
    }
    if (!(first == second))
        return "two runs differ";
    const TensorCoreBound::Closeness close = expectation.bound->measure(first);
    most_.output = std::max(most_.output, close.output);
    most_.spread = std::max(most_.spread, close.spread);
    most_.lse = std::max(most_.lse, close.lse);
    message = expectation.bound->compare(first);
    if (!message.empty())
        return message;
    expectation.scene.spoil_queries();
    if (!run_scene(expectation.scene, device_, &second, &message))
        return message;
    message = expectation.scene.restore_spoiled(expectation.outputs, &second);
    return message.empty() ? expectation.bound->compare(second) : message;
}
