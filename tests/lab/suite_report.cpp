// SPDX-License-Identifier: Apache-2.0
#include "lab/suite_report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/common/report.h"

namespace cli {
namespace {

const char *const kAuto = "auto";
const char *const kFp16 = "fp16";
constexpr std::size_t kSignFlips = 20000;
constexpr std::uint64_t kSignSeed = 1;
constexpr double kNormal95 = 1.96, kOneSided95 = 1.645;
const char *const kCopyTasks[] = {"repeat-512", "repeat-1024", "trace-1", "trace-2"};

double value_of(const SuiteSum &sum, Measure measure) {
    return measure == Measure::kExactMatch ? sum.exact_match()
           : measure == Measure::kBits     ? sum.bits_per_byte()
                                           : sum.divergence_per_byte();
}

bool is_in(Scope scope, const std::string &task) {
    return scope == Scope::kQuestions
               ? is_question_task(task)
               : std::count(std::begin(kCopyTasks), std::end(kCopyTasks), task) != 0;
}

// The difference a - b of each document of the tasks that are taken.
std::vector<double> differences(const SuiteRecord &record, const std::string &a,
                                const std::string &b, Measure measure,
                                const std::function<bool(const std::string &)> &takes) {
    std::vector<double> out;
    for (const SuiteCell &one : record.cells) {
        if (one.plan != a || !takes(one.task))
            continue;
        for (const SuiteCell &other : record.cells) {
            if (other.plan != b || other.task != one.task || other.seed != one.seed ||
                other.n_questions != one.n_questions ||
                other.context_tokens != one.context_tokens ||
                other.documents.size() != one.documents.size())
                continue;
            for (std::size_t d = 0; d < one.documents.size(); ++d) {
                SuiteSum x, y;
                x.add(one.documents[d]);
                y.add(other.documents[d]);
                out.push_back(value_of(x, measure) - value_of(y, measure));
            }
        }
    }
    return out;
}

double mean_of(const std::vector<double> &values) {
    return values.empty() ? 0
                          : std::accumulate(values.begin(), values.end(), 0.0) /
                                static_cast<double>(values.size());
}

// Of the mean.
double standard_error(const std::vector<double> &values) {
    const double count = static_cast<double>(values.size()), mean = mean_of(values);
    double square = 0;
    for (const double value : values)
        square += (value - mean) * (value - mean);
    return values.size() < 2 ? 0 : std::sqrt(square / (count - 1) / count);
}

std::string percent_cell(const SuiteSum &sum) {
    const Interval interval = wilson_interval(sum.n_right, sum.n_questions);
    return format_fixed(sum.exact_match(), 1) + " (" + format_fixed(interval.low, 0) + ".." +
           format_fixed(interval.high, 0) + ")";
}

std::string row_of(const std::vector<std::string> &cells) {
    std::string line = "|";
    for (const std::string &cell : cells)
        line += " " + cell + " |";
    return line + "\n";
}

std::string head_of(const std::vector<std::string> &cells) {
    return row_of(cells) + row_of(std::vector<std::string>(cells.size(), "---"));
}

// Rows of one limit together, in the order of the plans.
std::vector<const SuitePlanInfo *> by_limit(const SuiteRecord &record) {
    std::vector<const SuitePlanInfo *> plans;
    for (const SuitePlanInfo &plan : record.plans)
        plans.push_back(&plan);
    std::stable_sort(plans.begin(), plans.end(),
                     [](const auto *a, const auto *b) { return a->limit_bits < b->limit_bits; });
    return plans;
}

std::string limit_label(const SuitePlanInfo &plan) {
    std::string text = plan.limit_bits == 0 ? "" : format_fixed(plan.limit_bits, 2);
    if (!text.empty() && text.back() == '0')
        text.pop_back();
    return text;
}

std::string plan_table(const SuiteRecord &record) {
    const std::vector<std::string> tasks = tasks_of(record);
    std::vector<std::string> header = {"at most", "plan", "bits/value", "cache %"};
    for (const std::string &task : tasks)
        header.push_back(is_question_task(task) ? task + ", %" : task + ", bits/byte");
    for (const char *name : {"-log2 p", "KL, bits", "attention error %"})
        header.emplace_back(name);
    std::string text = head_of(header);
    for (const SuitePlanInfo *plan : by_limit(record)) {
        const SuiteSum all = sum_cells(record, plan->name, "");
        std::vector<std::string> cells = {limit_label(*plan), plan->family,
                                          format_fixed(plan->bits_per_value, 3),
                                          format_fixed(100.0 * static_cast<double>(plan->kv_bytes) /
                                                           static_cast<double>(plan->fp16_bytes),
                                                       1)};
        for (const std::string &task : tasks) {
            const SuiteSum sum = sum_cells(record, plan->name, task);
            cells.push_back(is_question_task(task) ? percent_cell(sum)
                                                   : format_fixed(sum.bits_per_byte(), 4));
        }
        cells.push_back(format_fixed(all.bits_per_byte(), 4));
        cells.push_back(format_fixed(all.divergence_per_byte(), 4));
        cells.push_back(format_fixed(100 * all.mean_output_error(), 1));
        text += row_of(cells);
    }
    return text;
}

std::string signed_fixed(double value, int digits) {
    return (value > 0 ? "+" : "") + format_fixed(value, digits);
}

std::string paired_cell(const PairedTest &test, int digits) {
    return signed_fixed(test.difference, digits) + " (" + signed_fixed(test.low, digits) + ".." +
           signed_fixed(test.high, digits) + ")";
}

// Pairs that are compared: auto with the others of its limit and with the FP16 cache.
std::vector<std::pair<const SuitePlanInfo *, const SuitePlanInfo *>> pairs_of(
    const SuiteRecord &record) {
    std::vector<std::pair<const SuitePlanInfo *, const SuitePlanInfo *>> pairs;
    for (const SuitePlanInfo *one : by_limit(record)) {
        for (const SuitePlanInfo *other : by_limit(record)) {
            const bool is_peer = other->limit_bits == one->limit_bits || other->limit_bits == 0;
            if (one->family == kAuto && one->limit_bits != 0 && other->family != kAuto && is_peer)
                pairs.emplace_back(one, other);
        }
    }
    return pairs;
}

std::string paired_table(const SuiteRecord &record) {
    const auto pairs = pairs_of(record);
    if (pairs.empty())
        return "";
    std::string text =
        "\n" + head_of({"at most", "auto against", "documents", "exact match, points", "p",
                        "-log2 p", "p", "KL, bits", "p"});
    for (const auto &[one, other] : pairs) {
        std::vector<std::string> cells = {limit_label(*one), other->family};
        for (const Measure measure : {Measure::kExactMatch, Measure::kBits, Measure::kDivergence}) {
            const PairedTest test = compare_plans(record, one->name, other->name, measure);
            if (measure == Measure::kExactMatch)
                cells.push_back(std::to_string(test.n_documents));
            cells.push_back(paired_cell(test, measure == Measure::kExactMatch ? 1 : 4));
            cells.push_back(test.p < 0.0001 ? "< 0.0001" : format_fixed(test.p, 4));
        }
        text += row_of(cells);
    }
    return text;
}

Json sum_json(const SuiteSum &sum) {
    const Interval interval = wilson_interval(sum.n_right, sum.n_questions);
    const Interval documents = sum.document_interval();
    Json json = {{"questions", sum.n_questions},
                 {"right", sum.n_right},
                 {"exact_match_percent", sum.exact_match()},
                 {"interval_95_percent", {interval.low, interval.high}},
                 {"documents", sum.n_documents},
                 {"document_interval_95_percent", {documents.low, documents.high}},
                 {"bits_per_byte", sum.bits_per_byte()},
                 {"divergence_bits", sum.divergence_per_byte()},
                 {"output_error", sum.mean_output_error()}};
    if (sum.n_items != 0)
        json["items"] = {{"items", sum.n_items},
                         {"right_percent", sum.items_right()},
                         {"before_error", sum.n_items_before_error}};
    return json;
}

// How far a plan is below the FP16 cache on the documents of a task that both have answered, in
// points of exact match.
Json below_json(const SuiteRecord &record, const std::string &plan, const std::string &task) {
    const std::vector<double> below =
        differences(record, kFp16, plan, Measure::kExactMatch,
                    [&task](const std::string &name) { return name == task; });
    if (below.empty())
        return nullptr;
    return {{"points", mean_of(below)}, {"standard_error", standard_error(below)}};
}

Json test_json(const PairedTest &test) {
    return {{"documents", test.n_documents},
            {"difference", test.difference},
            {"interval_95", {test.low, test.high}},
            {"one_sided_95", {test.least, test.most}},
            {"p", test.p}};
}

Json tests_json(const SuiteRecord &record, const std::string &one, const std::string &other,
                Scope scope) {
    Json json;
    const std::pair<const char *, Measure> measures[] = {
        {"exact_match_points", Measure::kExactMatch},
        {"bits_per_byte", Measure::kBits},
        {"divergence_bits", Measure::kDivergence}};
    for (const auto &[name, measure] : measures)
        json[name] = test_json(compare_plans(record, one, other, measure, scope));
    return json;
}

}  // namespace

void SuiteSum::add(const DocumentResult &document) {
    ++n_documents;
    output_error += document.output_error;
    for (const Answer &answer : document.answers) {
        ++n_questions;
        n_right += answer.is_right ? 1 : 0;
        n_bytes += answer.n_bytes;
        bits += answer.bits;
        divergence += answer.divergence;
        n_items += answer.n_items;
        n_items_right += answer.n_items_right;
        if (answer.n_items != 0)
            n_items_before_error.push_back(answer.n_items_before_error);
    }
    SuiteSum own;
    for (const Answer &answer : document.answers)
        own.n_right += answer.is_right ? 1 : 0;
    own.n_questions = document.answers.size();
    documents.push_back(own.exact_match());
}

double SuiteSum::items_right() const {
    return n_items == 0 ? 0
                        : 100.0 * static_cast<double>(n_items_right) / static_cast<double>(n_items);
}
Interval SuiteSum::document_interval() const {
    const double mean = mean_of(documents), error = kNormal95 * standard_error(documents);
    return {mean - error, mean + error};
}

double SuiteSum::exact_match() const {
    return n_questions == 0
               ? 0
               : 100.0 * static_cast<double>(n_right) / static_cast<double>(n_questions);
}
double SuiteSum::bits_per_byte() const {
    return n_bytes == 0 ? 0 : bits / static_cast<double>(n_bytes);
}
double SuiteSum::divergence_per_byte() const {
    return n_bytes == 0 ? 0 : divergence / static_cast<double>(n_bytes);
}
double SuiteSum::mean_output_error() const {
    return n_documents == 0 ? 0 : output_error / static_cast<double>(n_documents);
}

bool is_question_task(const std::string &task) {
    const llama::Task *known = llama::find_task(task);
    return known != nullptr && known->scoring != llama::Scoring::kText;
}

SuiteSum sum_cells(const SuiteRecord &record, const std::string &plan, const std::string &task) {
    SuiteSum sum;
    for (const SuiteCell &cell : record.cells) {
        if (cell.plan != plan || (task.empty() ? !is_question_task(cell.task) : cell.task != task))
            continue;
        for (const DocumentResult &document : cell.documents)
            sum.add(document);
    }
    return sum;
}

std::vector<std::string> tasks_of(const SuiteRecord &record) {
    std::vector<std::string> tasks;
    for (const SuiteCell &cell : record.cells) {
        if (std::find(tasks.begin(), tasks.end(), cell.task) == tasks.end())
            tasks.push_back(cell.task);
    }
    return tasks;
}

PairedTest compare_plans(const SuiteRecord &record, const std::string &a, const std::string &b,
                         Measure measure, Scope scope) {
    const std::vector<double> d = differences(
        record, a, b, measure, [scope](const std::string &task) { return is_in(scope, task); });
    PairedTest test;
    test.n_documents = d.size();
    test.difference = mean_of(d);
    const double count = static_cast<double>(d.size());
    const double deviation = standard_error(d);
    test.low = test.difference - kNormal95 * deviation;
    test.high = test.difference + kNormal95 * deviation;
    test.least = test.difference - kOneSided95 * deviation;
    test.most = test.difference + kOneSided95 * deviation;
    llama::Random random(kSignSeed);
    const double reach = std::fabs(test.difference) * count * (1 - 1e-12);
    std::size_t n_reached = 1;  // the signs that there are
    for (std::size_t flip = 0; flip < kSignFlips; ++flip) {
        double sum = 0;
        std::uint64_t signs = 0;
        for (std::size_t i = 0; i < d.size(); ++i) {
            if (i % 64 == 0)
                signs = random.next();
            sum += (signs >> (i % 64) & 1) != 0 ? d[i] : -d[i];
        }
        n_reached += std::fabs(sum) >= reach ? 1 : 0;
    }
    test.p = static_cast<double>(n_reached) / static_cast<double>(kSignFlips + 1);
    return test;
}

std::string suite_markdown(const SuiteRecord &record) {
    return plan_table(record) + paired_table(record);
}

Json suite_json(const SuiteRecord &record) {
    Json plans = Json::array(), tests = Json::array();
    for (const SuitePlanInfo &plan : record.plans) {
        Json tasks = Json::object();
        for (const std::string &task : tasks_of(record)) {
            tasks[task] = sum_json(sum_cells(record, plan.name, task));
            tasks[task]["below_fp16"] = below_json(record, plan.name, task);
        }
        plans.push_back({{"plan", plan.name},
                         {"family", plan.family},
                         {"limit_bits", plan.limit_bits},
                         {"bits_per_value", plan.bits_per_value},
                         {"kv_bytes", plan.kv_bytes},
                         {"fp16_bytes", plan.fp16_bytes},
                         {"tasks", tasks},
                         {"questions", sum_json(sum_cells(record, plan.name, ""))}});
    }
    for (const auto &[one, other] : pairs_of(record)) {
        Json test = tests_json(record, one->name, other->name, Scope::kQuestions);
        test["plan"] = one->name;
        test["against"] = other->name;
        test["copies"] = tests_json(record, one->name, other->name, Scope::kCopies);
        tests.push_back(test);
    }
    return {{"origin", record.origin},
            {"build", record.build},
            {"device", record.device},
            {"plans", plans},
            {"paired", tests}};
}

}  // namespace cli
