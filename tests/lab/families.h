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
// for each question, PM-KVQ's go down their ladders after each context. The statistics have keys,
// queries, a probe, sensitivities by outputs and searches of key scales.
std::vector<SuitePlan> family_plans(const lk_calibrator *statistics,
                                    const std::vector<double> &limits);

}  // namespace cli

#endif
