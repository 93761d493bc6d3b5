// Texts that the proving model goes on with, questions that it answers, and how well it predicts.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_LLAMA_TEXT_TEST_H
#define TESTS_LLAMA_TEXT_TEST_H

#include <string>
#include <vector>

// MODEL CACHE N_TOKENS TEXT: the bytes that a greedy continuation of the text has.
void generate(const std::vector<std::string> &arguments);

// MODEL CACHE TEXT QUESTION...: a line for each question, each after the text alone.
void answers(const std::vector<std::string> &arguments);

// MODEL CACHE TEXT...: the perplexity of the later half of the texts' bytes, each text alone.
void print_perplexity(const std::vector<std::string> &arguments);

#endif
