// Packing, dequantizing and appending on the GPU against the written-out codec: the same bytes,
// every one. --sanitizer takes a few shapes in allocations of their own.
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <cstring>

#include "device_memory.h"
#include "kernels/grid.h"
#include "kernels/packing.h"

namespace {

DeviceMemory::Kind g_kind = DeviceMemory::Kind::kArena;
// Coprime to the numbers of values of all axes, so that all of them occur.
size_t g_every = 1;

void packing_equals_codec(void **) {
    CudaDevice cuda(g_kind);
    const std::vector<Case> cases = page_cases();
    for (size_t i = 0; i < cases.size(); i += g_every) {
        current_case() = describe(cases[i]);
        check_packing(cases[i], cuda.device());
    }
    current_case() = "appended tokens";
}

void shrinking_equals_the_shift(void **) {
    CudaDevice cuda(g_kind);
    check_shrinking(cuda.device());
}

void moving_keeps_the_values(void **) {
    CudaDevice cuda(g_kind);
    check_moving(cuda.device());
}

void appending_rounds_and_counts(void **) {
    CudaDevice cuda(g_kind);
    check_appending(cuda.device());
}

void centered_appending_rounds_and_counts(void **) {
    CudaDevice cuda(g_kind);
    check_changed_appending(cuda.device());
}

void first_fault_is_reported(void **) {
    CudaDevice cuda(g_kind);
    check_append_faults(cuda.device());
}

void long_steps_pack_whole_blocks(void **) {
    CudaDevice cuda(g_kind);
    const std::vector<Case> cases = page_cases();
    for (size_t i = 0; i < cases.size(); i += 7 * g_every) {
        current_case() = describe(cases[i]);
        check_append_pages(cases[i], static_cast<uint32_t>(i), cuda.device());
    }
    current_case() = "appended tokens";
}

void faults_in_pages_are_zeros(void **) {
    CudaDevice cuda(g_kind);
    check_append_page_faults(cuda.device());
}

void query_sums_are_exact(void **) {
    CudaDevice cuda(g_kind);
    check_query_sums(cuda.device());
}

void sums_are_added_in_order(void **) {
    CudaDevice cuda(g_kind);
    check_sum_items(cuda.device());
}

}  // namespace

int main(int argc, char **argv) {
    if (argc > 1 && std::strcmp(argv[1], "--sanitizer") == 0) {
        g_kind = DeviceMemory::Kind::kExact;
        g_every = 13;
    }
    skip_without_gpu();
    const CMUnitTest tests[] = {
        cmocka_unit_test(packing_equals_codec),
        cmocka_unit_test(shrinking_equals_the_shift),
        cmocka_unit_test(moving_keeps_the_values),
        cmocka_unit_test(appending_rounds_and_counts),
        cmocka_unit_test(centered_appending_rounds_and_counts),
        cmocka_unit_test(first_fault_is_reported),
        cmocka_unit_test(long_steps_pack_whole_blocks),
        cmocka_unit_test(faults_in_pages_are_zeros),
        cmocka_unit_test(query_sums_are_exact),
        cmocka_unit_test(sums_are_added_in_order),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
