// SPDX-License-Identifier: Apache-2.0
#include "lab/embeddings.h"

#include <lowkey/chunks.h>

namespace cli {
namespace {

lk_tensor rows_of(std::vector<float> &rows, std::uint32_t width) {
    lk_tensor tensor = llama::initialised(lk_tensor_init);
    tensor.data = rows.data();
    tensor.dtype = LK_F32;
    tensor.memory = LK_MEMORY_HOST;
    tensor.token_stride = tensor.head_stride = width;
    return tensor;
}

}  // namespace

Embeddings::Embeddings(lk_context *context, llama::TensorSpace &space, llama::Model &model,
                       std::uint32_t n_tokens)
    : model_(model),
      session_(context, space, model, llama::make_preset("fp16", model.geometry()).get(), n_tokens,
               n_tokens) {}

void Embeddings::add(const std::string &text, std::vector<float> *rows) {
    const llama::Tokens tokens = llama::as_tokens(text);
    const std::size_t width = model_.config().width;
    (void)session_.provisional(tokens);
    const std::size_t first = rows->size();
    rows->resize(first + width);
    for (std::size_t t = 0; t < tokens.size(); ++t)
        for (std::size_t i = 0; i < width; ++i)
            (*rows)[first + i] +=
                model_.hidden_states()[t * width + i] / static_cast<float>(tokens.size());
}

void Embeddings::read(const std::string &context, std::uint64_t first, std::uint32_t chunk_tokens,
                      std::uint32_t n_chunks) {
    chunks_.clear();
    for (std::uint32_t i = 0; i < n_chunks; ++i)
        add(context.substr(first + std::uint64_t{i} * chunk_tokens, chunk_tokens), &chunks_);
}

std::vector<float> Embeddings::scores(const std::string &question) {
    const std::uint32_t width = model_.config().width;
    std::vector<float> query;
    add(question, &query);
    std::vector<float> scores(chunks_.size() / width);
    const lk_tensor chunks = rows_of(chunks_, width), embedding = rows_of(query, width);
    llama::check(lk_chunks_cosine(&chunks, &embedding, static_cast<std::uint32_t>(scores.size()),
                                  width, scores.data()));
    return scores;
}

}  // namespace cli
