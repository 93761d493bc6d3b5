// The ranges of tensors: which of them share bytes.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/context/tensor.h"

#include "suite.h"

namespace {

// The range of n tokens, `stride` bytes apart, with `width` bytes each.
lk::TensorRange range(uint64_t first, uint64_t n, uint64_t stride, uint64_t width) {
    lk::TensorRange out;
    out.first = first;
    out.n_bytes = (n - 1) * stride + width;
    out.token_bytes = stride;
    out.in_token_bytes = width;
    return out;
}

void overlaps_are_seen(void **) {
    assert_false(lk::overlaps(range(1000, 4, 100, 100), range(1400, 4, 100, 100)));
    assert_true(lk::overlaps(range(1000, 4, 100, 100), range(1399, 4, 100, 100)));
    assert_true(lk::overlaps(range(1000, 4, 100, 100), range(1000, 1, 50, 50)));
    assert_false(lk::overlaps(range(1000, 4, 300, 100), range(1100, 4, 300, 100)));
    assert_false(lk::overlaps(range(1100, 4, 300, 100), range(1000, 4, 300, 100)));
    assert_false(lk::overlaps(range(1200, 4, 300, 100), range(1000, 4, 300, 100)));
    assert_true(lk::overlaps(range(1100, 4, 300, 100), range(1000, 4, 300, 101)));
    assert_true(lk::overlaps(range(1000, 4, 300, 100), range(1100, 4, 300, 201)));
    lk::TensorRange host = range(1000, 4, 100, 100);
    host.is_host = true;
    assert_false(lk::overlaps(host, range(1000, 4, 100, 100)));
}

constexpr lk::BackendTraits kCpu = {"the CPU", LK_MEMORY_HOST, false, 0, 0, false};
constexpr lk::BackendTraits kCuda = {"CUDA", LK_MEMORY_CUDA, false, LK_QUEUE_CUDA_STREAM, 0, true};
constexpr lk::BackendTraits kVulkan = {
    "Vulkan", LK_MEMORY_VULKAN, true, LK_QUEUE_VULKAN_SUBMIT, LK_QUEUE_VULKAN_RECORD, false};

lk_tensor tensor(void *data, int64_t token_stride, int64_t head_stride) {
    lk_tensor out;
    lk_tensor_init(&out, sizeof out);
    out.dtype = LK_F32;
    out.memory = LK_MEMORY_HOST;
    out.data = data;
    out.token_stride = token_stride;
    out.head_stride = head_stride;
    return out;
}

lk_status check(const lk_tensor &from, bool is_output) {
    lk_tensor taken;
    lk::TensorRange found;
    return lk::import_tensor(&from, "t", {3, 4, 16}, kCpu, is_output, &taken, &found);
}

void outputs_have_their_own_elements(void **) {
    float data[512];
    assert_int_equal(check(tensor(data, 64, 16), true), LK_OK);
    assert_int_equal(check(tensor(data, 16, 48), true), LK_OK);
    assert_int_equal(check(tensor(data, 63, 16), true), LK_E_ARGUMENT);
    assert_int_equal(check(tensor(data, 64, 15), true), LK_E_ARGUMENT);
    assert_int_equal(check(tensor(data, 16, 47), true), LK_E_ARGUMENT);
    assert_int_equal(check(tensor(data, 0, 0), false), LK_OK);
    assert_int_equal(check(tensor(data, 0, 0), true), LK_E_ARGUMENT);
    assert_int_equal(check(tensor(data, INT64_MAX / 2, 16), false), LK_E_ARGUMENT);
    assert_int_equal(check(tensor(data, 64, INT64_MAX), false), LK_E_ARGUMENT);
}

lk_status check_on(const lk::BackendTraits &backend, const lk_tensor &from) {
    lk_tensor taken;
    lk::TensorRange found;
    return lk::import_tensor(&from, "t", {3, 4, 16}, backend, false, &taken, &found);
}

void kinds_of_memory_are_checked(void **) {
    float data[512];
    lk_tensor host = tensor(data, 64, 16);
    assert_int_equal(check_on(kVulkan, host), LK_OK);
    assert_int_equal(check_on(kCuda, host), LK_E_UNSUPPORTED);
    host.offset_bytes = 4;
    assert_int_equal(check_on(kVulkan, host), LK_E_ARGUMENT);

    lk_tensor buffer = tensor(nullptr, 64, 16);
    buffer.memory = LK_MEMORY_VULKAN;
    assert_int_equal(check_on(kVulkan, buffer), LK_E_ARGUMENT);
    buffer.buffer = 7;
    buffer.offset_bytes = 8;
    assert_int_equal(check_on(kVulkan, buffer), LK_OK);
    assert_int_equal(check_on(kCpu, buffer), LK_E_UNSUPPORTED);
    buffer.offset_bytes = 6;
    assert_int_equal(check_on(kVulkan, buffer), LK_E_ARGUMENT);
    buffer.offset_bytes = UINT64_MAX - 7;
    assert_int_equal(check_on(kVulkan, buffer), LK_E_ARGUMENT);
    buffer.offset_bytes = 0;
    buffer.data = data;
    assert_int_equal(check_on(kVulkan, buffer), LK_E_ARGUMENT);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(overlaps_are_seen),
        cmocka_unit_test(outputs_have_their_own_elements),
        cmocka_unit_test(kinds_of_memory_are_checked),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
