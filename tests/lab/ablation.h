// The parts of a method one by one: plans that differ in one thing each, and the published figures.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_ABLATION_H
#define CLI_ABLATION_H

#include <string>
#include <vector>

#include "cli/common/command.h"
#include "cli/demo/evaluation.h"

namespace cli {

// What the statistics of an ablation are made from.
struct AblationSource {
    std::string text;            // running text, for all rows but the matched one
    std::uint64_t n_tokens = 0;  // of each kind
};

// chanmix, chanmix-published, kitty
std::vector<std::string> ablation_names();

// Sets request.plans to the rows of an ablation, fp16 first.
// chanmix: 2-bit, +R, +O and +R+O by statistics of running text, and +R+O by statistics of
// documents of the request's own tasks, other ones than those of its questions ("matched").
// chanmix-published: the same with keys that keep their mean, 1-bit channels by their range, no
// sinks. kitty: 2 bits for all (KIVI), with sinks, with boosted channels, with as many at random,
// and on a CPU with those that queries multiply most.
void set_ablation(const std::string &name, llama::Model &model, const AblationSource &source,
                  EvaluationRequest &request);

// Bytes of pages and of whole caches in percent of FP16, exact match, mean -log2 p of an answer
// byte, and what the paper has.
void print_ablation(const std::string &name, const std::vector<PlanResult> &results);
// What the paper has for a row: score and percent of FP16's bytes; an empty object when nothing.
Json published_json(const std::string &name, const std::string &plan);

}  // namespace cli

#endif
