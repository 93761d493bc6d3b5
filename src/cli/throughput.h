// What a cache serves at each batch: requests that are searched, get classes and generate.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_THROUGHPUT_H
#define CLI_THROUGHPUT_H

#include <string>
#include <vector>

#include "bench_mix.h"

namespace cli {

// A row of the bench, for a model of as many equal layers as the options have.
struct Served {
    double tokens_per_s = 0;  // of attention, search and classes
    // Exact: of all layers and sequences as they generate, and the 16 bits that the context of one
    // waits at for its classes.
    std::uint64_t cache_bytes = 0, prompt_bytes = 0;
    bool fits = false;  // both in the memory

    std::uint64_t bytes() const { return cache_bytes + prompt_bytes; }
};

// batch requests at once, each of the row's tokens and n_generated more:
// batch n_generated / (batch (search_s + n_layers assign_s) + n_generated n_layers attend_s).
// Prompts, weights and the rest of a model, which are the same for all plans, are left out.
std::vector<Served> serve(const BenchOptions &options, const std::vector<BenchRow> &rows);

// Prints it, or adds it to the JSON, and draws tokens per second over the batch, a line for each
// plan that ends where the memory does. Nothing unless the options ask for it. Throws llama::Error.
void report_throughput(const BenchOptions &options, const std::vector<BenchRow> &rows, Json *json);

}  // namespace cli

#endif
