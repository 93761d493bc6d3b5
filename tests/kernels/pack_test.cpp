// The CPU's packing and appending against the written-out codec: the same bytes, every one.
// --short takes every seventh shape of a page, for a build with sanitizers.
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

#include "grid.h"
#include "packing.h"

namespace {

// Coprime to the numbers of values of all axes, so that all of them occur.
size_t g_every = 1;

// The widest instruction set takes all cases, each of the others some.
constexpr size_t kEvery = 11;
constexpr uint32_t kNoSimd = LK_CPU_NO_AVX512 | LK_CPU_NO_AVX2 | LK_CPU_NO_NEON;
constexpr uint32_t kPaths[] = {0, LK_CPU_NO_AVX512, kNoSimd, LK_CPU_REFERENCE_ONLY};

void packing_equals_codec(void **) {
    const std::vector<Case> cases = page_cases();
    size_t first = 0;
    for (const uint32_t mask : kPaths) {
        HostDevice host(mask, 2);
        for (size_t i = first++; i < cases.size(); i += (mask ? kEvery : 1) * g_every)
            check_packing(cases[i], host.device());
    }
}

void shrinking_equals_the_shift(void **) {
    HostDevice host(0, 2);
    check_shrinking(host.device());
}

void moving_keeps_the_values(void **) {
    HostDevice host(0, 2);
    check_moving(host.device());
}

void appending_rounds_and_counts(void **) {
    for (const uint32_t mask : kPaths) {
        HostDevice host(mask, 3);
        check_appending(host.device());
    }
}

void first_fault_is_reported(void **) {
    HostDevice host(0, 3);
    check_append_faults(host.device());
}

void keys_are_stored_centered_and_scaled(void **) {
    for (const uint32_t mask : kPaths) {
        HostDevice host(mask, 3);
        check_changed_appending(host.device());
    }
}

void long_steps_pack_whole_blocks(void **) {
    const std::vector<Case> cases = page_cases();
    size_t first = 0;
    for (const uint32_t mask : kPaths) {
        HostDevice host(mask, 3);
        for (size_t i = first++; i < cases.size(); i += (mask ? 61 : 7) * g_every)
            check_append_pages(cases[i], static_cast<uint32_t>(i), host.device());
    }
}

void long_steps_refuse_pages(void **) {
    HostDevice host(0, 3);
    check_append_page_faults(host.device());
}

void query_sums_are_exact(void **) {
    HostDevice host(0, 3);
    check_query_sums(host.device());
}

void sums_are_added_in_order(void **) {
    HostDevice host(0, 1);
    check_sum_items(host.device());
}

}  // namespace

int main(int argc, char **argv) {
    if (argc > 1 && std::strcmp(argv[1], "--short") == 0)
        g_every = 7;
    const CMUnitTest tests[] = {
        cmocka_unit_test(packing_equals_codec),
        cmocka_unit_test(shrinking_equals_the_shift),
        cmocka_unit_test(moving_keeps_the_values),
        cmocka_unit_test(appending_rounds_and_counts),
        cmocka_unit_test(first_fault_is_reported),
        cmocka_unit_test(keys_are_stored_centered_and_scaled),
        cmocka_unit_test(long_steps_pack_whole_blocks),
        cmocka_unit_test(long_steps_refuse_pages),
        cmocka_unit_test(query_sums_are_exact),
        cmocka_unit_test(sums_are_added_in_order),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
