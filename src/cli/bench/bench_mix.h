// What a measurement of attention is of: a plan, and in one with chunks the classes of a context.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_BENCH_MIX_H
#define CLI_BENCH_MIX_H

#include <functional>
#include <string>
#include <vector>

#include "cli/bench/bench.h"

namespace cli {

struct Subject {
    std::string name;
    llama::PlanHandle plan;
    std::vector<double> mix;  // percent of the chunks: low, middle, high; empty: no classes
    // Of a plan of many layers: that plan, and how many of its layers are as this one.
    std::string whole_plan = {};
    std::uint32_t n_layers = 1;
};

// The plans of the options, for models of so many layers. With a mix: these, else fp16; a context
// of low chunks alone, which is uniform at the bits of that class; the mix; and both once more in
// the order of the context, in pages of a chunk. Throws llama::Error.
std::vector<Subject> subjects_of(const BenchOptions &options, std::uint32_t n_layers = 1);

// Before a sequence of the cache is filled: it waits at 16 bits where chunks are to have classes.
void hold(const SyntheticCache &cache, std::uint32_t sequence, const Subject &subject);
// After it: as many chunks of each class as the mix has, rounded to whole pages, at random places.
void classify(const SyntheticCache &cache, std::uint32_t sequence, const Subject &subject,
              std::uint64_t n_tokens);
// Seconds from classify() until the device is done, of the first sequence, which is filled for
// every sample and left empty; 0 where chunks get no classes. drain waits for the device.
double time_classes(const SyntheticCache &cache, const Subject &subject, std::uint64_t n_tokens,
                    const std::function<void()> &fill, const std::function<void()> &drain);
// The row's plan, batch, bytes and chunks; once it was filled and measured.
void describe(const SyntheticCache &cache, const Subject &subject, BenchRow &row);

// Mixes next to the low row of the same shape: their bytes over its bytes, their times over its
// time, and the time that the bytes allow.
void print_mixes(const std::vector<BenchRow> &rows);
void add_mixes(const std::vector<BenchRow> &rows, Json &json_rows);

}  // namespace cli

#endif
