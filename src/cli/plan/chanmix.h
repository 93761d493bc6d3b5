// ChanMix plans on the command line: options, the plan, its picture.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_CHANMIX_H
#define CLI_CHANMIX_H

#include <string>

#include "cli/common/command.h"

namespace cli {

struct ChanmixOptions {
    std::string retrieval = "kv";
    std::string scope = "head";
    double share = -1;
    bool no_outliers = false;
    bool no_centers = false;

    void add_to(CLI::App &command);
    // budget_bytes 0 = none
    lk_chanmix options(const StatisticsOptions &from, std::uint64_t budget_bytes,
                       std::uint64_t n_tokens, std::uint32_t n_sequences,
                       std::uint32_t step_tokens) const;
};

llama::PlanHandle make_chanmix(const lk_calibrator *calibrator, const lk_chanmix &options);

// Layers x heads x channels by width, the ranges that decide it, and retrieval scores.
void draw_chanmix(const lk_plan *plan, const lk_calibrator *calibrator, lk_scope scope,
                  const std::string &path);

}  // namespace cli

#endif
