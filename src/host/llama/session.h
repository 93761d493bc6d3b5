// One conversation: a model, a cache and a sequence of it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_SESSION_H
#define LLAMA_SESSION_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "handles.h"
#include "model.h"
#include "tensor_space.h"

namespace llama {

// What a model answered to a known text.
struct Score {
    std::size_t n_tokens = 0;
    std::size_t n_right = 0;  // tokens that are the arg max
    double bits = 0;          // sum of -log2 p
    std::vector<bool> right;  // of each token
    bool exact() const { return n_right == n_tokens; }
};

// Sees what a step hands to a layer: q [n_tokens][n_query_heads][head_dim] and k, v
// [n_tokens][n_kv_heads][head_dim] after RoPE.
using Observer =
    std::function<void(std::uint32_t layer, std::uint32_t n_tokens, float *q, float *k, float *v)>;

// Changes keys and values [n_tokens][n_kv_heads][head_dim] of a prompt, positions 0 and up, before
// a cache gets them: what a method of quantizing would make of them.
using PromptChange =
    std::function<void(std::uint32_t layer, std::uint32_t n_tokens, float *k, float *v)>;

class Session {
  public:
    // max_tokens: of the sequence; max_step_tokens: of one step. The context and the space are of
    // one device; model and plan have one geometry. Context, space and model must outlive the
    // session.
    Session(lk_context *context, TensorSpace &space, Model &model, const lk_plan *plan,
            std::uint64_t max_tokens, std::uint32_t max_step_tokens);

    // Runs tokens as one step and keeps them; logits of the last one.
    std::vector<float> feed(const Tokens &tokens);

    // Encodes one prompt for many sessions of the same model in one pass: a step attends to its
    // own tokens at FP16 under every plan, so all their caches are given the same keys and
    // values. The sessions must be empty.
    static void prefill(const std::vector<Session *> &sessions, const Tokens &tokens);

    // Greedy tokens after feeding prompt, at most limit, up to and including stop.
    Tokens generate(const Tokens &prompt, std::size_t limit, int stop = -1);

    // All logits [tokens.size()][n_vocabulary] of a step that is dropped again.
    std::vector<float> provisional(const Tokens &tokens);

    // How well the model predicts answer after prompt. One provisional step that is dropped
    // again: the sequence stays as it is. logits, when not null, gets the rows
    // [answer.size()][n_vocabulary] that predict the answer.
    Score score(const Tokens &prompt, const Tokens &answer, std::vector<float> *logits = nullptr);

    // The same in kept steps of at most step_tokens, so that pages age as they do in decoding.
    Score score_kept(const Tokens &prompt, const Tokens &answer, std::size_t step_tokens,
                     std::vector<float> *logits = nullptr);

    // What packing does to attention: one provisional step of all sessions, which have the same
    // length, with the queries, keys and values that the first one's cache leads to. Of each
    // session |output - first session's output| / |first session's output|, mean over layers.
    static std::vector<double> output_errors(const std::vector<Session *> &sessions,
                                             const Tokens &tokens);

    // Packs the pages that are due, without changing the sequence otherwise.
    void settle();

    // What prefill() does to keys and values of this session from now on; null to end that.
    void change_prompts(PromptChange change) { change_ = std::move(change); }

    // Called for every layer of every step of this session from now on; null to end that.
    void observe(Observer observer) { observer_ = std::move(observer); }

    // A fork of the sequence takes its place until unbranch(), which removes it; they nest.
    void branch();
    void unbranch();

    void truncate(std::uint64_t n_tokens);
    void reset();  // an empty sequence, without branches
    std::uint64_t length() const;
    lk_cache_stats stats() const;
    lk_cache *cache() const { return cache_.get(); }
    lk_sequence id() const { return id_; }

  private:
    std::vector<float> run(const Tokens &tokens, std::size_t first_row);
    void begin(std::size_t n_tokens);
    void append(std::uint32_t layer, std::uint32_t n_tokens, float *k, float *v);
    void append_prompt(std::uint32_t layer, std::uint32_t n_tokens, const float *k, const float *v);
    void attend(std::uint32_t layer, std::uint32_t n_tokens, float *q, float *out);
    Attention attention();

    TensorSpace &space_;
    Model &model_;
    CacheHandle cache_;
    bool ranks_by_queries_;
    Observer observer_;
    PromptChange change_;
    lk_sequence id_ = 0;
    std::vector<lk_sequence> below_;  // those that id_ is a branch of
};

// Sum over rows of logits of KL(exact, other) in bits; 0 without exact logits.
double divergence(const std::vector<float> &exact, const std::vector<float> &other,
                  std::size_t n_vocabulary);

// Of a model whose tokens are bytes.
Tokens as_tokens(const std::string &text);
std::string as_text(const Tokens &tokens);

}  // namespace llama

#endif
