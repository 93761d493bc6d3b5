// The right shifts of PM-KVQ and its integer codes of 16 bits, as published, on values: what a test
// of them needs. Caches have the equivalent shift alone, and FP16 numbers at 16 bits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_SHIFT_MODES_H
#define CLI_SHIFT_MODES_H

#include <cstddef>
#include <cstdint>

namespace cli {

enum class ShiftMode {
    kDirect,      // code >> b, the step (2^b + 1) times as large
    kModified,    // code >> b, the step 2^b times as large, the minimum half of what is cut off
                  // higher
    kEquivalent,  // code / (2^b + 1) to the nearest, the step as in direct
};

// A code of 2 * bits in `bits`: 8, 4 or 2.
std::uint32_t shift_code(std::uint32_t code, std::uint32_t bits, ShiftMode mode);

// The values of one group (a token of a head) become what codes of 16 bits stand for after they
// went down to `bits`: 16, 8, 4 or 2. The group's range is in FP32.
void shift_group(float *values, std::size_t n, std::uint32_t bits, ShiftMode mode);

}  // namespace cli

#endif
