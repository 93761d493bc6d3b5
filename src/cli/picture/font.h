// A stroke font: every glyph is a few lines on a small grid.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_FONT_H
#define CLI_FONT_H

#include <vector>

#include "cli/picture/canvas.h"

namespace cli {

constexpr double kCapHeight = 8;  // grid units; descenders reach -2

struct Glyph {
    double width;                             // grid units, without the gap after it
    std::vector<std::vector<Point>> strokes;  // y upwards from the baseline
};

// The glyph of a printable ASCII character; others are drawn as a small box.
const Glyph &glyph(char character);

}  // namespace cli

#endif
