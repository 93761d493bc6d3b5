// SPDX-License-Identifier: Apache-2.0
#include "lab/cocktail_ablation.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common/report.h"
#include "cli/plan/cocktail.h"
#include "lab/embeddings.h"

namespace cli {
namespace {

constexpr std::uint64_t kSeedStride = 1000003;
constexpr double kNoDivergence = 0;  // from FP16's answers is not measured here
constexpr std::uint64_t kShuffleSeed = 104729;
constexpr std::uint64_t kAnswerTokens = 256;  // for a question and its answer

enum class Search {
    kNothing,
    kAllLow,
    kRandom,
    kBm25,
    kEmbeddings,
    kAttention,
    kQuota,  // by attention
    kEmbeddingQuota,
    kRandomQuota,
};

// How a cache is laid out.
struct Layout {
    std::uint32_t chunk_tokens, page_tokens;
    bool reorders;
};
constexpr Layout kLayouts[] = {
    {32, 128, true}, {32, 32, false},  {8, 128, true},   {16, 128, true},
    {64, 128, true}, {128, 128, true}, {256, 128, true},
};

struct Variant {
    const char *name;
    std::size_t layout;  // of kLayouts
    Search search;
    double alpha, beta;
    double published;
};
constexpr Variant kVariants[] = {
    {"fp16", 0, Search::kNothing, 0.6, 0.1, 21.32},
    {"without search: all low", 0, Search::kAllLow, 0.6, 0.1, 19.33},
    {"without search: random", 0, Search::kRandom, 0.6, 0.1, 0},
    {"without reordering", 1, Search::kAttention, 0.6, 0.1, 21.27},
    {"full, by attention", 0, Search::kAttention, 0.6, 0.1, 21.21},
    {"full, by BM25", 0, Search::kBm25, 0.6, 0.1, 0},
    {"full, by embeddings", 0, Search::kEmbeddings, 0.6, 0.1, 0},
    {"quota 60/30/10, random", 0, Search::kRandomQuota, 0.6, 0.1, 0},
    {"quota 60/30/10, by attention", 0, Search::kQuota, 0.6, 0.1, 0},
    {"quota 60/30/10, by embeddings", 0, Search::kEmbeddingQuota, 0.6, 0.1, 0},
    {"alpha 0.2", 0, Search::kAttention, 0.2, 0.1, 0},
    {"alpha 0.4", 0, Search::kAttention, 0.4, 0.1, 0},
    {"alpha 0.8", 0, Search::kAttention, 0.8, 0.1, 0},
    {"beta 0.02", 0, Search::kAttention, 0.6, 0.02, 0},
    {"beta 0.3", 0, Search::kAttention, 0.6, 0.3, 0},
    {"chunks of 8", 2, Search::kAttention, 0.6, 0.1, 21.24},
    {"chunks of 16", 3, Search::kAttention, 0.6, 0.1, 21.19},
    {"chunks of 64", 4, Search::kAttention, 0.6, 0.1, 20.15},
    {"chunks of 128", 5, Search::kAttention, 0.6, 0.1, 19.82},
    {"chunks of 256", 6, Search::kAttention, 0.6, 0.1, 16.35},
};

llama::PlanHandle make_layout(const llama::Geometry &geometry, const Layout &layout) {
    llama::PlanHandle plan = llama::make_preset("cocktail", geometry);
    lk_chunk_rule rule = chunk_rule_of(plan.get());
    rule.chunk_tokens = layout.chunk_tokens;
    rule.reorder = layout.reorders ? 1 : 0;
    llama::check(lk_plan_set_pages(plan.get(), layout.page_tokens));
    llama::check(lk_plan_set_chunks(plan.get(), &rule));
    return plan;
}

// A question as every variant answers it.
struct Trial {
    const llama::Document *document;
    const llama::Question *question;
    std::uint64_t number;
    std::uint32_t n_chunks;
    std::vector<float> attention;
    std::vector<float> cosines;  // of embeddings, in the layout that they are used in
};

// All variants at one context length.
class Runner {
  public:
    Runner(lk_context *context, llama::TensorSpace &space, llama::Model &model,
           const EvaluationRequest &request, std::uint64_t n_tokens);

    std::vector<CocktailResult> run();

  private:
    void run_document(std::size_t task_index, const llama::Document &document, std::size_t n_most,
                      Progress &progress);
    void prefill(const llama::Tokens &tokens);
    void run_trial(std::size_t layout, std::size_t task_index, Trial trial);
    void answer(std::size_t variant, std::size_t task_index, const Trial &trial);
    std::vector<lk_chunk_class> classes_of(const Variant &variant, const Trial &trial,
                                           std::vector<float> *scores) const;
    void note_bytes(std::size_t variant, const std::vector<lk_chunk_class> &classes);
    std::uint32_t n_chunks(const Layout &layout) const {
        return static_cast<std::uint32_t>((n_tokens_ - sink_tokens_) / layout.chunk_tokens);
    }

    const EvaluationRequest &request_;
    std::uint64_t n_tokens_;
    std::uint32_t sink_tokens_ = 0;
    std::uint64_t n_trials_ = 0;
    std::vector<llama::PlanHandle> plans_;                   // by layout
    std::vector<std::unique_ptr<llama::Session>> sessions_;  // by layout
    Embeddings embeddings_;                                  // of the first layout's chunks
    std::vector<CocktailResult> results_;                    // by variant
};

Runner::Runner(lk_context *context, llama::TensorSpace &space, llama::Model &model,
               const EvaluationRequest &request, std::uint64_t n_tokens)
    : request_(request),
      n_tokens_(n_tokens),
      embeddings_(context, space, model, static_cast<std::uint32_t>(kAnswerTokens)) {
    const llama::Geometry geometry = model.geometry();
    for (const Layout &layout : kLayouts) {
        plans_.push_back(make_layout(geometry, layout));
        sessions_.push_back(std::make_unique<llama::Session>(
            context, space, model, plans_.back().get(), n_tokens + kAnswerTokens,
            static_cast<std::uint32_t>(n_tokens)));
    }
    llama::check(lk_plan_get_pages(plans_.front().get(), nullptr, &sink_tokens_, nullptr));
    for (const Variant &variant : kVariants) {
        CocktailResult result;
        result.name = variant.name;
        result.context_tokens = n_tokens;
        result.chunk_tokens = kLayouts[variant.layout].chunk_tokens;
        result.alpha = variant.alpha;
        result.beta = variant.beta;
        result.published = variant.published;
        for (const llama::Task *task : request.tasks) {
            result.tasks.emplace_back();
            result.tasks.back().task = task;
        }
        results_.push_back(std::move(result));
    }
}

// Every cache gets the same 16-bit keys and values; none is packed before classes are known.
void Runner::prefill(const llama::Tokens &tokens) {
    std::vector<llama::Session *> all;
    for (const auto &session : sessions_) {
        session->reset();
        llama::check(lk_sequence_defer(session->cache(), session->id(), LK_DEFER_REFUSE));
        all.push_back(session.get());
    }
    llama::Session::prefill(all, tokens);
}

// BM25 over words: those of a chunk begin in it.
std::vector<float> bm25_scores(const Trial &trial, std::uint64_t first,
                               std::uint32_t chunk_tokens) {
    WordIds words;
    std::vector<std::uint32_t> tokens;
    std::vector<std::uint64_t> starts = {0};
    for (std::uint32_t i = 0; i < trial.n_chunks; ++i) {
        const std::size_t at = first + std::uint64_t{i} * chunk_tokens;
        const std::vector<std::uint32_t> ids =
            words.read(trial.document->context.substr(at, chunk_tokens));
        tokens.insert(tokens.end(), ids.begin(), ids.end());
        starts.push_back(tokens.size());
    }
    const std::vector<std::uint32_t> query = words.read(trial.question->prompt);
    const lk_bm25 options = llama::initialised(lk_bm25_init);
    std::vector<float> scores(trial.n_chunks);
    llama::check(lk_chunks_score_bm25(&options, tokens.data(), starts.data(), trial.n_chunks,
                                      query.data(), static_cast<std::uint32_t>(query.size()),
                                      scores.data()));
    return scores;
}

std::vector<lk_chunk_class> Runner::classes_of(const Variant &variant, const Trial &trial,
                                               std::vector<float> *scores) const {
    const Layout &layout = kLayouts[variant.layout];
    const bool by_embeddings =
        variant.search == Search::kEmbeddings || variant.search == Search::kEmbeddingQuota;
    *scores = variant.search == Search::kBm25
                  ? bm25_scores(trial, sink_tokens_, layout.chunk_tokens)
              : by_embeddings ? trial.cosines
                              : trial.attention;
    std::vector<lk_chunk_class> classes(trial.n_chunks, LK_CHUNK_LOW);
    const bool by_quota = variant.search == Search::kQuota ||
                          variant.search == Search::kEmbeddingQuota ||
                          variant.search == Search::kRandomQuota;
    lk_chunk_quota quota = llama::initialised(lk_chunk_quota_init);
    quota.block_chunks = std::max(1u, layout.page_tokens / layout.chunk_tokens);
    if (by_quota)
        llama::check(
            lk_chunks_by_quota(scores->data(), trial.n_chunks, &quota, classes.data(), nullptr));
    else if (variant.search != Search::kAllLow)
        llama::check(lk_chunks_by_thresholds(scores->data(), trial.n_chunks, variant.alpha,
                                             variant.beta, classes.data(), nullptr, nullptr));
    const bool is_random =
        variant.search == Search::kRandom || variant.search == Search::kRandomQuota;
    llama::Random random(request_.seed * kShuffleSeed + trial.number);
    if (is_random)  // as many of each, anywhere
        random.shuffle(classes);
    // Without a search nothing tells which chunks are better where a page has to be filled.
    for (float &score : *scores)
        if (is_random || variant.search == Search::kAllLow)
            score = static_cast<float>(random.below(1u << 20));
    return classes;
}

void Runner::note_bytes(std::size_t variant, const std::vector<lk_chunk_class> &classes) {
    CocktailResult &result = results_[variant];
    const lk_plan *plan = plans_[kVariants[variant].layout].get();
    lk_chunk_mix mix = llama::initialised(lk_chunk_mix_init);
    std::uint32_t *const counts[] = {&mix.n_low, &mix.n_middle, &mix.n_high};
    for (const lk_chunk_class c : classes)
        ++*counts[c - LK_CHUNK_LOW];
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_chunk_bytes(plan, n_tokens_, 1, static_cast<std::uint32_t>(n_tokens_),
                                     &mix, &size));
    for (std::size_t i = 0; i < 3 && !classes.empty(); ++i)
        result.shares[i] += *counts[i] / static_cast<double>(classes.size());
    result.held_bytes +=
        static_cast<double>(size.payload_bytes + size.metadata_bytes + size.recent_bytes);
    result.fp16_bytes += static_cast<double>(size.fp16_bytes);
    ++result.n_questions;
}

void Runner::answer(std::size_t v, std::size_t task_index, const Trial &trial) {
    const Variant &variant = kVariants[v];
    llama::Session &session = *sessions_[variant.layout];
    const std::string &prompt = trial.question->prompt;
    std::vector<lk_chunk_class> classes;
    session.branch();
    if (variant.search != Search::kNothing) {
        std::vector<float> scores;
        classes = classes_of(variant, trial, &scores);
        llama::check(lk_chunks_assign(session.cache(), session.id(), n_tokens_, trial.n_chunks,
                                      classes.data(), scores.data()));
    }
    note_bytes(v, classes);
    results_[v].tasks[task_index].add(
        *trial.question,
        session.score(llama::as_tokens(prompt.substr(prompt.size() - 1)),
                      llama::as_tokens(trial.question->answer)),
        kNoDivergence);
    session.unbranch();
}

void Runner::run_trial(std::size_t layout, std::size_t task_index, Trial trial) {
    llama::Session &session = *sessions_[layout];
    const std::string head = trial.question->prompt.substr(0, trial.question->prompt.size() - 1);
    trial.n_chunks = n_chunks(kLayouts[layout]);
    lk_chunk_attention scoring = llama::initialised(lk_chunk_attention_init);
    scoring.n_query_tokens = static_cast<std::uint32_t>(head.size());
    scoring.chunk_tokens = kLayouts[layout].chunk_tokens;
    scoring.n_chunks = trial.n_chunks;
    trial.attention.resize(trial.n_chunks);
    if (layout == 0)
        trial.cosines = embeddings_.scores(head);
    session.branch();
    llama::check(lk_chunks_score_attention(session.cache(), session.id(), &scoring));
    (void)session.feed(llama::as_tokens(head));
    llama::check(lk_chunks_attention_scores(session.cache(), session.id(), trial.n_chunks,
                                            trial.attention.data()));
    for (std::size_t v = 0; v < std::size(kVariants); ++v)
        if (kVariants[v].layout == layout)
            answer(v, task_index, trial);
    session.unbranch();
}

void Runner::run_document(std::size_t task_index, const llama::Document &document,
                          std::size_t n_most, Progress &progress) {
    for (CocktailResult &result : results_)
        result.tasks[task_index].documents.emplace_back();
    prefill(llama::as_tokens(document.context));
    embeddings_.read(document.context, sink_tokens_, kLayouts[0].chunk_tokens,
                     n_chunks(kLayouts[0]));
    for (std::size_t q = 0; q < std::min(n_most, document.questions.size()); ++q) {
        progress.step(request_.tasks[task_index]->name);
        ++n_trials_;
        for (std::size_t layout = 0; layout < sessions_.size(); ++layout)
            run_trial(layout, task_index,
                      {&document, &document.questions[q], n_trials_, 0, {}, {}});
    }
}

std::vector<CocktailResult> Runner::run() {
    Progress progress(request_.tasks.size() * request_.n_questions);
    for (std::size_t t = 0; t < request_.tasks.size(); ++t) {
        std::size_t n_left = request_.n_questions;
        for (std::uint64_t d = 0; n_left > 0; ++d) {
            const llama::Document document = llama::make_document(
                *request_.tasks[t], n_tokens_, request_.seed * kSeedStride + d, request_.material);
            const std::size_t n =
                std::min({n_left, request_.questions_per_document, document.questions.size()});
            run_document(t, document, n, progress);
            n_left -= n;
        }
    }
    for (CocktailResult &result : results_) {
        const double n = static_cast<double>(std::max<std::size_t>(1, result.n_questions));
        for (double &share : result.shares)
            share /= n;
        result.held_bytes /= n;
        result.fp16_bytes /= n;
    }
    return std::move(results_);
}

double cache_percent(const CocktailResult &result) {
    return 100 * result.held_bytes / result.fp16_bytes;
}

}  // namespace

std::vector<CocktailResult> run_cocktail_ablation(lk_context *context, llama::TensorSpace &space,
                                                  llama::Model &model,
                                                  const EvaluationRequest &request) {
    for (const llama::Task *task : request.tasks)
        if (task->scoring != llama::Scoring::kAlone)
            throw UsageError(std::string("task ") + task->name +
                             " has no question after its context, which Cocktail's chunks need");
    std::vector<CocktailResult> results;
    for (const std::uint64_t n_tokens : request.contexts)
        for (CocktailResult &result : Runner(context, space, model, request, n_tokens).run())
            results.push_back(std::move(result));
    return results;
}

void print_cocktail_ablation(const std::vector<CocktailResult> &results) {
    std::vector<std::string> header = {"", "tokens", "low/middle/high %", "cache %"};
    for (const TaskResult &task : results.front().tasks) {
        header.push_back(std::string(task.task->name) + ", %");
        header.emplace_back("-log2 p");
    }
    header.emplace_back("paper");
    Table table(header);
    for (const CocktailResult &result : results) {
        const double *shares = result.shares;
        std::vector<std::string> row = {result.name, std::to_string(result.context_tokens),
                                        format_fixed(100 * shares[0], 0) + " / " +
                                            format_fixed(100 * shares[1], 0) + " / " +
                                            format_fixed(100 * shares[2], 0),
                                        format_fixed(cache_percent(result), 1)};
        for (const TaskResult &task : result.tasks) {
            const Interval interval = wilson_interval(task.n_right, task.n_questions);
            row.push_back(format_fixed(task.exact_match(), 1) + " (" +
                          format_fixed(interval.low, 0) + ".." + format_fixed(interval.high, 0) +
                          ")");
            row.push_back(format_fixed(task.bits_per_byte(), 4));
        }
        row.push_back(result.published == 0 ? "" : format_fixed(result.published, 2));
        table.add(row);
    }
    table.print();
    std::printf(
        "\nexact match with its 95 %% interval; -log2 p: mean of an answer byte; cache %%: of all\n"
        "tokens at 16 bits; paper: ROUGE of Llama2-7B on QMSum. Chunks of 32 tokens, alpha 0.6,\n"
        "beta 0.1 and scores by attention where a row does not say otherwise\n");
}

Json cocktail_ablation_json(const std::vector<CocktailResult> &results) {
    Json list = Json::array();
    for (const CocktailResult &result : results) {
        Json tasks = Json::array();
        for (const TaskResult &task : result.tasks) {
            const Interval interval = wilson_interval(task.n_right, task.n_questions);
            tasks.push_back({{"task", task.task->name},
                             {"questions", task.n_questions},
                             {"right", task.n_right},
                             {"exact_match_percent", task.exact_match()},
                             {"interval_95_percent", {interval.low, interval.high}},
                             {"bits_per_byte", task.bits_per_byte()}});
        }
        list.push_back({{"name", result.name},
                        {"context_tokens", result.context_tokens},
                        {"chunk_tokens", result.chunk_tokens},
                        {"alpha", result.alpha},
                        {"beta", result.beta},
                        {"low_middle_high", {result.shares[0], result.shares[1], result.shares[2]}},
                        {"cache_percent", cache_percent(result)},
                        {"tasks", tasks},
                        {"published", Json::object()}});
        if (result.published != 0)
            list.back()["published"]["score"] = result.published;
    }
    return list;
}

}  // namespace cli
