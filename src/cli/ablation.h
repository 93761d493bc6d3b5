// The parts of ChanMix one by one: plans that differ in one thing each, and the published figures.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_ABLATION_H
#define CLI_ABLATION_H

#include <string>
#include <vector>

#include "evaluation.h"

namespace cli {

// What the statistics of an ablation are made from.
struct AblationSource {
    std::string text;            // running text, for all rows but the matched one
    std::uint64_t n_tokens = 0;  // of each kind
};

// Sets request.plans to fp16, 2-bit, +R, +O and +R+O by statistics of running text, and +R+O by
// statistics of documents of the request's own tasks, other ones than it asks about ("matched").
// as_published: keys keep their mean, 1-bit channels their range, and there are no sinks.
void set_chanmix_ablation(lk_context *context, llama::Model &model, const AblationSource &source,
                          bool as_published, EvaluationRequest &request);

// Bytes of pages and of whole caches in percent of FP16, exact match, mean -log2 p of an answer
// byte, and what the paper has.
void print_ablation(const std::vector<PlanResult> &results);

}  // namespace cli

#endif
