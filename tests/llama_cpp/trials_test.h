// Caches of several plans that one context fills.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_LLAMA_TRIALS_TEST_H
#define TESTS_LLAMA_TRIALS_TEST_H

#include <string>
#include <vector>

// MODEL: gguf_models.llama().
void test_trials(const std::vector<std::string> &paths);

#endif
