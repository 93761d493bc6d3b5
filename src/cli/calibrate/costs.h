// What the keys and the values of each head of a model cost at 2 bits: a host of lk_cost_run.
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
    llama::Tokens prefix;                  // begins each document
    std::vector<llama::Tokens> documents;  // kind by kind, without the prefix
    std::string resume;                 // file of what has been measured, which grows; empty = none
    std::uint64_t seed = 1;             // of made-up texts
    std::size_t context_tokens = 2048;  // packed, of a document
    std::size_t n_documents = 2;        // of each kind

    // With the tokens that are predicted.
    std::size_t document_tokens() const { return context_tokens + context_tokens / 4; }
};

// Documents of the four kinds of lk_cost_texts(), made of a text, for a model whose tokens are
// bytes.
std::vector<llama::Tokens> make_cost_documents(const std::string &text, const CostRequest &request);

// Throws llama::Error unless the documents are as many as whole kinds have, long enough, and with
// the prefix not longer than the model's positions.
void check_cost_documents(const CostRequest &request, std::size_t most_tokens);

// Sets the costs of all layers, with whole and with clipped ranges: the divergence of the model's
// predictions, summed over all texts. The caches are the context's; the space is of its device.
// Throws llama::Error, also where the file to resume from is of
// another model or other texts.
void measure_costs(lk_context *context, llama::TensorSpace &space, llama::Model &model,
                   const CostRequest &request, lk_calibrator *calibrator);

}  // namespace cli

#endif
