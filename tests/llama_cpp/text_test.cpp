// SPDX-License-Identifier: Apache-2.0
#include "text_test.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "session.h"

namespace {

constexpr unsigned long kAnswerTokens = 80;  // the longest answer has 60

// Token 0 begins a text.
Text tokens_of(const std::string &bytes, bool is_first) {
    Text text;
    if (is_first)
        text.push_back(0);
    for (const char c : bytes)
        text.push_back(static_cast<unsigned char>(c));
    return text;
}

// Appends a text to sequence 0 and prints n_tokens bytes of its greedy continuation, or those up to
// the first `end`. Returns the position after it.
llama_pos print_continuation(Session &session, llama_pos position, const std::string &bytes,
                             unsigned long n_tokens, int end) {
    const Text text = tokens_of(bytes, position == 0);
    Logits logits = session.feed(0, position, text);
    position += static_cast<llama_pos>(text.size());
    for (unsigned long i = 0; i < n_tokens; ++i) {
        const llama_token token = best(logits);
        std::putchar(token);
        logits = session.feed(0, position++, {token});
        if (token == end)
            break;
    }
    return position;
}

double surprise(const Logits &logits, llama_token token) {
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits)
        sum += std::exp(logit - most);
    return std::log(sum) + most - logits[static_cast<size_t>(token)];
}

}  // namespace

void generate(const std::vector<std::string> &arguments) {
    const Model model(arguments.at(0));
    Options options = options_of_cache(arguments.at(1));
    options.n_ctx = 2048;
    Session session(model, options);
    print_continuation(session, 0, arguments.at(3), std::stoul(arguments.at(2)), -1);
}

void answers(const std::vector<std::string> &arguments) {
    const Model model(arguments.at(0));
    Options options = options_of_cache(arguments.at(1));
    options.n_ctx = 4608;
    Session session(model, options);
    const llama_pos n = print_continuation(session, 0, arguments.at(2), 0, -1);
    for (size_t i = 3; i < arguments.size(); ++i) {
        print_continuation(session, n, arguments[i], kAnswerTokens, '.');
        std::putchar('\n');
        require(llama_memory_seq_rm(session.memory(), 0, n, -1), "the question is removed");
    }
}

void print_perplexity(const std::vector<std::string> &arguments) {
    const Model model(arguments.at(0));
    Options options = options_of_cache(arguments.at(1));
    options.n_ctx = 2304;
    double sum = 0;
    size_t n_predicted = 0;
    Session session(model, options);
    for (size_t i = 2; i < arguments.size(); ++i) {
        const Text text = tokens_of(arguments[i], true);
        const std::vector<Logits> logits = session.feed_all(0, 0, text);
        for (size_t k = text.size() / 2; k < text.size(); ++k, ++n_predicted)
            sum += surprise(logits[k - 1], text[k]);
        llama_memory_clear(session.memory(), true);
    }
    std::printf("%.6f\n", std::exp(sum / static_cast<double>(n_predicted)));
}
