// Costs of a model's keys and values, measured in llama.cpp.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_LOWKEY_COSTS_H
#define LLAMA_LOWKEY_COSTS_H

#include <llama.h>
#include <lowkey/calibrate.h>

#include <cstdint>
#include <string>
#include <vector>

#include "llama-lowkey-tools.h"

struct CostArguments {
    uint32_t n_documents;  // of each kind of text
    bool has_clips;
    std::string journal;  // an interrupted measurement goes on from this file
};

// Tokens of a document: those before the predicted ones, and those.
constexpr uint32_t kContextTokens = 2048, kPredictedTokens = kContextTokens / 4;

// Documents made of the text's words, as many of each kind of text.
std::vector<Tokens> make_cost_documents(llama_context *context, const std::string &text,
                                        uint32_t n_documents);

// Puts the costs of all layers into the calibrator. The context runs under plan "fp16" and takes
// the prefix and a document in one micro-batch.
void measure_costs(llama_context *context, const Tokens &prefix,
                   const std::vector<Tokens> &documents, const CostArguments &arguments,
                   lk_calibrator *calibrator);

#endif
