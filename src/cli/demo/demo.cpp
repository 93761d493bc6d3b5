// lowkey demo: a small model answers questions about a text from each cache.
//
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/common/command.h"
#include "cli/common/numbers.h"
#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/demo/evaluation_view.h"

namespace cli {
namespace {

const std::vector<std::string> kTasks = {"needle", "kv-hard", "trace"};
constexpr std::size_t kQuestions = 48;
constexpr std::size_t kQuestionsPerDocument = 24;
// On Vulkan, whose driver may run on the CPU.
constexpr std::uint64_t kVulkanContext = 1024;
constexpr std::size_t kVulkanQuestions = 16;

struct DemoOptions {
    DeviceOptions device;
    std::string model, text;
    std::vector<std::string> plans;
    std::uint64_t n_tokens = 4096;
    std::size_t n_questions = kQuestions;
    std::uint64_t seed = 1;
    std::string png = "lowkey-demo.png";
    bool json = false;
};

EvaluationRequest make_request(const DemoOptions &options, const llama::Model &model,
                               const EvaluationOrigin &origin) {
    EvaluationRequest request;
    request.tasks = find_tasks(kTasks);
    request.contexts = {options.n_tokens};
    request.n_questions = options.n_questions;
    request.questions_per_document = kQuestionsPerDocument;
    request.seed = options.seed;
    request.material = read_material(origin.model, origin.text);
    const llama::Geometry geometry = model.geometry();
    for (const std::string &name : options.plans.empty() ? preset_names() : options.plans)
        request.plans.push_back(load_plan(name, geometry));
    return request;
}

// A table for the first document of each task, then one for all; rows come as caches have answered.
class LiveTables {
  public:
    LiveTables(const EvaluationRequest &request, const EvaluationOrigin &origin)
        : request_(request), origin_(origin) {}

    void add(const PlanReport &report) {
        if (!report.is_first_pass && !report.is_last_pass)
            return;
        if (report.plan == 0)
            begin(report.result.tasks.front().n_questions);
        rows_->print(evaluation_row(report.result));
    }

  private:
    void begin(std::size_t n_asked) {
        std::printf("%s%zu of %zu questions of each task\n\n", rows_ ? "\n" : "", n_asked,
                    origin_.n_questions);
        rows_.emplace(evaluation_header(request_.tasks),
                      widest_row(request_.tasks, request_.plans));
    }

    const EvaluationRequest &request_;
    const EvaluationOrigin &origin_;
    std::optional<RowPrinter> rows_;
};

int run_demo(const DemoOptions &options) {
    check_output(options.png);
    const llama::ContextHandle context = options.device.open();
    const std::unique_ptr<llama::TensorSpace> space = options.device.space();
    const EvaluationOrigin origin = {find_model(options.model), find_text(options.text),
                                     options.seed, options.device.device, options.n_questions};
    llama::Model model(origin.model, options.device.n_threads);
    EvaluationRequest request = make_request(options, model, origin);
    LiveTables tables(request, origin);
    if (!options.json) {
        std::printf(
            "A model of %u layers reads %llu tokens (bytes) of %s and answers from each "
            "cache.\n\n",
            model.config().n_layers, static_cast<unsigned long long>(options.n_tokens),
            origin.text.c_str());
        request.on_plan = [&](const PlanReport &report) { tables.add(report); };
    }
    const auto start = std::chrono::steady_clock::now();
    const std::vector<PlanResult> results = evaluate(context.get(), *space, model, request);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (options.json)
        print_json(evaluation_json(results, origin));
    else
        print_footnote(origin);
    draw_evaluation(results, origin, options.png);
    if (!options.json)
        std::printf("picture: %s\n", options.png.c_str());
    note("took " + format_fixed(taken.count(), 1) + " s");
    return 0;
}

}  // namespace

void add_demo(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "demo", "let a small model answer questions about a text from every cache");
    command->footer(
        "Examples:\n"
        "  lowkey demo\n"
        "  lowkey demo --text book.txt --plans fp16,kitty-pro --png book.png\n"
        "The text is what the model reads; codes, lists of keys and assignments are hidden in it.\n"
        "needle: which code belongs to a name; kv-hard: which value belongs to a key of a long\n"
        "list; trace: what a variable holds after it was passed on. A question counts when every\n"
        "byte of its answer is the model's first choice. KV bytes are codes, ranges, minima and\n"
        "the recent tokens at 16 bits.");
    const auto options = std::make_shared<DemoOptions>();
    options->device.add_to(*command);
    command->add_option("--model", options->model,
                        "safetensors weights; default the shipped model");
    command->add_option("--text", options->text,
                        "file that the model reads; default the shipped text");
    CLI::Option *tokens =
        command->add_option("--tokens", options->n_tokens, "tokens of the text that are read")
            ->capture_default_str()
            ->transform(Count())
            ->check(CLI::Range(std::uint64_t{256}, std::uint64_t{131072}));
    command->add_option("--plans", options->plans, "presets or plan files; default all presets")
        ->delimiter(',');
    CLI::Option *questions =
        command
            ->add_option("--questions", options->n_questions,
                         "questions of each task; the first 24 have a table of their own")
            ->capture_default_str()
            ->check(CLI::Range(1u, 100000u));
    command
        ->add_option("--seed", options->seed,
                     "seed of the hidden codes and keys and of the questions")
        ->capture_default_str();
    command->add_option("--png", options->png, "draw exact match over bytes to this file")
        ->capture_default_str();
    command->add_flag("--json", options->json, "print JSON");
    command->callback([options, questions, tokens, &exit_code] {
        const bool is_vulkan = options->device.backend() == LK_BACKEND_VULKAN;
        if (is_vulkan && questions->count() == 0)
            options->n_questions = kVulkanQuestions;
        if (is_vulkan && tokens->count() == 0)
            options->n_tokens = kVulkanContext;
        exit_code = run_demo(*options);
    });
}

}  // namespace cli
