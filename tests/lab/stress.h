// Keys and values as real models have them and training of a small one does not make them: strong
// outlier channels, large biases, near-constant channels, massive sinks.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_STRESS_H
#define CLI_STRESS_H

#include <string>
#include <vector>

#include "cli/common/command.h"

namespace cli {

struct StressResult {
    std::string shape, scenario, plan;
    bool is_default = false;  // what lowkey would take, not a method that is known to be naive
    double bits_per_value = 0;
    double output_error = 0;  // |output - FP16 cache's| / |FP16 cache's|, root mean square
    bool fails = false;       // more than twice the plan's error on the plain scenario
};

// Scenarios x plans for each shape. Equal seeds give equal numbers of equal devices.
std::vector<StressResult> run_stress(const DeviceOptions &device, std::uint64_t seed);

void print_stress(const std::vector<StressResult> &results);
Json stress_json(const std::vector<StressResult> &results);

}  // namespace cli

#endif
