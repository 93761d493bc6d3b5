// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/cocktail.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_map>

#include "cli/common/report.h"
#include "cli/common/resources.h"

namespace cli {
namespace {

struct ModelShape {
    const char *name;
    std::uint32_t n_layers, n_query_heads, n_kv_heads, width, hidden, vocabulary;

    // Of a Llama-shaped model whose embeddings are not tied.
    std::uint64_t n_parameters() const {
        const std::uint64_t w = width, kv = w / n_query_heads * n_kv_heads;
        const std::uint64_t layer = 2 * w * (w + kv) + 3 * w * hidden + 2 * w;
        return n_layers * layer + 2ull * vocabulary * w + w;
    }
};
constexpr ModelShape kPaperModels[] = {
    {"Llama2-7B", 32, 32, 32, 4096, 11008, 32000},
    {"Llama2-13B", 40, 40, 40, 5120, 13824, 32000},
    {"Mistral-7B", 32, 32, 8, 4096, 14336, 32000},
    {"Longchat-7B", 32, 32, 32, 4096, 11008, 32000},
};
constexpr std::uint32_t kPaperStep = 512;

std::vector<float> read_scores(const std::string &path) {
    std::string text = read_file(path);
    for (char &c : text)
        if (c == ',' || c == '[' || c == ']')
            c = ' ';
    std::istringstream words(text);
    std::vector<float> scores;
    for (float score; words >> score;)
        scores.push_back(score);
    if (!words.eof())
        throw llama::Error(path + " has something that is no number after " +
                           std::to_string(scores.size()) + " numbers");
    if (scores.empty())
        throw llama::Error(path + " has no scores");
    return scores;
}

std::uint32_t part_of(std::uint64_t n, double percent) {
    return static_cast<std::uint32_t>(std::llround(static_cast<double>(n) * percent / 100));
}

lk_chunk_mix mix_of(const lk_plan *plan, const std::vector<double> &shares,
                    std::uint64_t n_tokens) {
    std::uint32_t sinks = 0;
    llama::check(lk_plan_get_pages(plan, nullptr, &sinks, nullptr));
    const std::uint64_t n_chunks =
        n_tokens < sinks ? 0 : (n_tokens - sinks) / chunk_rule_of(plan).chunk_tokens;
    const std::uint64_t n = std::min<std::uint64_t>(n_chunks, UINT32_MAX);
    lk_chunk_mix mix = llama::initialised(lk_chunk_mix_init);
    mix.n_high = part_of(n, shares[2]);
    mix.n_middle = std::min(part_of(n, shares[1]), static_cast<std::uint32_t>(n) - mix.n_high);
    mix.n_low = static_cast<std::uint32_t>(n) - mix.n_high - mix.n_middle;
    return mix;
}

double saved(std::uint64_t before, std::uint64_t after) {
    return 100 * (1 - static_cast<double>(after) / static_cast<double>(before));
}

}  // namespace

std::size_t ScoredChunks::count(lk_chunk_class chunk_class) const {
    return static_cast<std::size_t>(std::count(classes.begin(), classes.end(), chunk_class));
}

ScoredChunks classify(const lk_plan *plan, std::vector<float> scores) {
    const lk_chunk_rule rule = chunk_rule_of(plan);
    ScoredChunks out;
    out.scores = std::move(scores);
    out.classes.resize(out.scores.size());
    llama::check(lk_chunks_by_thresholds(
        out.scores.data(), static_cast<std::uint32_t>(out.scores.size()), rule.alpha, rule.beta,
        out.classes.data(), &out.low_threshold, &out.high_threshold));
    return out;
}

std::vector<std::uint32_t> WordIds::read(const std::string &text) {
    std::unordered_map<std::string, std::uint32_t> known;
    for (std::size_t i = 0; i < words_.size(); ++i)
        known.emplace(words_[i], static_cast<std::uint32_t>(i));
    std::vector<std::uint32_t> ids;
    std::string word;
    for (std::size_t i = 0; i <= text.size(); ++i) {
        const auto c = static_cast<unsigned char>(i < text.size() ? text[i] : ' ');
        if (std::isalnum(c) || c >= 0x80) {
            word.push_back(static_cast<char>(std::tolower(c)));
        } else if (!word.empty()) {
            const auto [found, is_new] =
                known.emplace(word, static_cast<std::uint32_t>(words_.size()));
            if (is_new)
                words_.push_back(word);
            ids.push_back(found->second);
            word.clear();
        }
    }
    return ids;
}

std::vector<float> bm25_of_words(const std::string &text, const std::string &query,
                                 std::uint32_t chunk_tokens) {
    WordIds words;
    const std::vector<std::uint32_t> tokens = words.read(text), query_tokens = words.read(query);
    lk_bm25 options = llama::initialised(lk_bm25_init);
    options.chunk_tokens = chunk_tokens;
    std::vector<float> scores(tokens.size() / chunk_tokens);
    llama::check(lk_chunks_score_bm25(
        &options, tokens.data(), nullptr, static_cast<std::uint32_t>(scores.size()),
        query_tokens.data(), static_cast<std::uint32_t>(query_tokens.size()), scores.data()));
    return scores;
}

void CocktailOptions::add_to(CLI::App &command) {
    const char *const group = "Plans with chunks";
    command
        .add_option("--mix", mix,
                    "percent of the chunks in each class: LOW,MIDDLE,HIGH; the paper's")
        ->delimiter(',')
        ->expected(3)
        ->capture_default_str()
        ->check(CLI::Range(0.0, 100.0))
        ->group(group);
    command.add_option("--chunk", chunk_tokens, "tokens of a chunk, 8 to 256")
        ->check(CLI::Range(8u, 256u))
        ->group(group);
    command
        .add_option("--alpha", alpha, "share of the scores' span that lies below the low threshold")
        ->check(CLI::Range(0.0, 1.0))
        ->group(group);
    command
        .add_option("--beta", beta, "share of the scores' span that lies above the high threshold")
        ->check(CLI::Range(0.0, 1.0))
        ->group(group);
    command.add_flag("--keep-order", keeps_order, "do not reorder; a chunk is a page then")
        ->group(group);
    CLI::Option *file =
        command.add_option("--scores", scores, "file of numbers, the score of each chunk")
            ->group(group);
    CLI::Option *words =
        command.add_option("--text", text, "file whose words are scored by BM25")->group(group);
    command.add_option("--query", query, "words that --text is searched for")
        ->needs(words)
        ->group(group);
    words->excludes(file);
}

void CocktailOptions::apply(lk_plan *plan) const {
    lk_chunk_rule rule = chunk_rule_of(plan);
    const bool changes = chunk_tokens != 0 || alpha >= 0 || beta >= 0 || keeps_order;
    if (rule.chunk_tokens == 0 && (changes || has_scores()))
        throw UsageError(std::string("plan ") + lk_plan_name(plan) +
                         " has no chunks; the options of Cocktail are for plans that have");
    if (std::abs(mix[0] + mix[1] + mix[2] - 100) > 1e-6)
        throw UsageError("--mix is of percents that add up to 100");
    if (!changes)
        return;
    std::uint32_t page_tokens = 0;
    llama::check(lk_plan_get_pages(plan, &page_tokens, nullptr, nullptr));
    if (keeps_order) {
        rule.reorder = 0;
        rule.chunk_tokens = page_tokens;
    }
    if (chunk_tokens != 0)
        rule.chunk_tokens = chunk_tokens;
    if (alpha >= 0)
        rule.alpha = static_cast<float>(alpha);
    if (beta >= 0)
        rule.beta = static_cast<float>(beta);
    llama::check(lk_plan_set_chunks(plan, &rule));
    llama::check(lk_plan_validate(plan, nullptr));
}

ScoredChunks CocktailOptions::score(const lk_plan *plan) const {
    if (!scores.empty())
        return classify(plan, read_scores(scores));
    return classify(plan, bm25_of_words(read_file(text), query, chunk_rule_of(plan).chunk_tokens));
}

std::vector<double> CocktailOptions::shares(const lk_plan *plan) const {
    if (!has_scores())
        return mix;
    const ScoredChunks chunks = score(plan);
    std::vector<double> out;
    for (const lk_chunk_class c : {LK_CHUNK_LOW, LK_CHUNK_MIDDLE, LK_CHUNK_HIGH})
        out.push_back(100.0 * static_cast<double>(chunks.count(c)) /
                      static_cast<double>(std::max<std::size_t>(1, chunks.classes.size())));
    return out;
}

lk_status size_of_plan(const lk_plan *plan, const std::vector<double> &shares,
                       std::uint64_t n_tokens, std::uint32_t n_sequences, std::uint32_t step_tokens,
                       lk_plan_size *out) {
    if (chunk_rule_of(plan).chunk_tokens == 0)
        return lk_plan_bytes(plan, n_tokens, n_sequences, step_tokens, out);
    const lk_chunk_mix mix = mix_of(plan, shares, n_tokens);
    return lk_plan_chunk_bytes(plan, n_tokens, n_sequences, step_tokens, &mix, out);
}

std::uint64_t prefill_bytes(const lk_plan *plan, const std::vector<double> &shares,
                            std::uint64_t n_tokens, std::uint32_t n_sequences,
                            std::uint32_t step_tokens) {
    const lk_chunk_mix mix = mix_of(plan, shares, n_tokens);
    std::uint64_t budget_bytes = 0;
    llama::check(
        lk_plan_chunk_prefill_bytes(plan, n_tokens, n_sequences, step_tokens, &mix, &budget_bytes));
    return budget_bytes;
}

double PaperModel::cache_saved() const { return saved(fp16_bytes, cocktail_bytes); }

double PaperModel::gpu_saved() const {
    return saved(weight_bytes + fp16_bytes, weight_bytes + cocktail_bytes);
}

std::vector<PaperModel> paper_models(const lk_plan *plan, const std::vector<double> &shares) {
    const lk_chunk_rule rule = chunk_rule_of(plan);
    std::vector<PaperModel> models;
    for (const ModelShape &shape : kPaperModels) {
        const llama::Geometry geometry(shape.n_layers, shape.n_query_heads, shape.n_kv_heads,
                                       shape.width / shape.n_query_heads);
        const llama::PlanHandle fp16 = llama::make_preset("fp16", geometry);
        const llama::PlanHandle cocktail = llama::make_preset("cocktail", geometry);
        llama::check(lk_plan_set_chunks(cocktail.get(), &rule));
        lk_plan_size before = llama::initialised(lk_plan_size_init), after = before;
        llama::check(size_of_plan(fp16.get(), shares, kPaperTokens, 1, kPaperStep, &before));
        llama::check(size_of_plan(cocktail.get(), shares, kPaperTokens, 1, kPaperStep, &after));
        models.push_back(
            {shape.name, 2 * shape.n_parameters(), before.cache_bytes, after.cache_bytes});
    }
    return models;
}

void print_paper_models(const std::vector<PaperModel> &models, const std::vector<double> &shares) {
    std::printf("\nthe paper's models at %s tokens, chunks %s / %s / %s %% low / middle / high\n",
                format_count(kPaperTokens).c_str(), format_fixed(shares[0], 0).c_str(),
                format_fixed(shares[1], 0).c_str(), format_fixed(shares[2], 0).c_str());
    Table table({"model", "all at 16 bits", "by chunks", "cache saved", "weights at 16 bits",
                 "of both saved"});
    for (const PaperModel &model : models)
        table.add({model.name, format_bytes(static_cast<double>(model.fp16_bytes)),
                   format_bytes(static_cast<double>(model.cocktail_bytes)),
                   format_fixed(model.cache_saved(), 1) + " %",
                   format_bytes(static_cast<double>(model.weight_bytes)),
                   format_fixed(model.gpu_saved(), 1) + " %"});
    table.print();
    std::printf(
        "  the paper saves 12 to 42 %% of a whole GPU's memory, at contexts of up to 4 096 or\n"
        "  32 768 tokens, with weights, activations and the 16-bit copy of a prompt\n");
}

Json paper_models_json(const std::vector<PaperModel> &models) {
    Json list = Json::array();
    for (const PaperModel &model : models)
        list.push_back({{"model", model.name},
                        {"tokens", kPaperTokens},
                        {"fp16_bytes", model.fp16_bytes},
                        {"cocktail_bytes", model.cocktail_bytes},
                        {"weight_bytes", model.weight_bytes},
                        {"cache_saved_percent", model.cache_saved()},
                        {"weights_and_cache_saved_percent", model.gpu_saved()}});
    return list;
}

}  // namespace cli
