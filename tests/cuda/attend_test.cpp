// Attention on the GPU against the reference: the grids of the CPU, each case twice with the same
// bits. --full takes more seeds; --sanitizer takes short cases in allocations of their own, for
// compute-sanitizer.
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <algorithm>
#include <cstring>

#include "device_memory.h"
#include "kernels/bound.h"
#include "kernels/grid.h"

namespace {

constexpr int kMostFailures = 20;

bool g_full = false;
bool g_sanitizer = false;

class Comparison {
  public:
    Comparison()
        : reference_(LK_CPU_REFERENCE_ONLY, 0),
          cuda_(g_sanitizer ? DeviceMemory::Kind::kExact : DeviceMemory::Kind::kArena) {}

    void check(const Case &c) {
        current_case() = describe(c);
        const std::string message = run(c);
        ++n_cases_;
        if (message.empty())
            return;
        ++n_failures_;
        print_error("%s\n  %s\n", message.c_str(), describe(c).c_str());
    }
    bool goes_on() const { return n_failures_ < kMostFailures; }
    void finish() const {
        print_message(
            "%d cases; of what is allowed, outputs take %.3f, their deviation %.3f, "
            "lse %.3f at most\n",
            n_cases_, most_.output, most_.spread, most_.lse);
        assert_int_equal(n_failures_, 0);
    }

  private:
    // Empty, or what is wrong.
    std::string run(const Case &c) {
        const Scene scene(c);
        const Scene absolute(c, SceneValues::kMagnitudes);
        Outputs expected, magnitudes, first, second;
        std::string message;
        if (!run_scene(scene, reference_.device(), &expected, &message) ||
            !run_scene(absolute, reference_.device(), &magnitudes, &message))
            return message;
        {
            PlacedScene placed(scene, cuda_.device());
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
        return bound.compare(first);
    }

    HostDevice reference_;
    CudaDevice cuda_;
    TensorCoreBound::Closeness most_{};
    int n_cases_ = 0;
    int n_failures_ = 0;
};

void common_shapes_match_reference(void **) {
    if (g_sanitizer)
        skip();
    Comparison comparison;
    for (const Case &c : common_cases())
        comparison.check(c);
    comparison.finish();
}

void attention_matches_reference(void **) {
    Comparison comparison;
    const uint64_t n_seeds = g_sanitizer ? 3 : g_full ? 12 : 1;
    for (uint64_t seed = 0; seed < n_seeds; ++seed)
        for (const Case &c : covering_cases(g_sanitizer ? Grid::kShort : Grid::kWhole, seed * 977))
            if (comparison.goes_on())
                comparison.check(c);
    comparison.finish();
}

}  // namespace

int main(int argc, char **argv) {
    for (int i = 1; i < argc; ++i) {
        g_full = g_full || std::strcmp(argv[i], "--full") == 0;
        g_sanitizer = g_sanitizer || std::strcmp(argv[i], "--sanitizer") == 0;
    }
    skip_without_gpu();
    const CMUnitTest tests[] = {
        cmocka_unit_test(common_shapes_match_reference),
        cmocka_unit_test(attention_matches_reference),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
