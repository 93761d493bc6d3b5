// BM25 of chunks of token ids. Terms are the query's different tokens; the context is read twice,
// once for how many chunks have a term, once for the scores.
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey/chunks.h>

#include <algorithm>
#include <cmath>

#include "base/float_mode.h"
#include "base/memory.h"
#include "base/status.h"

namespace lk {

namespace {

using ull = unsigned long long;

struct Term {
    uint32_t token;
    uint32_t n_in_query;
    uint32_t n_chunks;    // that have it
    uint32_t n_in_chunk;  // the one at hand
};

struct Context {
    const uint32_t *tokens;
    const uint64_t *starts;  // or null
    uint32_t chunk_tokens;   // then
    uint32_t n_chunks;

    uint64_t start(uint32_t chunk) const {
        return starts ? starts[chunk] : static_cast<uint64_t>(chunk) * chunk_tokens;
    }
    uint64_t length(uint32_t chunk) const { return start(chunk + 1) - start(chunk); }
};

class Bm25 {
  public:
    Bm25(const lk_bm25 &options, const Context &context) : options_(options), context_(context) {}

    bool set_query(const uint32_t *query, uint32_t n_tokens);
    void count_chunks();
    void score(float *scores);

  private:
    void count_terms(uint32_t chunk);
    double score_of(uint32_t chunk, double mean_length) const;

    const lk_bm25 &options_;
    const Context &context_;
    Array<Term> terms_;  // ascending by token
};

bool Bm25::set_query(const uint32_t *query, uint32_t n_tokens) {
    Array<uint32_t> sorted;
    if (!sorted.assign(query, n_tokens))
        return false;
    std::sort(sorted.begin(), sorted.end());
    for (const uint32_t token : sorted) {
        if (!terms_.empty() && terms_.back().token == token)
            ++terms_.back().n_in_query;
        else if (!terms_.push({token, 1, 0, 0}))
            return false;
    }
    return true;
}

void Bm25::count_terms(uint32_t chunk) {
    for (Term &term : terms_)
        term.n_in_chunk = 0;
    for (uint64_t at = context_.start(chunk); at < context_.start(chunk + 1); ++at) {
        const uint32_t token = context_.tokens[at];
        Term *term = std::lower_bound(
            terms_.begin(), terms_.end(), token,
            [](const Term &candidate, uint32_t wanted) { return candidate.token < wanted; });
        if (term != terms_.end() && term->token == token)
            ++term->n_in_chunk;
    }
}

void Bm25::count_chunks() {
    for (uint32_t i = 0; i < context_.n_chunks; ++i) {
        count_terms(i);
        for (Term &term : terms_)
            term.n_chunks += term.n_in_chunk > 0;
    }
}

double Bm25::score_of(uint32_t chunk, double mean_length) const {
    const auto length = static_cast<double>(context_.length(chunk));
    const double norm = options_.k1 * (1 - options_.b + options_.b * length / mean_length);
    double score = 0;
    for (const Term &term : terms_) {
        if (!term.n_in_chunk)
            continue;
        const double frequency = term.n_in_chunk;
        const double rarity = (context_.n_chunks - term.n_chunks + 0.5) / (term.n_chunks + 0.5);
        score += term.n_in_query * std::log1p(rarity) * frequency * (options_.k1 + 1) /
                 (frequency + norm);
    }
    return score;
}

void Bm25::score(float *scores) {
    const uint64_t n_tokens = context_.start(context_.n_chunks) - context_.start(0);
    const double mean_length = static_cast<double>(n_tokens) / context_.n_chunks;
    for (uint32_t i = 0; i < context_.n_chunks; ++i) {
        count_terms(i);
        scores[i] = static_cast<float>(score_of(i, mean_length));
    }
}

lk_bm25 default_bm25() {
    lk_bm25 options = {};
    options.size = sizeof options;
    options.chunk_tokens = 32;
    options.k1 = 1.2;
    options.b = 0.75;
    return options;
}

lk_status check_options(const lk_bm25 &options, bool is_equal) {
    if (is_equal && !options.chunk_tokens)
        return fail(LK_E_ARGUMENT, "options.chunk_tokens is 0 and starts is NULL");
    if (!(options.k1 >= 0 && options.k1 <= 1e6))
        return fail(LK_E_ARGUMENT, "options.k1 is %g, must be from 0 to 1e6", options.k1);
    if (!(options.b >= 0 && options.b <= 1))
        return fail(LK_E_ARGUMENT, "options.b is %g, must be from 0 to 1", options.b);
    return LK_OK;
}

lk_status check_starts(const Context &context) {
    for (uint32_t i = 0; context.starts && i < context.n_chunks; ++i)
        if (context.starts[i + 1] < context.starts[i] || context.length(i) > UINT32_MAX)
            return fail(LK_E_ARGUMENT,
                        "starts[%u] is %llu after %llu, a chunk has from 0 to 2^32 - 1 tokens",
                        i + 1, ull{context.starts[i + 1]}, ull{context.starts[i]});
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" {

lk_status lk_bm25_init(lk_bm25 *options, size_t struct_bytes) {
    return lk::init_with(options, struct_bytes, sizeof *options, lk::default_bm25(), "options");
}

lk_status lk_chunks_score_bm25(const lk_bm25 *options, const uint32_t *tokens,
                               const uint64_t *starts, uint32_t n_chunks, const uint32_t *query,
                               uint32_t n_query_tokens, float *scores) {
    const lk::FloatMode mode;
    lk_bm25 own = lk::default_bm25();
    LK_TRY(lk::import_struct(&own, sizeof own, sizeof own, options, "options"));
    LK_TRY(lk::check_options(own, !starts));
    if (!n_chunks)
        return LK_OK;
    const lk::Context context = {tokens, starts, own.chunk_tokens, n_chunks};
    LK_TRY(lk::check_starts(context));
    const bool has_tokens = context.start(n_chunks) > context.start(0);
    if ((has_tokens && !tokens) || (n_query_tokens && !query) || !scores)
        return lk::fail(LK_E_ARGUMENT, "tokens, query or scores is NULL");
    lk::Bm25 bm25(own, context);
    if (!bm25.set_query(query, n_query_tokens))
        return lk::fail(LK_E_NOMEM, "no memory for a query of %u tokens", n_query_tokens);
    bm25.count_chunks();
    bm25.score(scores);
    return LK_OK;
}

}  // extern "C"
