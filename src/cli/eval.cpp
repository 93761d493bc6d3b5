// lowkey eval: does a model still find things when its cache is packed?
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "ablation.h"
#include "chart.h"
#include "cocktail_ablation.h"
#include "command.h"
#include "evaluation.h"
#include "families.h"
#include "report.h"
#include "resources.h"
#include "sampling.h"
#include "shift_ablation.h"
#include "stress.h"
#include "suite_report.h"

namespace cli {
namespace {

const char *const kCocktail = "cocktail";
const char *const kShifts = "pm-kvq";

constexpr std::uint32_t kAttentionTokens = 512;  // of each text, as lowkey calibrate has it
constexpr std::size_t kDemoQuestions = 48;
// Of a demo on Vulkan, whose driver may run on the CPU.
constexpr std::uint64_t kDemoVulkanContext = 1024;
constexpr std::size_t kDemoVulkanQuestions = 16;

struct EvalOptions {
    DeviceOptions device;
    std::string model;
    std::string text;
    std::vector<std::string> tasks = {"needle", "kv-hard", "trace"};
    std::vector<std::uint64_t> contexts = {4096};
    std::vector<std::string> plans;
    std::string ablation;
    std::string calibration_text;
    std::uint64_t calibration_tokens = 8192;
    std::size_t n_questions = 24;
    std::size_t questions_per_document = 24;
    std::uint64_t seed = 1;
    std::string png;
    bool json = false;
    bool demo = false;
    bool stress = false;
    bool suite = false;
    bool tables = false;
    std::vector<std::uint64_t> seeds = {1};
    std::vector<double> limits;
    std::string stats;
    std::vector<std::string> records;
    std::string markdown;
    std::string commit;
};

std::string model_path(const EvalOptions &options) {
    if (!options.model.empty())
        return options.model;
    const std::string found = find_resource({"tests/model/prover.safetensors"});
    if (found.empty())
        throw llama::Error("the model prover.safetensors was not found; give --model FILE");
    return found;
}

std::string text_path(const EvalOptions &options) {
    if (!options.text.empty())
        return options.text;
    const std::string found =
        find_resource({"docs/FORMAT.md", "README.md", "tests/model/README.md"});
    if (found.empty())
        throw llama::Error("no text was found to hide needles in; give --text FILE");
    return found;
}

EvaluationRequest make_request(const EvalOptions &options, const std::string &model,
                               const std::string &text) {
    EvaluationRequest request;
    for (const std::string &name : options.tasks) {
        const llama::Task *task = llama::find_task(name);
        if (task == nullptr)
            throw UsageError("there is no task " + name + "; see lowkey eval --help");
        request.tasks.push_back(task);
    }
    request.contexts = options.contexts;
    request.n_questions = options.n_questions;
    request.questions_per_document = options.questions_per_document;
    request.seed = options.seed;
    request.material.filler = read_file(text);
    if (request.material.filler.empty())
        throw llama::Error(text + " is empty");
    if (request.material.filler.back() != '\n') {
        request.material.filler.push_back('\n');  // between the repeats of a short text
    }
    request.material.words = words_beside(model);
    return request;
}

// The plans that were named, or those of an ablation, which come from running the model.
void set_plans(const EvalOptions &options, llama::Model &model, const std::string &text,
               EvaluationRequest &request) {
    const llama::Config &c = model.config();
    if (!options.ablation.empty()) {
        AblationSource source;
        source.text = read_file(options.calibration_text.empty() ? text : options.calibration_text);
        source.n_tokens = options.calibration_tokens;
        if (options.ablation == kShifts)
            set_shift_ablation(model, source, request);
        else
            set_ablation(options.ablation, model, source, request);
        return;
    }
    const llama::Geometry geometry(c.n_layers, c.n_query_heads, c.n_kv_heads, c.head_dim);
    for (const std::string &name : options.plans.empty() ? preset_names() : options.plans)
        request.plans.push_back(load_plan(name, geometry));
}

bool is_text_task(const TaskResult &result) {
    return result.task->scoring == llama::Scoring::kText;
}

Json task_json(const TaskResult &result) {
    Json json = {{"task", result.task->name},
                 {"questions", result.n_questions},
                 {"answer_bytes", result.n_bytes},
                 {"answer_bytes_right", result.n_bytes_right},
                 {"bits_per_byte", result.bits_per_byte()},
                 {"bits_per_byte_error_95", result.bits_error()}};
    if (is_text_task(result))
        return json;
    const Interval interval = wilson_interval(result.n_right, result.n_questions);
    json["right"] = result.n_right;
    json["exact_match_percent"] = result.exact_match();
    json["interval_95_percent"] = {interval.low, interval.high};
    return json;
}

Json to_json(const std::vector<PlanResult> &results, const EvalOptions &options,
             const std::string &model, const std::string &text) {
    Json list = Json::array();
    for (const PlanResult &result : results) {
        Json tasks = Json::array();
        for (const TaskResult &task : result.tasks)
            tasks.push_back(task_json(task));
        list.push_back({{"plan", result.plan},
                        {"context_tokens", result.context_tokens},
                        {"bits_per_value", result.bits_per_value},
                        {"kv_bytes", result.kv_bytes},
                        {"fp16_bytes", result.fp16_bytes},
                        {"compression", result.compression()},
                        {"decode_tokens_per_s", result.decode_tokens_per_s},
                        {"tasks", tasks}});
        if (options.ablation == kShifts)
            list.back()["published"] = {{"text", published_shift(result.plan)}};
        else if (!options.ablation.empty())
            list.back()["published"] = published_json(options.ablation, result.plan);
    }
    return {{"model", model},           {"text", text},
            {"seed", options.seed},     {"device", options.device.device},
            {"build", lk_build_info()}, {"results", list}};
}

std::string task_cell(const TaskResult &result) {
    if (is_text_task(result))
        return format_fixed(result.bits_per_byte(), 3);
    const Interval interval = wilson_interval(result.n_right, result.n_questions);
    return format_fixed(result.exact_match(), 1) + " (" + format_fixed(interval.low, 0) + ".." +
           format_fixed(interval.high, 0) + ")";
}

void print_table(const std::vector<PlanResult> &results, const EvalOptions &options) {
    std::vector<std::string> header = {"plan", "tokens", "bits/value", "KV bytes", "compression"};
    for (const TaskResult &task : results.front().tasks) {
        header.push_back(std::string(task.task->name) +
                         (is_text_task(task) ? ", bits/byte" : ", %"));
    }
    header.emplace_back("tokens/s");
    Table table(header);
    for (const PlanResult &result : results) {
        std::vector<std::string> row = {result.plan, std::to_string(result.context_tokens),
                                        format_fixed(result.bits_per_value, 3),
                                        format_bytes(static_cast<double>(result.kv_bytes)),
                                        format_fixed(result.compression(), 2) + " x"};
        for (const TaskResult &task : result.tasks)
            row.push_back(task_cell(task));
        row.push_back(format_fixed(result.decode_tokens_per_s, 0));
        table.add(row);
    }
    table.print();
    std::printf(
        "\nexact match of %zu questions (95 %% interval); tokens/s: decode, model included\n",
        options.n_questions);
}

// Tasks of the longest context; the others would hide each other.
void write_chart(const std::vector<PlanResult> &results, const EvalOptions &options,
                 const std::string &path) {
    const std::uint64_t n_tokens =
        *std::max_element(options.contexts.begin(), options.contexts.end());
    std::vector<ChartSeries> series;
    for (std::size_t t = 0; t < results.front().tasks.size(); ++t) {
        if (is_text_task(results.front().tasks[t]))
            continue;
        series.push_back({results.front().tasks[t].task->name, {}});
        for (const PlanResult &result : results) {
            if (result.context_tokens != n_tokens)
                continue;
            const TaskResult &task = result.tasks[t];
            const Interval interval = wilson_interval(task.n_right, task.n_questions);
            series.back().points.push_back({result.plan, static_cast<double>(result.kv_bytes),
                                            task.exact_match(), interval.low, interval.high});
        }
    }
    draw_chart("What each cache still finds",
               std::to_string(n_tokens) + " tokens of context, " +
                   std::to_string(options.n_questions) + " questions per task, device " +
                   options.device.device,
               series, path);
}

llama::CalibratorHandle suite_statistics(const EvalOptions &options, llama::Model &model,
                                         const std::string &text) {
    if (!options.stats.empty())
        return load_statistics(options.stats);
    SamplingRequest sampling;
    sampling.n_tokens = options.calibration_tokens;
    sampling.pass.attention_tokens = kAttentionTokens;
    sampling.pass.search_scales = true;
    sampling.text = read_file(options.calibration_text.empty() ? text : options.calibration_text);
    return sample_model(model, sampling);
}

// Named plans are families of their own; the others are made at each limit.
std::vector<SuitePlan> suite_plans(const EvalOptions &options, llama::Model &model,
                                   const std::string &text) {
    const llama::Config &c = model.config();
    const llama::Geometry geometry(c.n_layers, c.n_query_heads, c.n_kv_heads, c.head_dim);
    std::vector<SuitePlan> plans;
    for (const std::string &name :
         options.plans.empty() ? std::vector<std::string>{"fp16"} : options.plans) {
        llama::PlanHandle plan = load_plan(name, geometry);
        const std::string own = lk_plan_name(plan.get());
        plans.push_back({own, own, 0, std::move(plan), {}});
    }
    if (!options.limits.empty()) {
        const llama::CalibratorHandle statistics = suite_statistics(options, model, text);
        for (SuitePlan &plan : family_plans(statistics.get(), options.limits))
            plans.push_back(std::move(plan));
    }
    return plans;
}

void report_suite(const EvalOptions &options, const SuiteRecord &record) {
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
        write_text(options.markdown, markdown);
    if (!options.png.empty())
        draw_suite(record, options.png);
}

int run_suite_eval(const EvalOptions &options, lk_context *context, llama::TensorSpace &space,
                   llama::Model &model, const std::string &path, const std::string &text) {
    const EvaluationRequest common = make_request(options, path, text);
    SuiteRequest request;
    request.tasks = common.tasks;
    request.contexts = common.contexts;
    request.seeds = options.seeds;
    request.n_questions = common.n_questions;
    request.questions_per_document = common.questions_per_document;
    request.material = common.material;
    if (options.records.size() > 1)
        throw UsageError("several files of --record are for --tables");
    request.record = options.records.empty() ? "" : options.records.front();
    request.plans = suite_plans(options, model, text);
    request.origin = {{"model", digest(read_file(path))},
                      {"text", digest(read_file(text))},
                      {"device", options.device.device},
                      {"per_document", options.questions_per_document}};
    lk_device_info device = llama::initialised(lk_device_info_init);
    llama::check(lk_context_device(context, &device));
    const SuiteRecord record = run_suite(context, space, model, request, device.name);
    report_suite(options, record);
    return 0;
}

int run_stress_eval(const EvalOptions &options) {
    const std::vector<StressResult> results = run_stress(options.device, options.seed);
    if (options.json) {
        print_json(stress_json(results));
    } else {
        print_stress(results);
    }
    return 0;
}

int run_cocktail(const EvalOptions &options, lk_context *context, llama::TensorSpace &space,
                 llama::Model &model, const EvaluationRequest &request) {
    const std::vector<CocktailResult> results =
        run_cocktail_ablation(context, space, model, request);
    if (options.json) {
        print_json({{"seed", options.seed},
                    {"device", options.device.device},
                    {"build", lk_build_info()},
                    {"results", cocktail_ablation_json(results)}});
    } else {
        print_cocktail_ablation(results);
    }
    return 0;
}

int run_eval(EvalOptions options) {
    if (options.stress)
        return run_stress_eval(options);
    if (options.tables) {
        if (options.records.empty())
            throw UsageError("--tables needs --record FILE");
        report_suite(options, read_records(options.records));
        return 0;
    }
    if (options.demo && options.png.empty())
        options.png = "lowkey-demo.png";
    const llama::ContextHandle context = options.device.open();
    const std::unique_ptr<llama::TensorSpace> space = options.device.space();
    const std::string path = model_path(options), text = text_path(options);
    if (options.suite) {
        llama::Model model(path, options.device.n_threads);
        return run_suite_eval(options, context.get(), *space, model, path, text);
    }
    EvaluationRequest request = make_request(options, path, text);
    llama::Model model(path, options.device.n_threads);
    if (options.ablation == kCocktail)
        return run_cocktail(options, context.get(), *space, model, request);
    set_plans(options, model, text, request);
    for (const std::uint64_t n_tokens : options.contexts) {
        if (n_tokens > model.config().max_tokens) {
            note("the model was not trained beyond " + std::to_string(model.config().max_tokens) +
                 " tokens");
        }
    }
    note("model " + path + ", text " + text);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<PlanResult> results = evaluate(context.get(), *space, model, request);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (options.json) {
        print_json(to_json(results, options, path, text));
    } else if (options.ablation == kShifts) {
        print_shift_ablation(results);
    } else if (!options.ablation.empty()) {
        print_ablation(options.ablation, results);
    } else {
        print_table(results, options);
    }
    if (!options.png.empty()) {
        write_chart(results, options, options.png);
        if (!options.json)
            std::printf("picture: %s\n", options.png.c_str());
    }
    note("took " + format_fixed(taken.count(), 1) + " s");
    return 0;
}

// Those that are rows of plans, and Cocktail's, whose classes belong to a question.
std::vector<std::string> all_ablations() {
    std::vector<std::string> names = ablation_names();
    names.emplace_back(kCocktail);
    names.emplace_back(kShifts);
    return names;
}

std::string help_footer() {
    std::string text =
        "Examples:\n"
        "  lowkey eval --demo --text book.txt\n"
        "  lowkey eval --tasks needle,repeat-512 --contexts 2048,4096 --plans fp16,kitty --json\n"
        "  lowkey eval --suite --limits 2.25,2.5,3,4 --seeds 1,2 --record run.json --png run.png\n"
        "A document is encoded once for all plans; each question is answered behind it and rolled\n"
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

void add_suite_options(CLI::App &command, EvalOptions &options) {
    const char *const group = "Suite (--suite)";
    command
        .add_flag(
            "--suite", options.suite,
            "tasks x contexts x seeds x plans beside an FP16 cache: exact match, -log2 p, KL, "
            "attention error; table as Markdown, JSON, picture over bits per value")
        ->group(group);
    command.add_option("--seeds", options.seeds, "of the suite, one or more")
        ->delimiter(',')
        ->capture_default_str()
        ->group(group);
    command
        .add_option(
            "--limits", options.limits,
            "bits per value: of KIVI, KIVI with sinks, Kitty, ChanMix, Cocktail, PM-KVQ and "
            "auto the largest plan within each, beside --plans (default fp16)")
        ->delimiter(',')
        ->check(CLI::Range(2.125, 16.0))
        ->group(group);
    command
        .add_option("--stats", options.stats,
                    "statistics for --limits; default those of --calibrate, made here")
        ->group(group);
    command
        .add_option("--record", options.records,
                    "keep all answers in this file and go on with what it has; with --tables one "
                    "or more, of runs side by side")
        ->delimiter(',')
        ->group(group);
    command
        .add_flag("--tables", options.tables,
                  "ask nothing: tables and picture of all that --record holds")
        ->group(group);
    command.add_option("--markdown", options.markdown, "write the tables to this file")
        ->group(group);
    command
        .add_option("--commit", options.commit,
                    "what was built, kept in the JSON beside the device")
        ->group(group);
}

}  // namespace

void add_eval(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "eval", "let a model answer from each cache: exact match, bytes and speed");
    command->footer(help_footer());
    const auto options = std::make_shared<EvalOptions>();
    options->device.add_to(*command);
    command->add_option("--model", options->model,
                        "safetensors weights; default the shipped model");
    command->add_option("--text", options->text, "text that needles hide in; default a document");
    command->add_option("--tasks", options->tasks, "tasks, see below")
        ->delimiter(',')
        ->capture_default_str();
    CLI::Option *contexts =
        command->add_option("--contexts", options->contexts, "tokens of a context, one or more")
            ->delimiter(',')
            ->capture_default_str()
            ->check(CLI::Range(std::uint64_t{256}, std::uint64_t{131072}));
    command->add_option("--plans", options->plans, "presets or plan files; default all presets")
        ->delimiter(',');
    command
        ->add_option(
            "--ablation", options->ablation,
            "plans that have one part of a method each: chanmix, chanmix-published without "
            "centers and sinks, 1 bit by range, kitty, cocktail, or pm-kvq: its right shifts on "
            "prompts")
        ->check(CLI::IsMember(all_ablations()))
        ->excludes("--plans");
    command->add_option("--calibrate", options->calibration_text,
                        "text of the ablation's statistics; default that of --text");
    command
        ->add_option("--calibrate-tokens", options->calibration_tokens,
                     "tokens of each kind of statistics")
        ->capture_default_str()
        ->check(CLI::Range(std::uint64_t{64}, std::uint64_t{1} << 30));
    CLI::Option *questions =
        command->add_option("--questions", options->n_questions, "questions of each task")
            ->capture_default_str()
            ->check(CLI::Range(1u, 100000u));
    command
        ->add_option("--per-document", options->questions_per_document, "questions of a document")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1000u));
    command->add_option("--seed", options->seed, "of documents and questions")
        ->capture_default_str();
    command->add_option("--png", options->png, "draw exact match over bytes to this file");
    command->add_flag("--json", options->json, "print JSON");
    command->add_flag("--demo", options->demo,
                      "48 questions of each task, picture in lowkey-demo.png; on Vulkan 16 "
                      "questions and contexts of 1024 tokens");
    command->add_flag("--stress", options->stress,
                      "no model: attention on keys with outliers, biases, constant channels and "
                      "massive sinks, in shapes of large models");
    add_suite_options(*command, *options);
    command->callback([options, questions, contexts, &exit_code] {
        const bool is_vulkan = options->device.backend() == LK_BACKEND_VULKAN;
        if (options->demo && questions->count() == 0)
            options->n_questions = is_vulkan ? kDemoVulkanQuestions : kDemoQuestions;
        if (options->demo && contexts->count() == 0 && is_vulkan)
            options->contexts = {kDemoVulkanContext};
        exit_code = run_eval(*options);
    });
}

}  // namespace cli
