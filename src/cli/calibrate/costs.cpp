// SPDX-License-Identifier: Apache-2.0
#include "cli/calibrate/costs.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/common/command.h"
#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"

namespace cli {
namespace {

// Caches in memory at a time, next to the exact one: as many as fit, and at least one.
constexpr std::size_t kMostTogether = 16;
constexpr std::uint64_t kTogetherBytes = 2ull << 30;

// XXH3 of the weights and of all that the predictions depend on, each seeded with the one before.
std::uint64_t fingerprint(const llama::Model &model, const CostRequest &request) {
    std::uint64_t hash = 0;
    const auto add = [&](const void *bytes, std::size_t n_bytes) {
        hash = XXH3_64bits_withSeed(bytes, n_bytes, hash);
    };
    for (const auto &file : model.weights().files())
        add(file->bytes().data(), file->bytes().size());
    add(model.config_text().data(), model.config_text().size());
    add(request.prefix.data(), request.prefix.size() * sizeof(llama::Token));
    for (const llama::Tokens &document : request.documents)
        add(document.data(), request.document_tokens() * sizeof(llama::Token));
    const std::string length = std::to_string(request.context_tokens);
    add(length.data(), length.size());
    return hash;
}

llama::CostRunHandle make_run(const llama::Model &model, const CostRequest &request) {
    const llama::Geometry shape = model.geometry();
    lk_cost_options options = llama::initialised(lk_cost_options_init);
    options.n_kinds = static_cast<std::uint32_t>(request.documents.size() / request.n_documents);
    options.n_documents = static_cast<std::uint32_t>(request.n_documents);
    if (!request.resume.empty())
        options.fingerprint = fingerprint(model, request);
    const lk_geometry geometry = shape.view();
    lk_cost_run *run = nullptr;
    llama::check(lk_cost_run_create(&geometry, &options, &run));
    return llama::CostRunHandle(run);
}

std::size_t caches_together(const llama::Config &c, const CostRequest &request) {
    const std::uint64_t token_bytes = std::uint64_t{c.n_layers} * c.n_kv_heads * c.head_dim * 4;
    const std::uint64_t cache_bytes = token_bytes * request.document_tokens();
    return static_cast<std::size_t>(
        std::clamp<std::uint64_t>(kTogetherBytes / cache_bytes, 1, kMostTogether));
}

// The file that keeps what a run has measured.
class Journal {
  public:
    explicit Journal(std::string path) : path_(std::move(path)) {}

    void read(lk_cost_run *run) const {
        if (path_.empty() || !std::filesystem::exists(path_))
            return;
        const std::string bytes = read_file(path_);
        if (lk_cost_run_resume(run, bytes.data(), bytes.size()) != LK_OK)
            throw llama::Error(path_ + ": " + llama::last_sentence() +
                               "; remove the file to measure anew");
    }
    // A file that cannot be written ends no measurement: the next batch tries again.
    void write(const lk_cost_run *run) {
        if (path_.empty())
            return;
        std::size_t n_bytes = 0;
        llama::check(lk_cost_run_to_bytes(run, nullptr, 0, &n_bytes));
        std::string bytes(n_bytes, '\0');
        llama::check(lk_cost_run_to_bytes(run, &bytes[0], bytes.size(), &n_bytes));
        try {
            write_file(path_, bytes);
        } catch (const std::exception &error) {
            if (!has_warned_)
                std::fprintf(stderr, "lowkey: %s: the measurement goes on\n",
                             printable(error.what()).c_str());
            has_warned_ = true;
        }
    }

  private:
    std::string path_;
    bool has_warned_ = false;
};

// Runs trials of a cost run on the model.
class CostMeasurement {
  public:
    CostMeasurement(lk_context *context, llama::TensorSpace &space, llama::Model &model,
                    const CostRequest &request)
        : context_(context), space_(space), model_(model), request_(request) {}

    void add(lk_cost_run *run, const std::vector<std::uint32_t> &trials);

  private:
    std::unique_ptr<llama::Session> open(const lk_cost_run *run, std::uint32_t trial);
    static std::vector<float> predict(llama::Session &session, const llama::Tokens &after);

    lk_context *context_;
    llama::TensorSpace &space_;
    llama::Model &model_;
    const CostRequest &request_;
};

std::unique_ptr<llama::Session> CostMeasurement::open(const lk_cost_run *run, std::uint32_t trial) {
    lk_plan *plan = nullptr;
    llama::check(lk_cost_run_plan(run, trial, &plan));
    const llama::PlanHandle own(plan);
    const std::size_t n = request_.prefix.size() + request_.document_tokens();
    return std::make_unique<llama::Session>(context_, space_, model_, plan, n,
                                            static_cast<std::uint32_t>(n));
}

// Rows of logits, one for each token after the context but the first.
std::vector<float> CostMeasurement::predict(llama::Session &session, const llama::Tokens &after) {
    session.settle();
    return session.provisional({after.begin(), after.end() - 1});
}

// All trials are of one document.
void CostMeasurement::add(lk_cost_run *run, const std::vector<std::uint32_t> &trials) {
    lk_cost_trial first = llama::initialised(lk_cost_trial_init);
    llama::check(lk_cost_run_get_trial(run, trials.front(), &first));
    const llama::Tokens &document = request_.documents[first.document];
    const auto split = document.begin() + static_cast<std::ptrdiff_t>(request_.context_tokens);
    const auto end = document.begin() + static_cast<std::ptrdiff_t>(request_.document_tokens());
    std::vector<std::unique_ptr<llama::Session>> own;
    own.push_back(open(run, LK_COST_REFERENCE));
    for (const std::uint32_t trial : trials)
        own.push_back(open(run, trial));
    std::vector<llama::Session *> sessions;
    for (const auto &session : own)
        sessions.push_back(session.get());
    llama::Tokens context = request_.prefix;
    context.insert(context.end(), document.begin(), split);
    llama::Session::prefill(sessions, context);
    const llama::Tokens after(split, end);
    const std::vector<float> exact = predict(*sessions[0], after);
    for (std::size_t i = 0; i < trials.size(); ++i) {
        const std::vector<float> other = predict(*sessions[i + 1], after);
        const double bits = llama::divergence(exact, other, model_.config().n_vocabulary);
        llama::check(lk_cost_run_add(run, trials[i], bits));
    }
}

}  // namespace

std::vector<llama::Tokens> make_cost_documents(const std::string &text,
                                               const CostRequest &request) {
    const std::size_t n = request.document_tokens();
    const auto make = [&](char *buffer, std::size_t capacity) {
        std::size_t needed = 0;
        llama::check(
            lk_cost_texts(text.data(), text.size(), static_cast<std::uint32_t>(request.n_documents),
                          static_cast<std::uint32_t>(n), request.seed, buffer, capacity, &needed));
        return needed;
    };
    std::string all(make(nullptr, 0), '\0');
    (void)make(&all[0], all.size());
    std::vector<llama::Tokens> documents;
    for (std::size_t at = 0; at < all.size(); at += n)
        documents.push_back(llama::as_tokens(all.substr(at, n)));
    return documents;
}

void check_cost_documents(const CostRequest &request, std::size_t most_tokens) {
    if (request.prefix.size() + request.document_tokens() > most_tokens)
        throw llama::Error("--costs-tokens " + std::to_string(request.context_tokens) + " needs " +
                           std::to_string(request.prefix.size() + request.document_tokens()) +
                           " positions, the model has " + std::to_string(most_tokens));
    const std::size_t n = request.documents.size();
    if (n == 0 || n % request.n_documents != 0)
        throw llama::Error(
            "there are " + std::to_string(n) + " documents for costs, which are not " +
            std::to_string(request.n_documents) + " of each kind: --costs-documents says how many");
    for (std::size_t i = 0; i < n; ++i)
        if (request.documents[i].size() < request.document_tokens())
            throw llama::Error("document " + std::to_string(i) + " for costs has " +
                               std::to_string(request.documents[i].size()) +
                               " tokens, --costs-tokens " + std::to_string(request.context_tokens) +
                               " needs " + std::to_string(request.document_tokens()));
}

void measure_costs(lk_context *context, llama::TensorSpace &space, llama::Model &model,
                   const CostRequest &request, lk_calibrator *calibrator) {
    const llama::CostRunHandle run = make_run(model, request);
    Journal journal(request.resume);
    journal.read(run.get());
    CostMeasurement measurement(context, space, model, request);
    std::uint32_t n_measured = 0, n_trials = 0;
    llama::check(lk_cost_run_get_counts(run.get(), &n_measured, &n_trials));
    const std::size_t together = caches_together(model.config(), request);
    const auto batches = [&](std::size_t n) { return (n + together - 1) / together; };
    const std::size_t of_document = n_trials / request.documents.size();
    const std::size_t left = n_trials - n_measured;
    Progress progress(left / of_document * batches(of_document) + batches(left % of_document));
    std::vector<std::uint32_t> trials(together);
    for (;;) {
        std::uint32_t n = 0;
        trials.resize(together);
        llama::check(
            lk_cost_run_next(run.get(), static_cast<std::uint32_t>(together), trials.data(), &n));
        if (n == 0)
            break;
        trials.resize(n);
        progress.step("what keys and values of heads cost, document " +
                      std::to_string(trials.front() / of_document));
        measurement.add(run.get(), trials);
        journal.write(run.get());
    }
    llama::check(lk_cost_run_finish(run.get(), calibrator));
}

}  // namespace cli
