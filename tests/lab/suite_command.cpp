// lowkey-lab suite, tables and stress: plans at equal bytes, and attention without a model.
//
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/calibrate/sampling.h"
#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"
#include "lab/commands.h"
#include "lab/families.h"
#include "lab/questions.h"
#include "lab/stress.h"
#include "lab/suite_report.h"

namespace cli {
namespace {

constexpr std::uint32_t kAttentionTokens = 512;  // of each text, as lowkey calibrate has it

// How a record is shown.
struct TableOptions {
    std::vector<std::string> records;
    std::string markdown, png, commit;
    bool json = false;

    void add_to(CLI::App &command);
};

struct SuiteOptions {
    QuestionOptions questions;
    std::vector<std::string> plans;
    std::vector<std::uint64_t> seeds = {1};
    std::vector<double> limits;
    std::vector<std::string> families;  // of --limits; empty = all
    std::uint64_t sized_tokens = 8192;
    std::string stats;
    CalibrationOptions calibration;
    TableOptions tables;
};

llama::CalibratorHandle suite_statistics(const SuiteOptions &options, llama::Model &model) {
    if (!options.stats.empty())
        return load_statistics(options.stats);
    SamplingRequest sampling;
    sampling.n_tokens = options.calibration.n_tokens;
    sampling.pass.attention_tokens = kAttentionTokens;
    sampling.pass.search_scales = true;
    sampling.texts = byte_texts(options.calibration.read(options.questions));
    return sample_model(model, sampling);
}

// Named plans are families of their own; the others are made at each limit.
std::vector<SuitePlan> suite_plans(const SuiteOptions &options, llama::Model &model) {
    const llama::Geometry geometry = model.geometry();
    std::vector<SuitePlan> plans;
    for (const std::string &name :
         options.plans.empty() ? std::vector<std::string>{"fp16"} : options.plans) {
        llama::PlanHandle plan = load_plan(name, geometry);
        const std::string own = lk_plan_name(plan.get());
        plans.push_back({own, own, 0, std::move(plan), {}});
    }
    if (!options.limits.empty()) {
        const llama::CalibratorHandle statistics = suite_statistics(options, model);
        for (SuitePlan &plan :
             family_plans(statistics.get(), options.limits, options.families, options.sized_tokens))
            plans.push_back(std::move(plan));
    }
    for (const std::string &family : options.families)
        if (std::none_of(plans.begin(), plans.end(),
                         [&](const SuitePlan &plan) { return plan.family == family; }))
            throw UsageError("--families has " + family + ", of which no plan is within a limit");
    return plans;
}

void report_suite(const TableOptions &options, const SuiteRecord &record) {
    const std::string markdown = suite_markdown(record);
    if (options.json) {
        Json json = suite_json(record);
        if (!options.commit.empty())
            json["commit"] = options.commit;
        print_json(json);
    } else {
        std::printf("%s", markdown.c_str());
    }
    if (!options.markdown.empty())
        write_file(options.markdown, markdown);
    if (!options.png.empty())
        draw_suite(record, options.png);
}

int run_suite_command(SuiteOptions options) {
    options.questions.find_files();
    const llama::ContextHandle context = options.questions.device.open();
    const std::unique_ptr<llama::TensorSpace> space = options.questions.device.space();
    llama::Model model(options.questions.model, options.questions.device.n_threads);
    const EvaluationRequest common = options.questions.request();
    SuiteRequest request;
    request.tasks = common.tasks;
    request.contexts = common.contexts;
    request.seeds = options.seeds;
    request.n_questions = common.n_questions;
    request.questions_per_document = common.questions_per_document;
    request.material = common.material;
    if (options.tables.records.size() > 1)
        throw UsageError("a suite keeps one --record; several are for lowkey-lab tables");
    request.record = options.tables.records.empty() ? "" : options.tables.records.front();
    request.plans = suite_plans(options, model);
    request.origin = {{"model", digest(read_file(options.questions.model))},
                      {"text", digest(read_file(options.questions.text))},
                      {"device", options.questions.device.device},
                      {"per_document", options.questions.questions_per_document}};
    lk_device_info device = llama::initialised(lk_device_info_init);
    llama::check(lk_context_device(context.get(), &device));
    options.tables.json = options.questions.json;
    report_suite(options.tables, run_suite(context.get(), *space, model, request, device.name));
    return 0;
}

int run_stress_command(const DeviceOptions &device, std::uint64_t seed, bool as_json) {
    const std::vector<StressResult> results = run_stress(device, seed);
    if (as_json) {
        print_json(stress_json(results));
    } else {
        print_stress(results);
    }
    return 0;
}

void TableOptions::add_to(CLI::App &command) {
    command.add_option("--png", png, "draw answers over bits per value to this file");
    command.add_option("--markdown", markdown, "write the tables to this file");
    command.add_option("--commit", commit, "what was built, kept in the JSON with the device");
}

}  // namespace

void add_suite(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "suite",
        "tasks x contexts x seeds x plans next to an FP16 cache: exact match, -log2 p, KL "
        "and attention error");
    command->footer(
        "Example:\n"
        "  lowkey-lab suite --limits 2.25,2.5,3,4 --seeds 1,2 --record run.json --png run.png\n" +
        task_list());
    const auto options = std::make_shared<SuiteOptions>();
    options->questions.add_to(*command);
    command->add_option("--plans", options->plans, "presets or plan files; default fp16")
        ->delimiter(',');
    command->add_option("--seeds", options->seeds, "one or more")
        ->delimiter(',')
        ->capture_default_str();
    command
        ->add_option(
            "--limits", options->limits,
            "bits per value: of KIVI, KIVI with sinks, Kitty, ChanMix, Cocktail, PM-KVQ and "
            "auto the largest plan within each, next to --plans")
        ->delimiter(',')
        ->check(CLI::Range(1.0, 16.0));
    command
        ->add_option("--sized-tokens", options->sized_tokens,
                     "of the sequence that the bits and budgets of --limits are counted for")
        ->capture_default_str()
        ->check(CLI::Range(256u, 1u << 20));
    command->add_option("--families", options->families, "only these of --limits")->delimiter(',');
    command->add_option("--stats", options->stats,
                        "statistics for --limits; default those of --calibrate, made here");
    options->calibration.add_to(*command);
    command
        ->add_option("--record", options->tables.records,
                     "keep all answers in this file and go on with the answers it has")
        ->delimiter(',');
    options->tables.add_to(*command);
    command->callback([options, &exit_code] { exit_code = run_suite_command(*options); });
}

void add_tables(CLI::App &app, int &exit_code) {
    CLI::App *command =
        app.add_subcommand("tables", "tables and picture of the records of suites, one or more");
    command->footer("Example:\n  lowkey-lab tables --record one.json,two.json --png suite.png");
    const auto options = std::make_shared<TableOptions>();
    command->add_option("--record", options->records, "of suites that ran side by side")
        ->delimiter(',')
        ->required();
    options->add_to(*command);
    command->add_flag("--json", options->json, "print JSON");
    command->callback([options, &exit_code] {
        report_suite(*options, read_records(options->records));
        exit_code = 0;
    });
}

void add_stress(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "stress",
        "no model: attention on keys with outliers, biases, constant channels and massive "
        "sinks, in shapes of large models");
    command->footer("Example:\n  lowkey-lab stress --json");
    const auto device = std::make_shared<DeviceOptions>();
    const auto seed = std::make_shared<std::uint64_t>(1);
    const auto as_json = std::make_shared<bool>(false);
    device->add_to(*command);
    command->add_option("--seed", *seed, "of the numbers")->capture_default_str();
    command->add_flag("--json", *as_json, "print JSON");
    command->callback([device, seed, as_json, &exit_code] {
        exit_code = run_stress_command(*device, *seed, *as_json);
    });
}

}  // namespace cli
