// What an evaluation found, as JSON, as a table and as a picture.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_EVALUATION_VIEW_H
#define CLI_EVALUATION_VIEW_H

#include <string>
#include <vector>

#include "cli/common/command.h"
#include "cli/demo/evaluation.h"

namespace cli {

// What an evaluation was made from.
struct EvaluationOrigin {
    std::string model, text;  // files
    std::uint64_t seed = 1;
    std::string device;
    std::size_t n_questions = 0;
};

Json evaluation_json(const std::vector<PlanResult> &results, const EvaluationOrigin &origin);

// Columns and cells of the table; the cells of the row that is widest for these tasks.
std::vector<std::string> evaluation_header(const std::vector<const llama::Task *> &tasks);
std::vector<std::string> evaluation_row(const PlanResult &result);
std::vector<std::string> widest_row(const std::vector<const llama::Task *> &tasks,
                                    const std::vector<llama::PlanHandle> &plans);
void print_evaluation(const std::vector<PlanResult> &results, const EvaluationOrigin &origin);
void print_footnote(const EvaluationOrigin &origin);

// Exact match over bytes, of the longest context: others would hide each other.
void draw_evaluation(const std::vector<PlanResult> &results, const EvaluationOrigin &origin,
                     const std::string &path);

// The model and a text of tests/model when none is given. These throw llama::Error.
std::string find_model(const std::string &given);
std::string find_text(const std::string &given);
// Filler from the text, words from the list next to the model.
llama::Material read_material(const std::string &model, const std::string &text);
// Throws UsageError.
std::vector<const llama::Task *> find_tasks(const std::vector<std::string> &names);

}  // namespace cli

#endif
