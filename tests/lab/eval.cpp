// lowkey-lab eval and ablation: does a model still find things when its cache is packed, and which
// step of a method keeps it finding them?
//
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common/report.h"
#include "lab/ablation.h"
#include "lab/cocktail_ablation.h"
#include "lab/commands.h"
#include "lab/questions.h"
#include "lab/shift_ablation.h"

namespace cli {
namespace {

const char *const kCocktail = "cocktail";
const char *const kShifts = "pm-kvq";

struct EvalOptions {
    QuestionOptions questions;
    std::vector<std::string> plans;
    std::string ablation;
    CalibrationOptions calibration;
    std::uint64_t seed = 1;
    std::string png;
};

// The plans that were named, or those of an ablation, which come from running the model.
void set_plans(const EvalOptions &options, llama::Model &model, EvaluationRequest &request) {
    if (!options.ablation.empty()) {
        AblationSource source;
        source.text = options.calibration.read(options.questions);
        source.n_tokens = options.calibration.n_tokens;
        if (options.ablation == kShifts)
            set_shift_ablation(model, source, request);
        else
            set_ablation(options.ablation, model, source, request);
        return;
    }
    const llama::Geometry geometry = model.geometry();
    for (const std::string &name : options.plans.empty() ? preset_names() : options.plans)
        request.plans.push_back(load_plan(name, geometry));
}

Json to_json(const std::vector<PlanResult> &results, const EvalOptions &options,
             const EvaluationOrigin &origin) {
    Json json = evaluation_json(results, origin);
    for (std::size_t i = 0; i < results.size(); ++i) {
        if (options.ablation == kShifts)
            json["results"][i]["published"] = {{"text", published_shift(results[i].plan)}};
        else if (!options.ablation.empty())
            json["results"][i]["published"] = published_json(options.ablation, results[i].plan);
    }
    return json;
}

int run_cocktail(const EvalOptions &options, lk_context *context, llama::TensorSpace &space,
                 llama::Model &model, const EvaluationRequest &request) {
    const std::vector<CocktailResult> results =
        run_cocktail_ablation(context, space, model, request);
    if (options.questions.json) {
        print_json({{"seed", options.seed},
                    {"device", options.questions.device.device},
                    {"build", lk_build_info()},
                    {"results", cocktail_ablation_json(results)}});
    } else {
        print_cocktail_ablation(results);
    }
    return 0;
}

void show(const std::vector<PlanResult> &results, const EvalOptions &options,
          const EvaluationOrigin &origin) {
    if (options.questions.json) {
        print_json(to_json(results, options, origin));
    } else if (options.ablation == kShifts) {
        print_shift_ablation(results);
    } else if (!options.ablation.empty()) {
        print_ablation(options.ablation, results);
    } else {
        print_evaluation(results, origin);
    }
    if (!options.png.empty()) {
        draw_evaluation(results, origin, options.png);
        note("picture: " + options.png);
    }
}

int run_eval(EvalOptions options) {
    options.questions.find_files();
    const llama::ContextHandle context = options.questions.device.open();
    const std::unique_ptr<llama::TensorSpace> space = options.questions.device.space();
    EvaluationRequest request = options.questions.request();
    request.seed = options.seed;
    const EvaluationOrigin origin = options.questions.origin(options.seed);
    llama::Model model(origin.model, options.questions.device.n_threads);
    if (options.ablation == kCocktail)
        return run_cocktail(options, context.get(), *space, model, request);
    set_plans(options, model, request);
    note_long_contexts(options.questions, model);
    note("model " + origin.model + ", text " + origin.text);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<PlanResult> results = evaluate(context.get(), *space, model, request);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    show(results, options, origin);
    note("took " + format_fixed(taken.count(), 1) + " s");
    return 0;
}

// The ablations that are rows of plans, and Cocktail's, whose classes belong to a question.
std::vector<std::string> all_ablations() {
    std::vector<std::string> names = ablation_names();
    names.emplace_back(kCocktail);
    names.emplace_back(kShifts);
    return names;
}

void add_common(CLI::App &command, EvalOptions &options) {
    options.questions.add_to(command);
    command.add_option("--seed", options.seed, "of documents and questions")->capture_default_str();
    command.add_option("--png", options.png, "draw exact match over bytes to this file");
}

}  // namespace

void add_eval(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "eval", "let a model answer from each cache: exact match, bytes and speed");
    command->footer(
        "Example:\n"
        "  lowkey-lab eval --tasks needle,repeat-512 --contexts 2048,4096 --plans fp16,kitty\n" +
        task_list());
    const auto options = std::make_shared<EvalOptions>();
    add_common(*command, *options);
    command->add_option("--plans", options->plans, "presets or plan files; default all presets")
        ->delimiter(',');
    command->callback([options, &exit_code] { exit_code = run_eval(*options); });
}

void add_ablation(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "ablation", "let a model answer under plans that have one step of a method each");
    command->footer(
        "Examples:\n"
        "  lowkey-lab ablation kitty --tasks kv-hard,trace --questions 16\n"
        "  lowkey-lab ablation chanmix --calibrate statistics.txt\n"
        "chanmix-published has no centers and no sinks and 1 bit by range; pm-kvq is the right\n"
        "shifts of PM-KVQ on prompts.\n" +
        task_list());
    const auto options = std::make_shared<EvalOptions>();
    command->add_option("method", options->ablation, "the method")
        ->required()
        ->check(CLI::IsMember(all_ablations()));
    add_common(*command, *options);
    options->calibration.add_to(*command);
    command->callback([options, &exit_code] { exit_code = run_eval(*options); });
}

}  // namespace cli
