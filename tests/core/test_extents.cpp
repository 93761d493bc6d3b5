// Arithmetic of extents: units of every size, levels that halve, and where slots end.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/extents.h"

#include "suite.h"

namespace {

lk::ExtentFamily family_of(uint64_t top_bytes, uint32_t n_levels) {
    lk::ExtentFamily family{};
    family.top_bytes = top_bytes;
    family.n_levels = n_levels;
    family.n_tops = static_cast<uint32_t>(LK_EXTENT_BYTES / top_bytes);
    family.inverse =
        static_cast<uint32_t>(lk::ceil_div(uint64_t{1} << 32, top_bytes >> (n_levels - 1)));
    return family;
}

void units_are_found_where_they_begin(void **) {
    for (uint64_t bytes = LK_SLOT_ALIGN; bytes <= LK_EXTENT_BYTES; bytes += LK_SLOT_ALIGN) {
        const lk::ExtentFamily family = family_of(bytes, 1);
        assert_int_equal(family.unit_bytes(), bytes);
        assert_true(family.extent_units() * bytes <= LK_EXTENT_BYTES);
        assert_true((family.extent_units() + 1) * bytes > LK_EXTENT_BYTES);
        for (uint32_t unit = 0; unit < family.extent_units(); ++unit)
            assert_int_equal(family.unit_at(unit * bytes), unit);
    }
}

void levels_halve(void **) {
    const lk::ExtentFamily family = family_of(24576, 4);  // ten in an extent
    assert_int_equal(family.unit_bytes(), 24576 / 8);
    assert_int_equal(family.units_of(0), 8);
    assert_int_equal(family.units_of(3), 1);
    assert_int_equal(family.extent_units(), 80);
    assert_int_equal(family.n_words(), 2);
    assert_int_equal(family_of(LK_EXTENT_BYTES, 7).n_words(), 1);
    assert_int_equal(family_of(LK_SLOT_ALIGN, 1).n_words(), lk::kExtentWords);
}

// A slot ends where the next free unit or the next slot begins.
void slots_end_at_slots_and_free_units(void **) {
    const lk::ExtentWord word = {0b11000000, 0b00010001};
    assert_int_equal(word.ends(), 0b11010001);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(units_are_found_where_they_begin),
        cmocka_unit_test(levels_halve),
        cmocka_unit_test(slots_end_at_slots_and_free_units),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
