// Models with recurrent layers, whose attention layers are in lowkey.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_LLAMA_HYBRID_TEST_H
#define TESTS_LLAMA_HYBRID_TEST_H

#include <string>
#include <vector>

void test_hybrids(const std::vector<std::string> &paths);

#endif
