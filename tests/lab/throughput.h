// What a cache serves at each batch: requests that are searched, get classes and generate.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_THROUGHPUT_H
#define CLI_THROUGHPUT_H

#include <string>
#include <vector>

#include "cli/bench/bench_mix.h"

namespace cli {

struct ThroughputOptions {
    BenchOptions bench;
    std::uint32_t n_layers = 32;                   // of a model
    std::uint32_t n_generated = 128;               // tokens
    std::uint64_t memory_bytes = 48'000'000'000u;  // for caches
    std::string plot;                              // a picture
};

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
std::vector<Served> serve(const ThroughputOptions &options, const std::vector<BenchRow> &rows);

// Times attention, searches and classes, prints rows and throughput, and draws tokens per second
// over the batch, a line for each plan that ends where the memory does. Throws llama::Error.
int run_throughput(const ThroughputOptions &options);

}  // namespace cli

#endif
