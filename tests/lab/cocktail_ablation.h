// Cocktail's parts one by one: how a model answers when a context's chunks have classes for the
// question that follows it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_COCKTAIL_ABLATION_H
#define CLI_COCKTAIL_ABLATION_H

#include <string>
#include <vector>

#include "cli/common/command.h"
#include "cli/demo/evaluation.h"

namespace cli {

// One row: which classes, by what, in what layout.
struct CocktailResult {
    std::string name;
    std::uint64_t context_tokens = 0;
    std::uint32_t chunk_tokens = 0;
    double alpha = 0, beta = 0;
    double published = 0;   // ROUGE of Llama2-7B on QMSum; 0 = none
    double shares[3] = {};  // of chunks at low, middle, high; mean over questions
    double held_bytes = 0;  // by lk_plan_chunk_bytes(), mean over questions
    double fp16_bytes = 0;
    std::size_t n_questions = 0;
    std::vector<TaskResult> tasks;
};

// For each question: the context is prefilled while packing is deferred, then the question but for
// its last byte; chunks are scored and get their classes; the last byte and the answer are run on
// the packed cache and dropped again. The request's plans are not read.
std::vector<CocktailResult> run_cocktail_ablation(lk_context *context, llama::TensorSpace &space,
                                                  llama::Model &model,
                                                  const EvaluationRequest &request);

void print_cocktail_ablation(const std::vector<CocktailResult> &results);
Json cocktail_ablation_json(const std::vector<CocktailResult> &results);

}  // namespace cli

#endif
