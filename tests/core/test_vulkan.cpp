// The description of a host's Vulkan device: what must be set together, and what it is without.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/context/vulkan.h"

#include "cache_rig.h"

namespace {

// A device of a host; its handles are numbers, which nobody uses here.
lk_vulkan_desc host_device() {
    static int handle;
    lk_vulkan_desc made;
    assert_int_equal(lk_vulkan_desc_init(&made, sizeof made), LK_OK);
    made.get_instance_proc_addr = reinterpret_cast<lk_vulkan_function>(&host_device);
    made.instance = made.physical_device = made.device = made.queue = &handle;
    made.features = &handle;
    return made;
}

lk_status import(const lk_vulkan_desc *from, lk_vulkan_desc *out,
                 lk_backend backend = LK_BACKEND_VULKAN) {
    lk_context_desc desc{};
    desc.backend = backend;
    desc.vulkan = from;
    return lk::import_vulkan(desc, out);
}
void refused(const lk_vulkan_desc &from, const char *text) {
    lk_vulkan_desc out;
    assert_int_equal(import(&from, &out), LK_E_ARGUMENT);
    sentence_has(text);
}

void nothing_described_is_lowkeys_own_device(void **) {
    lk_vulkan_desc out = host_device();
    for (const lk_backend backend : {LK_BACKEND_CPU, LK_BACKEND_VULKAN}) {
        assert_int_equal(import(nullptr, &out, backend), LK_OK);
        assert_null(out.device);
        assert_int_equal(out.mask, 0);
    }
}

void a_description_is_for_vulkan(void **) {
    const lk_vulkan_desc from = host_device();
    lk_vulkan_desc out;
    assert_int_equal(import(&from, &out), LK_OK);
    assert_ptr_equal(out.queue, from.queue);
    for (const lk_backend backend : {LK_BACKEND_CPU, LK_BACKEND_CUDA})
        assert_int_equal(import(&from, &out, backend), LK_E_ARGUMENT);
    sentence_has("context_desc.backend");
}

void handles_come_together(void **) {
    lk_vulkan_desc from = host_device();
    from.instance = nullptr;
    refused(from, "vulkan.instance is NULL");
    from = host_device();
    from.get_instance_proc_addr = nullptr;
    refused(from, "vulkan.get_instance_proc_addr is NULL");
    from = host_device();
    from.features = nullptr;
    refused(from, "vulkan.features is NULL");
    from = host_device();
    from.device = nullptr;
    refused(from, "vulkan.device is NULL");
    from = host_device();
    from.n_extensions = 1;
    refused(from, "vulkan.extensions is NULL");
    const char *const extensions[] = {"VK_KHR_a", nullptr};
    from.extensions = extensions;
    lk_vulkan_desc out;
    assert_int_equal(import(&from, &out), LK_OK);
    from.n_extensions = 2;
    refused(from, "vulkan.extensions[1] is NULL");
}

void options_are_checked(void **) {
    lk_vulkan_desc from = host_device();
    from.mask = 1u << 31;
    refused(from, "vulkan.mask");
    from = host_device();
    from.validation = 1;
    refused(from, "vulkan.validation is for lowkey's own device");
    from = host_device();
    from.lock_queue = [](void *) {};
    refused(from, "vulkan.unlock_queue is NULL");
    from = host_device();
    from.pipeline_cache_bytes = 4;
    refused(from, "vulkan.pipeline_cache is NULL");
    assert_int_equal(lk_vulkan_desc_init(&from, sizeof from), LK_OK);
    from.validation = 2;
    refused(from, "vulkan.validation is 2");
    from.validation = 0;
    from.lock_queue = from.unlock_queue = [](void *) {};
    refused(from, "vulkan.lock_queue is set and vulkan.device is NULL");
}

// The calls for buffers and pipelines, on a context of another backend.
void other_backends_have_no_buffers(void **) {
    CacheRig rig;
    lk_context *context = &rig.context;
    assert_int_equal(lk_vulkan_buffer_add(context, 1, 1, 0), LK_E_UNSUPPORTED);
    sentence_has("not of Vulkan");
    assert_int_equal(lk_vulkan_buffer_remove(context, 1), LK_E_UNSUPPORTED);
    assert_int_equal(lk_vulkan_pipeline_cache(context, nullptr, 0, nullptr), LK_E_UNSUPPORTED);
    assert_int_equal(lk_vulkan_buffer_remove(nullptr, 1), LK_E_ARGUMENT);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(nothing_described_is_lowkeys_own_device),
        cmocka_unit_test(a_description_is_for_vulkan),
        cmocka_unit_test(handles_come_together),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(other_backends_have_no_buffers),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
