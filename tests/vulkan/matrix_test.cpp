// The kernels of cooperative matrices against the reference, on a driver that has none: products of
// matrices go through shared memory (emulated/).
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <algorithm>
#include <iterator>

extern "C" {
#include <cmocka.h>
}

#include "device_memory.h"
#include "emulated/matrices.h"
#include "kernels/comparison.h"
#include "kernels/grid.h"
#include "shaders/prefill/limits.h"

namespace {

bool g_full = false;

// A driver on the CPU takes seconds to compile what a case needs.
void check_shapes(const std::vector<Case> &cases, size_t every) {
    VulkanDevice vulkan;
    Comparison comparison(vulkan.device());
    comparison.check(every_case(cases, g_full ? 1 : every));
    comparison.finish();
}
template <class IsWanted>
std::vector<Case> wanted_cases(const std::vector<Case> &cases, IsWanted is_wanted) {
    std::vector<Case> wanted;
    std::copy_if(cases.begin(), cases.end(), std::back_inserter(wanted), is_wanted);
    return wanted;
}
void plain_pages_match_reference(void **) { check_shapes(common_cases(), 29); }
void one_bit_values_match_reference(void **) { check_shapes(one_bit_cases(), 11); }
void shared_channels_match_reference(void **) { check_shapes(chanmix_cases(), 37); }
// Heads that the kernels take; slots of 80 channels need more shared memory than emulation leaves.
void rotated_keys_match_reference(void **) {
    const auto fits = [](const Case &c) {
        return c.head_dim <= 256 && (c.head_dim != 80 || c.n_new <= LK_DRAFT_TOKENS);
    };
    check_shapes(wanted_cases(rotated_cases(), fits), 11);
}
// Heads whose larger workgroups fit next to emulation.
void idle_workers_match_reference(void **) {
    const auto fits = [](const Case &c) { return c.head_dim <= 96; };
    check_shapes(wanted_cases(idle_cases(), fits), 5);
}
void mixed_pages_match_reference(void **) { check_shapes(mixed_cases(), 5); }

// Steps of more query columns than decode takes, of any shape of pages and masks, at the head dims
// that these kernels take.
void prompts_match_reference(void **) {
    const auto is_prefill = [](const Case &c) {
        return c.n_new * c.group > 8 && c.head_dim <= 256;
    };
    check_shapes(wanted_cases(covering_cases(Grid::kShort, 1), is_prefill), 4);
}

// Layers of latents that fit into the shared memory that emulation leaves: the others would run the
// kernel without matrices.
void latent_layers_match_reference(void **) {
    const uint32_t shared_bytes =
        test_device()->properties.limits.maxComputeSharedMemorySize - kEmulationBytes;
    const auto fits = [&](const Case &c) {
        return lk::vulkan::latent_matrix_shared_bytes(c.head_dim) <= shared_bytes;
    };
    const std::vector<Case> all = wanted_cases(latent_cases(), fits);
    assert_true(all.size() >= 30);
    check_shapes(all, 4);
}

// Steps whose keys and values are unpacked for all columns at once, at the head dims that fit into
// the shared memory that emulation leaves.
std::vector<Case> slot_cases() {
    std::vector<Case> all;
    for (const std::vector<Case> &cases : {long_cases(), span_cases()})
        for (Case c : cases)
            if (c.head_dim <= 64 && c.n_new > LK_DRAFT_TOKENS) {
                c.n_new = 65 + c.head_dim / 16;
                c.group = 4;
                c.packed_pages = 2;
                c.n_kv_heads = 1;
                c.n_sequences = 1;
                c.window = c.window_sinks = 0;
                all.push_back(c);
            }
    return all;
}
void long_steps_match_reference(void **) { check_shapes(slot_cases(), 2); }

}  // namespace

int main(int argc, char **argv) {
    g_full = has_argument(argc, argv, "--full");
    cmocka_set_test_filter(text_of_argument(argc, argv, "--only"));
    test_device();
    const CMUnitTest tests[] = {
        cmocka_unit_test(plain_pages_match_reference),
        cmocka_unit_test(one_bit_values_match_reference),
        cmocka_unit_test(shared_channels_match_reference),
        cmocka_unit_test(rotated_keys_match_reference),
        cmocka_unit_test(idle_workers_match_reference),
        cmocka_unit_test(mixed_pages_match_reference),
        cmocka_unit_test(prompts_match_reference),
        cmocka_unit_test(latent_layers_match_reference),
        cmocka_unit_test(long_steps_match_reference),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
