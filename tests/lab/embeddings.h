// Embeddings of texts by the model itself: the mean of its last hidden states.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_LAB_EMBEDDINGS_H
#define LK_TESTS_LAB_EMBEDDINGS_H

#include <string>
#include <vector>

#include "llama/session.h"

namespace cli {

class Embeddings {
  public:
    // Texts have at most n_tokens tokens, which are bytes.
    Embeddings(lk_context *context, llama::TensorSpace &space, llama::Model &model,
               std::uint32_t n_tokens);

    // The chunks of a context from its byte `first` on; scores() is of these.
    void read(const std::string &context, std::uint64_t first, std::uint32_t chunk_tokens,
              std::uint32_t n_chunks);
    // The cosine of each chunk with a question.
    std::vector<float> scores(const std::string &question);

  private:
    void add(const std::string &text, std::vector<float> *rows);

    llama::Model &model_;
    llama::Session session_;
    std::vector<float> chunks_;  // [n_chunks][width of the model]
};

}  // namespace cli

#endif
