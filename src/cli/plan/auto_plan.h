// Automatic plans on the command line.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_AUTO_PLAN_H
#define CLI_AUTO_PLAN_H

#include "cli/common/command.h"

namespace cli {

// What a plan from statistics may take; 0 = no such limit.
struct PlanLimit {
    double bits_per_value = 0;
    std::uint64_t budget_bytes = 0;
    std::uint64_t n_tokens = 8192;
    std::uint32_t n_sequences = 1;
    std::uint32_t step_tokens = 512;
};

llama::PlanHandle make_auto(const lk_calibrator *calibrator, const PlanLimit &limit);

}  // namespace cli

#endif
