// Cases that need a GPU.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_LLAMA_DEVICE_TEST_H
#define TESTS_LLAMA_DEVICE_TEST_H

#include <string>
#include <vector>

// MODEL: prints a hash of the logits of decoded tokens, then how many graphs were replayed.
void print_graphs(const std::vector<std::string> &paths);
// MODEL: where the cache is, and what is refused.
void test_placement(const std::vector<std::string> &paths);

#endif
