// Prefill and decode of one KV cache in llama.cpp, as one line of JSON.
//
//   llama-bench-cache MODEL CACHE N_THREADS N_PROMPT_THREADS N_DECODE N_TOKENS...
//
// CACHE is f16, q8_0 or q4_0 of llama.cpp, or a plan of lowkey. N_TOKENS ascend; each point is
// measured on the way to the next. Seconds are CPU time of the one thread, or with several threads
// and on a GPU (LOWKEY_LLAMA_DEVICE, see session.h) of a clock on the wall. The bytes are those
// that the cache's owner logs for the context, of the largest N_TOKENS and kSpareTokens.
//
// SPDX-License-Identifier: Apache-2.0
#include <ctime>

#include <chrono>
#include <cstdio>

#include "session.h"

namespace {

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double wall_seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

constexpr uint32_t kSpareTokens = 256;  // for decoded tokens, which stay where windows free pages

// The first tokens of a shape build ggml's graph, and on CUDA capture it.
constexpr int kWarmTokens = 4;

// Removes the tokens after the first n_tokens. Returns how many are left: all of them where sliding
// windows have freed pages that a shorter sequence would attend to.
llama_pos cut(Session &session, llama_pos n_tokens) {
    (void)llama_memory_seq_rm(session.memory(), 0, n_tokens, -1);
    return llama_memory_seq_pos_max(session.memory(), 0) + 1;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 7) {
        std::fputs(
            "usage: llama-bench-cache MODEL CACHE N_THREADS N_PROMPT_THREADS N_DECODE "
            "N_TOKENS...\n",
            stderr);
        return 2;
    }
    const Model model(argv[1]);
    Options options = options_of_cache(argv[2]);
    options.n_threads = std::stoi(argv[3]);
    options.n_prompt_threads = std::stoi(argv[4]);
    const int n_decode = std::stoi(argv[5]);
    const bool has_one_thread = options.n_threads == 1 && options.n_prompt_threads == 1;
    const auto seconds = has_one_thread && !is_on_gpu() ? cpu_seconds : wall_seconds;
    options.n_ubatch = 512;
    options.n_ctx = static_cast<uint32_t>(std::stoul(argv[argc - 1])) + kSpareTokens;
    Session session(model, options);
    session.feed(0, 0, {1, 2, 3});  // pages of the weights
    require(llama_memory_seq_rm(session.memory(), 0, 0, -1), "an empty cache");

    double prefill_seconds = 0;
    llama_pos n_done = 0;
    std::printf(
        "{\"cache\": \"%s\", \"threads\": %d, \"prompt_threads\": %d, \"kv_tokens\": %u, "
        "\"kv_bytes\": %.0f, \"points\": [",
        argv[2], options.n_threads, options.n_prompt_threads, options.n_ctx, logged_cache_bytes());
    for (int i = 6; i < argc; ++i) {
        const auto n_tokens = static_cast<llama_pos>(std::stol(argv[i]));
        const std::vector<llama_token> text =
            random_text(1, static_cast<size_t>(n_tokens - n_done), model.n_vocab());
        double begin = seconds();
        session.feed(0, n_done, text);
        prefill_seconds += seconds() - begin;
        n_done = n_tokens;
        for (int k = 0; k < kWarmTokens; ++k)
            session.feed(0, n_done + k, {1});
        n_done = cut(session, n_tokens);
        begin = seconds();
        for (int k = 0; k < n_decode; ++k)
            session.feed(0, n_done + k, {1});
        const double decode_seconds = seconds() - begin;
        n_done = cut(session, n_tokens);
        std::printf("%s{\"tokens\": %d, \"prefill_s\": %.3f, \"decoded\": %d, \"decode_s\": %.4f}",
                    i > 6 ? ", " : "", n_tokens, prefill_seconds, n_decode, decode_seconds);
        std::fflush(stdout);
    }
    std::puts("]}");
}
