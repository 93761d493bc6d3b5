// Attention on the GPU against the reference: the grids of the CPU, each case twice with the same
// bits. --full takes more seeds; --sanitizer takes short cases in allocations of their own, for
// compute-sanitizer; --group PATTERN takes the groups of cases with such a name, --part I/N every
// N-th case of each, beginning at I (from 0).
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <algorithm>
#include <cstring>

#include "device_memory.h"
#include "kernels/comparison.h"
#include "kernels/grid.h"

namespace {

bool g_full = false;
bool g_sanitizer = false;
Part g_part;

DeviceMemory::Kind kind() {
    return g_sanitizer ? DeviceMemory::Kind::kExact : DeviceMemory::Kind::kArena;
}

// Its part of the cases: with --part I/N every N-th, beginning at I.
void compare(const std::vector<std::vector<Case>> &lists) {
    CudaDevice cuda(kind());
    Comparison comparison(cuda.device());
    for (const std::vector<Case> &cases : lists)
        comparison.check(g_part.of(cases));
    comparison.finish();
}

void common_shapes_match_reference(void **) {
    if (g_sanitizer)
        skip();
    compare({common_cases()});
}

// The sanitizer, which is slow, has those of one head dim.
void check_shapes(std::vector<Case> cases) {
    const auto is_left_out = [](const Case &c) { return g_sanitizer && c.head_dim != 64; };
    cases.erase(std::remove_if(cases.begin(), cases.end(), is_left_out), cases.end());
    compare({cases});
}
void chanmix_shapes_match_reference(void **) { check_shapes(chanmix_cases()); }
void one_bit_values_match_reference(void **) { check_shapes(one_bit_cases()); }
void rotated_keys_match_reference(void **) { check_shapes(rotated_cases()); }
void grouped_pages_match_reference(void **) { check_shapes(grouped_cases()); }
void mixed_pages_match_reference(void **) { check_shapes(mixed_cases()); }
void spans_match_reference(void **) { check_shapes(span_cases()); }
void short_pages_match_reference(void **) { check_shapes(short_page_cases()); }
void ratios_match_reference(void **) { check_shapes(ratio_cases()); }
void wide_items_match_reference(void **) { check_shapes(wide_item_cases()); }
void plain_f8_pages_match_reference(void **) { check_shapes(plain_f8_cases()); }
// The sanitizer has some.
void wide_heads_match_reference(void **) {
    compare({every_case(wide_cases(), g_sanitizer ? 7 : 1)});
}
void wide_groups_match_reference(void **) {
    compare({every_case(wide_group_cases(), g_sanitizer ? 5 : 1),
             every_case(wide_format_cases(), g_sanitizer ? 13 : 1)});
}
void value_dims_match_reference(void **) { check_shapes(value_dim_cases()); }
void latent_layers_match_reference(void **) { check_shapes(latent_cases()); }
void latent_batches_match_reference(void **) { check_shapes(latent_batch_cases()); }
void many_splits_match_reference(void **) { check_shapes(many_split_cases()); }
void long_steps_match_reference(void **) { check_shapes(long_cases()); }

void attention_matches_reference(void **) {
    std::vector<std::vector<Case>> grids;
    const uint64_t n_seeds = g_sanitizer ? 3 : g_full ? 12 : 1;
    for (uint64_t seed = 0; seed < n_seeds; ++seed)
        grids.push_back(covering_cases(g_sanitizer ? Grid::kShort : Grid::kWhole, seed * 977));
    compare(grids);
}

}  // namespace

int main(int argc, char **argv) {
    for (int i = 1; i < argc; ++i) {
        g_full = g_full || std::strcmp(argv[i], "--full") == 0;
        g_sanitizer = g_sanitizer || std::strcmp(argv[i], "--sanitizer") == 0;
        if (std::strcmp(argv[i], "--group") == 0 && i + 1 < argc)
            cmocka_set_test_filter(argv[++i]);
        else if (std::strcmp(argv[i], "--part") == 0 && i + 1 < argc && !g_part.read(argv[++i]))
            return 2;
    }
    skip_without_gpu();
    const CMUnitTest tests[] = {
        cmocka_unit_test(value_dims_match_reference),
        cmocka_unit_test(latent_layers_match_reference),
        cmocka_unit_test(latent_batches_match_reference),
        cmocka_unit_test(wide_items_match_reference),
        cmocka_unit_test(plain_f8_pages_match_reference),
        cmocka_unit_test(ratios_match_reference),
        cmocka_unit_test(wide_heads_match_reference),
        cmocka_unit_test(wide_groups_match_reference),
        cmocka_unit_test(common_shapes_match_reference),
        cmocka_unit_test(chanmix_shapes_match_reference),
        cmocka_unit_test(one_bit_values_match_reference),
        cmocka_unit_test(rotated_keys_match_reference),
        cmocka_unit_test(grouped_pages_match_reference),
        cmocka_unit_test(mixed_pages_match_reference),
        cmocka_unit_test(spans_match_reference),
        cmocka_unit_test(short_pages_match_reference),
        cmocka_unit_test(many_splits_match_reference),
        cmocka_unit_test(long_steps_match_reference),
        cmocka_unit_test(attention_matches_reference),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
