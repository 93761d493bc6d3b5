// The largest plan of each published method, and of our own, within a limit of bits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_FAMILIES_H
#define CLI_FAMILIES_H

#include <vector>

#include "lab/suite.h"

namespace cli {

// Of each family and limit the plan with the most bits per value, at most the limit; families
// without one are left out. Names are "family@limit". Cocktail's plans fill the limit with classes
// for each question, PM-KVQ's go down their ladders after each context; those of pm-kvq-progressive
// go down until a sequence of n_tokens fits at the last rungs, those of pm-kvq-budgets have budgets
// of layers for n_tokens and go down by themselves while the sequence grows. No names of families:
// all but these two, pm-kvq-gradients, default, and kitty-pro with other numbers of recent tokens.
// The statistics have keys, queries, a probe, sensitivities by outputs and searches of key scales,
// for pm-kvq-gradients those by gradients.
std::vector<SuitePlan> family_plans(const lk_calibrator *statistics,
                                    const std::vector<double> &limits,
                                    const std::vector<std::string> &families,
                                    std::uint64_t n_tokens);

}  // namespace cli

#endif
