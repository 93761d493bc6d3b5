// A plan's width function, as ranges and as a picture.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_PLAN_VIEW_H
#define CLI_PLAN_VIEW_H

#include <lowkey/plan.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/picture/canvas.h"
#include "cli/plan/plan_facts.h"

namespace cli {

// The colour of a width, and its legend that ends at `right`.
Color width_color(std::uint32_t bits);
void draw_width_legend(Canvas &canvas, double right, double y);

// Keys or values of one head in words, for example "2 bits, 32 of 128 channels boosted to 4".
std::string describe_head(const lk_plan *plan, std::uint32_t layer, std::uint32_t kv_head,
                          bool is_value, std::uint32_t head_dim);

// "3", or "3..5".
std::string range_words(std::uint32_t first, std::uint32_t last);

// One line for every range of layers and heads with equal widths.
void print_widths(const lk_plan *plan);

// Widths by layer, head and channel, and bytes next to the presets'. Throws llama::Error.
void draw_plan(const lk_plan *plan, std::uint64_t n_tokens, std::uint32_t n_sequences,
               std::uint32_t step_tokens, const std::string &path);

}  // namespace cli

#endif
