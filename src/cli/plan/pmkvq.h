// PM-KVQ plans on the command line: options, the plan, its way down, its picture.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_PMKVQ_H
#define CLI_PMKVQ_H

#include <string>
#include <vector>

#include "cli/common/command.h"

namespace cli {

struct PmkvqOptions {
    std::vector<std::uint32_t> widths = {4, 2};
    std::string sensitivity;  // empty = gradients where there are any
    std::string axis;         // of keys; empty = channel, or token as published
    bool by_head = false;
    bool split = false;
    bool key_scales = false;
    bool layer_budgets = false;
    std::string fold;  // a file for the scales, which the plan is then without

    std::vector<CLI::Option *> add_to(CLI::App &command);
    // Of the whole cache.
    struct Budget {
        std::uint64_t bytes, n_tokens;
        std::uint32_t n_sequences, step_tokens;
    };
    lk_pmkvq options(const StatisticsOptions &from, const Budget &budget) const;
};

// From statistics. Scales that are to be folded go to their file.
llama::PlanHandle make_pmkvq(const lk_calibrator *calibrator, const PmkvqOptions &options,
                             const StatisticsOptions &from, const PmkvqOptions::Budget &budget);

// A layer goes down a rung when a sequence gets so long.
struct Descent {
    std::uint64_t n_tokens;  // the first that no longer fits at the rung before
    std::uint32_t layer;
    std::uint32_t rung;
};
// In order, up to the budget's tokens, as if a layer's pages all went at once.
std::vector<Descent> descents(const lk_plan *plan, const PmkvqOptions::Budget &budget);

// What each layer ends at and costs, and when it goes down.
void print_pmkvq(const lk_plan *plan, const lk_calibrator *calibrator, const lk_pmkvq &options,
                 const PmkvqOptions::Budget &budget);
Json pmkvq_json(const lk_plan *plan, const PmkvqOptions::Budget &budget);

// Layers by the widths that they end at, their widths over time, and the mean of them.
void draw_pmkvq(const lk_plan *plan, const PmkvqOptions::Budget &budget, const std::string &path);

}  // namespace cli

#endif
