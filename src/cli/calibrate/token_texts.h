// What a model reads when it is calibrated, in its own tokens.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_TOKEN_TEXTS_H
#define CLI_TOKEN_TEXTS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llama/config.h"

namespace cli {

// A neutral sentence of about a hundred tokens of the shipped model, and how often it comes.
extern const char *const kProbeSentence;
constexpr std::uint32_t kProbeRepeats = 30;

struct TokenTexts {
    llama::Tokens prefix;                  // tokens that begin a text (a BOS), or none
    std::vector<llama::Tokens> documents;  // each without the prefix
    llama::Tokens sentence;                // of the probe, without the prefix
    std::vector<llama::Tokens> costs;      // documents for costs, without the prefix
};

// From a file of token ids: a document a line, ids in decimal with spaces between them. A line that
// begins with the word "sentence" is the probe's sentence, one that begins with "cost" a document
// for costs. Without a sentence it is the first kSentenceTokens tokens of the first document. The
// prefix is the model's where the first document begins with it, and is cut from all lines.
// Throws llama::Error, which names the line.
TokenTexts read_token_ids(const std::string &path, const llama::Config &config);
constexpr std::size_t kSentenceTokens = 96;

// From text, for a model whose tokens are bytes: one document, no documents for costs.
TokenTexts byte_texts(const std::string &text, const std::string &sentence = kProbeSentence);

// Documents of at most document_tokens tokens, the prefix included: of the text n_tokens in all
// without the prefixes, of the costs all.
struct CutTexts {
    std::vector<llama::Tokens> documents, costs;
};
CutTexts cut_texts(const TokenTexts &texts, std::size_t n_tokens, std::size_t document_tokens);

}  // namespace cli

#endif
