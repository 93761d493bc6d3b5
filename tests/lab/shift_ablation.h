// The right shifts of PM-KVQ next to each other, and one width for all layers next to widths by
// sensitivity.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_SHIFT_ABLATION_H
#define CLI_SHIFT_ABLATION_H

#include <string>
#include <vector>

#include "lab/ablation.h"

namespace cli {

// Sets request.plans, all at 16 bits, and simulations of prompts that go down by each shift.
// source: what sensitivities of layers are made from.
void set_shift_ablation(llama::Model &model, const AblationSource &source,
                        EvaluationRequest &request);

// Exact match, mean -log2 p of an answer byte, and what the paper has.
void print_shift_ablation(const std::vector<PlanResult> &results);

// What the paper has for a plan of these.
std::string published_shift(const std::string &plan);

}  // namespace cli

#endif
