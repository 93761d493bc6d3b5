// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/serving.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cli/plan/plan_facts.h"

namespace cli {
namespace {

constexpr std::uint32_t kRecentTokens = 128;

// A context's chunks in whole pages, and what each class of them takes.
struct Quota {
    std::uint32_t n_chunks = 0;
    std::uint64_t n_tokens = 0;  // up to the end of the last chunk
    lk_chunk_quota rule = llama::initialised(lk_chunk_quota_init);

    std::vector<lk_chunk_class> classes(const std::vector<float> &scores) const {
        std::vector<lk_chunk_class> out(n_chunks);
        if (n_chunks == 0)
            return out;
        llama::check(lk_chunks_by_quota(scores.data(), n_chunks, &rule, out.data(), nullptr));
        return out;
    }
};

lk_plan_size size_of_mix(const lk_plan *plan, std::uint64_t n_tokens, const lk_chunk_mix &mix) {
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(
        lk_plan_chunk_bytes(plan, n_tokens, 1, static_cast<std::uint32_t>(n_tokens), &mix, &size));
    return size;
}

// Chunks of whole pages; a short context has none, as other plans pack none of it.
Quota whole_pages(const lk_plan *plan, std::uint64_t n_tokens) {
    std::uint32_t page_tokens = 0, sink_tokens = 0;
    llama::check(lk_plan_get_pages(plan, &page_tokens, &sink_tokens, nullptr));
    const std::uint32_t chunk_tokens = chunk_rule_of(plan).chunk_tokens;
    const std::uint32_t unit_tokens = std::max(page_tokens, chunk_tokens);
    const std::uint64_t kept = sink_tokens + kRecentTokens;
    const std::uint64_t n_units = n_tokens < kept ? 0 : (n_tokens - kept) / unit_tokens;
    Quota quota;
    quota.n_chunks = static_cast<std::uint32_t>(n_units * unit_tokens / chunk_tokens);
    quota.n_tokens = sink_tokens + n_units * unit_tokens;
    quota.rule.block_chunks = unit_tokens / chunk_tokens;
    return quota;
}

// All chunks of one class.
lk_plan_size size_of_class(const lk_plan *plan, std::uint64_t n_tokens,
                           std::uint32_t lk_chunk_mix::*count) {
    lk_chunk_mix mix = llama::initialised(lk_chunk_mix_init);
    mix.*count = whole_pages(plan, n_tokens).n_chunks;
    return size_of_mix(plan, n_tokens, mix);
}

Quota quota_within(const lk_plan *plan, double bits_per_value, std::uint64_t n_tokens) {
    Quota quota = whole_pages(plan, n_tokens);
    const lk_plan_size low = size_of_class(plan, n_tokens, &lk_chunk_mix::n_low);
    const double values_of_chunk = static_cast<double>(low.fp16_bytes) / 2 /
                                   static_cast<double>(n_tokens) * chunk_rule_of(plan).chunk_tokens;
    const auto bytes = [&](double bits) {
        return static_cast<std::uint64_t>(values_of_chunk * bits / 8);
    };
    quota.rule.low_bytes = bytes(low.bits_per_value);
    quota.rule.middle_bytes =
        bytes(size_of_class(plan, n_tokens, &lk_chunk_mix::n_middle).bits_per_value);
    quota.rule.high_bytes =
        bytes(size_of_class(plan, n_tokens, &lk_chunk_mix::n_high).bits_per_value);
    quota.rule.budget_bytes = quota.n_chunks * bytes(bits_per_value);
    return quota;
}

bool has_rung(const Ladder &ladder, std::uint32_t bits) {
    return std::find(ladder.rungs, ladder.rungs + ladder.n_rungs, bits) !=
           ladder.rungs + ladder.n_rungs;
}

// Layer by layer, the widest ones first, as a cache does by itself at a full budget.
void descend_within(lk_cache *cache, const Serving &serving) {
    const lk_plan *plan = lk_cache_plan(cache);
    const std::uint64_t most =
        served_size(plan, {0, true, 0}, serving.reserve_tokens).payload_bytes;
    const std::uint32_t n_layers = plan_shape(plan).n_layers;
    for (const std::uint32_t bits : {8u, 4u, 2u})
        for (std::uint32_t l = 0; l < n_layers; ++l) {
            lk_cache_stats stats = llama::initialised(lk_cache_stats_init);
            llama::check(lk_cache_get_stats(cache, &stats));
            if (stats.payload_bytes <= most)
                return;
            if (has_rung(ladder_of(plan, l), bits))
                llama::check(lk_cache_shrink(cache, l, bits));
        }
}

// The attention that the question pays each chunk; the sequence is a branch meanwhile.
std::vector<float> attention_of(llama::Session &session, const Quota &quota,
                                const llama::Tokens &question) {
    lk_chunk_attention scoring = llama::initialised(lk_chunk_attention_init);
    scoring.n_query_tokens = static_cast<std::uint32_t>(question.size());
    scoring.chunk_tokens = chunk_rule_of(lk_cache_plan(session.cache())).chunk_tokens;
    scoring.n_chunks = quota.n_chunks;
    std::vector<float> scores(quota.n_chunks);
    session.branch();
    llama::check(lk_chunks_score_attention(session.cache(), session.id(), &scoring));
    (void)session.feed(question);
    llama::check(
        lk_chunks_attention_scores(session.cache(), session.id(), quota.n_chunks, scores.data()));
    session.unbranch();
    return scores;
}

}  // namespace

double least_chunk_bits(const lk_plan *plan, std::uint64_t n_tokens) {
    return size_of_class(plan, n_tokens, &lk_chunk_mix::n_low).bits_per_value;
}

lk_plan_size served_size(const lk_plan *plan, const Serving &serving, std::uint64_t n_tokens) {
    if (serving.chunk_bits != 0) {
        const Quota quota = quota_within(plan, serving.chunk_bits, n_tokens);
        lk_chunk_mix mix = llama::initialised(lk_chunk_mix_init);
        std::uint32_t *const counts[] = {&mix.n_low, &mix.n_middle, &mix.n_high};
        for (const lk_chunk_class c : quota.classes(std::vector<float>(quota.n_chunks)))
            ++*counts[c - LK_CHUNK_LOW];
        return size_of_mix(plan, n_tokens, mix);
    }
    const llama::PlanHandle last = serving.descends ? at_last_rungs(plan) : nullptr;
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(last != nullptr ? last.get() : plan, n_tokens, 1,
                               static_cast<std::uint32_t>(n_tokens), &size));
    return size;
}

void hold_context(llama::Session &session, const Serving &serving) {
    if (serving.chunk_bits != 0)
        llama::check(lk_sequence_defer(session.cache(), session.id(), LK_DEFER_REFUSE));
}

void descend(llama::Session &session, const Serving &serving) {
    if (!serving.descends)
        return;
    if (serving.reserve_tokens != 0) {
        descend_within(session.cache(), serving);
        return;
    }
    for (const std::uint32_t bits : {8u, 4u, 2u})
        llama::check(lk_cache_shrink(session.cache(), LK_ALL, bits));
}

void classify_chunks(llama::Session &session, const Serving &serving,
                     const llama::Tokens &question) {
    if (serving.chunk_bits == 0)
        return;
    const Quota quota =
        quota_within(lk_cache_plan(session.cache()), serving.chunk_bits, session.length());
    if (quota.n_chunks == 0)
        return;
    const std::vector<float> scores = attention_of(session, quota, question);
    llama::check(lk_chunks_assign(session.cache(), session.id(), quota.n_tokens, quota.n_chunks,
                                  quota.classes(scores).data(), scores.data()));
}

}  // namespace cli
