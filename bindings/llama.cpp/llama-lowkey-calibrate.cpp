// Makes a plan for a model from statistics that llama.cpp computes on a text.
//
// SPDX-License-Identifier: Apache-2.0
#include <llama-lowkey.h>
#include <lowkey/calibrate.h>
#include <lowkey/context.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "llama-lowkey-costs.h"
#include "llama-lowkey-tools.h"

namespace {

constexpr char kUsage[] =
    "usage: llama-lowkey-calibrate MODEL.gguf TEXT -o PLAN.json [OPTION...]\n"
    "\n"
    "  --bits B       an auto plan of at most B bits a value; without it a ChanMix plan\n"
    "  --stats FILE   keep the statistics here (PLAN.json.stats)\n"
    "  --tokens N     of the text (32768), in passes of at most 2048\n"
    "  --costs N      measure costs on N documents of each of four kinds of text; an interrupted\n"
    "                 measurement goes on from PLAN.json.costs\n"
    "  --clips        measure clipped ranges too, which takes three times as long\n"
    "  -t N           threads (those that the process may use)\n";

constexpr uint32_t kPassTokens = 2048;
constexpr uint32_t kSentenceTokens = 100, kRepeats = 30;  // of the probe, as ChanMix has them

struct Arguments {
    std::vector<std::string> files;
    std::string plan, statistics;
    double bits = 0;
    size_t n_tokens = 32768;
    uint32_t n_documents = 0;  // of costs; 0 = none are measured
    bool has_clips = false;
    int n_threads = 0;  // 0 = those that a context of lowkey would have
};

double number_of(const std::string &option, const std::string &text) {
    char *end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(number > 0 && number < 1e9))
        fail(option + " needs a number above 0, not \"" + text + "\"");
    return number;
}

double count_of(const std::string &option, const std::string &text) {
    if (number_of(option, text) < 1)
        fail(option + " needs at least 1, not \"" + text + "\"");
    return std::floor(number_of(option, text));
}

Arguments read_arguments(const std::vector<std::string> &words) {
    Arguments arguments;
    for (size_t i = 0; i < words.size(); ++i) {
        const std::string &word = words[i];
        if (word.empty() || word[0] != '-') {
            arguments.files.push_back(word);
            continue;
        }
        if (word == "--clips") {
            arguments.has_clips = true;
            continue;
        }
        if (i + 1 == words.size())
            fail(word + " needs a value\n" + kUsage);
        const std::string &value = words[++i];
        if (word == "-o")
            arguments.plan = value;
        else if (word == "--stats")
            arguments.statistics = value;
        else if (word == "--bits")
            arguments.bits = number_of(word, value);
        else if (word == "--tokens")
            arguments.n_tokens = static_cast<size_t>(count_of(word, value));
        else if (word == "--costs")
            arguments.n_documents = static_cast<uint32_t>(count_of(word, value));
        else if (word == "-t")
            arguments.n_threads = static_cast<int>(count_of(word, value));
        else
            fail("unknown option " + word + "\n" + kUsage);
    }
    if (arguments.files.size() != 2 || arguments.plan.empty())
        fail(kUsage);
    if (arguments.statistics.empty())
        arguments.statistics = arguments.plan + ".stats";
    return arguments;
}

int usable_threads() {
    lk_device_info cpu;
    check(lk_device_info_init(&cpu, sizeof cpu));
    check(lk_device_get(0, &cpu));
    return static_cast<int>(cpu.n_threads);
}

// One pass in one micro-batch.
void decode(llama_context *context, Tokens tokens, uint32_t n_prefix, uint32_t n_period) {
    llama_memory_clear(llama_get_memory(context), true);
    check(llama_lowkey_gather(context, n_prefix, n_period));
    if (llama_decode(context,
                     llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size()))) != 0)
        fail("the model does not run: see the log");
}

void gather_texts(llama_context *context, const Tokens &prefix, const Tokens &text,
                  size_t n_tokens) {
    n_tokens = std::min(n_tokens, text.size());
    for (size_t begin = 0; begin < n_tokens; begin += kPassTokens) {
        const size_t end = std::min(begin + kPassTokens, n_tokens);
        Tokens pass = prefix;
        pass.insert(pass.end(), text.begin() + static_cast<long>(begin),
                    text.begin() + static_cast<long>(end));
        decode(context, pass, 0, 0);
        std::fprintf(stderr, "\r%zu of %zu tokens", end, n_tokens);
    }
    std::fputc('\n', stderr);
}

void gather_probe(llama_context *context, const Tokens &prefix, const Tokens &text) {
    Tokens probe = prefix;
    for (uint32_t i = 0; i < kRepeats; ++i)
        probe.insert(probe.end(), text.begin(), text.begin() + kSentenceTokens);
    decode(context, probe, static_cast<uint32_t>(prefix.size()), kSentenceTokens);
}

// A model, and a context of it under plan "fp16" that takes each pass in one micro-batch.
class Host {
  public:
    explicit Host(const Arguments &arguments);
    std::string statistics(const Arguments &arguments);
    void add_costs(const Arguments &arguments, lk_calibrator *calibrator) {
        const CostArguments costs = {arguments.n_documents, arguments.has_clips,
                                     arguments.plan + ".costs"};
        measure_costs(context_.get(), prefix_, cost_documents_, costs, calibrator);
    }

  private:
    std::string text_;
    Tokens prefix_;
    std::vector<Tokens> cost_documents_;
    std::unique_ptr<llama_model, void (*)(llama_model *)> model_{nullptr, llama_model_free};
    std::unique_ptr<llama_context, void (*)(llama_context *)> context_{nullptr, llama_free};
};

Host::Host(const Arguments &arguments) {
    llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = 0;
    model_.reset(llama_model_load_from_file(arguments.files[0].c_str(), of_model));
    if (model_ == nullptr)
        fail(arguments.files[0] + ": llama.cpp cannot load it");
    text_ = read_file(arguments.files[1]);
    const llama_vocab *vocab = llama_model_get_vocab(model_.get());
    if (llama_vocab_get_add_bos(vocab))
        prefix_.push_back(llama_vocab_bos(vocab));

    check(llama_lowkey_set_plan("fp16"));
    check(llama_lowkey_set_budget(nullptr));
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch =
        static_cast<uint32_t>(prefix_.size()) +
        std::max({kPassTokens, kRepeats * kSentenceTokens, kContextTokens + kPredictedTokens});
    params.n_threads = params.n_threads_batch =
        arguments.n_threads > 0 ? arguments.n_threads : usable_threads();
    context_.reset(llama_init_from_model(model_.get(), params));
    if (context_ == nullptr)
        fail("lowkey cannot run this model: see the log");
}

// Of the text's first tokens, the documents for costs and the probe, as bytes of a file.
std::string Host::statistics(const Arguments &arguments) {
    const Tokens text = tokens_of(llama_model_get_vocab(model_.get()), text_);
    if (text.size() < 2 * kSentenceTokens)
        fail("the text has " + std::to_string(text.size()) + " tokens: a plan needs at least " +
             std::to_string(2 * kSentenceTokens) + ", better a few ten thousand");
    gather_texts(context_.get(), prefix_, text, arguments.n_tokens);
    if (arguments.n_documents > 0)
        cost_documents_ = make_cost_documents(context_.get(), text_, arguments.n_documents);
    for (const Tokens &document : cost_documents_)
        gather_texts(context_.get(), prefix_, document, document.size());
    gather_probe(context_.get(), prefix_, text);
    check(llama_lowkey_save_statistics(context_.get(), arguments.statistics.c_str()));
    return read_file(arguments.statistics);
}

using Calibrator = std::unique_ptr<lk_calibrator, void (*)(lk_calibrator *)>;

Calibrator gather(const Arguments &arguments) {
    Host host(arguments);
    const std::string bytes = host.statistics(arguments);
    lk_calibrator *made = nullptr;
    check(lk_calibrator_from_bytes(bytes.data(), bytes.size(), &made));
    Calibrator calibrator(made, [](lk_calibrator *one) { lk_calibrator_destroy(&one); });
    if (arguments.n_documents > 0) {
        host.add_costs(arguments, made);
        write_file(arguments.statistics, bytes_of(lk_calibrator_to_bytes, calibrator.get()));
    }
    return calibrator;
}

lk_plan *make_plan(const lk_calibrator *calibrator, double bits) {
    lk_plan *plan = nullptr;
    if (bits == 0) {
        check(lk_calibrator_chanmix(calibrator, nullptr, &plan));
        return plan;
    }
    lk_auto options;
    check(lk_auto_init(&options, sizeof options));
    options.bits_per_value = bits;
    check(lk_calibrator_auto(calibrator, &options, &plan));
    return plan;
}

void write_plan(const Arguments &arguments, const lk_calibrator *calibrator) {
    lk_plan *plan = make_plan(calibrator, arguments.bits);
    lk_plan_size size;
    check(lk_plan_size_init(&size, sizeof size));
    check(lk_plan_bytes(plan, 8192, 1, 512, &size));
    std::string text = bytes_of(lk_plan_to_json, plan);
    text.pop_back();  // the zero
    write_file(arguments.plan, text);
    std::printf("%s: plan %s, %.3f bits a value\n", arguments.plan.c_str(), lk_plan_name(plan),
                size.bits_per_value);
    lk_plan_destroy(&plan);
}

void keep_warnings(ggml_log_level level, const char *text, void *) {
    if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR)
        std::fputs(text, stderr);
}

}  // namespace

int main(int argc, char **argv) {
    try {
        const Arguments arguments = read_arguments(std::vector<std::string>(argv + 1, argv + argc));
        llama_log_set(keep_warnings, nullptr);
        llama_backend_init();
        const Calibrator calibrator = gather(arguments);
        write_plan(arguments, calibrator.get());
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
