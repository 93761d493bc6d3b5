// SPDX-License-Identifier: Apache-2.0
#include "lab/shift_modes.h"

#include <algorithm>
#include <cmath>

namespace cli {

std::uint32_t shift_code(std::uint32_t code, std::uint32_t bits, ShiftMode mode) {
    if (mode != ShiftMode::kEquivalent)
        return code >> bits;
    // PM-KVQ's own form (docs/FORMAT.md, section 11, has shorter products).
    const std::uint64_t factor = (std::uint64_t{1} << 2 * bits) - (std::uint64_t{1} << bits) + 1;
    return static_cast<std::uint32_t>(factor * (code + (1u << (bits - 1))) >> 3 * bits);
}

void shift_group(float *values, std::size_t n, std::uint32_t bits, ShiftMode mode) {
    const auto [low, high] = std::minmax_element(values, values + n);
    double minimum = *low;
    double step = (double{*high} - minimum) / 65535;
    if (step == 0)
        return;
    double last_step = step;
    for (std::uint32_t width = 8; width >= bits; width /= 2) {
        const double cut = std::exp2(width);
        if (mode == ShiftMode::kModified)
            minimum += last_step * (cut - 1) / 2;
        last_step *= mode == ShiftMode::kModified ? cut : cut + 1;
    }
    const double first = *low;
    for (std::size_t i = 0; i < n; ++i) {
        auto code = static_cast<std::uint32_t>(std::nearbyint((values[i] - first) / step));
        for (std::uint32_t width = 8; width >= bits; width /= 2)
            code = shift_code(code, width, mode);
        values[i] = static_cast<float>(minimum + code * last_step);
    }
}

}  // namespace cli
