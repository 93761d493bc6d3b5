// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "cli/common/report.h"

namespace cli {
namespace {

constexpr std::size_t kStreamTokens = 128;
constexpr std::size_t kDecodeTokens = 16;  // a divisor of what pages and recent tokens have
constexpr std::size_t kTimedTokens = 32;
constexpr std::uint64_t kSeedStride = 1000003;
constexpr double kWilsonZ = 1.96;

std::uint64_t longest_answer(const std::vector<const llama::Task *> &tasks) {
    std::size_t n_tokens = 0;
    for (const llama::Task *task : tasks)
        n_tokens = std::max(n_tokens, task->answer_tokens);
    return n_tokens;
}

Answer graded(const llama::Question &question, const llama::Score &score, double divergence) {
    const auto is_right = [&](const llama::Item &item) {
        const auto first = score.right.begin();
        return std::all_of(first + static_cast<std::ptrdiff_t>(item.begin),
                           first + static_cast<std::ptrdiff_t>(item.end), [](bool b) { return b; });
    };
    Answer answer = {score.exact(), score.n_tokens, score.bits, divergence};
    for (const llama::Item &item : question.items) {
        answer.n_items_right += is_right(item) ? 1 : 0;
        answer.n_items_before_error += answer.n_items_right == ++answer.n_items ? 1 : 0;
    }
    if (answer.n_items != 0)
        answer.is_right = answer.n_items_right == answer.n_items;
    return answer;
}

// All plans at one context length.
class Round {
  public:
    Round(lk_context *context, llama::TensorSpace &space, llama::Model &model,
          const EvaluationRequest &request, std::uint64_t n_tokens);

    std::size_t n_steps() const;
    std::vector<llama::Session *> caches();
    void run_tasks(Progress &progress);   // task by task
    void run_passes(Progress &progress);  // a document of each task, then the next of each
    std::vector<PlanResult> take() { return std::move(results_); }

  private:
    void make_documents();
    std::unique_ptr<llama::Session> make_session(std::size_t plan) const;
    Serving serving_of(std::size_t plan) const {
        return request_.servings.empty() ? Serving() : request_.servings[plan];
    }
    void encode(const llama::Tokens &tokens);
    void classify(std::size_t plan, const llama::Tokens &question);
    void end_classes(std::size_t plan);
    void compare_outputs(std::size_t task_index, const llama::Tokens &prompt,
                         const llama::Tokens &answer);
    void measure_bytes(std::size_t plan);
    void measure_speed(std::size_t plan, Progress &progress);
    void run_document(std::size_t task_index, const llama::Document &document, Progress &progress);
    void end_plan(std::size_t plan, Progress &progress);
    void ask_alone(std::size_t task_index, const llama::Document &document, Progress &progress);
    void ask_in_steps(std::size_t task_index, const llama::Tokens &prefix,
                      const llama::Question &question, Progress &progress);

    lk_context *context_;
    llama::TensorSpace &space_;
    llama::Model &model_;
    const EvaluationRequest &request_;
    std::uint64_t n_tokens_;
    std::uint64_t n_most_tokens_;  // with an answer
    std::size_t n_vocabulary_;
    std::unique_ptr<llama::Session> reference_;  // an FP16 cache, when comparing
    std::vector<std::unique_ptr<llama::Session>> sessions_;
    std::vector<PlanResult> results_;
    std::vector<std::vector<llama::Document>> documents_;  // of each task
    bool ends_pass_ = false;  // the current document is the last of its pass
    bool is_first_pass_ = true, is_last_pass_ = true;
};

Round::Round(lk_context *context, llama::TensorSpace &space, llama::Model &model,
             const EvaluationRequest &request, std::uint64_t n_tokens)
    : context_(context),
      space_(space),
      model_(model),
      request_(request),
      n_tokens_(n_tokens),
      n_most_tokens_(n_tokens + longest_answer(request.tasks)),
      n_vocabulary_(model.config().n_vocabulary) {
    if (request.compares) {
        const llama::PlanHandle fp16 = llama::make_preset("fp16", model.geometry());
        reference_ =
            std::make_unique<llama::Session>(context, space, model, fp16.get(), n_most_tokens_,
                                             static_cast<std::uint32_t>(n_tokens));
    }
    for (std::size_t p = 0; p < request.plans.size(); ++p) {
        const lk_plan *plan = request.plans[p].get();
        const lk_plan_size size = served_size(plan, serving_of(p), n_tokens);
        sessions_.push_back(make_session(p));
        PlanResult result;
        result.plan = lk_plan_name(plan);
        result.context_tokens = n_tokens;
        result.bits_per_value = size.bits_per_value;
        result.fp16_bytes = size.fp16_bytes;
        if (!request.simulations.empty()) {
            sessions_.back()->change_prompts(request.simulations[p].change);
            result.bits_per_value = request.simulations[p].bits_per_value;
        }
        for (const llama::Task *task : request.tasks) {
            result.tasks.emplace_back();
            result.tasks.back().task = task;
        }
        results_.push_back(std::move(result));
    }
    make_documents();
}

std::unique_ptr<llama::Session> Round::make_session(std::size_t plan) const {
    return std::make_unique<llama::Session>(context_, space_, model_, request_.plans[plan].get(),
                                            n_most_tokens_, static_cast<std::uint32_t>(n_tokens_));
}

void Round::make_documents() {
    for (const llama::Task *task : request_.tasks) {
        documents_.emplace_back();
        std::size_t n_asked = 0;
        for (std::uint64_t d = 0; n_asked < request_.n_questions; ++d) {
            llama::Document document = llama::make_document(
                *task, n_tokens_, request_.seed * kSeedStride + d, request_.material);
            const std::size_t n_most =
                std::min(request_.questions_per_document, request_.n_questions - n_asked);
            if (document.questions.size() > n_most)
                document.questions.resize(n_most);
            n_asked += std::max<std::size_t>(1, document.questions.size());
            documents_.back().push_back(std::move(document));
        }
    }
}

std::size_t Round::n_steps() const {
    std::size_t n_documents = 0;
    for (const auto &list : documents_)
        n_documents += list.size();
    const std::size_t n_caches = sessions_.size() + (reference_ != nullptr ? 1 : 0);
    return n_documents * (1 + n_caches) + (request_.times ? sessions_.size() : 0);
}

void Round::encode(const llama::Tokens &tokens) {
    for (std::size_t p = 0; p < sessions_.size(); ++p)
        if (serving_of(p).descends)
            sessions_[p] = make_session(p);
    const std::vector<llama::Session *> all = caches();
    for (llama::Session *session : all)
        session->reset();
    for (std::size_t p = 0; p < sessions_.size(); ++p)
        hold_context(*sessions_[p], serving_of(p));
    llama::Session::prefill(all, tokens);
    for (llama::Session *session : all)
        session->settle();
    for (std::size_t p = 0; p < sessions_.size(); ++p)
        descend(*sessions_[p], serving_of(p));
}

// For one question, in a branch: the context waits for the next one's classes.
void Round::classify(std::size_t plan, const llama::Tokens &question) {
    if (serving_of(plan).chunk_bits == 0)
        return;
    sessions_[plan]->branch();
    classify_chunks(*sessions_[plan], serving_of(plan), question);
}

void Round::end_classes(std::size_t plan) {
    if (serving_of(plan).chunk_bits != 0)
        sessions_[plan]->unbranch();
}

// Of the last document of each plan.
void Round::compare_outputs(std::size_t task_index, const llama::Tokens &prompt,
                            const llama::Tokens &answer) {
    if (reference_ == nullptr)
        return;
    llama::Tokens question = prompt;
    question.insert(question.end(), answer.begin(), answer.end());
    question.resize(std::min(question.size(), kStreamTokens));
    for (std::size_t p = 0; p < sessions_.size(); ++p)
        classify(p, prompt);
    const std::vector<double> errors = llama::Session::output_errors(caches(), question);
    for (std::size_t p = 0; p < sessions_.size(); ++p) {
        results_[p].tasks[task_index].documents.back().output_error = errors[1 + p];
        end_classes(p);
    }
}

// The FP16 cache first, when there is one.
std::vector<llama::Session *> Round::caches() {
    std::vector<llama::Session *> all;
    if (reference_ != nullptr)
        all.push_back(reference_.get());
    for (const auto &session : sessions_)
        all.push_back(session.get());
    return all;
}

void Round::measure_bytes(std::size_t plan) {
    const lk_cache_stats stats = sessions_[plan]->stats();
    results_[plan].kv_bytes = stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes;
}

void Round::ask_alone(std::size_t task_index, const llama::Document &document, Progress &progress) {
    progress.step("encode " + std::to_string(n_tokens_) + " tokens for all plans");
    encode(llama::as_tokens(document.context));
    const llama::Question &first = document.questions.front();
    compare_outputs(task_index, llama::as_tokens(first.prompt), llama::as_tokens(first.answer));
    std::vector<std::vector<float>> exact(document.questions.size());
    if (reference_ != nullptr) {
        progress.step(std::string("FP16 cache, ") + request_.tasks[task_index]->name);
        for (std::size_t i = 0; i < exact.size(); ++i)
            (void)reference_->score(llama::as_tokens(document.questions[i].prompt),
                                    llama::as_tokens(document.questions[i].answer), &exact[i]);
    }
    std::vector<float> logits;
    for (std::size_t p = 0; p < sessions_.size(); ++p) {
        progress.step(results_[p].plan + ", " + request_.tasks[task_index]->name);
        measure_bytes(p);
        for (std::size_t i = 0; i < exact.size(); ++i) {
            const llama::Tokens prompt = llama::as_tokens(document.questions[i].prompt);
            classify(p, prompt);
            const llama::Score score = sessions_[p]->score(
                prompt, llama::as_tokens(document.questions[i].answer), &logits);
            end_classes(p);
            results_[p].tasks[task_index].add(document.questions[i], score,
                                              llama::divergence(exact[i], logits, n_vocabulary_));
        }
        end_plan(p, progress);
    }
}

void Round::ask_in_steps(std::size_t task_index, const llama::Tokens &prefix,
                         const llama::Question &question, Progress &progress) {
    const llama::Tokens prompt = llama::as_tokens(question.prompt);
    const llama::Tokens answer = llama::as_tokens(question.answer);
    const std::size_t step_tokens = request_.tasks[task_index]->scoring == llama::Scoring::kItems
                                        ? kDecodeTokens
                                        : kStreamTokens;
    progress.step("encode " + std::to_string(prefix.size()) + " tokens for all plans");
    encode(prefix);
    compare_outputs(task_index, prompt, answer);
    std::vector<float> exact, logits;
    if (reference_ != nullptr) {
        progress.step(std::string("FP16 cache, ") + request_.tasks[task_index]->name);
        (void)reference_->score_kept(prompt, answer, step_tokens, &exact);
    }
    for (std::size_t p = 0; p < sessions_.size(); ++p) {
        progress.step(results_[p].plan + ", " + request_.tasks[task_index]->name);
        if (results_[p].kv_bytes == 0)
            measure_bytes(p);
        classify(p, prompt);
        const llama::Score score = sessions_[p]->score_kept(prompt, answer, step_tokens, &logits);
        end_classes(p);
        results_[p].tasks[task_index].add(question, score,
                                          llama::divergence(exact, logits, n_vocabulary_));
        end_plan(p, progress);
    }
}

void Round::run_document(std::size_t task_index, const llama::Document &document,
                         Progress &progress) {
    const llama::Task &task = *request_.tasks[task_index];
    for (PlanResult &result : results_)
        result.tasks[task_index].documents.emplace_back();
    if (task.scoring == llama::Scoring::kAlone) {
        ask_alone(task_index, document, progress);
    } else if (task.scoring == llama::Scoring::kText) {
        const std::string &text = document.context;
        const std::size_t half = text.size() / 2;
        ask_in_steps(task_index, llama::as_tokens(text.substr(0, half - 1)),
                     {text.substr(half - 1, 1), text.substr(half)}, progress);
    } else {
        ask_in_steps(task_index, llama::as_tokens(document.context), document.questions.front(),
                     progress);
    }
}

void Round::run_tasks(Progress &progress) {
    for (std::size_t t = 0; t < documents_.size(); ++t)
        for (const llama::Document &document : documents_[t])
            run_document(t, document, progress);
    for (std::size_t p = 0; request_.times && p < sessions_.size(); ++p)
        measure_speed(p, progress);
}

void Round::run_passes(Progress &progress) {
    std::size_t n_passes = 0;
    for (const auto &list : documents_)
        n_passes = std::max(n_passes, list.size());
    for (std::size_t pass = 0; pass < n_passes; ++pass) {
        std::vector<std::size_t> tasks;
        for (std::size_t t = 0; t < documents_.size(); ++t)
            if (pass < documents_[t].size())
                tasks.push_back(t);
        is_first_pass_ = pass == 0;
        is_last_pass_ = pass + 1 == n_passes;
        for (const std::size_t t : tasks) {
            ends_pass_ = t == tasks.back();
            run_document(t, documents_[t][pass], progress);
        }
    }
}

// All questions of a document are answered under this plan.
void Round::end_plan(std::size_t plan, Progress &progress) {
    if (!ends_pass_)
        return;
    if (is_last_pass_ && request_.times)
        measure_speed(plan, progress);
    progress.clear();
    request_.on_plan({results_[plan], plan, is_first_pass_, is_last_pass_});
}

// Single-token steps after a full context, model included.
void Round::measure_speed(std::size_t plan, Progress &progress) {
    progress.step(results_[plan].plan + ", tokens per second");
    llama::Tokens token = {'\n'};
    for (std::size_t i = 0; i < 2; ++i)
        (void)sessions_[plan]->feed(token);
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kTimedTokens; ++i) {
        const std::vector<float> logits = sessions_[plan]->feed(token);
        token[0] = llama::arg_max(logits.data(), logits.size());
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    results_[plan].decode_tokens_per_s = static_cast<double>(kTimedTokens) / taken.count();
}

}  // namespace

void TaskResult::add(const llama::Question &question, const llama::Score &score,
                     double divergence) {
    documents.back().answers.push_back(graded(question, score, divergence));
    ++n_questions;
    n_right += documents.back().answers.back().is_right;
    n_bytes += score.n_tokens;
    n_bytes_right += score.n_right;
    bits += score.bits;
}

double TaskResult::exact_match() const {
    return n_questions == 0
               ? 0
               : 100.0 * static_cast<double>(n_right) / static_cast<double>(n_questions);
}

double TaskResult::bits_per_byte() const {
    return n_bytes == 0 ? 0 : bits / static_cast<double>(n_bytes);
}

double TaskResult::bits_error() const {
    if (n_questions < 2)
        return 0;
    double sum = 0, squares = 0;
    for (const DocumentResult &document : documents)
        for (const Answer &answer : document.answers) {
            const double bits_per_byte = answer.bits / static_cast<double>(answer.n_bytes);
            sum += bits_per_byte;
            squares += bits_per_byte * bits_per_byte;
        }
    const auto n = static_cast<double>(n_questions);
    const double variance = (squares - sum * sum / n) / (n - 1);
    return kWilsonZ * std::sqrt(std::max(0.0, variance) / n);
}

double PlanResult::compression() const {
    return kv_bytes == 0 ? 1 : static_cast<double>(fp16_bytes) / static_cast<double>(kv_bytes);
}

Interval wilson_interval(std::size_t n_right, std::size_t n) {
    if (n == 0)
        return {0, 100};
    const double count = static_cast<double>(n), share = static_cast<double>(n_right) / count;
    const double z2 = kWilsonZ * kWilsonZ;
    const double center = share + z2 / (2 * count);
    const double spread =
        kWilsonZ * std::sqrt(share * (1 - share) / count + z2 / (4 * count * count));
    const double scale = 100 / (1 + z2 / count);
    return {std::max(0.0, (center - spread) * scale), std::min(100.0, (center + spread) * scale)};
}

std::vector<PlanResult> evaluate(lk_context *context, llama::TensorSpace &space,
                                 llama::Model &model, const EvaluationRequest &request) {
    std::vector<PlanResult> results;
    for (const std::uint64_t n_tokens : request.contexts) {
        Round round(context, space, model, request, n_tokens);
        Progress progress(round.n_steps());
        if (request.on_plan)
            round.run_passes(progress);
        else
            round.run_tasks(progress);
        for (PlanResult &result : round.take())
            results.push_back(std::move(result));
    }
    return results;
}

}  // namespace cli
