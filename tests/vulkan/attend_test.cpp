// Attention by Vulkan against the reference. --full takes the whole grid, --mask takes features of
// the device away, --only runs one test, --part I/N every N-th of its cases, from I (from 0) on.
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cstdio>

extern "C" {
#include <cmocka.h>
}

#include "device_memory.h"
#include "kernels/comparison.h"
#include "kernels/grid.h"
#include "shared_pipelines.h"

namespace {

bool g_full = false;
bool is_on_cpu() { return test_device()->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU; }
// Without --full: a driver on the CPU takes long to compile what a case needs. Coprime to the
// numbers of values of all axes, so that all of them occur.
constexpr size_t kEvery = 5;
Part g_part;

void compare(const std::vector<Case> &cases) {
    VulkanDevice vulkan;
    Comparison comparison(vulkan.device());
    comparison.check(g_part.of(cases));
    comparison.finish();
}
void check_shapes(const std::vector<Case> &cases) {
    compare(every_case(cases, g_full ? 1 : kEvery));
}
void common_shapes_match_reference(void **) { check_shapes(common_cases()); }
void one_bit_values_match_reference(void **) { check_shapes(one_bit_cases()); }
void shared_channels_match_reference(void **) { check_shapes(chanmix_cases()); }
void rotated_keys_match_reference(void **) { check_shapes(rotated_cases()); }
void mixed_pages_match_reference(void **) { check_shapes(mixed_cases()); }
void spans_match_reference(void **) { check_shapes(span_cases()); }
void long_steps_match_reference(void **) { check_shapes(every_case(long_cases(), g_full ? 1 : 3)); }
// Long steps that unpack their two KV heads after each other, and whose context is too long for
// that: on devices with matrices, which no driver on the CPU has.
void passes_match_reference(void **) {
    std::vector<Case> cases(2);
    for (Case &c : cases) {
        c.head_dim = 128;
        c.key_bits = c.value_bits = 2;
        c.boosted = 16;
        c.n_kv_heads = 2;
        c.group = 4;
        c.n_new = 65;
        c.packed_pages = is_on_cpu() ? 4 : 40;
    }
    if (!is_on_cpu())
        cases[1].packed_pages = 70;
    compare(cases);
}
void value_dims_match_reference(void **) { check_shapes(value_dim_cases()); }
void latent_layers_match_reference(void **) { check_shapes(latent_cases()); }
void ratios_match_reference(void **) { check_shapes(ratio_cases()); }
// On devices with matrices, which no driver on the CPU has: matrix_test.cpp has them there.
void idle_workers_match_reference(void **) {
    if (is_on_cpu() && !g_full)
        skip();
    check_shapes(idle_cases());
}
// Few: Mesa's driver on the CPU takes long to compile their loops.
void wide_heads_match_reference(void **) { check_shapes(every_case(wide_cases(), g_full ? 1 : 3)); }

void attention_matches_reference(void **) {
    compare(covering_cases(g_full ? Grid::kWhole : Grid::kShort, 0));
}

// All of the cases above together, on a driver whose pipelines are counted.
void pipelines_are_few(void **) {
    constexpr uint32_t kMost = 300;
    const uint32_t n = shared_pipelines_count();
    std::printf("%u pipelines\n", n);
    if (is_on_cpu())
        assert_true(n > 0 && (g_full || n < kMost));
}

}  // namespace

int main(int argc, char **argv) {
    g_full = has_argument(argc, argv, "--full");
    test_mask(text_of_argument(argc, argv, "--mask"));
    const char *const part = text_of_argument(argc, argv, "--part");
    if (part && !g_part.read(part))
        return 2;
    cmocka_set_test_filter(text_of_argument(argc, argv, "--only"));
    test_device();
    const CMUnitTest tests[] = {
        cmocka_unit_test(common_shapes_match_reference),
        cmocka_unit_test(one_bit_values_match_reference),
        cmocka_unit_test(shared_channels_match_reference),
        cmocka_unit_test(rotated_keys_match_reference),
        cmocka_unit_test(mixed_pages_match_reference),
        cmocka_unit_test(spans_match_reference),
        cmocka_unit_test(long_steps_match_reference),
        cmocka_unit_test(passes_match_reference),
        cmocka_unit_test(value_dims_match_reference),
        cmocka_unit_test(latent_layers_match_reference),
        cmocka_unit_test(ratios_match_reference),
        cmocka_unit_test(idle_workers_match_reference),
        cmocka_unit_test(wide_heads_match_reference),
        cmocka_unit_test(attention_matches_reference),
        cmocka_unit_test(pipelines_are_few),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
