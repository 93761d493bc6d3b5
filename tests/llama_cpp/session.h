// A model and a context of llama.cpp for tests: tokens in, logits out, sentences of the log kept.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_LLAMA_SESSION_H
#define TESTS_LLAMA_SESSION_H

#include <llama-lowkey.h>
#include <llama.h>

#include <cstdint>
#include <string>
#include <vector>

using Logits = std::vector<float>;

// ggml's device of the tests, "CPU", "CUDA0" or "Vulkan0": LOWKEY_LLAMA_DEVICE is "cpu", "cuda" or
// "vulkan".
std::string device_name();
bool is_on_gpu();
// Graphs that ggml has run as the CUDA graphs of earlier ones, in this process.
size_t count_replays();
// Bytes of keys and values of all contexts made so far, as llama.cpp's caches and lowkey log them.
double logged_cache_bytes();

// The log of llama.cpp since the last call of clear_log(), warnings and errors alone.
std::string logged();
void clear_log();

// Fails the program, with the sentence, unless `holds`.
void require(bool holds, const std::string &sentence);
void require_log(const std::string &words);

// Bound of sums of the same products in another order: batches of other shapes take other kernels
// in ggml. On a GPU some of these round activations to F16 and others do not.
double same_numbers();
void require_close(const Logits &a, const Logits &b, double bound, const std::string &what);

class Model {
  public:
    // By default all layers are on the device of the test. has_repacked: weights may be laid out
    // for instructions of the CPU.
    explicit Model(const std::string &path, int n_gpu_layers = is_on_gpu() ? 999 : 0,
                   bool has_repacked = true);
    ~Model();
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;
    llama_model *get() const { return model_; }
    int32_t n_vocab() const;

  private:
    llama_model *model_;
};

constexpr char kEnvironment[] = "environment";

struct Options {
    std::string plan;  // empty = llama.cpp's own cache; kEnvironment = no call of the setters
    std::string budget;
    uint32_t n_ctx = 1024, n_ubatch = 128, n_sequences = 1;
    int n_threads = 1;         // ggml's threads spin, which a busy machine punishes
    int n_prompt_threads = 0;  // 0 = n_threads
    uint32_t n_back = 0;       // recurrent states of last tokens
    bool is_unified = true;
    bool has_full_windows = false;   // of swa_full
    bool is_offloaded = true;        // of offload_kqv
    ggml_type type = GGML_TYPE_F16;  // of llama.cpp's own cache
};

// Those of a cache by its name: f16, q8_0 or q4_0 of llama.cpp, or a plan of lowkey; "" as f16.
Options options_of_cache(const std::string &name);

// What a token of a batch is and belongs to.
struct Token {
    llama_token id;
    llama_pos position;
    std::vector<llama_seq_id> sequences;
    bool has_logits;
};

class Session {
  public:
    // make() gives nullptr where llama.cpp refuses the context.
    Session(const Model &model, const Options &options);
    ~Session();
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    static llama_context *make(const Model &model, const Options &options);

    llama_context *get() const { return context_; }
    llama_memory_t memory() const { return llama_get_memory(context_); }

    // llama_decode() of the tokens as they are; logits of those that have them, in order.
    int decode(const std::vector<Token> &tokens, std::vector<Logits> *logits = nullptr);
    // Appends text to one sequence; the logits after its last token, or after each token.
    Logits feed(llama_seq_id sequence, llama_pos position, const std::vector<llama_token> &text);
    std::vector<Logits> feed_all(llama_seq_id sequence, llama_pos position,
                                 const std::vector<llama_token> &text);

  private:
    int32_t n_vocab_;
    llama_context *context_;
};

llama_token best(const Logits &logits);
// Root of the mean square of the difference, in units of b's own.
double relative_difference(const Logits &a, const Logits &b);
using Text = std::vector<llama_token>;
Text part(const Text &text, size_t begin, size_t end);
Text joined(Text a, const Text &b);
// Tokens without a pattern, the same for each seed.
Text random_text(uint32_t seed, size_t n_tokens, int32_t n_vocab);

#endif
