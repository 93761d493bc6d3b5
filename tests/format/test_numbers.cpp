// FP16 and e4m3fnuz against rules stated in double precision, which holds all of them exactly.
//
// SPDX-License-Identifier: Apache-2.0
#include "format/quantize.h"
#include "suite.h"

#include <cmath>

using namespace lk;

namespace {

double half_value(uint32_t h) {
    const int exponent = static_cast<int>(h >> 10 & 31);
    const int mantissa = static_cast<int>(h & 1023);
    const double magnitude =
        exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

// Does a float of this magnitude round to the FP16 magnitude m? At a tie the even one wins.
bool is_nearest(double magnitude, uint32_t m) {
    const double low = m == 0 ? 0 : (half_value(m - 1) + half_value(m)) / 2;
    const double high = m == kHalfMax ? 65520 : (half_value(m) + half_value(m + 1)) / 2;
    const bool even = m % 2 == 0;
    return (magnitude > low || (magnitude == low && (even || m == 0))) &&
           (magnitude < high || (magnitude == high && even));
}

void check_float(float f) {
    bool saturated = false;
    const uint16_t h = float_to_half(f, &saturated);
    const double magnitude = std::fabs(static_cast<double>(f));
    assert_int_equal(h >> 15, std::signbit(f));
    if (magnitude >= 65520) {
        assert_true(saturated);
        assert_int_equal(h & 0x7FFF, kHalfMax);
        return;
    }
    assert_false(saturated);
    if (!is_nearest(magnitude, h & 0x7FFFu))
        fail_msg("%a became %#x", static_cast<double>(f), h);
}

void halves_widen_exactly(void **) {
    for (uint32_t h = 0; h < 65536; ++h) {
        const auto bits = static_cast<uint16_t>(h);
        const float f = half_to_float(bits);
        assert_int_equal(half_is_finite(bits), (h >> 10 & 31) != 31);
        if (!half_is_finite(bits)) {
            assert_int_equal(std::isnan(f), (h & 1023) != 0);
            assert_int_equal(std::signbit(f), h >> 15);
            assert_false(float_is_finite(f));
            continue;
        }
        assert_true(static_cast<double>(f) == half_value(h));
        assert_int_equal(std::signbit(f), h >> 15);
        bool saturated = false;
        assert_int_equal(float_to_half(f, &saturated), h);
        assert_false(saturated);
    }
}

void every_rounding_boundary(void **) {
    for (uint32_t h = 0; h <= kHalfMax; ++h) {
        const double next = h == kHalfMax ? 65536 : half_value(h + 1);
        for (const double point : {half_value(h), (half_value(h) + next) / 2}) {
            const auto f = static_cast<float>(point);
            for (const float near : {f, std::nextafterf(f, 0), std::nextafterf(f, INFINITY)})
                for (const float x : {near, -near})
                    check_float(x);
        }
    }
}

void floats_of_every_exponent(void **) {
    const uint32_t step = lk_test::full_grid() ? 61 : 65521;
    for (uint64_t bits = 0; bits < 0x7F800000u; bits += step) {
        check_float(bits_to_float(static_cast<uint32_t>(bits)));
        check_float(bits_to_float(static_cast<uint32_t>(bits) | 0x80000000u));
    }
    check_float(bits_to_float(0x7F7FFFFF));
}

void halves_are_ordered_by_value(void **) {
    for (uint32_t h = 0; h < kHalfMax; ++h) {
        assert_true(half_order(static_cast<uint16_t>(h)) <
                    half_order(static_cast<uint16_t>(h + 1)));
        assert_true(half_order(static_cast<uint16_t>(0x8001 + h)) <
                    half_order(static_cast<uint16_t>(0x8000 + h)));
    }
    assert_true(half_order(0x8000) < half_order(0));
}

double f8_value(uint32_t v) {
    const int e = static_cast<int>(v >> 3 & 15);
    const int m = static_cast<int>(v & 7);
    const double magnitude = e ? std::ldexp(8 + m, e - 11) : std::ldexp(m, -10);
    return v & 0x80 ? -magnitude : magnitude;
}

// The FP8 number of x, found by a search over all that may be stored.
uint8_t f8_search(double x, bool up) {
    uint32_t best = up ? 0x7F : 0xFF;
    for (uint32_t v = 0; v < 256; ++v) {
        const double value = f8_value(v);
        if (v == 0x80)
            continue;
        if (up ? value >= x && value < f8_value(best) : value <= x && value > f8_value(best))
            best = v;
    }
    return static_cast<uint8_t>(best);
}

void check_f8(float f) {
    if (float_to_f8_down(f) != f8_search(static_cast<double>(f), false))
        fail_msg("%a rounded down is %#x", static_cast<double>(f), float_to_f8_down(f));
    if (float_to_f8_up(f) != f8_search(static_cast<double>(f), true))
        fail_msg("%a rounded up is %#x", static_cast<double>(f), float_to_f8_up(f));
}

void f8_of_every_code_and_its_neighbours(void **) {
    assert_true(f8_to_float(0x7F) == 240);
    assert_true(f8_to_float(0x01) == 0x1p-10f);
    assert_true(f8_to_float(0x08) == 0x1p-7f);
    for (uint32_t v = 0; v < 256; ++v) {
        if (v == 0x80)
            continue;
        const float f = f8_to_float(static_cast<uint8_t>(v));
        assert_true(static_cast<double>(f) == f8_value(v));
        assert_int_equal(float_to_f8_down(f), v);
        assert_int_equal(float_to_f8_up(f), v);
        check_f8(std::nextafterf(f, -INFINITY));
        check_f8(std::nextafterf(f, INFINITY));
    }
    assert_int_equal(float_to_f8_down(-0.0f), 0);
    assert_int_equal(float_to_f8_up(-0.0f), 0);
    assert_int_equal(float_to_f8_up(-0x1p-20f), 0);
    assert_int_equal(float_to_f8_down(0x1p-20f), 0);
}

void f8_of_every_half(void **) {
    const uint32_t step = lk_test::full_grid() ? 1 : 7;
    for (uint32_t h = 0; h < 65536; h += step)
        if (half_is_finite(static_cast<uint16_t>(h)))
            check_f8(half_to_float(static_cast<uint16_t>(h)));
}

}  // namespace

int main(int argc, char **argv) {
    lk_test::read_arguments(argc, argv);
    const CMUnitTest tests[] = {
        cmocka_unit_test(halves_widen_exactly),
        cmocka_unit_test(every_rounding_boundary),
        cmocka_unit_test(floats_of_every_exponent),
        cmocka_unit_test(halves_are_ordered_by_value),
        cmocka_unit_test(f8_of_every_code_and_its_neighbours),
        cmocka_unit_test(f8_of_every_half),
    };
    return cmocka_run_group_tests_name("format numbers", tests, nullptr, nullptr);
}
