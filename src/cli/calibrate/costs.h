// What each half of each head of a model costs at 2 bits: measured on texts, by its predictions.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_COSTS_H
#define CLI_COSTS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llama/session.h"

namespace cli {

struct CostRequest {
    std::string text;  // running text, and the words of what is made from it
    std::uint64_t seed = 1;
    std::size_t context_tokens = 2048;  // packed
    std::size_t n_documents = 2;        // of each kind

    std::size_t scored_tokens() const { return context_tokens / 4; }  // predicted after it
};

// A kind of text in documents of n_tokens tokens, as many as requested.
struct CostText {
    const char *kind;
    std::vector<std::string> documents;
};

// The text itself; lists of its words, each repeated; lines with a word and a number, which come
// again in another order; assignments of numbers to words and of words to words.
std::vector<CostText> make_cost_texts(const CostRequest &request);

// Sets the costs of all layers, with whole and with clipped ranges: the divergence of the model's
// predictions, summed over all texts.
void measure_costs(lk_context *context, llama::Model &model, const CostRequest &request,
                   lk_calibrator *calibrator);

}  // namespace cli

#endif
