// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/auto_plan.h"

namespace cli {

llama::PlanHandle make_auto(const lk_calibrator *calibrator, const PlanLimit &limit) {
    lk_auto options = llama::initialised(lk_auto_init);
    options.bits_per_value = limit.bits_per_value;
    options.budget_bytes = limit.budget_bytes;
    options.budget_tokens = limit.n_tokens;
    options.budget_sequences = limit.n_sequences;
    options.budget_step_tokens = limit.step_tokens;
    lk_plan *plan = nullptr;
    llama::check(lk_calibrator_auto(calibrator, &options, &plan));
    return llama::PlanHandle(plan);
}

}  // namespace cli
