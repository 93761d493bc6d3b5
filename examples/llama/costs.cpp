// llama-costs --text FILE [OPTION VALUE]... > plan.json: an automatic plan from measured costs.
//
// The model here is the host library's; a host with another engine replaces what uses a Session.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>

#include "llama/session.h"

namespace {

using Options = std::map<std::string, std::string>;
using llama::check;

const std::string kSentence = "A river runs past the old mill in the morning, slow and green. ";
constexpr std::size_t kRepeats = 30, kMost = 2048, kTogether = 16;

Options read_options(int argc, char **argv) {
    Options options = {{"--text", ""},        {"--model", "tests/model/prover.safetensors"},
                       {"--tokens", "16384"},  // of the text, for statistics
                       {"--context", "2048"},  // tokens of a document of costs that are packed
                       {"--documents", "2"},   // of each kind of text
                       {"--bits", "2.25"},     // a value, at most
                       {"--journal", ""}};     // an interrupted measurement goes on from it
    for (int i = 1; i < argc; i += 2) {
        if (options.find(argv[i]) == options.end() || i + 1 == argc)
            throw llama::Error(std::string(argv[i]) + " is no option, or has no value");
        options[argv[i]] = argv[i + 1];
    }
    return options;
}

std::string read_file(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

void write_file(const std::string &path, const std::string &bytes) {
    std::ofstream file(path + ".new", std::ios::binary);
    file << bytes;
    file.close();
    if (!file || std::rename((path + ".new").c_str(), path.c_str()) != 0)
        throw llama::Error(path + " cannot be written");
}

// Calls call(args, buffer, capacity, &needed) twice: for the size, and for the bytes.
template <class Call, class... Args>
std::string bytes_of(Call call, Args... args) {
    std::size_t needed = 0;
    check(call(args..., nullptr, 0, &needed));
    std::string bytes(needed, '\0');
    check(call(args..., &bytes[0], needed, &needed));
    return bytes;
}

struct Host {
    explicit Host(const Options &given)
        : options(given),
          model(options.at("--model"), 0),
          shape(model.geometry()),
          text(read_file(options.at("--text"))) {}
    std::unique_ptr<llama::Session> open(const lk_plan *plan, std::size_t n) {
        return std::make_unique<llama::Session>(context.get(), space, model, plan, n,
                                                static_cast<std::uint32_t>(n));
    }
    std::uint32_t number(const char *name) const {
        return static_cast<std::uint32_t>(std::stoul(options.at(name)));
    }
    std::uint32_t document_bytes() const { return number("--context") + number("--context") / 4; }
    // Documents for costs, one after the other.
    std::string cost_texts() const {
        return bytes_of(lk_cost_texts, text.data(), text.size(), number("--documents"),
                        document_bytes(), std::uint64_t{1});
    }

    const Options options;
    llama::Model model;
    const llama::Geometry shape;
    const std::string text;
    const llama::ContextHandle context = llama::open_context(LK_BACKEND_CPU, 0, 0, 0);
    llama::HostSpace space;
};

// Statistics without costs: keys and queries of a text and of the documents for costs, attention of
// a probe.
void sample(Host &host, lk_calibrator *calibrator) {
    std::string probe_text(1, '\0');
    for (std::size_t i = 0; i < kRepeats; ++i)
        probe_text += kSentence;
    lk_probe probe = llama::initialised(lk_probe_init);
    probe.prefix_tokens = 1;
    probe.period_tokens = static_cast<std::uint32_t>(kSentence.size());
    probe.local_tokens = std::min(probe.local_tokens, probe.period_tokens - 1);
    bool is_probe = false;
    const auto session = host.open(llama::make_preset("fp16", host.shape).get(), kMost);
    session->observe([&](std::uint32_t layer, std::uint32_t n, float *q, float *k, float *) {
        const lk_layer &own = host.shape.layer();
        const lk_tensor queries =
            llama::float_tensor(LK_MEMORY_HOST, q, {n, own.n_query_heads, own.head_dim});
        const lk_tensor keys =
            llama::float_tensor(LK_MEMORY_HOST, k, {n, own.n_kv_heads, own.head_dim});
        if (is_probe) {
            check(lk_calibrator_add_probe(calibrator, layer, &probe, &queries, &keys, n));
        } else {
            check(lk_calibrator_add_keys(calibrator, layer, &keys, n));
            check(lk_calibrator_add_queries(calibrator, layer, &queries, n));
        }
    });
    const auto feed = [&](const std::string &text) {
        for (std::size_t at = 0; at < text.size(); at += kMost - 1) {
            session->reset();
            (void)session->feed(llama::as_tokens('\0' + text.substr(at, kMost - 1)));
        }
    };
    feed(host.text.substr(0, host.number("--tokens")));
    const std::string texts = host.cost_texts();
    for (std::size_t at = 0; at < texts.size(); at += host.document_bytes())
        feed(texts.substr(at, host.document_bytes()));
    is_probe = true;
    session->reset();
    (void)session->feed(llama::as_tokens(probe_text));
}

// Runs trials of one document: a cache for each of them, and the exact one first.
void measure(Host &host, lk_cost_run *run, std::vector<std::uint32_t> trials,
             const std::string &document) {
    const std::size_t n_context = host.number("--context");
    trials.insert(trials.begin(), LK_COST_REFERENCE);
    std::vector<std::unique_ptr<llama::Session>> own;
    std::vector<llama::Session *> sessions;
    for (const std::uint32_t trial : trials) {
        lk_plan *plan = nullptr;
        check(lk_cost_run_plan(run, trial, &plan));
        own.push_back(host.open(llama::PlanHandle(plan).get(), 1 + document.size()));
        sessions.push_back(own.back().get());
    }
    llama::Session::prefill(sessions, llama::as_tokens('\0' + document.substr(0, n_context)));
    const llama::Tokens after = llama::as_tokens(document.substr(n_context));
    std::vector<float> exact, logits;
    for (std::size_t i = 0; i < trials.size(); ++i) {
        sessions[i]->settle();  // packs the pages that are due
        (void)sessions[i]->score({after[0]}, {after.begin() + 1, after.end()},
                                 i == 0 ? &exact : &logits);
        if (i == 0)
            continue;  // llama::divergence() calls lk_divergence()
        const double bits = llama::divergence(exact, logits, host.model.config().n_vocabulary);
        check(lk_cost_run_add(run, trials[i], bits));
    }
}

void add_costs(Host &host, lk_calibrator *calibrator) {
    const std::size_t n_bytes = host.document_bytes();
    const std::string &journal = host.options.at("--journal");
    lk_cost_options options = llama::initialised(lk_cost_options_init);
    options.n_documents = host.number("--documents");
    const std::string texts = host.cost_texts();
    options.fingerprint = std::hash<std::string>()(host.options.at("--model") + texts);
    const lk_geometry geometry = host.shape.view();
    lk_cost_run *run = nullptr;
    check(lk_cost_run_create(&geometry, &options, &run));
    const llama::CostRunHandle owner(run);
    const std::string before = journal.empty() ? "" : read_file(journal);
    if (!before.empty())
        check(lk_cost_run_resume(run, before.data(), before.size()));
    std::uint32_t n = 0;
    std::vector<std::uint32_t> trials(kTogether);  // as many caches as memory holds
    while (check(lk_cost_run_next(run, kTogether, trials.data(), &n)), n != 0) {
        lk_cost_trial first = llama::initialised(lk_cost_trial_init);
        check(lk_cost_run_get_trial(run, trials[0], &first));
        measure(host, run, {trials.begin(), trials.begin() + n},
                texts.substr(first.document * n_bytes, n_bytes));
        if (!journal.empty())
            write_file(journal, bytes_of(lk_cost_run_to_bytes, run));
    }
    check(lk_cost_run_finish(run, calibrator));
}

void print_plan(Host &host) {
    const lk_geometry geometry = host.shape.view();
    lk_calibrator *calibrator = nullptr;
    check(lk_calibrator_create(&geometry, &calibrator));
    const llama::CalibratorHandle owner(calibrator);
    sample(host, calibrator);
    add_costs(host, calibrator);
    lk_auto options = llama::initialised(lk_auto_init);
    options.bits_per_value = std::stod(host.options.at("--bits"));
    lk_plan *plan = nullptr;
    check(lk_calibrator_auto(calibrator, &options, &plan));
    const llama::PlanHandle plan_owner(plan);
    std::puts(bytes_of(lk_plan_to_json, plan).c_str());
}

}  // namespace

int main(int argc, char **argv) {
    try {
        Host host(read_options(argc, argv));
        print_plan(host);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "llama-costs: %s\n", error.what());
        return 1;
    }
}
