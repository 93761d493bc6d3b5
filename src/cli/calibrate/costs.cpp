// SPDX-License-Identifier: Apache-2.0
#include "cli/calibrate/costs.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/common/command.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"

namespace cli {
namespace {

constexpr std::size_t kTogether = 16;  // caches in memory at a time, next to the exact one
const char *const kKinds[LK_COST_TEXTS] = {"running text", "repeated words", "values of words",
                                           "assignments"};

// All documents, one after another.
std::string make_texts(const CostRequest &request) {
    const auto n = static_cast<std::uint32_t>(request.document_tokens());
    const auto n_documents = static_cast<std::uint32_t>(request.n_documents);
    const auto make = [&](char *buffer, std::size_t capacity) {
        std::size_t needed = 0;
        llama::check(lk_cost_texts(request.text.data(), request.text.size(), n_documents, n,
                                   request.seed, buffer, capacity, &needed));
        return needed;
    };
    std::string texts(make(nullptr, 0), '\0');
    (void)make(&texts[0], texts.size());
    return texts;
}

// XXH3 of the weights and of all that the documents depend on, each seeded with the one before.
std::uint64_t fingerprint(const CostRequest &request) {
    std::uint64_t hash = 0;
    for (const std::string &bytes :
         {read_file(request.model), make_texts(request), std::to_string(request.context_tokens)})
        hash = XXH3_64bits_withSeed(bytes.data(), bytes.size(), hash);
    return hash;
}

llama::CostRunHandle make_run(const llama::Geometry &shape, const CostRequest &request) {
    lk_cost_options options = llama::initialised(lk_cost_options_init);
    options.n_documents = static_cast<std::uint32_t>(request.n_documents);
    if (!request.resume.empty())
        options.fingerprint = fingerprint(request);
    const lk_geometry geometry = shape.view();
    lk_cost_run *run = nullptr;
    llama::check(lk_cost_run_create(&geometry, &options, &run));
    return llama::CostRunHandle(run);
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
            // An interruption leaves the old file or the new one.
            write_text(path_ + ".new", bytes);
            std::filesystem::rename(path_ + ".new", path_);
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
class Measurement {
  public:
    Measurement(lk_context *context, llama::Model &model, const CostRequest &request)
        : context_(context), model_(model), request_(request), texts_(make_texts(request)) {}

    void add(lk_cost_run *run, const std::vector<std::uint32_t> &trials);

  private:
    std::unique_ptr<llama::Session> open(const lk_cost_run *run, std::uint32_t trial);
    std::vector<float> predict(llama::Session &session, const llama::Tokens &after) const;

    lk_context *context_;
    llama::Model &model_;
    const CostRequest &request_;
    const std::string texts_;
    llama::HostSpace space_;
};

std::unique_ptr<llama::Session> Measurement::open(const lk_cost_run *run, std::uint32_t trial) {
    lk_plan *plan = nullptr;
    llama::check(lk_cost_run_plan(run, trial, &plan));
    const llama::PlanHandle own(plan);
    const std::size_t n = 1 + request_.document_tokens();
    return std::make_unique<llama::Session>(context_, space_, model_, plan, n,
                                            static_cast<std::uint32_t>(n));
}

// Rows of logits, one for each token after the context.
std::vector<float> Measurement::predict(llama::Session &session, const llama::Tokens &after) const {
    std::vector<float> logits;
    session.settle();
    (void)session.score({after.front()}, {after.begin() + 1, after.end()}, &logits);
    return logits;
}

// All trials are of one document.
void Measurement::add(lk_cost_run *run, const std::vector<std::uint32_t> &trials) {
    lk_cost_trial first = llama::initialised(lk_cost_trial_init);
    llama::check(lk_cost_run_get_trial(run, trials.front(), &first));
    const std::size_t n = request_.document_tokens();
    const llama::Tokens document = llama::as_tokens(texts_.substr(first.document * n, n));
    const auto end = document.begin() + static_cast<std::ptrdiff_t>(request_.context_tokens);
    std::vector<std::unique_ptr<llama::Session>> own;
    own.push_back(open(run, LK_COST_REFERENCE));
    for (const std::uint32_t trial : trials)
        own.push_back(open(run, trial));
    std::vector<llama::Session *> sessions;
    for (const auto &session : own)
        sessions.push_back(session.get());
    llama::Tokens context = {0};
    context.insert(context.end(), document.begin(), end);
    llama::Session::prefill(sessions, context);
    const llama::Tokens after(end, document.end());
    const std::vector<float> exact = predict(*sessions[0], after);
    for (std::size_t i = 0; i < trials.size(); ++i) {
        const std::vector<float> other = predict(*sessions[i + 1], after);
        const double bits = llama::divergence(exact, other, model_.config().n_vocabulary);
        llama::check(lk_cost_run_add(run, trials[i], bits));
    }
}

}  // namespace

void measure_costs(lk_context *context, llama::Model &model, const CostRequest &request,
                   lk_calibrator *calibrator) {
    const llama::Config &c = model.config();
    const llama::Geometry shape(c.n_layers, c.n_query_heads, c.n_kv_heads, c.head_dim);
    const llama::CostRunHandle run = make_run(shape, request);
    Journal journal(request.resume);
    journal.read(run.get());
    Measurement measurement(context, model, request);
    std::uint32_t n_measured = 0, n_trials = 0;
    llama::check(lk_cost_run_get_counts(run.get(), &n_measured, &n_trials));
    const auto batches = [](std::size_t n) { return (n + kTogether - 1) / kTogether; };
    const std::size_t of_document = n_trials / (LK_COST_TEXTS * request.n_documents);
    const std::size_t left = n_trials - n_measured;
    Progress progress(left / of_document * batches(of_document) + batches(left % of_document));
    std::vector<std::uint32_t> trials(kTogether);
    for (;;) {
        std::uint32_t n = 0;
        trials.resize(kTogether);
        llama::check(lk_cost_run_next(run.get(), kTogether, trials.data(), &n));
        if (n == 0)
            break;
        trials.resize(n);
        progress.step(std::string("what keys and values of heads cost, ") +
                      kKinds[trials.front() / of_document / request.n_documents]);
        measurement.add(run.get(), trials);
        journal.write(run.get());
    }
    llama::check(lk_cost_run_finish(run.get(), calibrator));
}

}  // namespace cli
