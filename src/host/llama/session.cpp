// SPDX-License-Identifier: Apache-2.0
#include "session.h"

namespace llama {
namespace {

constexpr std::uint64_t kSlabBytes = 4u << 20;
constexpr std::uint32_t kMostSequences = 4;  // the conversation and its branches

// One step's worth of 16-bit pages lives next to the packed ones while it is attended.
std::uint64_t budget_bytes(const lk_plan *plan, std::uint64_t n_tokens, std::uint32_t step_tokens) {
    lk_plan_size size = initialised(lk_plan_size_init);
    check(lk_plan_bytes(plan, n_tokens + step_tokens, 1, step_tokens, &size));
    return size.cache_bytes + size.fp16_bytes + 2 * kSlabBytes;
}

}  // namespace

Session::Session(lk_context *context, TensorSpace &space, Model &model, const lk_plan *plan,
                 std::uint64_t max_tokens, std::uint32_t max_step_tokens)
    : space_(space), model_(model), ranks_by_queries_(ranks_by_queries(plan)) {
    const Geometry geometry = model.geometry();
    const lk_geometry view = geometry.view();
    lk_cache_desc desc = initialised(lk_cache_desc_init);
    desc.max_sequences = kMostSequences;
    desc.max_step_tokens = max_step_tokens;
    desc.budget_bytes = budget_bytes(plan, max_tokens, max_step_tokens);
    desc.slab_bytes = kSlabBytes;
    lk_cache *cache = nullptr;
    check(lk_cache_create(context, &view, plan, &desc, &cache));
    cache_.reset(cache);
    check(lk_sequence_add(cache, &id_));
}

void Session::begin(std::size_t n_tokens) {
    const std::uint32_t count = static_cast<std::uint32_t>(n_tokens);
    check(lk_step_begin(cache_.get(), space_.queue(), 1, &id_, &count, nullptr));
}

void Session::append(std::uint32_t layer, std::uint32_t n_tokens, float *k, float *v) {
    const Config &c = model_.config();
    const Extent extent = {n_tokens, c.n_kv_heads, c.head_dim};
    const lk_tensor keys = space_.input(Role::kKey, k, extent);
    const lk_tensor values = space_.input(Role::kValue, v, extent);
    check(lk_append(cache_.get(), layer, &keys, &values));
}

// Keys and values stay as they are: other sessions get them too.
void Session::append_prompt(std::uint32_t layer, std::uint32_t n_tokens, const float *k,
                            const float *v) {
    const Config &c = model_.config();
    const std::size_t n = std::size_t{n_tokens} * c.n_kv_heads * c.head_dim;
    std::vector<float> keys(k, k + n), values(v, v + n);
    change_(layer, n_tokens, keys.data(), values.data());
    append(layer, n_tokens, keys.data(), values.data());
}

void Session::attend(std::uint32_t layer, std::uint32_t n_tokens, float *q, float *out) {
    const Config &c = model_.config();
    const Extent extent = {n_tokens, c.n_query_heads, c.head_dim};
    const lk_tensor queries = space_.input(Role::kQuery, q, extent);
    const lk_tensor outputs = space_.output(Role::kOutput, out, extent);
    check(lk_attend(cache_.get(), layer, &queries, &outputs, nullptr));
    space_.collect();
}

Attention Session::attention() {
    return [this](std::uint32_t layer, std::uint32_t n_tokens, float *q, float *k, float *v,
                  float *out) {
        if (observer_)
            observer_(layer, n_tokens, q, k, v);
        append(layer, n_tokens, k, v);
        attend(layer, n_tokens, q, out);
    };
}

// One step up to, but not including, its commit or discard.
std::vector<float> Session::run(const Tokens &tokens, std::size_t first_row) {
    const std::uint64_t position = length();
    begin(tokens.size());
    try {
        return model_.forward(tokens, static_cast<std::size_t>(position), first_row, attention());
    } catch (...) {
        (void)lk_step_discard(cache_.get());
        throw;
    }
}

std::vector<float> Session::feed(const Tokens &tokens) {
    std::vector<float> logits = run(tokens, tokens.size() - 1);
    check(lk_step_commit(cache_.get(), nullptr));
    return logits;
}

void Session::prefill(const std::vector<Session *> &sessions, const Tokens &tokens) {
    Session &first = *sessions.front();
    try {
        for (Session *session : sessions)
            session->begin(tokens.size());
        (void)first.model_.forward(tokens, 0, tokens.size() - 1,
                                   [&](std::uint32_t layer, std::uint32_t n_tokens, float *q,
                                       float *k, float *v, float *out) {
                                       for (Session *session : sessions) {
                                           if (session->change_)
                                               session->append_prompt(layer, n_tokens, k, v);
                                           else
                                               session->append(layer, n_tokens, k, v);
                                           if (session == &first || session->ranks_by_queries_) {
                                               session->attend(layer, n_tokens, q, out);
                                           }
                                       }
                                   });
    } catch (...) {
        for (Session *session : sessions)
            (void)lk_step_discard(session->cache_.get());
        throw;
    }
    for (Session *session : sessions)
        check(lk_step_commit(session->cache_.get(), nullptr));
}

Tokens Session::generate(const Tokens &prompt, std::size_t limit, int stop) {
    Tokens made;
    std::vector<float> logits = feed(prompt);
    while (made.size() < limit) {
        made.push_back(arg_max(logits.data(), logits.size()));
        if ((stop >= 0 && made.back() == static_cast<Token>(stop)) || made.size() == limit)
            break;
        logits = feed({made.back()});
    }
    return made;
}

std::vector<float> Session::provisional(const Tokens &tokens) {
    std::vector<float> logits = run(tokens, 0);
    check(lk_step_discard(cache_.get()));
    return logits;
}

void Session::settle() {
    begin(1);
    check(lk_step_discard(cache_.get()));
}

void Session::branch() {
    lk_sequence fork = 0;
    check(lk_sequence_fork(cache_.get(), id_, LK_ALL_TOKENS, &fork));
    below_.push_back(id_);
    id_ = fork;
}

void Session::unbranch() {
    check(lk_sequence_remove(cache_.get(), id_));
    id_ = below_.back();
    below_.pop_back();
}

void Session::truncate(std::uint64_t n_tokens) {
    check(lk_sequence_truncate(cache_.get(), id_, n_tokens));
}

void Session::reset() {
    while (!below_.empty())
        unbranch();
    check(lk_sequence_remove(cache_.get(), id_));
    check(lk_sequence_add(cache_.get(), &id_));
}

std::uint64_t Session::length() const {
    std::uint64_t n_tokens = 0;
    check(lk_sequence_length(cache_.get(), id_, &n_tokens));
    return n_tokens;
}

lk_cache_stats Session::stats() const {
    lk_cache_stats stats = initialised(lk_cache_stats_init);
    check(lk_cache_get_stats(cache_.get(), &stats));
    return stats;
}

Tokens as_tokens(const std::string &text) {
    Tokens tokens;
    for (const char c : text)
        tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
}

std::string as_text(const Tokens &tokens) {
    std::string text;
    for (const Token token : tokens)
        text.push_back(static_cast<char>(token));
    return text;
}

}  // namespace llama
