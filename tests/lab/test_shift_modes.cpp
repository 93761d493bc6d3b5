// The shifts that the command compares, code by code: 16 to 8, 8 to 4 and 4 to 2 bits, all of them.
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <algorithm>
#include <cmath>
#include <vector>

#include "lab/shift_modes.h"

using cli::ShiftMode;

namespace {

// A half step has no code: 2^b + 1 is odd.
void equivalent_rounds_to_nearest(void **) {
    for (const uint32_t bits : {8u, 4u, 2u})
        for (uint32_t x = 0; x < 1u << 2 * bits; ++x) {
            const uint32_t divisor = (1u << bits) + 1;
            assert_int_equal(cli::shift_code(x, bits, ShiftMode::kEquivalent),
                             (2 * x + divisor) / (2 * divisor));
        }
}

void chains_round_once(void **) {
    for (uint32_t x = 0; x < 65536; ++x) {
        uint32_t code = x;
        for (const uint32_t bits : {8u, 4u, 2u}) {
            code = cli::shift_code(code, bits, ShiftMode::kEquivalent);
            const uint32_t divisor = 65535 / ((1u << bits) - 1);
            assert_int_equal(code, (2 * x + divisor) / (2 * divisor));
        }
    }
}

void the_others_cut_off(void **) {
    for (const uint32_t bits : {8u, 4u, 2u})
        for (uint32_t x = 0; x < 1u << 2 * bits; ++x)
            for (const ShiftMode mode : {ShiftMode::kDirect, ShiftMode::kModified})
                assert_int_equal(cli::shift_code(x, bits, mode), x >> bits);
}

// The largest error over all codes of 16 bits, in steps of the result's range.
double largest_error(uint32_t bits, ShiftMode mode) {
    std::vector<float> values(65536);
    for (uint32_t x = 0; x < 65536; ++x)
        values[x] = static_cast<float>(x);
    cli::shift_group(values.data(), values.size(), bits, mode);
    double most = 0;
    for (uint32_t x = 0; x < 65536; ++x)
        most = std::max(most, std::fabs(static_cast<double>(values[x]) - x));
    return most * ((1u << bits) - 1) / 65535;
}

// Rounding leaves half a step of the result. Cutting off leaves all codes of a cell but one where
// the range stays, and half of them where the cell's middle is taken.
void groups_keep_what_is_left(void **) {
    for (const uint32_t bits : {8u, 4u, 2u}) {
        const double cell = ((65536 >> bits) - 1.0) * ((1u << bits) - 1) / 65535;
        const double equivalent = largest_error(bits, ShiftMode::kEquivalent);
        assert_true(equivalent <= 0.5 && equivalent > 0.49);
        assert_true(std::fabs(largest_error(bits, ShiftMode::kDirect) - cell) < 1e-5);
        assert_true(std::fabs(largest_error(bits, ShiftMode::kModified) - cell / 2) < 1e-5);
    }
    for (const ShiftMode mode :
         {ShiftMode::kDirect, ShiftMode::kModified, ShiftMode::kEquivalent}) {
        float same[3] = {-3.25f, -3.25f, -3.25f};
        cli::shift_group(same, 3, 2, mode);
        assert_true(same[0] == -3.25f && same[2] == -3.25f);
        assert_true(largest_error(16, mode) == 0);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(equivalent_rounds_to_nearest),
        cmocka_unit_test(chains_round_once),
        cmocka_unit_test(the_others_cut_off),
        cmocka_unit_test(groups_keep_what_is_left),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
