// SPDX-License-Identifier: Apache-2.0
#include "llama-lowkey-costs.h"

#include <llama-lowkey.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace {

constexpr uint32_t kTokenBytes = 12;           // of a document, at most in the mean
constexpr uint64_t kTrialsBytes = 1ull << 30;  // of all caches at once
constexpr uint32_t kMostTrials = 64;

using Run = std::unique_ptr<lk_cost_run, void (*)(lk_cost_run *)>;

// The layers of a calibrator.
std::vector<lk_layer> layers_of(const lk_calibrator *calibrator) {
    uint32_t n_layers = 0;
    check(lk_calibrator_get_geometry(calibrator, nullptr, 0, &n_layers));
    std::vector<lk_layer> layers(n_layers);
    for (lk_layer &layer : layers)
        check(lk_layer_init(&layer, sizeof layer));
    check(lk_calibrator_get_geometry(calibrator, layers.data(), n_layers, &n_layers));
    return layers;
}

Run make_run(const std::vector<lk_layer> &layers, const lk_cost_options &options) {
    lk_geometry geometry;
    check(lk_geometry_init(&geometry, sizeof geometry));
    geometry.n_layers = static_cast<uint32_t>(layers.size());
    geometry.layers = layers.data();
    lk_cost_run *run = nullptr;
    check(lk_cost_run_create(&geometry, &options, &run));
    return Run(run, [](lk_cost_run *made) { lk_cost_run_destroy(&made); });
}

uint32_t trials_at_once(const std::vector<lk_layer> &layers) {
    uint64_t token_bytes = 0;
    for (const lk_layer &layer : layers)
        token_bytes += 2 * sizeof(uint16_t) * layer.n_kv_heads * layer.head_dim;
    const uint64_t n = kTrialsBytes / (token_bytes * (kContextTokens + kPredictedTokens));
    return static_cast<uint32_t>(std::clamp<uint64_t>(n, 2, kMostTrials)) - 1;  // and the reference
}

// A trial's plan, destroyed with it.
using Plan = std::unique_ptr<lk_plan, void (*)(lk_plan *)>;

Plan plan_of(const lk_cost_run *run, uint32_t trial) {
    lk_plan *plan = nullptr;
    check(lk_cost_run_plan(run, trial, &plan));
    return Plan(plan, [](lk_plan *made) { lk_plan_destroy(&made); });
}

class Measurement {
  public:
    Measurement(llama_context *context, const Tokens &prefix)
        : context_(context), prefix_(prefix) {}

    // The divergence of each trial's predictions from the exact ones.
    std::vector<double> measure(const lk_cost_run *run, const std::vector<uint32_t> &trials,
                                const Tokens &document) {
        fill(run, trials, document);
        std::vector<double> divergences;
        const std::vector<float> exact = predict(0, document);
        for (uint32_t i = 0; i < trials.size(); ++i)
            divergences.push_back(divergence(exact, predict(i + 1, document)));
        return divergences;
    }

  private:
    // Caches of the reference and of all trials, with the document's first tokens.
    void fill(const lk_cost_run *run, const std::vector<uint32_t> &trials, const Tokens &document) {
        std::vector<Plan> plans;
        plans.push_back(plan_of(run, LK_COST_REFERENCE));
        for (const uint32_t trial : trials)
            plans.push_back(plan_of(run, trial));
        std::vector<const lk_plan *> read;
        for (const Plan &plan : plans)
            read.push_back(plan.get());
        check(llama_lowkey_make_trials(context_, read.data(), static_cast<uint32_t>(read.size())));
        llama_memory_clear(llama_get_memory(context_), true);
        Tokens tokens = prefix_;
        tokens.insert(tokens.end(), document.begin(), document.begin() + kContextTokens);
        decode(tokens, 0, /*has_all_logits=*/false);
    }

    // Logits after each of the predicted tokens, under a trial.
    std::vector<float> predict(uint32_t trial, const Tokens &document) {
        check(llama_lowkey_choose_trial(context_, trial));
        const llama_pos n_before = static_cast<llama_pos>(prefix_.size()) + kContextTokens;
        decode(Tokens(document.begin() + kContextTokens, document.end()), n_before, true);
        const float *logits = llama_get_logits(context_);
        std::vector<float> kept(logits, logits + static_cast<size_t>(kPredictedTokens) * n_vocab());
        if (!llama_memory_seq_rm(llama_get_memory(context_), 0, n_before, -1))
            fail("the predicted tokens of a document cannot be removed");
        return kept;
    }

    double divergence(const std::vector<float> &exact, const std::vector<float> &other) const {
        lk_tensor rows[2];
        for (lk_tensor &tensor : rows) {
            check(lk_tensor_init(&tensor, sizeof tensor));
            tensor.dtype = LK_F32;
            tensor.memory = LK_MEMORY_HOST;
            tensor.token_stride = tensor.head_stride = n_vocab();
        }
        rows[0].data = const_cast<float *>(exact.data());
        rows[1].data = const_cast<float *>(other.data());
        double bits = 0;
        check(lk_divergence(&rows[0], &rows[1], kPredictedTokens, n_vocab(), &bits));
        return bits;
    }

    void decode(const Tokens &tokens, llama_pos first, bool has_all_logits) const {
        llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
        batch.n_tokens = static_cast<int32_t>(tokens.size());
        for (size_t i = 0; i < tokens.size(); ++i) {
            batch.token[i] = tokens[i];
            batch.pos[i] = first + static_cast<llama_pos>(i);
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = has_all_logits || i + 1 == tokens.size();
        }
        const int status = llama_decode(context_, batch);
        llama_batch_free(batch);
        if (status != 0)
            fail("the model does not run: see the log");
    }

    uint32_t n_vocab() const {
        return static_cast<uint32_t>(
            llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context_))));
    }

    llama_context *const context_;
    const Tokens &prefix_;
};

// Each document's first tokens.
std::vector<Tokens> documents_of(llama_context *context, const std::string &texts,
                                 size_t document_bytes) {
    const llama_vocab *vocab = llama_model_get_vocab(llama_get_model(context));
    std::vector<Tokens> documents;
    for (size_t at = 0; at < texts.size(); at += document_bytes) {
        Tokens tokens = tokens_of(vocab, texts.substr(at, document_bytes));
        if (tokens.size() < kContextTokens + kPredictedTokens)
            fail("a document of " + std::to_string(document_bytes) + " bytes has " +
                 std::to_string(tokens.size()) + " tokens: costs need " +
                 std::to_string(kContextTokens + kPredictedTokens));
        tokens.resize(kContextTokens + kPredictedTokens);
        documents.push_back(std::move(tokens));
    }
    return documents;
}

uint64_t fingerprint_of(llama_context *context, const std::vector<Tokens> &documents) {
    char name[256] = "";
    llama_model_desc(llama_get_model(context), name, sizeof name);
    std::string all = name + std::to_string(llama_model_size(llama_get_model(context)));
    for (const Tokens &tokens : documents)
        all.append(reinterpret_cast<const char *>(tokens.data()), tokens.size() * sizeof tokens[0]);
    return std::hash<std::string>()(all);
}

void resume(lk_cost_run *run, const std::string &journal) {
    if (!std::ifstream(journal))
        return;
    const std::string bytes = read_file(journal);
    check(lk_cost_run_resume(run, bytes.data(), bytes.size()));
}

}  // namespace

std::vector<Tokens> make_cost_documents(llama_context *context, const std::string &text,
                                        uint32_t n_documents) {
    const uint32_t document_bytes = (kContextTokens + kPredictedTokens) * kTokenBytes;
    return documents_of(
        context,
        bytes_of(lk_cost_texts, text.data(), text.size(), n_documents, document_bytes, uint64_t{1}),
        document_bytes);
}

void measure_costs(llama_context *context, const Tokens &prefix,
                   const std::vector<Tokens> &documents, const CostArguments &arguments,
                   lk_calibrator *calibrator) {
    lk_cost_options options;
    check(lk_cost_options_init(&options, sizeof options));
    options.n_documents = arguments.n_documents;
    options.clips = arguments.has_clips;
    options.fingerprint = fingerprint_of(context, documents);
    const std::vector<lk_layer> layers = layers_of(calibrator);
    const Run run = make_run(layers, options);
    resume(run.get(), arguments.journal);

    Measurement measurement(context, prefix);
    std::vector<uint32_t> trials(trials_at_once(layers));
    for (;;) {
        uint32_t n = 0, n_measured = 0, n_trials = 0;
        check(lk_cost_run_next(run.get(), static_cast<uint32_t>(trials.size()), trials.data(), &n));
        if (n == 0)
            break;
        lk_cost_trial trial;
        check(lk_cost_trial_init(&trial, sizeof trial));
        check(lk_cost_run_get_trial(run.get(), trials[0], &trial));
        const std::vector<uint32_t> batch(trials.begin(), trials.begin() + n);
        const std::vector<double> bits =
            measurement.measure(run.get(), batch, documents.at(trial.document));
        for (uint32_t i = 0; i < n; ++i)
            check(lk_cost_run_add(run.get(), batch[i], bits[i]));
        write_file(arguments.journal, bytes_of(lk_cost_run_to_bytes, run.get()));
        check(lk_cost_run_get_counts(run.get(), &n_measured, &n_trials));
        std::fprintf(stderr, "\r%u of %u trials", n_measured, n_trials);
    }
    std::fputc('\n', stderr);
    check(llama_lowkey_make_trials(context, nullptr, 0));
    check(lk_cost_run_finish(run.get(), calibrator));
}
