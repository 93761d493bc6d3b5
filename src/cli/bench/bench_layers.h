// Plans of many layers: each distinct layer is timed once, and the layers' times are added up.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_BENCH_LAYERS_H
#define CLI_BENCH_LAYERS_H

#include <string>
#include <vector>

#include "cli/bench/bench.h"

namespace cli {

// Layers of a plan that take the same time: widths, groups and formats are equal, whatever channels
// they are of.
struct LayerKind {
    llama::PlanHandle plan;             // of one such layer
    std::vector<std::uint32_t> layers;  // of the whole plan
};
std::vector<LayerKind> layer_kinds(const lk_plan *plan);

// "3", "0..2" or "0..2, 5".
std::string layer_words(const std::vector<std::uint32_t> &layers);

// When a plan of the options has many layers its layers give the shape, which they share, and fp16
// is timed too. Throws UsageError where shapes differ.
void take_shape(BenchOptions &options);

// A line for each plan of many layers: all its layers, per token, next to as many of fp16.
void print_sums(const std::vector<BenchRow> &rows);
void add_stats(const std::vector<BenchRow> &rows, Json &json);

}  // namespace cli

#endif
