// SPDX-License-Identifier: Apache-2.0
#include "cli/calibrate/costs.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <memory>
#include <set>

#include "cli/common/report.h"
#include "cli/demo/evaluation.h"

namespace cli {
namespace {

constexpr std::uint32_t kBits = 2;  // as lk_calibrator_set_costs() requires
constexpr std::uint32_t kGroup = 128;
constexpr float kClips[] = {1, 0.85F, 0.7F};  // 1, and those of lk_calibrator_set_clip_costs()
constexpr std::size_t kClipCount = std::size(kClips);
constexpr std::uint32_t kSinkTokens = 32;
constexpr std::uint32_t kWindowTokens = 128;
constexpr std::size_t kTogether = 16;  // caches in memory at a time
constexpr std::size_t kShortWord = 3, kLongWord = 8;
constexpr std::size_t kListWords = 60, kListCopies = 4;
constexpr std::size_t kValueKeys = 40, kValueCopies = 4;
constexpr std::size_t kChains = 20, kChainWords = 3;

using llama::Random;
using Words = std::vector<std::string>;

// Distinct lower-case words of a text, as they come.
Words words_of(const std::string &text) {
    Words out;
    std::set<std::string> seen;
    std::string word;
    for (std::size_t i = 0; i <= text.size(); ++i) {
        if (i < text.size() && std::islower(static_cast<unsigned char>(text[i])) != 0) {
            word += text[i];
            continue;
        }
        if (word.size() >= kShortWord && word.size() <= kLongWord && seen.insert(word).second)
            out.push_back(word);
        word.clear();
    }
    if (out.size() < kChains * kChainWords)
        throw llama::Error("the text has " + std::to_string(out.size()) +
                           " different words of 3 to 8 letters, costs need " +
                           std::to_string(kChains * kChainWords));
    return out;
}

Words sample(const Words &words, std::size_t n, Random &random) {
    Words all = words;
    random.shuffle(all);
    all.resize(n);
    return all;
}

std::string repeated_list(const Words &words, Random &random) {
    std::string list, out;
    for (std::size_t i = 0; i < kListWords; ++i)
        list += (i == 0 ? "" : " ") + words[random.below(words.size())];
    for (std::size_t i = 0; i < kListCopies; ++i)
        out += list + ". ";
    return out;
}

std::string repeated_values(const Words &words, Random &random) {
    Words lines;
    for (const std::string &key : sample(words, kValueKeys, random))
        lines.push_back(key + ": " + random.digits() + ".\n");
    std::string out;
    for (std::size_t i = 0; i < kValueCopies; ++i) {
        random.shuffle(lines);
        for (const std::string &line : lines)
            out += line;
    }
    return out;
}

// Chains of words that refer to one before them, mixed; then what each word came to.
std::string assignments(const Words &words, Random &random) {
    const Words names = sample(words, kChains * kChainWords, random);
    std::vector<Words> chains;
    Words values;
    std::vector<std::size_t> order;
    for (std::size_t c = 0; c < kChains; ++c) {
        const std::string number = random.digits();
        chains.emplace_back();
        for (std::size_t i = 0; i < kChainWords; ++i) {
            const std::string &name = names[c * kChainWords + i];
            chains.back().push_back(
                name + " := " + (i == 0 ? number : names[c * kChainWords + i - 1]) + ".\n");
            values.push_back(name + " = " + number + ".\n");
            order.push_back(c);
        }
    }
    random.shuffle(order);
    random.shuffle(values);
    std::string out;
    std::vector<std::size_t> next(kChains, 0);
    for (const std::size_t c : order)
        out += chains[c][next[c]++];
    for (const std::string &value : values)
        out += value;
    return out;
}

// Documents of n bytes from what `make` gives, again and again.
CostText made_text(const char *kind, const CostRequest &request, Random &random,
                   const std::function<std::string()> &make) {
    const std::size_t n = request.context_tokens + request.scored_tokens();
    CostText out = {kind, {}};
    while (out.documents.size() < request.n_documents) {
        std::string document;
        while (document.size() < n)
            document += make();
        // Cut anywhere, so that not every document begins with a list.
        const std::size_t begin = random.below(document.size() - n + 1);
        out.documents.push_back(document.substr(begin, n));
    }
    return out;
}

llama::PlanHandle plan_with_half(const llama::Geometry &shape, std::uint32_t layer,
                                 std::uint32_t head, bool is_value, float clip) {
    llama::PlanHandle plan = llama::make_preset("kivi2", shape);
    lk_key_rule key = llama::initialised(lk_key_rule_init);
    lk_value_rule value = llama::initialised(lk_value_rule_init);
    key.bits = value.bits = 16;
    llama::check(lk_plan_set_key(plan.get(), LK_ALL, LK_ALL, &key));
    llama::check(lk_plan_set_value(plan.get(), LK_ALL, LK_ALL, &value));
    if (is_value) {
        value.bits = kBits;
        value.group = std::min(kGroup, shape.layer().head_dim);
        value.clip = clip;
        llama::check(lk_plan_set_value(plan.get(), layer, head, &value));
    } else {
        key.bits = kBits;
        key.group = kGroup;
        key.clip = clip;
        llama::check(lk_plan_set_key(plan.get(), layer, head, &key));
    }
    llama::check(lk_plan_set_recent(plan.get(), kSinkTokens, kWindowTokens));
    return plan;
}

// Divergences of the predictions of one kind of text, plan by plan.
class Measurement {
  public:
    Measurement(lk_context *context, llama::Model &model, const CostRequest &request)
        : context_(context), model_(model), request_(request) {}

    std::vector<double> run(const CostText &text, const std::vector<llama::PlanHandle> &plans,
                            Progress &progress);

  private:
    std::unique_ptr<llama::Session> open(const lk_plan *plan);
    void add(const std::vector<llama::Session *> &sessions, const std::string &document,
             double *sums);

    lk_context *context_;
    llama::Model &model_;
    const CostRequest &request_;
    llama::HostSpace space_;
};

std::unique_ptr<llama::Session> Measurement::open(const lk_plan *plan) {
    const std::size_t n = 1 + request_.context_tokens + request_.scored_tokens();
    return std::make_unique<llama::Session>(context_, space_, model_, plan, n,
                                            static_cast<std::uint32_t>(n));
}

// The first session is exact.
void Measurement::add(const std::vector<llama::Session *> &sessions, const std::string &document,
                      double *sums) {
    llama::Tokens prompt = {0};
    const llama::Tokens all = llama::as_tokens(document);
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(request_.context_tokens);
    prompt.insert(prompt.end(), all.begin(), end);
    for (llama::Session *session : sessions)
        session->reset();
    llama::Session::prefill(sessions, prompt);
    std::vector<float> exact, other;
    for (std::size_t s = 0; s < sessions.size(); ++s) {
        sessions[s]->settle();
        (void)sessions[s]->score({*end}, {end + 1, all.end()}, s == 0 ? &exact : &other);
        if (s != 0)
            sums[s - 1] += divergence(exact, other, model_.config().n_vocabulary);
    }
}

std::vector<double> Measurement::run(const CostText &text,
                                     const std::vector<llama::PlanHandle> &plans,
                                     Progress &progress) {
    std::vector<double> sums(plans.size(), 0.0);
    for (std::size_t first = 0; first < plans.size(); first += kTogether) {
        const llama::Config &c = model_.config();
        const llama::PlanHandle exact = llama::make_preset(
            "fp16", llama::Geometry(c.n_layers, c.n_query_heads, c.n_kv_heads, c.head_dim));
        std::vector<std::unique_ptr<llama::Session>> own;
        own.push_back(open(exact.get()));
        for (std::size_t p = first; p < std::min(plans.size(), first + kTogether); ++p)
            own.push_back(open(plans[p].get()));
        std::vector<llama::Session *> sessions;
        for (const auto &session : own)
            sessions.push_back(session.get());
        for (const std::string &document : text.documents) {
            progress.step(std::string("what keys and values of heads cost, ") + text.kind);
            add(sessions, document, sums.data() + first);
        }
    }
    return sums;
}

}  // namespace

std::vector<CostText> make_cost_texts(const CostRequest &request) {
    const std::size_t n = request.context_tokens + request.scored_tokens();
    const Words words = words_of(request.text);
    Random random(request.seed);
    std::vector<CostText> out;
    std::string running = request.text;
    while (running.size() < n)
        running += request.text;
    out.push_back(made_text("running text", request, random, [&running] { return running; }));
    out.push_back(
        made_text("repeated words", request, random, [&] { return repeated_list(words, random); }));
    out.push_back(made_text("values of words", request, random,
                            [&] { return repeated_values(words, random); }));
    out.push_back(
        made_text("assignments", request, random, [&] { return assignments(words, random); }));
    return out;
}

void measure_costs(lk_context *context, llama::Model &model, const CostRequest &request,
                   lk_calibrator *calibrator) {
    const llama::Config &c = model.config();
    const llama::Geometry shape(c.n_layers, c.n_query_heads, c.n_kv_heads, c.head_dim);
    // [layers][KV heads][keys, values][clips]
    std::vector<llama::PlanHandle> plans;
    for (std::uint32_t l = 0; l < c.n_layers; ++l)
        for (std::uint32_t h = 0; h < c.n_kv_heads; ++h)
            for (const bool is_value : {false, true})
                for (const float clip : kClips)
                    plans.push_back(plan_with_half(shape, l, h, is_value, clip));
    const std::vector<CostText> texts = make_cost_texts(request);
    Measurement measurement(context, model, request);
    Progress progress(texts.size() * request.n_documents *
                      ((plans.size() + kTogether - 1) / kTogether));
    std::vector<double> costs(plans.size(), 0.0);
    for (const CostText &text : texts) {
        const std::vector<double> sums = measurement.run(text, plans, progress);
        for (std::size_t p = 0; p < plans.size(); ++p)
            costs[p] += std::max(0.0, sums[p]);
    }
    const std::size_t n_sides = std::size_t{2} * c.n_kv_heads;
    for (std::uint32_t l = 0; l < c.n_layers; ++l) {
        std::vector<double> whole, clipped;
        for (std::size_t i = 0; i < n_sides * kClipCount; ++i)
            (i % kClipCount == 0 ? whole : clipped).push_back(costs[n_sides * kClipCount * l + i]);
        llama::check(lk_calibrator_set_costs(calibrator, l, whole.data()));
        llama::check(lk_calibrator_set_clip_costs(calibrator, l, clipped.data()));
    }
}

}  // namespace cli
