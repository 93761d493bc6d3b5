// The widths that the public interface has: the command's only list of them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_WIDTHS_H
#define CLI_WIDTHS_H

#include <lowkey/snapshot.h>

#include <array>
#include <cstdint>

namespace cli {

// Widths of codes, in the order of lk_snapshot_format.channels.
constexpr std::array<std::uint32_t, 6> kCodeWidths = {16, 8, 4, 3, 2, 1};
static_assert(sizeof(lk_snapshot_format::channels) == sizeof kCodeWidths,
              "a count of channels for each width");

// Widths that a rung may have, as lk_plan_set_ladder() takes them.
constexpr std::array<std::uint8_t, 4> kRungWidths = {16, 8, 4, 2};

}  // namespace cli

#endif
