// SPDX-License-Identifier: Apache-2.0
#include "lab/suite.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"

namespace cli {
namespace {

constexpr int kRecordVersion = 1;

Json document_json(const DocumentResult &document) {
    Json bytes = Json::array(), bits = Json::array(), divergence = Json::array();
    Json items = Json::array();
    std::string right;
    for (const Answer &answer : document.answers) {
        right += answer.is_right ? '1' : '0';
        bytes.push_back(answer.n_bytes);
        bits.push_back(answer.bits);
        divergence.push_back(answer.divergence);
        if (answer.n_items != 0)
            items.push_back({answer.n_items, answer.n_items_right, answer.n_items_before_error});
    }
    Json json = {{"right", right},
                 {"bytes", bytes},
                 {"bits", bits},
                 {"divergence_bits", divergence},
                 {"output_error", document.output_error}};
    if (!items.empty())
        json["items"] = items;
    return json;
}

DocumentResult document_from(const Json &json) {
    DocumentResult document;
    const std::string right = json.at("right");
    for (std::size_t i = 0; i < right.size(); ++i) {
        Answer answer = {right[i] == '1', json.at("bytes").at(i), json.at("bits").at(i),
                         json.at("divergence_bits").at(i)};
        if (json.contains("items")) {
            const Json &items = json.at("items").at(i);
            answer.n_items = items.at(0);
            answer.n_items_right = items.at(1);
            answer.n_items_before_error = items.at(2);
        }
        document.answers.push_back(answer);
    }
    document.output_error = json.at("output_error");
    return document;
}

Json cell_json(const SuiteCell &cell) {
    Json documents = Json::array();
    for (const DocumentResult &document : cell.documents)
        documents.push_back(document_json(document));
    return {{"task", cell.task}, {"context_tokens", cell.context_tokens},
            {"seed", cell.seed}, {"questions", cell.n_questions},
            {"plan", cell.plan}, {"documents", documents}};
}

SuiteCell cell_from(const Json &json) {
    SuiteCell cell = {json.at("task"),      json.at("context_tokens"), json.at("seed"),
                      json.at("questions"), json.at("plan"),           {}};
    for (const Json &document : json.at("documents"))
        cell.documents.push_back(document_from(document));
    return cell;
}

Json plan_info_json(const SuitePlanInfo &info) {
    return {{"name", info.name},
            {"family", info.family},
            {"digest", info.digest},
            {"limit_bits", info.limit_bits},
            {"bits_per_value", info.bits_per_value},
            {"tokens", info.n_tokens},
            {"kv_bytes", info.kv_bytes},
            {"fp16_bytes", info.fp16_bytes}};
}

SuitePlanInfo plan_info_from(const Json &json) {
    return {json.at("name"),       json.at("family"),         json.at("digest"),
            json.at("limit_bits"), json.at("bits_per_value"), json.at("tokens"),
            json.at("kv_bytes"),   json.at("fp16_bytes")};
}

void write_record(const SuiteRecord &record, const std::string &path) {
    Json plans = Json::array(), cells = Json::array();
    for (const SuitePlanInfo &plan : record.plans)
        plans.push_back(plan_info_json(plan));
    for (const SuiteCell &cell : record.cells)
        cells.push_back(cell_json(cell));
    const Json json = {
        {"lowkey_eval", kRecordVersion}, {"origin", record.origin}, {"build", record.build},
        {"device", record.device},       {"plans", plans},          {"cells", cells}};
    write_file(path, json.dump() + "\n");
}

// A digest of all that decides the answers.
std::string digest_of(const SuitePlan &plan) {
    const Serving &serving = plan.serving;
    return digest(plan_json(plan.plan.get()) +
                  (serving.chunk_bits != 0 ? format_fixed(serving.chunk_bits, 6) : "") +
                  (serving.descends ? "descends" : "") +
                  (serving.reserve_tokens != 0 ? std::to_string(serving.reserve_tokens) : ""));
}

SuitePlanInfo describe(const SuitePlan &plan, std::uint64_t n_tokens) {
    const lk_plan_size size = served_size(plan.plan.get(), plan.serving, n_tokens);
    return {plan.name,
            plan.family,
            digest_of(plan),
            plan.limit_bits,
            size.bits_per_value,
            n_tokens,
            size.payload_bytes + size.metadata_bytes + size.recent_bytes,
            size.fp16_bytes};
}

bool has_cell(const SuiteRecord &record, const std::string &task, std::uint64_t n_tokens,
              std::uint64_t seed, std::uint64_t n_questions, const std::string &plan) {
    return std::any_of(record.cells.begin(), record.cells.end(), [&](const SuiteCell &cell) {
        return cell.task == task && cell.context_tokens == n_tokens && cell.seed == seed &&
               cell.n_questions == n_questions && cell.plan == plan;
    });
}

// Cells are of a plan's content, not of its name alone.
class Suite {
  public:
    Suite(const SuiteRequest &request, const std::string &device);

    bool is_missing(const llama::Task &task, std::uint64_t n_tokens, std::uint64_t seed,
                    const SuitePlan &plan) const;
    void add(const llama::Task &task, std::uint64_t seed, std::vector<PlanResult> results);
    SuiteRecord requested() const;

  private:
    void take_earlier();

    const SuiteRequest &request_;
    SuiteRecord record_;
};

Suite::Suite(const SuiteRequest &request, const std::string &device) : request_(request) {
    record_.origin = request.origin;
    record_.build = lk_build_info();
    record_.device = device;
    std::uint64_t n_tokens = *std::max_element(request.contexts.begin(), request.contexts.end());
    std::size_t n_answer_tokens = 0;
    for (const llama::Task *task : request.tasks)
        if (task->scoring == llama::Scoring::kItems)
            n_answer_tokens = std::max(n_answer_tokens, task->answer_tokens);
    n_tokens += n_answer_tokens;
    for (const SuitePlan &plan : request.plans)
        record_.plans.push_back(describe(plan, n_tokens));
    if (!request.record.empty() && std::filesystem::exists(request.record))
        take_earlier();
}

// Cells of plans that are as they were, or are not requested this time.
void Suite::take_earlier() {
    SuiteRecord earlier = read_record(request_.record);
    if (earlier.origin != record_.origin)
        throw llama::Error(request_.record +
                           " is of another model, text or number of questions; give --record "
                           "another file");
    for (const SuitePlanInfo &old : earlier.plans) {
        const auto same =
            std::find_if(record_.plans.begin(), record_.plans.end(),
                         [&](const SuitePlanInfo &plan) { return plan.name == old.name; });
        if (same == record_.plans.end()) {
            record_.plans.push_back(old);
        } else if (same->digest != old.digest) {
            continue;
        }
        for (SuiteCell &cell : earlier.cells) {
            if (cell.plan == old.name)
                record_.cells.push_back(std::move(cell));
        }
    }
}

bool Suite::is_missing(const llama::Task &task, std::uint64_t n_tokens, std::uint64_t seed,
                       const SuitePlan &plan) const {
    return !has_cell(record_, task.name, n_tokens, seed, request_.n_questions, plan.name);
}

void Suite::add(const llama::Task &task, std::uint64_t seed, std::vector<PlanResult> results) {
    for (PlanResult &result : results)
        record_.cells.push_back({task.name, result.context_tokens, seed, request_.n_questions,
                                 result.plan, std::move(result.tasks.front().documents)});
    if (!request_.record.empty())
        write_record(record_, request_.record);
}

SuiteRecord Suite::requested() const {
    SuiteRecord out = {record_.origin, record_.build, record_.device, {}, {}};
    for (std::size_t p = 0; p < request_.plans.size(); ++p)
        out.plans.push_back(record_.plans[p]);
    for (const llama::Task *task : request_.tasks)
        for (const std::uint64_t n_tokens : request_.contexts)
            for (const std::uint64_t seed : request_.seeds)
                for (const SuitePlan &plan : request_.plans)
                    for (const SuiteCell &cell : record_.cells)
                        if (cell.task == task->name && cell.context_tokens == n_tokens &&
                            cell.seed == seed && cell.n_questions == request_.n_questions &&
                            cell.plan == plan.name)
                            out.cells.push_back(cell);
    return out;
}

// The plans without the cell answer it together.
EvaluationRequest make_cell(const SuiteRequest &request, const Suite &suite,
                            const llama::Task *task, std::uint64_t n_tokens, std::uint64_t seed) {
    EvaluationRequest cell;
    cell.tasks = {task};
    cell.contexts = {n_tokens};
    cell.n_questions = request.n_questions;
    cell.questions_per_document = request.questions_per_document;
    cell.seed = seed;
    cell.material = request.material;
    cell.compares = true;
    cell.times = false;
    for (const SuitePlan &plan : request.plans) {
        if (!suite.is_missing(*task, n_tokens, seed, plan))
            continue;
        cell.plans.push_back(llama::copy_plan(plan.plan.get()));
        llama::check(lk_plan_set_name(cell.plans.back().get(), plan.name.c_str()));
        cell.servings.push_back(plan.serving);
    }
    return cell;
}

}  // namespace

std::string digest(const std::string &bytes) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char byte : bytes)
        hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
    char text[17];
    std::snprintf(text, sizeof text, "%016" PRIx64, hash);
    return text;
}

SuiteRecord read_record(const std::string &path) {
    try {
        const Json json = Json::parse(read_file(path));
        if (json.at("lowkey_eval") != kRecordVersion)
            throw llama::Error(path + " is a record of another version");
        SuiteRecord record = {json.at("origin"), json.at("build"), json.at("device"), {}, {}};
        for (const Json &plan : json.at("plans"))
            record.plans.push_back(plan_info_from(plan));
        for (const Json &cell : json.at("cells"))
            record.cells.push_back(cell_from(cell));
        return record;
    } catch (const Json::exception &error) {
        throw llama::Error(path + " is no record of lowkey eval: " + error.what());
    }
}

SuiteRecord read_records(const std::vector<std::string> &paths) {
    SuiteRecord all = read_record(paths.front());
    for (std::size_t i = 1; i < paths.size(); ++i) {
        SuiteRecord next = read_record(paths[i]);
        if (next.origin != all.origin)
            throw llama::Error(paths[i] +
                               " is of another model, text, device or number of "
                               "questions than " +
                               paths.front());
        for (const SuitePlanInfo &plan : next.plans) {
            const auto same =
                std::find_if(all.plans.begin(), all.plans.end(),
                             [&](const SuitePlanInfo &old) { return old.name == plan.name; });
            if (same == all.plans.end())
                all.plans.push_back(plan);
            else if (same->digest != plan.digest)
                throw llama::Error(paths[i] + " has another plan " + plan.name + " than " +
                                   paths.front());
        }
        for (SuiteCell &cell : next.cells)
            if (!has_cell(all, cell.task, cell.context_tokens, cell.seed, cell.n_questions,
                          cell.plan))
                all.cells.push_back(std::move(cell));
    }
    return all;
}

SuiteRecord run_suite(lk_context *context, llama::TensorSpace &space, llama::Model &model,
                      const SuiteRequest &request, const std::string &device) {
    Suite suite(request, device);
    Progress progress(request.tasks.size() * request.contexts.size() * request.seeds.size());
    for (const llama::Task *task : request.tasks)
        for (const std::uint64_t n_tokens : request.contexts)
            for (const std::uint64_t seed : request.seeds) {
                progress.step(std::string(task->name) + ", " + std::to_string(n_tokens) +
                              " tokens, seed " + std::to_string(seed));
                const EvaluationRequest cell = make_cell(request, suite, task, n_tokens, seed);
                if (!cell.plans.empty())
                    suite.add(*task, seed, evaluate(context, space, model, cell));
            }
    return suite.requested();
}

}  // namespace cli
