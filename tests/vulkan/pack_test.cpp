// Packing, dequantizing and appending by Vulkan against the written-out codec: the same bytes,
// every one. --full takes all shapes, --short few, --mask takes features of the device away, --only
// runs one test, --part I/N every N-th of its shapes, beginning at I (from 0).
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include "device_memory.h"
#include "kernels/grid.h"
#include "kernels/packing.h"

namespace {

// Coprime to the numbers of values of all axes, so that all of them occur.
size_t g_every = 7;
Part g_part;

void packing_equals_codec(void **) {
    VulkanDevice vulkan;
    const std::vector<Case> cases = page_cases();
    for (size_t i = g_part.first * g_every; i < cases.size(); i += g_part.n * g_every) {
        current_case() = describe(cases[i]);
        check_packing(cases[i], vulkan.device());
    }
    current_case() = "appended tokens";
}

void shrinking_equals_the_shift(void **) {
    VulkanDevice vulkan;
    check_shrinking(vulkan.device());
}

void moving_keeps_the_values(void **) {
    VulkanDevice vulkan;
    check_moving(vulkan.device());
}

void appending_rounds_and_counts(void **) {
    VulkanDevice vulkan;
    check_appending(vulkan.device());
}

void first_fault_is_reported(void **) {
    VulkanDevice vulkan;
    check_append_faults(vulkan.device());
}

void centered_appending_rounds_and_counts(void **) {
    VulkanDevice vulkan;
    check_changed_appending(vulkan.device());
}

void long_steps_pack_whole_blocks(void **) {
    VulkanDevice vulkan;
    const std::vector<Case> cases = page_cases();
    for (size_t i = 3 * g_part.first * g_every; i < cases.size(); i += 3 * g_part.n * g_every) {
        current_case() = describe(cases[i]);
        check_append_pages(cases[i], static_cast<uint32_t>(i), vulkan.device());
    }
    current_case() = "appended tokens";
}

// Between multiples of 32: ranks of channels are bits of words.
void ranked_channels_of_whole_blocks(void **) {
    VulkanDevice vulkan;
    Case c;
    c.page_tokens = 64;
    c.key_bits = c.value_bits = 2;
    c.head_dim = 80;
    c.boosted = 16;
    check_append_pages(c, 0, vulkan.device());
}

void faults_in_pages_are_zeros(void **) {
    VulkanDevice vulkan;
    check_append_page_faults(vulkan.device());
}

void query_sums_are_exact(void **) {
    VulkanDevice vulkan;
    check_query_sums(vulkan.device());
}

void sums_are_added_in_order(void **) {
    VulkanDevice vulkan;
    check_sum_items(vulkan.device());
}

}  // namespace

int main(int argc, char **argv) {
    if (has_argument(argc, argv, "--full"))
        g_every = 1;
    if (has_argument(argc, argv, "--short"))
        g_every = 23;
    test_mask(text_of_argument(argc, argv, "--mask"));
    const char *const part = text_of_argument(argc, argv, "--part");
    if (part && !g_part.read(part))
        return 2;
    cmocka_set_test_filter(text_of_argument(argc, argv, "--only"));
    test_device();
    const CMUnitTest tests[] = {
        cmocka_unit_test(packing_equals_codec),
        cmocka_unit_test(shrinking_equals_the_shift),
        cmocka_unit_test(moving_keeps_the_values),
        cmocka_unit_test(appending_rounds_and_counts),
        cmocka_unit_test(first_fault_is_reported),
        cmocka_unit_test(centered_appending_rounds_and_counts),
        cmocka_unit_test(long_steps_pack_whole_blocks),
        cmocka_unit_test(ranked_channels_of_whole_blocks),
        cmocka_unit_test(faults_in_pages_are_zeros),
        cmocka_unit_test(query_sums_are_exact),
        cmocka_unit_test(sums_are_added_in_order),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
