// The width of every channel of a plan as one table.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_WIDTH_TABLE_H
#define CLI_WIDTH_TABLE_H

#include <lowkey/plan.h>

namespace cli {

// lk_plan_width() by layer, KV head, class of channels, rung and class of chunks. Layers and heads
// with equal widths share rows. Throws llama::Error.
void print_width_table(const lk_plan *plan);

// How many channels of each layer, over its KV heads, are at each width, at the layer's rung.
// Layers with equal counts share rows. Throws llama::Error.
void print_width_counts(const lk_plan *plan);

}  // namespace cli

#endif
