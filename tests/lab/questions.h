// The model, the texts and the questions of a study: options and what is made from them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LAB_QUESTIONS_H
#define LAB_QUESTIONS_H

#include <string>
#include <vector>

#include "cli/common/command.h"
#include "cli/demo/evaluation_view.h"

namespace cli {

struct QuestionOptions {
    DeviceOptions device;
    std::string model, text;  // files; empty = the shipped ones
    std::vector<std::string> tasks = {"needle", "kv-hard", "trace"};
    std::vector<std::uint64_t> contexts = {4096};
    std::size_t n_questions = 24;
    std::size_t questions_per_document = 24;
    bool json = false;

    void add_to(CLI::App &command);
    // Fills in the files that were not given. Throws llama::Error.
    void find_files();
    EvaluationRequest request() const;  // without plans
    EvaluationOrigin origin(std::uint64_t seed) const;
};

// What statistics are made from.
struct CalibrationOptions {
    std::string text;  // a file; empty = that of the questions
    std::uint64_t n_tokens = 8192;

    void add_to(CLI::App &command);
    std::string read(const QuestionOptions &questions) const;
};

// The list of tasks, for --help.
std::string task_list();

// Notes contexts that are longer than those the model was trained on.
void note_long_contexts(const QuestionOptions &options, const llama::Model &model);

}  // namespace cli

#endif
