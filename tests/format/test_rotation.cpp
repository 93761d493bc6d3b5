// The rotation of keys against Hadamard's matrix as it is defined.
//
// SPDX-License-Identifier: Apache-2.0
#include "format/rotation.h"

#include "format/fp16.h"
#include "suite.h"

#include <bitset>
#include <cmath>
#include <vector>

using namespace lk;

namespace {

constexpr uint32_t kBlocks[] = {16, 32, 64, 128, 256, 512};

// Element (i, j) has the sign of the parity of i & j.
double element(uint32_t i, uint32_t j) { return std::bitset<32>(i & j).count() % 2 ? -1 : 1; }

// Small whole numbers, whose sums are exact in FP32.
std::vector<float> whole_numbers(uint32_t n) {
    std::vector<float> numbers;
    uint32_t state = n;
    while (numbers.size() < n) {
        state = state * 1664525u + 1013904223u;
        numbers.push_back(static_cast<float>(state >> 22) - 512);
    }
    return numbers;
}

void factors_are_nearest(void **) {
    for (const uint32_t n : kBlocks)
        assert_int_equal(float_to_bits(rotation_factor(n)),
                         float_to_bits(static_cast<float>(1 / std::sqrt(static_cast<double>(n)))));
}

void blocks_are_those_of_head_dims(void **) {
    const uint32_t dims[][2] = {{32, 32},   {48, 16},  {64, 64},  {80, 16},   {96, 32},
                                {128, 128}, {192, 64}, {240, 16}, {256, 256}, {320, 64},
                                {384, 128}, {496, 16}, {512, 512}};
    for (const auto &[head_dim, n] : dims)
        assert_int_equal(rotation_channels(head_dim), n);
}

// Three blocks, each by itself.
void blocks_meet_the_matrix(void **) {
    for (const uint32_t n : kBlocks) {
        const std::vector<float> from = whole_numbers(3 * n);
        std::vector<float> found = from;
        rotate_blocks(found.data(), 3 * n, n);
        for (uint32_t i = 0; i < 3 * n; ++i) {
            double sum = 0;
            for (uint32_t j = 0; j < n; ++j)
                sum += element(i % n, j) * static_cast<double>(from[i / n * n + j]);
            assert_int_equal(float_to_bits(found[i]),
                             float_to_bits(static_cast<float>(sum) * rotation_factor(n)));
        }
    }
}

void a_rotation_is_its_own_inverse(void **) {
    for (const uint32_t n : kBlocks) {
        const std::vector<float> from = whole_numbers(n);
        std::vector<double> twice(from.begin(), from.end());
        rotate_blocks(twice.data(), n, n);
        rotate_blocks(twice.data(), n, n);
        for (uint32_t i = 0; i < n; ++i)
            assert_true(std::fabs(twice[i] - static_cast<double>(from[i])) <= 512 * 0x1p-23);
    }
}

void cuts_keep_sums_finite(void **) {
    const float limit = kRotationLimit;
    assert_true(cut_for_rotation(1.5f) == 1.5f && cut_for_rotation(-limit) == -limit);
    assert_true(cut_for_rotation(3e38f) == limit && cut_for_rotation(-3e38f) == -limit);
    assert_true(cut_for_rotation(INFINITY) == limit && cut_for_rotation(-INFINITY) == -limit);
    assert_true(cut_for_rotation(NAN) == limit);
    std::vector<float> numbers(512, cut_for_rotation(3e38f) * 1e4f);
    rotate_blocks(numbers.data(), 512, 512);
    for (const float number : numbers)
        assert_true(float_is_finite(number));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(factors_are_nearest),    cmocka_unit_test(blocks_are_those_of_head_dims),
        cmocka_unit_test(blocks_meet_the_matrix), cmocka_unit_test(a_rotation_is_its_own_inverse),
        cmocka_unit_test(cuts_keep_sums_finite),
    };
    return cmocka_run_group_tests_name("format rotation", tests, nullptr, nullptr);
}
