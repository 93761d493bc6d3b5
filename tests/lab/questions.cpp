// SPDX-License-Identifier: Apache-2.0
#include "lab/questions.h"

#include <CLI/CLI.hpp>

#include "cli/common/numbers.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"

namespace cli {

void QuestionOptions::add_to(CLI::App &command) {
    device.add_to(command);
    command.add_option("--model", model, "safetensors weights; default the shipped model");
    command.add_option("--text", text, "text that needles hide in; default the demo's");
    command.add_option("--tasks", tasks, "tasks, see below")->delimiter(',')->capture_default_str();
    command.add_option("--contexts", contexts, "tokens of a context, one or more")
        ->delimiter(',')
        ->capture_default_str()
        ->transform(Count())
        ->check(CLI::Range(std::uint64_t{256}, std::uint64_t{131072}));
    command.add_option("--questions", n_questions, "questions of each task")
        ->capture_default_str()
        ->check(CLI::Range(1u, 100000u));
    command.add_option("--per-document", questions_per_document, "questions of a document")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1000u));
    command.add_flag("--json", json, "print JSON");
}

void QuestionOptions::find_files() {
    model = find_model(model);
    text = find_text(text);
}

EvaluationRequest QuestionOptions::request() const {
    EvaluationRequest request;
    request.tasks = find_tasks(tasks);
    request.contexts = contexts;
    request.n_questions = n_questions;
    request.questions_per_document = questions_per_document;
    request.material = read_material(model, text);
    return request;
}

EvaluationOrigin QuestionOptions::origin(std::uint64_t seed) const {
    return {model, text, seed, device.device, n_questions};
}

void CalibrationOptions::add_to(CLI::App &command) {
    command.add_option("--calibrate", text, "text of the statistics; default that of --text");
    command.add_option("--calibrate-tokens", n_tokens, "tokens of each kind of statistics")
        ->capture_default_str()
        ->transform(Count())
        ->check(CLI::Range(std::uint64_t{64}, std::uint64_t{1} << 30));
}

std::string CalibrationOptions::read(const QuestionOptions &questions) const {
    return read_file(text.empty() ? questions.text : text);
}

std::string task_list() {
    std::string text =
        "A document is encoded once for all plans; each question is answered after it and rolled\n"
        "back. A question counts when every byte of its answer is the model's first choice, as in\n"
        "greedy decoding. Contexts are tokens (one is one byte for the shipped model); KV bytes "
        "are\n"
        "codes, ranges, minima and the recent tokens at 16 bits.\nTasks:\n";
    for (const llama::Task &task : llama::all_tasks()) {
        text += std::string("  ") + task.name +
                std::string(14 - std::string(task.name).size(), ' ') + task.about + "\n";
    }
    return text;
}

void note_long_contexts(const QuestionOptions &options, const llama::Model &model) {
    for (const std::uint64_t n_tokens : options.contexts) {
        if (n_tokens > model.config().max_tokens) {
            note("the model was not trained beyond " + std::to_string(model.config().max_tokens) +
                 " tokens");
        }
    }
}

}  // namespace cli
