// SPDX-License-Identifier: Apache-2.0
#include "ablation.h"

#include <lowkey/calibrate.h>

#include <algorithm>
#include <cstdio>

#include "report.h"
#include "sampling.h"

namespace cli {
namespace {

constexpr std::uint64_t kMatchedSeed = 7919;  // of documents that no question is asked about

struct Row {
    const char *name;
    bool retrieval;
    bool outliers;
    bool is_matched;
    // RULER of Llama-3.1 8B, mean over lengths, and the size of its cache in percent.
    double published;
    double published_size;
};
constexpr Row kRows[] = {
    {"2-bit", false, false, false, 75.40, 15.8},      {"+R", true, false, false, 81.50, 19.5},
    {"+O", false, true, false, 81.13, 15.8},          {"+R+O", true, true, false, 82.16, 19.5},
    {"+R+O, matched", true, true, true, 82.16, 19.5},
};
constexpr double kPublishedFp16 = 84.47;

llama::PlanHandle make_row(const lk_calibrator *calibrator, const Row &row, bool as_published) {
    lk_chanmix options = llama::initialised(lk_chanmix_init);
    options.retrieval = row.retrieval ? LK_RETRIEVAL_KEY_VALUE : LK_RETRIEVAL_NONE;
    options.outliers = row.outliers ? 1 : 0;
    if (as_published) {
        options.centers = 0;
        options.one_bit = LK_ONE_BIT_RANGE;
        options.sink_tokens = 0;
    }
    lk_plan *plan = nullptr;
    llama::check(lk_calibrator_chanmix(calibrator, &options, &plan));
    llama::PlanHandle handle(plan);
    llama::check(lk_plan_set_name(plan, row.name));
    return handle;
}

// Documents of the tasks, in equal parts, without their BOS.
std::string task_text(const EvaluationRequest &request, std::uint64_t n_tokens,
                      std::uint64_t document_tokens) {
    std::string text;
    for (std::uint64_t d = 0; text.size() < n_tokens; ++d) {
        const llama::Task &task = *request.tasks[d % request.tasks.size()];
        text += llama::make_document(task, document_tokens, kMatchedSeed + d, request.material)
                    .context.substr(1);
    }
    return text;
}

std::string percent(double part) { return format_fixed(100 * part, 1); }

double share_of_cache(const PlanResult &result) { return 1 / result.compression(); }

}  // namespace

void set_chanmix_ablation(lk_context *context, llama::Model &model, const AblationSource &source,
                          bool as_published, EvaluationRequest &request) {
    SamplingRequest sampling;
    sampling.n_tokens = source.n_tokens;
    sampling.text = source.text;
    const llama::CalibratorHandle text = sample_model(context, model, sampling);
    sampling.text = task_text(request, source.n_tokens, sampling.document_tokens);
    const llama::CalibratorHandle matched = sample_model(context, model, sampling);
    const llama::Config &c = model.config();
    const llama::Geometry geometry(c.n_layers, c.n_query_heads, c.n_kv_heads, c.head_dim);
    request.plans.clear();
    request.plans.push_back(llama::make_preset("fp16", geometry));
    for (const Row &row : kRows)
        request.plans.push_back(
            make_row(row.is_matched ? matched.get() : text.get(), row, as_published));
}

void print_ablation(const std::vector<PlanResult> &results) {
    std::vector<std::string> header = {"plan", "tokens", "pages %", "cache %"};
    for (const TaskResult &task : results.front().tasks) {
        header.push_back(std::string(task.task->name) + ", %");
        header.emplace_back("-log2 p");
    }
    header.emplace_back("paper");
    header.emplace_back("paper's cache %");
    Table table(header);
    for (const PlanResult &result : results) {
        std::vector<std::string> row = {result.plan, std::to_string(result.context_tokens),
                                        percent(result.bits_per_value / 16),
                                        percent(share_of_cache(result))};
        for (const TaskResult &task : result.tasks) {
            row.push_back(format_fixed(task.exact_match(), 1));
            row.push_back(format_fixed(task.bits_per_byte(), 4));
        }
        const auto *known = std::find_if(std::begin(kRows), std::end(kRows),
                                         [&](const Row &one) { return result.plan == one.name; });
        const bool is_row = known != std::end(kRows);
        row.push_back(format_fixed(is_row ? known->published : kPublishedFp16, 2));
        row.push_back(format_fixed(is_row ? known->published_size : 100, 1));
        table.add(row);
    }
    table.print();
    std::printf(
        "\npages %%: bits of a packed value in percent of 16, ranges and minima included; cache "
        "%%: the\n"
        "whole cache, recent tokens included; -log2 p: mean of an answer byte; paper: RULER of\n"
        "Llama-3.1 8B, mean over 4K to 128K, and the size of its cache\n");
}

}  // namespace cli
