// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {

std::string &log_text() {
    static std::string text;
    return text;
}

size_t n_replays = 0;
double cache_bytes = 0;

// Adds what a line says of a cache's size: "size = 1.50 MiB ( 256 cells, ...)" of llama.cpp, and
// "... tokens take 1.50 MiB (1572864 bytes), ..." of lowkey.
void note_size(const char *text) {
    double mib = 0;
    unsigned long long bytes = 0;
    const char *theirs = std::strstr(text, "size = ");
    const char *ours = std::strstr(text, " tokens take ");
    if (theirs != nullptr && std::strstr(text, " cells, ") != nullptr &&
        std::sscanf(theirs, "size = %lf MiB", &mib) == 1)
        cache_bytes += mib * 1024 * 1024;
    else if (ours != nullptr && std::sscanf(ours, " tokens take %*f %*s (%llu bytes)", &bytes) == 1)
        cache_bytes += static_cast<double>(bytes);
}

void keep_log(ggml_log_level level, const char *text, void *) {
    if (std::strncmp(text, "CUDA Graph id ", 14) == 0)
        ++n_replays;
    if (level == GGML_LOG_LEVEL_INFO)
        note_size(text);
    if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR)
        log_text() += text;
}

void print_log(const char *error) {
    std::fprintf(stderr, "%s\nlog of llama.cpp:\n%s\n", error, log_text().c_str());
}

}  // namespace

std::string device_name() {
    const char *device = std::getenv("LOWKEY_LLAMA_DEVICE");
    const std::string name = device != nullptr ? device : "cpu";
    return name == "cuda" ? "CUDA0" : name == "vulkan" ? "Vulkan0" : "CPU";
}

bool is_on_gpu() { return device_name() != "CPU"; }

double same_numbers() { return is_on_gpu() ? 4e-3 : 2e-3; }

std::string logged() { return log_text(); }
void clear_log() { log_text().clear(); }
size_t count_replays() { return n_replays; }
double logged_cache_bytes() { return cache_bytes; }

void require(bool holds, const std::string &sentence) {
    if (holds)
        return;
    print_log(("failed: " + sentence).c_str());
    std::exit(1);
}

void require_log(const std::string &words) {
    require(logged().find(words) != std::string::npos, "the log has \"" + words + "\"");
}

void require_close(const Logits &a, const Logits &b, double bound, const std::string &what) {
    const double difference = relative_difference(a, b);
    require(difference <= bound, what + ": logits differ by " + std::to_string(difference) +
                                     ", at most " + std::to_string(bound));
}

Model::Model(const std::string &path, int n_gpu_layers, bool has_repacked) {
    llama_log_set(keep_log, nullptr);
    ggml_set_abort_callback(print_log);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = n_gpu_layers;
    params.use_extra_bufts = has_repacked;
    model_ = llama_model_load_from_file(path.c_str(), params);
    require(model_ != nullptr, path + " loads");
}

Model::~Model() { llama_model_free(model_); }

int32_t Model::n_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(model_)); }

Options options_of_cache(const std::string &name) {
    const std::map<std::string, ggml_type> types = {{"", GGML_TYPE_F16},
                                                    {"f16", GGML_TYPE_F16},
                                                    {"q8_0", GGML_TYPE_Q8_0},
                                                    {"q4_0", GGML_TYPE_Q4_0}};
    Options options;
    const auto type = types.find(name);
    if (type != types.end())
        options.type = type->second;
    else
        options.plan = name;
    return options;
}

llama_context *Session::make(const Model &model, const Options &options) {
    if (options.plan != kEnvironment) {
        const char *plan = llama_lowkey_set_plan(options.plan.c_str());
        require(plan == nullptr, std::string("plan: ") + (plan ? plan : ""));
        const char *budget = llama_lowkey_set_budget(options.budget.c_str());
        require(budget == nullptr, std::string("budget: ") + (budget ? budget : ""));
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = options.n_ctx;
    params.n_batch = options.n_ctx;
    params.n_ubatch = options.n_ubatch;
    params.n_seq_max = options.n_sequences;
    params.n_threads = options.n_threads;
    params.n_threads_batch =
        options.n_prompt_threads > 0 ? options.n_prompt_threads : options.n_threads;
    params.n_rs_seq = options.n_back;
    params.kv_unified = options.is_unified;
    params.swa_full = options.has_full_windows;
    params.offload_kqv = options.is_offloaded;
    params.type_k = params.type_v = options.type;
    // Flash attention of llama.cpp rounds an F32 cache to F16.
    params.flash_attn_type = options.type == GGML_TYPE_F32 ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                                                           : LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.no_perf = true;
    return llama_init_from_model(model.get(), params);
}

Session::Session(const Model &model, const Options &options)
    : n_vocab_(model.n_vocab()), context_(make(model, options)) {
    require(context_ != nullptr, "a context under the plan \"" + options.plan + "\" is made");
}

Session::~Session() { llama_free(context_); }

int Session::decode(const std::vector<Token> &tokens, std::vector<Logits> *logits) {
    llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 16);
    batch.n_tokens = static_cast<int32_t>(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        const Token &token = tokens[i];
        batch.token[i] = token.id;
        batch.pos[i] = token.position;
        batch.n_seq_id[i] = static_cast<int32_t>(token.sequences.size());
        std::copy(token.sequences.begin(), token.sequences.end(), batch.seq_id[i]);
        batch.logits[i] = token.has_logits;
    }
    const int result = llama_decode(context_, batch);
    for (size_t i = 0; result == 0 && logits != nullptr && i < tokens.size(); ++i) {
        if (!tokens[i].has_logits)
            continue;
        const float *row = llama_get_logits_ith(context_, static_cast<int32_t>(i));
        logits->emplace_back(row, row + n_vocab_);
    }
    llama_batch_free(batch);
    return result;
}

std::vector<Logits> Session::feed_all(llama_seq_id sequence, llama_pos position,
                                      const std::vector<llama_token> &text) {
    std::vector<Token> tokens;
    for (size_t i = 0; i < text.size(); ++i)
        tokens.push_back(Token{text[i], position + static_cast<llama_pos>(i), {sequence}, true});
    std::vector<Logits> logits;
    require(decode(tokens, &logits) == 0, "a text is decoded");
    return logits;
}

Logits Session::feed(llama_seq_id sequence, llama_pos position,
                     const std::vector<llama_token> &text) {
    std::vector<Token> tokens;
    for (size_t i = 0; i < text.size(); ++i)
        tokens.push_back(
            Token{text[i], position + static_cast<llama_pos>(i), {sequence}, i + 1 == text.size()});
    std::vector<Logits> logits;
    require(decode(tokens, &logits) == 0, "a text is decoded");
    return logits.back();
}

llama_token best(const Logits &logits) {
    return static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) -
                                    logits.begin());
}

double relative_difference(const Logits &a, const Logits &b) {
    double difference = 0, square = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
        square += std::pow(static_cast<double>(b[i]), 2);
    }
    return std::sqrt(difference / square);
}

Text part(const Text &text, size_t begin, size_t end) {
    return Text(text.begin() + static_cast<long>(begin), text.begin() + static_cast<long>(end));
}

Text joined(Text a, const Text &b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

Text random_text(uint32_t seed, size_t n_tokens, int32_t n_vocab) {
    Text text;
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < n_tokens; ++i) {
        state = state * 1664525u + 1013904223u;
        text.push_back(static_cast<llama_token>((state >> 8) % static_cast<uint32_t>(n_vocab)));
    }
    return text;
}
