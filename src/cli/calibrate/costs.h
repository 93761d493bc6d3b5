// What the keys and the values of each head of a model cost at 2 bits: a host of lk_cost_run.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_COSTS_H
#define CLI_COSTS_H

#include <cstddef>
#include <cstdint>
#include <string>

#include "llama/session.h"

namespace cli {

struct CostRequest {
    std::string text;    // running text, and the words of what is made from it
    std::string model;   // the file of the weights
    std::string resume;  // file of what has been measured, which grows; empty = none
    std::uint64_t seed = 1;
    std::size_t context_tokens = 2048;  // packed
    std::size_t n_documents = 2;        // of each kind

    // With the tokens that are predicted.
    std::size_t document_tokens() const { return context_tokens + context_tokens / 4; }
};

// Sets the costs of all layers, with whole and with clipped ranges: the divergence of the model's
// predictions, summed over all texts. Throws llama::Error, also where the file to resume from is of
// another model or other texts.
void measure_costs(lk_context *context, llama::Model &model, const CostRequest &request,
                   lk_calibrator *calibrator);

}  // namespace cli

#endif
