// Ranges, minima, codes and shrink maps against statements in double precision or integers. With
// FP16 inputs and 24-bit factors every product and difference below is exact in a double, so one
// conversion to float is the one rounding that docs/FORMAT.md names.
//
// SPDX-License-Identifier: Apache-2.0
#include "format/quantize.h"
#include "suite.h"

#include <cmath>

using namespace lk;

namespace {

constexpr uint32_t kWidths[] = {1, 2, 3, 4, 8};

float h2f(uint32_t h) { return half_to_float(static_cast<uint16_t>(h)); }

uint16_t f2h(float f) {
    bool saturated = false;
    return float_to_half(f, &saturated);
}

uint32_t stated_code(float x, float range, float minimum, uint32_t bits) {
    if (range == 0)
        return 0;
    const uint32_t top = (1u << bits) - 1;
    const auto factor = static_cast<float>(1.0 / (2.0 * top));
    const auto d = static_cast<float>(static_cast<double>(x) - static_cast<double>(minimum));
    uint32_t code = 0;
    for (uint32_t k = 1; k <= top; ++k)
        code += d >= static_cast<float>((2.0 * k - 1) * static_cast<double>(range) *
                                        static_cast<double>(factor));
    return code;
}

void check_code(uint16_t x, const Parameters &p, uint32_t bits) {
    const float value = half_to_float(x);
    const uint32_t code = quantize(value, p, bits);
    if (code != stated_code(value, p.range, p.minimum, bits))
        fail_msg("%a, range %a, minimum %a, %u bits: code %u, stated %u",
                 static_cast<double>(value), static_cast<double>(p.range),
                 static_cast<double>(p.minimum), bits, code,
                 stated_code(value, p.range, p.minimum, bits));
}

Parameters parameters_of(float range, float minimum) {
    Parameters p;
    p.range_bits = p.minimum_bits = 0;
    p.range = range;
    p.minimum = minimum;
    return p;
}

// Inputs right at, below and above each threshold.
void check_thresholds(const Parameters &p, uint32_t bits) {
    const uint32_t top = top_code(bits);
    for (uint32_t k = 1; k <= top; ++k) {
        const double middle = static_cast<double>(p.minimum) +
                              (2.0 * k - 1) * static_cast<double>(p.range) / (2.0 * top);
        const uint16_t near = f2h(static_cast<float>(middle));
        for (int32_t step = -2; step <= 2; ++step) {
            const auto x = static_cast<uint16_t>(near + step);
            if (half_is_finite(x))
                check_code(x, p, bits);
        }
    }
}

void constants_of_the_document(void **) {
    const struct {
        uint32_t bits, step, half_step;
    } rows[] = {{1, 0x3F800000, 0x3F000000},
                {2, 0x3EAAAAAB, 0x3E2AAAAB},
                {3, 0x3E124925, 0x3D924925},
                {4, 0x3D888889, 0x3D088889},
                {8, 0x3B808081, 0x3B008081}};
    for (const auto &row : rows) {
        assert_int_equal(float_to_bits(code_step(row.bits)), row.step);
        assert_int_equal(float_to_bits(0.5f * code_step(row.bits)), row.half_step);
    }
}

void thresholds_of_many_ranges(void **) {
    const uint32_t step = lk_test::full_grid() ? 1 : 97;
    for (const uint32_t bits : kWidths)
        for (uint32_t range = 1; range <= kHalfMax; range += step)
            for (const float minimum : {0.0f, -1.0f, 37.25f, -0x1p-24f, -65504.0f})
                check_thresholds(parameters_of(h2f(range), minimum), bits);
}

void thresholds_of_f8_ranges(void **) {
    for (const uint32_t bits : kWidths)
        for (uint32_t range = 1; range < 0x80; ++range)
            for (uint32_t minimum = 0; minimum < 256; minimum += lk_test::full_grid() ? 1 : 5)
                if (minimum != 0x80)
                    check_thresholds(parameters_of(f8_to_float(static_cast<uint8_t>(range)),
                                                   f8_to_float(static_cast<uint8_t>(minimum))),
                                     bits);
}

// Every finite input against a few ranges: far below, inside, and far above.
void every_input(void **) {
    for (const uint32_t bits : kWidths)
        for (const float range : {0x1p-24f, 0x1p-10f, 0.3330078125f, 7.5f, 240.0f, 65504.0f})
            for (uint32_t h = 0; h < 65536; h += lk_test::full_grid() ? 1 : 3)
                if (half_is_finite(static_cast<uint16_t>(h)))
                    check_code(static_cast<uint16_t>(h), parameters_of(range, -0.25f), bits);
}

// A value exactly between two codes: half of code_step() is exact at 1 bit and its rounding is lost
// again at 2, so it takes the higher one; at more bits the definition decides, mostly for the
// lower.
void ties_follow_the_definition(void **) {
    for (const uint32_t bits : kWidths) {
        const uint32_t top = top_code(bits);
        for (uint32_t range = 1; range < 2048; ++range)
            for (uint32_t k = 1; k <= top; ++k) {
                const double middle = (2.0 * k - 1) * range / (2.0 * top);
                const uint16_t x = f2h(static_cast<float>(middle));
                if (static_cast<double>(half_to_float(x)) != middle)
                    continue;
                const uint32_t code =
                    quantize(half_to_float(x), parameters_of(static_cast<float>(range), 0), bits);
                assert_int_equal(code,
                                 stated_code(half_to_float(x), static_cast<float>(range), 0, bits));
                assert_true(code == k || (code == k - 1 && bits > 2));
            }
    }
    // The grid of the golden pages named ties, at 2 bits.
    const Parameters p = parameters_of(7.5f, 0);
    const uint32_t grid[31] = {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2,
                               2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3};
    for (uint32_t n = 0; n <= 30; ++n)
        assert_int_equal(quantize(static_cast<float>(n) / 4, p, 2), grid[n]);
}

void ends_of_the_range(void **) {
    for (const uint32_t bits : kWidths) {
        const Parameters p = parameters_of(3, -1);
        assert_int_equal(quantize(-1, p, bits), 0);
        assert_int_equal(quantize(-65504, p, bits), 0);
        assert_int_equal(quantize(2, p, bits), top_code(bits));
        assert_int_equal(quantize(65504, p, bits), top_code(bits));
        assert_int_equal(quantize(65504, parameters_of(0, -1), bits), 0);
        assert_true(dequantize(0, p.range, p.minimum, bits) == -1);
        assert_true(std::fabs(dequantize(top_code(bits), p.range, p.minimum, bits) - 2) <=
                    0x1p-22f);
    }
}

void extremes_and_signed_zero(void **) {
    const uint16_t values[] = {0x3C00, 0x7777, 0x8000, 0x0000, 0x7777, 0xBC00, 0x7777};
    const Extremes all = extremes(values, 1, 7);
    assert_int_equal(all.low, 0xBC00);
    assert_int_equal(all.high, 0x7777);
    const Extremes strided = extremes(values, 2, 2);
    assert_int_equal(strided.low, 0);
    assert_int_equal(strided.high, 0x3C00);
    const uint16_t zeros[] = {0x8000, 0x8000};
    const Extremes minus = extremes(zeros, 1, 2);
    assert_int_equal(minus.low, 0);
    assert_int_equal(minus.high, 0);
    const uint16_t both[] = {0x8001, 0x8000, 0x0000};
    assert_int_equal(extremes(both, 1, 3).low, 0x8001);
    assert_int_equal(extremes(both, 1, 3).high, 0);
}

void check_f16_parameters(uint16_t low, uint16_t high) {
    const Parameters p = make_parameters({low, high}, Metadata::kF16);
    assert_int_equal(p.minimum_bits, low);
    const auto spread = static_cast<float>(static_cast<double>(half_to_float(high)) -
                                           static_cast<double>(half_to_float(low)));
    assert_int_equal(p.range_bits, f2h(spread));
    assert_true(p.range == half_to_float(p.range_bits) && p.minimum == half_to_float(low));
}

void check_f8_parameters(uint16_t low, uint16_t high) {
    const Parameters p = make_parameters({low, high}, Metadata::kF8);
    assert_true(p.minimum_bits != 0x80 && p.minimum_bits < 256 && p.range_bits < 0x80);
    const float lo = half_to_float(low);
    const float hi = half_to_float(high);
    assert_true(p.minimum == f8_to_float(static_cast<uint8_t>(p.minimum_bits)));
    assert_true(p.range == f8_to_float(static_cast<uint8_t>(p.range_bits)));
    assert_true(p.minimum <= lo || p.minimum == -240);
    // Inside what FP8 reaches, the group lies between minimum and minimum + range.
    const float spread = hi - p.minimum;
    assert_true(p.range >= spread || p.range == 240);
    if (spread <= 0)
        assert_int_equal(p.range_bits, 0);
}

void parameters_of_many_groups(void **) {
    const uint32_t step = lk_test::full_grid() ? 131 : 1021;
    for (uint32_t a = 0; a < 65536; a += step)
        for (uint32_t b = 0; b < 65536; b += step) {
            auto low = static_cast<uint16_t>(a);
            auto high = static_cast<uint16_t>(b);
            if (!half_is_finite(low) || !half_is_finite(high) || half_order(low) > half_order(high))
                continue;
            const uint16_t pair[2] = {low, high};
            const Extremes e = extremes(pair, 1, 2);
            check_f16_parameters(e.low, e.high);
            check_f8_parameters(e.low, e.high);
        }
    assert_int_equal(make_parameters({0xFBFF, 0x7BFF}, Metadata::kF16).range_bits, kHalfMax);
    assert_int_equal(make_parameters({0x0001, 0x0002}, Metadata::kF16).range_bits, 1);
    assert_int_equal(make_parameters({0xFBFF, 0xFBFE}, Metadata::kF8).minimum_bits, 0xFF);
    assert_int_equal(make_parameters({0xFBFF, 0xFBFE}, Metadata::kF8).range_bits, 0);
}

uint32_t nearest(uint32_t x, uint32_t divisor) { return (2 * x + divisor) / (2 * divisor); }

void shrink_maps(void **) {
    const uint32_t table[16] = {0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3};
    for (uint32_t x = 0; x < 16; ++x)
        assert_int_equal(shrink_code(x, 2), table[x]);
    for (uint32_t x = 0; x < 256; ++x) {
        assert_int_equal(shrink_code(x, 4), nearest(x, 17));
        assert_int_equal(shrink_code(x, 4), ((256 - 16 + 1) * (x + 8)) >> 12);
        assert_int_equal(shrink_code(shrink_code(x, 4), 2), nearest(x, 85));
    }
    for (uint32_t x = 0; x < 65536; ++x) {
        const uint32_t at8 = shrink_code(x, 8);
        assert_int_equal(at8, nearest(x, 257));
        assert_int_equal(at8, (uint64_t{65536 - 256 + 1} * (x + 128)) >> 24);
        assert_int_equal(shrink_code(at8, 4), nearest(x, 4369));
        assert_int_equal(shrink_code(shrink_code(at8, 4), 2), nearest(x, 21845));
    }
}

// A shrunk code stands for the nearest value that the narrower width has, metadata unchanged.
void shrinking_keeps_the_ends(void **) {
    for (const uint32_t bits : {2u, 4u, 8u}) {
        assert_int_equal(shrink_code(0, bits), 0);
        assert_int_equal(shrink_code(top_code(2 * bits), bits), top_code(bits));
    }
    for (uint32_t x = 0; x < 256; ++x) {
        const float wide = dequantize(x, 51, -3, 8);
        const float narrow = dequantize(shrink_code(x, 4), 51, -3, 4);
        assert_true(std::fabs(wide - narrow) <= 51.0f / 15 / 2);
    }
}

}  // namespace

int main(int argc, char **argv) {
    lk_test::read_arguments(argc, argv);
    const CMUnitTest tests[] = {
        cmocka_unit_test(constants_of_the_document),
        cmocka_unit_test(thresholds_of_many_ranges),
        cmocka_unit_test(thresholds_of_f8_ranges),
        cmocka_unit_test(every_input),
        cmocka_unit_test(ties_follow_the_definition),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(extremes_and_signed_zero),
        cmocka_unit_test(parameters_of_many_groups),
        cmocka_unit_test(shrink_maps),
        cmocka_unit_test(shrinking_keeps_the_ends),
    };
    return cmocka_run_group_tests_name("format quantizer", tests, nullptr, nullptr);
}
