// Plans with chunks on the command line: options, scores, bytes for a mix of classes, the picture.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_COCKTAIL_H
#define CLI_COCKTAIL_H

#include <lowkey/chunks.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common/command.h"
#include "cli/plan/plan_facts.h"

namespace cli {

// Scores of a context's chunks and what the plan's thresholds make of them.
struct ScoredChunks {
    std::vector<float> scores;
    std::vector<lk_chunk_class> classes;
    double low_threshold = 0;
    double high_threshold = 0;

    std::size_t count(lk_chunk_class chunk_class) const;
};
// Throws llama::Error.
ScoredChunks classify(const lk_plan *plan, std::vector<float> scores);

// Words of a text as ids by first occurrence, lower-case letters and digits; other bytes part them.
class WordIds {
  public:
    std::vector<std::uint32_t> read(const std::string &text);

  private:
    std::vector<std::string> words_;
};
// BM25 of the whole runs of chunk_tokens words. Throws llama::Error.
std::vector<float> bm25_of_words(const std::string &text, const std::string &query,
                                 std::uint32_t chunk_tokens);

struct CocktailOptions {
    std::vector<double> mix = {60, 30, 10};  // percent of the chunks: low, middle, high
    std::uint32_t chunk_tokens = 0;          // 0 = as the plan
    double alpha = -1, beta = -1;            // below 0 = as the plan
    bool keeps_order = false;
    std::string scores, text, query;  // paths, words

    void add_to(CLI::App &command);
    // What was given, in a plan with chunks. Throws UsageError, llama::Error.
    void apply(lk_plan *plan) const;
    bool has_scores() const { return !scores.empty() || !text.empty(); }
    ScoredChunks score(const lk_plan *plan) const;
    // The mix, in percent, by the scores when there are some.
    std::vector<double> shares(const lk_plan *plan) const;
};

// Exact bytes: those of lk_plan_bytes(), or in a plan with chunks those of the shares (percent) of
// as many whole chunks as there are tokens.
lk_status size_of_plan(const lk_plan *plan, const std::vector<double> &shares,
                       std::uint64_t n_tokens, std::uint32_t n_sequences, std::uint32_t step_tokens,
                       lk_plan_size *out);

// The budget of lk_plan_chunk_prefill_bytes() for these shares, in a plan with chunks.
std::uint64_t prefill_bytes(const lk_plan *plan, const std::vector<double> &shares,
                            std::uint64_t n_tokens, std::uint32_t n_sequences,
                            std::uint32_t step_tokens);

// What the cache of a 131072-token context takes for the models of the paper, all at 16 bits and by
// the plan's chunks, and what that is of a GPU's memory with weights at 16 bits.
struct PaperModel {
    std::string name;
    std::uint64_t weight_bytes, fp16_bytes, cocktail_bytes;
    double cache_saved() const;  // percent
    double gpu_saved() const;    // of weights and cache
};
constexpr std::uint64_t kPaperTokens = 131072;
std::vector<PaperModel> paper_models(const lk_plan *plan, const std::vector<double> &shares);
void print_paper_models(const std::vector<PaperModel> &models, const std::vector<double> &shares);
Json paper_models_json(const std::vector<PaperModel> &models);

// Scores with both thresholds, and classes in the order of the context and as they are kept.
// Throws llama::Error.
void draw_chunks(const lk_plan *plan, const ScoredChunks &chunks, const std::string &path);

}  // namespace cli

#endif
