// SPDX-License-Identifier: Apache-2.0
#include "lab/ablation.h"

#include <lowkey/calibrate.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/calibrate/sampling.h"
#include "cli/common/report.h"

namespace cli {
namespace {

const char *const kChanmix = "chanmix";
const char *const kChanmixPublished = "chanmix-published";
const char *const kKitty = "kitty";

constexpr std::uint64_t kMatchedSeed = 7919;  // of documents without questions
constexpr std::uint64_t kRandomSeed = 1;      // of channels that are boosted at random

struct ChanmixRow {
    const char *name;
    bool retrieval;
    bool outliers;
    bool is_matched;
};
constexpr ChanmixRow kChanmixRows[] = {
    {"2-bit", false, false, false}, {"+R", true, false, false},          {"+O", false, true, false},
    {"+R+O", true, true, false},    {"+R+O, matched", true, true, true},
};

enum class Choice { kMagnitude, kRandom, kQueries };
struct KittyRow {
    const char *name;
    std::uint32_t sink_tokens;
    std::uint32_t divisor;  // one in so many channels is at 4 bits; 0 = none
    Choice choice;
};
constexpr KittyRow kKittyRows[] = {
    {"K2V2", 0, 0, Choice::kMagnitude},       {"K2V2 + sinks", 32, 0, Choice::kMagnitude},
    {"12.5 %", 32, 8, Choice::kMagnitude},    {"25 %", 32, 4, Choice::kMagnitude},
    {"25 %, random", 32, 4, Choice::kRandom}, {"25 %, by queries", 32, 4, Choice::kQueries},
};

// A score as the paper has it, and the bytes of the cache in percent of FP16; 0 = not reported.
struct Published {
    const char *plan;
    double score;
    double size;
};
constexpr Published kChanmixPaper[] = {
    {"fp16", 84.47, 100}, {"2-bit", 75.40, 15.8}, {"+R", 81.50, 19.5},
    {"+O", 81.13, 15.8},  {"+R+O", 82.16, 19.5},  {"+R+O, matched", 82.16, 19.5},
};
constexpr Published kKittyPaper[] = {
    {"fp16", 77.15, 100}, {"K2V2", 61.39, 0}, {"K2V2 + sinks", 69.80, 0},
    {"12.5 %", 74.97, 0}, {"25 %", 76.18, 0},
};

const Published *find_published(const std::string &name, const std::string &plan) {
    const bool is_kitty = name == kKitty;
    const Published *begin = is_kitty ? kKittyPaper : kChanmixPaper;
    const Published *end = begin + (is_kitty ? std::size(kKittyPaper) : std::size(kChanmixPaper));
    const Published *found =
        std::find_if(begin, end, [&](const Published &row) { return plan == row.plan; });
    return found == end ? nullptr : found;
}

llama::PlanHandle make_row(const lk_calibrator *calibrator, const ChanmixRow &row,
                           bool as_published) {
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

// 4 bits for n channels of each head that the seed chooses, for all pages alike.
void boost_at_random(lk_plan *plan, const llama::Config &c, std::uint32_t n,
                     llama::Random &random) {
    for (std::uint32_t l = 0; l < c.n_layers; ++l) {
        for (std::uint32_t h = 0; h < c.n_kv_heads; ++h) {
            std::vector<std::uint8_t> bits(c.head_dim, 2);
            std::fill_n(bits.begin(), n, std::uint8_t{4});
            random.shuffle(bits);
            lk_key_rule key = llama::initialised(lk_key_rule_init);
            key.bits = 2;
            key.channel_bits = bits.data();
            llama::check(lk_plan_set_key(plan, l, h, &key));
        }
    }
}

llama::PlanHandle make_row(const llama::Model &model, const KittyRow &row, llama::Random &random) {
    const llama::Config &c = model.config();
    llama::PlanHandle plan = llama::make_preset("kivi2", model.geometry());
    llama::check(lk_plan_set_name(plan.get(), row.name));
    llama::check(lk_plan_set_recent(plan.get(), row.sink_tokens, 128));
    if (row.divisor == 0)
        return plan;
    const std::uint32_t n = c.head_dim / row.divisor;
    if (row.choice == Choice::kRandom) {
        boost_at_random(plan.get(), c, n, random);
        return plan;
    }
    lk_key_rule key = llama::initialised(lk_key_rule_init);
    key.bits = 2;
    key.boost_channels = n;
    key.boost_bits = 4;
    key.boost_ranking = row.choice == Choice::kQueries ? LK_RANKING_QUERY_RANGE : LK_RANKING_KEY;
    llama::check(lk_plan_set_key(plan.get(), LK_ALL, LK_ALL, &key));
    return plan;
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

void add_chanmix_rows(llama::Model &model, const AblationSource &source, bool as_published,
                      EvaluationRequest &request) {
    SamplingRequest sampling;
    sampling.n_tokens = source.n_tokens;
    sampling.texts = byte_texts(source.text);
    const llama::CalibratorHandle text = sample_model(model, sampling);
    sampling.texts = byte_texts(task_text(request, source.n_tokens, sampling.document_tokens));
    const llama::CalibratorHandle matched = sample_model(model, sampling);
    for (const ChanmixRow &row : kChanmixRows)
        request.plans.push_back(
            make_row(row.is_matched ? matched.get() : text.get(), row, as_published));
}

void add_kitty_rows(const llama::Model &model, EvaluationRequest &request) {
    llama::Random random(kRandomSeed);
    for (const KittyRow &row : kKittyRows)
        request.plans.push_back(make_row(model, row, random));
}

std::string percent(double part) { return format_fixed(100 * part, 1); }

double share_of_cache(const PlanResult &result) { return 1 / result.compression(); }

std::string number_or_none(double value, int digits) {
    return value == 0 ? "-" : format_fixed(value, digits);
}

}  // namespace

std::vector<std::string> ablation_names() { return {kChanmix, kChanmixPublished, kKitty}; }

void set_ablation(const std::string &name, llama::Model &model, const AblationSource &source,
                  EvaluationRequest &request) {
    const llama::Geometry geometry = model.geometry();
    request.plans.clear();
    request.plans.push_back(llama::make_preset("fp16", geometry));
    if (name == kKitty) {
        add_kitty_rows(model, request);
    } else {
        add_chanmix_rows(model, source, name == kChanmixPublished, request);
    }
}

void print_ablation(const std::string &name, const std::vector<PlanResult> &results) {
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
        const Published *known = find_published(name, result.plan);
        row.push_back(number_or_none(known == nullptr ? 0 : known->score, 2));
        row.push_back(number_or_none(known == nullptr ? 0 : known->size, 1));
        table.add(row);
    }
    table.print();
    std::printf(
        "\npages %%: bits of a packed value in percent of 16, ranges and minima included; cache "
        "%%: the\n"
        "whole cache, recent tokens included; -log2 p: mean of an answer byte; paper: %s\n",
        name == kKitty ? "Qwen3-8B, mean\nof GSM8K, MATH-algebra, HumanEval and GPQA"
                       : "RULER of\nLlama-3.1 8B, mean over 4K to 128K, and the size of its cache");
}

Json published_json(const std::string &name, const std::string &plan) {
    const Published *known = find_published(name, plan);
    Json json = Json::object();
    if (known != nullptr && known->score != 0)
        json["score"] = known->score;
    if (known != nullptr && known->size != 0)
        json["cache_percent"] = known->size;
    return json;
}

}  // namespace cli
