// The documents of tasks.cpp's list, kind by kind. Each throws Error when n_tokens is too small.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_DOCUMENTS_H
#define LLAMA_DOCUMENTS_H

#include "tasks.h"

namespace llama {

// Sentences hidden in filler: n of them, or as many as fit.
Document make_needles(std::size_t n_tokens, Random &random, const Material &material,
                      std::size_t n);
Document make_needle(std::size_t n_tokens, Random &random, const Material &material);
// Filler alone.
Document make_text(std::size_t n_tokens, Random &random, const Material &material);

// Lists of keys and values; of hard ones the keys differ in one letter.
Document make_kv_easy(std::size_t n_tokens, Random &random, const Material &material);
Document make_kv_hard(std::size_t n_tokens, Random &random, const Material &material);
// Assignments to follow, written out in the answer, or requested directly over n_hops of them.
Document make_trace(std::size_t n_tokens, Random &random, const Material &material);
Document make_trace_direct(std::size_t n_tokens, Random &random, std::size_t n_hops);
// A list of n_bytes to repeat.
Document make_repeat(std::size_t n_tokens, Random &random, const Material &material,
                     std::size_t n_bytes);

// Long answers of n_bytes or up to one item more. A cycle of assignments to follow, a name an item:
Document make_walk(std::size_t n_tokens, Random &random, std::size_t n_bytes);
// A list of 512 bytes to repeat over and over, a word an item:
Document make_recital(std::size_t n_tokens, Random &random, const Material &material,
                      std::size_t n_bytes);

}  // namespace llama

#endif
