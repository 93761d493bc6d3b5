// Models with sliding windows in llama.cpp on lowkey.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_LLAMA_WINDOWS_TEST_H
#define TESTS_LLAMA_WINDOWS_TEST_H

#include <string>
#include <vector>

// PATH...
void test_windows(const std::vector<std::string> &paths);

#endif
