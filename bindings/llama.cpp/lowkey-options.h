// The settings of the process, and the plan that they name.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_OPTIONS_H
#define LOWKEY_OPTIONS_H

#include <lowkey/lowkey.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace lowkey {

struct Settings {
    std::string plan;           // a preset's name or a file's path; empty = llama.cpp's own caches
    uint64_t budget_bytes = 0;  // 0 = what the whole context needs
};

// The settings of llama_lowkey_set_plan() and llama_lowkey_set_budget(), else of the environment.
// Throws std::runtime_error if an environment variable is none.
Settings current_settings();

// What check() throws for LK_E_BUDGET: the budget has too few bytes now.
struct Shortfall : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Throws std::runtime_error with the library's sentence unless status is LK_OK.
void check(lk_status status);

// Runs a function and gives the sentence of its failure as llama-lowkey.h promises, or nullptr.
const char *sentence_of(const std::function<void()> &function);

// The plan that a setting names, owned by the caller. Throws std::runtime_error with a sentence.
lk_plan *make_plan(const std::string &name_or_file, const lk_geometry &geometry);

// A number of bytes with an optional unit. Throws std::runtime_error.
uint64_t bytes_of(const std::string &text);

// 1536 becomes "1.50 KiB (1536 bytes)".
std::string text_of_bytes(uint64_t bytes);

}  // namespace lowkey

#endif
