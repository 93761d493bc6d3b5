// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/evaluation_view.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/common/report.h"
#include "cli/common/resources.h"
#include "cli/picture/chart.h"

namespace cli {
namespace {

constexpr char kModel[] = "tests/model/prover.safetensors";
constexpr char kDemoText[] = "tests/model/texts/demo.txt";

bool is_text_task(const llama::Task &task) { return task.scoring == llama::Scoring::kText; }

Json task_json(const TaskResult &result) {
    Json json = {{"task", result.task->name},
                 {"questions", result.n_questions},
                 {"answer_bytes", result.n_bytes},
                 {"answer_bytes_right", result.n_bytes_right},
                 {"bits_per_byte", result.bits_per_byte()},
                 {"bits_per_byte_error_95", result.bits_error()}};
    if (is_text_task(*result.task))
        return json;
    const Interval interval = wilson_interval(result.n_right, result.n_questions);
    json["right"] = result.n_right;
    json["exact_match_percent"] = result.exact_match();
    json["interval_95_percent"] = {interval.low, interval.high};
    return json;
}

std::string task_cell(const TaskResult &result) {
    if (is_text_task(*result.task))
        return format_fixed(result.bits_per_byte(), 3);
    const Interval interval = wilson_interval(result.n_right, result.n_questions);
    return format_fixed(result.exact_match(), 1) + " (" + format_fixed(interval.low, 0) + ".." +
           format_fixed(interval.high, 0) + ")";
}

}  // namespace

Json evaluation_json(const std::vector<PlanResult> &results, const EvaluationOrigin &origin) {
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
    }
    return {{"model", origin.model},   {"text", origin.text},      {"seed", origin.seed},
            {"device", origin.device}, {"build", lk_build_info()}, {"results", list}};
}

std::vector<std::string> evaluation_header(const std::vector<const llama::Task *> &tasks) {
    std::vector<std::string> header = {"plan", "tokens", "bits/value", "KV bytes", "compression"};
    for (const llama::Task *task : tasks)
        header.push_back(std::string(task->name) + (is_text_task(*task) ? ", bits/byte" : ", %"));
    header.emplace_back("tokens/s");
    return header;
}

std::vector<std::string> evaluation_row(const PlanResult &result) {
    std::vector<std::string> row = {result.plan, std::to_string(result.context_tokens),
                                    format_fixed(result.bits_per_value, 3),
                                    format_bytes(static_cast<double>(result.kv_bytes)),
                                    format_fixed(result.compression(), 2) + " x"};
    for (const TaskResult &task : result.tasks)
        row.push_back(task_cell(task));
    row.push_back(result.decode_tokens_per_s == 0 ? "-"
                                                  : format_fixed(result.decode_tokens_per_s, 0));
    return row;
}

std::vector<std::string> widest_row(const std::vector<const llama::Task *> &tasks,
                                    const std::vector<llama::PlanHandle> &plans) {
    std::string name;
    for (const llama::PlanHandle &plan : plans)
        if (name.size() < std::string(lk_plan_name(plan.get())).size())
            name = lk_plan_name(plan.get());
    std::vector<std::string> row = {name, "131072", "16.000", "10.00 MiB", "10.00 x"};
    row.insert(row.end(), tasks.size(), "100.0 (100..100)");
    row.emplace_back("10000");
    return row;
}

void print_evaluation(const std::vector<PlanResult> &results, const EvaluationOrigin &origin) {
    std::vector<const llama::Task *> tasks;
    for (const TaskResult &task : results.front().tasks)
        tasks.push_back(task.task);
    Table table(evaluation_header(tasks));
    for (const PlanResult &result : results)
        table.add(evaluation_row(result));
    table.print();
    print_footnote(origin);
}

void print_footnote(const EvaluationOrigin &origin) {
    std::printf(
        "\nexact match of %zu questions (95 %% interval); tokens/s: decode, model included\n",
        origin.n_questions);
}

void draw_evaluation(const std::vector<PlanResult> &results, const EvaluationOrigin &origin,
                     const std::string &path) {
    std::uint64_t n_tokens = 0;
    for (const PlanResult &result : results)
        n_tokens = std::max(n_tokens, result.context_tokens);
    std::vector<ChartSeries> series;
    for (std::size_t t = 0; t < results.front().tasks.size(); ++t) {
        if (is_text_task(*results.front().tasks[t].task))
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
                   std::to_string(origin.n_questions) + " questions per task, device " +
                   origin.device,
               series, path);
}

std::string find_model(const std::string &given) {
    const std::string found = given.empty() ? find_resource({kModel}) : given;
    if (found.empty())
        throw llama::Error("the model prover.safetensors was not found; give --model FILE");
    return found;
}

std::string find_text(const std::string &given) {
    const std::string found = given.empty() ? find_resource({kDemoText}) : given;
    if (found.empty())
        throw llama::Error("the text demo.txt was not found; give --text FILE to hide needles in");
    return found;
}

llama::Material read_material(const std::string &model, const std::string &text) {
    llama::Material material;
    material.filler = read_file(text);
    if (material.filler.empty())
        throw llama::Error(text + " is empty");
    if (material.filler.back() != '\n')
        material.filler.push_back('\n');  // between the repeats of a short text
    material.words = words_beside(model);
    return material;
}

std::vector<const llama::Task *> find_tasks(const std::vector<std::string> &names) {
    std::vector<const llama::Task *> tasks;
    for (const std::string &name : names) {
        tasks.push_back(llama::find_task(name));
        if (tasks.back() == nullptr)
            throw UsageError("there is no task " + name + "; --help lists them");
    }
    return tasks;
}

}  // namespace cli
