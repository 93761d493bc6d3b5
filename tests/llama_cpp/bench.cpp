// Prefill and decode of one KV cache in llama.cpp, as one line of JSON.
//
//   llama-bench-cache MODEL CACHE N_THREADS N_DECODE N_TOKENS...
//
// CACHE is f16, q8_0 or q4_0 of llama.cpp, or a plan of lowkey. N_TOKENS ascend; each point is
// measured on the way to the next. Seconds are CPU time of all threads, or on a GPU
// (LOWKEY_LLAMA_DEVICE, see session.h) of a clock on the wall.
//
// SPDX-License-Identifier: Apache-2.0
#include <ctime>

#include <chrono>
#include <cstdio>
#include <map>

#include "session.h"

namespace {

double seconds() {
    if (!is_on_gpu())
        return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

// The first tokens of a shape build ggml's graph, and on CUDA capture it.
constexpr int kWarmTokens = 4;

}  // namespace

int main(int argc, char **argv) {
    if (argc < 6) {
        std::fputs("usage: llama-bench-cache MODEL CACHE N_THREADS N_DECODE N_TOKENS...\n", stderr);
        return 2;
    }
    const std::map<std::string, ggml_type> types = {
        {"f16", GGML_TYPE_F16}, {"q8_0", GGML_TYPE_Q8_0}, {"q4_0", GGML_TYPE_Q4_0}};
    const Model model(argv[1]);
    const std::string cache = argv[2];
    const auto type = types.find(cache);
    const int n_decode = std::stoi(argv[4]);
    Options options;
    if (type != types.end())
        options.type = type->second;
    else
        options.plan = cache;
    options.n_threads = std::stoi(argv[3]);
    options.n_ubatch = 512;
    options.n_ctx = static_cast<uint32_t>(std::stoul(argv[argc - 1])) + 256;
    Session session(model, options);
    session.feed(0, 0, {1, 2, 3});  // pages of the weights
    require(llama_memory_seq_rm(session.memory(), 0, 0, -1), "an empty cache");

    double prefill_seconds = 0;
    llama_pos n_done = 0;
    std::printf("{\"cache\": \"%s\", \"threads\": %d, \"points\": [", cache.c_str(),
                options.n_threads);
    for (int i = 5; i < argc; ++i) {
        const auto n_tokens = static_cast<llama_pos>(std::stol(argv[i]));
        const std::vector<llama_token> text =
            random_text(1, static_cast<size_t>(n_tokens - n_done), model.n_vocab());
        double begin = seconds();
        session.feed(0, n_done, text);
        prefill_seconds += seconds() - begin;
        n_done = n_tokens;
        for (int k = 0; k < kWarmTokens; ++k)
            session.feed(0, n_done + k, {1});
        require(llama_memory_seq_rm(session.memory(), 0, n_done, -1), "the text alone");
        begin = seconds();
        for (int k = 0; k < n_decode; ++k)
            session.feed(0, n_done + k, {1});
        const double decode_seconds = seconds() - begin;
        require(llama_memory_seq_rm(session.memory(), 0, n_done, -1), "the text alone");
        std::printf("%s{\"tokens\": %d, \"prefill_s\": %.3f, \"decoded\": %d, \"decode_s\": %.4f}",
                    i > 5 ? ", " : "", n_tokens, prefill_seconds, n_decode, decode_seconds);
        std::fflush(stdout);
    }
    std::puts("]}");
}
