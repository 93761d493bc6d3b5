// Runs tasks x plans x contexts on a model and counts what it answers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_EVALUATION_H
#define CLI_EVALUATION_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/demo/serving.h"
#include "llama/session.h"
#include "llama/tasks.h"

namespace cli {

// What becomes of prompts under a plan before it gets them, in place of what the plan does.
struct Simulation {
    llama::PromptChange change;  // null = nothing
    double bits_per_value = 16;
};

struct PlanReport;

struct EvaluationRequest {
    std::vector<const llama::Task *> tasks;
    std::vector<std::uint64_t> contexts;   // tokens
    std::vector<llama::PlanHandle> plans;  // of the model's geometry
    std::vector<Simulation> simulations;   // of each plan, or empty
    std::vector<Serving> servings;         // likewise
    std::size_t n_questions = 24;          // of each task, context and plan
    std::size_t questions_per_document = 12;
    std::uint64_t seed = 1;
    llama::Material material;
    bool compares = false;  // each answer also with an FP16 cache, and attention with both
    bool times = true;      // decode speed
    // When set, the first document of every task comes before any second one, and each plan is
    // reported when its last question of such a pass is answered.
    std::function<void(const PlanReport &report)> on_plan;
};

// One question, or the second half of a text.
struct Answer {
    bool is_right = false;  // every byte
    std::size_t n_bytes = 0;
    double bits = 0;        // sum of -log2 p
    double divergence = 0;  // sum over bytes of KL(FP16 cache, this one) in bits; when comparing
    // Of a long answer. Each item follows the right answer up to it, so the items before the
    // first wrong one are those of a greedy answer.
    std::size_t n_items = 0, n_items_right = 0, n_items_before_error = 0;
};

// The answers to the questions about one document.
struct DocumentResult {
    std::vector<Answer> answers;
    double output_error = 0;  // Session::output_errors() at a question; when comparing
};

struct TaskResult {
    const llama::Task *task = nullptr;
    std::vector<DocumentResult> documents;
    std::size_t n_questions = 0;
    std::size_t n_right = 0;  // every answer byte
    std::size_t n_bytes = 0;
    std::size_t n_bytes_right = 0;
    double bits = 0;  // sum of -log2 p

    // To the last document.
    void add(const llama::Question &question, const llama::Score &score, double divergence);
    double exact_match() const;  // percent
    double bits_per_byte() const;
    double bits_error() const;  // half of the 95 % interval of a question's bits per byte
};

// Bounds of a share in percent, 95 % Wilson score interval.
struct Interval {
    double low, high;
};
Interval wilson_interval(std::size_t n_right, std::size_t n);

struct PlanResult {
    std::string plan;
    std::uint64_t context_tokens = 0;
    double bits_per_value = 0;
    std::uint64_t kv_bytes = 0;    // codes, ranges, minima and recent tokens
    std::uint64_t fp16_bytes = 0;  // the same tokens at 16 bits
    double decode_tokens_per_s = 0;
    std::vector<TaskResult> tasks;

    double compression() const;
};

// What a plan has answered so far.
struct PlanReport {
    const PlanResult &result;
    std::size_t plan;  // its index in the request
    bool is_first_pass, is_last_pass;
};

// Results by context, then plan. A document is encoded once for all plans; every question is
// answered from it and rolled back.
std::vector<PlanResult> evaluate(lk_context *context, llama::TensorSpace &space,
                                 llama::Model &model, const EvaluationRequest &request);

}  // namespace cli

#endif
