// How well a session predicts and attends.
//
// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <algorithm>
#include <cmath>

namespace llama {
namespace {

// Row r predicts target[r].
void add_rows(Score &score, const std::vector<float> &logits, std::size_t n_vocabulary,
              const Token *target, std::size_t n_rows) {
    for (std::size_t r = 0; r < n_rows; ++r) {
        const float *row = logits.data() + r * n_vocabulary;
        const double top = *std::max_element(row, row + n_vocabulary);
        double sum = 0;
        for (std::size_t i = 0; i < n_vocabulary; ++i)
            sum += std::exp(double{row[i]} - top);
        score.bits += (top + std::log(sum) - double{row[target[r]]}) / std::log(2.0);
        score.right.push_back(arg_max(row, n_vocabulary) == target[r]);
        score.n_right += score.right.back();
        ++score.n_tokens;
    }
}

// |a - b| / |b|
double relative_distance(const float *a, const float *b, std::size_t n) {
    double error = 0, square = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const double d = double{a[i]} - double{b[i]};
        error += d * d;
        square += double{b[i]} * double{b[i]};
    }
    return square > 0 ? std::sqrt(error / square) : 0;
}

lk_tensor rows_of(const std::vector<float> &logits, const Extent &extent) {
    // The library reads them.
    auto *data = const_cast<float *>(logits.data());
    return float_tensor(LK_MEMORY_HOST, data, extent);
}

}  // namespace

Score Session::score(const Tokens &prompt, const Tokens &answer, std::vector<float> *logits) {
    Tokens step = prompt;
    step.insert(step.end(), answer.begin(), answer.end() - 1);
    std::vector<float> rows = run(step, prompt.size() - 1);
    check(lk_step_discard(cache_.get()));
    Score score;
    add_rows(score, rows, model_.config().n_vocabulary, answer.data(), answer.size());
    if (logits != nullptr)
        *logits = std::move(rows);
    return score;
}

Score Session::score_kept(const Tokens &prompt, const Tokens &answer, std::size_t step_tokens,
                          std::vector<float> *logits) {
    if (logits != nullptr)
        logits->clear();
    Tokens all = prompt;
    all.insert(all.end(), answer.begin(), answer.end());
    Score score;
    for (std::size_t first = 0; first + 1 < all.size(); first += step_tokens) {
        const std::size_t last = std::min(first + step_tokens, all.size() - 1);
        const auto begin = all.begin();
        const Tokens step(begin + static_cast<std::ptrdiff_t>(first),
                          begin + static_cast<std::ptrdiff_t>(last));
        const std::size_t scored = std::clamp(prompt.size() - 1, first, last);
        const std::vector<float> rows = run(step, scored - first);
        check(lk_step_commit(cache_.get(), nullptr));
        add_rows(score, rows, model_.config().n_vocabulary, all.data() + scored + 1, last - scored);
        if (logits != nullptr)
            logits->insert(logits->end(), rows.begin(), rows.end());
    }
    return score;
}

std::vector<double> Session::output_errors(const std::vector<Session *> &sessions,
                                           const Tokens &tokens) {
    Session &first = *sessions.front();
    std::vector<double> errors(sessions.size(), 0);
    std::vector<float> other;
    try {
        for (Session *session : sessions)
            session->begin(tokens.size());
        const auto attend_all = [&](std::uint32_t layer, std::uint32_t n_tokens, float *q, float *k,
                                    float *v, float *out) {
            const std::size_t n = std::size_t{n_tokens} * first.model_.config().n_query_heads *
                                  first.model_.config().head_dim;
            other.resize(n);
            for (std::size_t s = 0; s < sessions.size(); ++s) {
                sessions[s]->append(layer, n_tokens, k, v);
                sessions[s]->attend(layer, n_tokens, q, s == 0 ? out : other.data());
                if (s != 0)
                    errors[s] += relative_distance(other.data(), out, n);
            }
        };
        (void)first.model_.forward(tokens, static_cast<std::size_t>(first.length()),
                                   tokens.size() - 1, attend_all);
    } catch (...) {
        for (Session *session : sessions)
            (void)lk_step_discard(session->cache_.get());
        throw;
    }
    for (Session *session : sessions)
        check(lk_step_discard(session->cache_.get()));
    for (double &error : errors)
        error /= first.model_.config().n_layers;
    return errors;
}

double divergence(const std::vector<float> &exact, const std::vector<float> &other,
                  std::size_t n_vocabulary) {
    if (exact.empty())
        return 0;
    const Extent extent = {static_cast<std::uint32_t>(exact.size() / n_vocabulary), 1,
                           static_cast<std::uint32_t>(n_vocabulary)};
    const lk_tensor exact_rows = rows_of(exact, extent);
    const lk_tensor other_rows = rows_of(other, extent);
    double bits = 0;
    check(lk_divergence(&exact_rows, &other_rows, extent.n_tokens, extent.head_dim, &bits));
    return bits;
}

}  // namespace llama
