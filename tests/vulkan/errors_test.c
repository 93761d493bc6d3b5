// What a Vulkan context refuses, and what it does when the device fails: each has its status and
// its sentence.
//
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "api/model.h"
#include "faults.h"

static lk_status open_context(const lk_vulkan_desc *vulkan, uint32_t index, lk_context **out) {
    lk_context_desc desc;
    assert_int_equal(lk_context_desc_init(&desc, sizeof desc), LK_OK);
    desc.backend = LK_BACKEND_VULKAN;
    desc.device_index = index;
    desc.vulkan = vulkan;
    return lk_context_open(&desc, LK_ABI_VERSION, out);
}

static lk_vulkan_desc imported(void) {
    lk_context_desc desc;
    lk_vulkan_desc vulkan;
    test_describe(&desc, &vulkan);
    return vulkan;
}

static void expect_refused(const lk_vulkan_desc *vulkan, lk_status status, const char *text) {
    lk_context *context = (lk_context *)(uintptr_t)1;
    assert_int_equal(open_context(vulkan, 0, &context), status);
    rig_sentence(text);
    assert_null(context);
}

static void features_are_required(void **state) {
    (void)state;
    const vulkan_host *host = test_device();
    VkPhysicalDeviceFeatures2 features = host->features;
    VkPhysicalDeviceVulkan11Features features11 = host->features11;
    VkPhysicalDeviceVulkan12Features features12 = host->features12;
    features.pNext = &features11;
    features11.pNext = &features12;
    features12.pNext = NULL;
    lk_vulkan_desc vulkan = imported();
    vulkan.features = &features;
    const struct {
        VkBool32 *feature;
        const char *name;
    } all[] = {{&features12.bufferDeviceAddress, "bufferDeviceAddress"},
               {&features12.storageBuffer8BitAccess, "storageBuffer8BitAccess"},
               {&features11.storageBuffer16BitAccess, "storageBuffer16BitAccess"}};
    for (int i = 0; i < 3; ++i) {
        *all[i].feature = VK_FALSE;
        expect_refused(&vulkan, LK_E_UNSUPPORTED, all[i].name);
        *all[i].feature = VK_TRUE;
    }
    features11.storageBuffer16BitAccess = features12.bufferDeviceAddress = VK_FALSE;
    expect_refused(&vulkan, LK_E_UNSUPPORTED, "storageBuffer16BitAccess");
    rig_sentence("bufferDeviceAddress");
}

static void properties_are_required(void **state) {
    (void)state;
    lk_vulkan_desc vulkan = imported();
    vulkan.get_instance_proc_addr = (lk_vulkan_function)faulty_get_instance_proc_addr;
    faults_set(&(vulkan_faults){.rounds_otherwise = 1});
    expect_refused(&vulkan, LK_E_UNSUPPORTED, "shaderRoundingModeRTEFloat32");
    faults_set(&(vulkan_faults){.has_no_compute = 1});
    expect_refused(&vulkan, LK_E_ARGUMENT, "queue_family");
    faults_set(&(vulkan_faults){.missing = "vkGetBufferDeviceAddress"});
    expect_refused(&vulkan, LK_E_UNSUPPORTED, "vkGetBufferDeviceAddress");
    faults_set(NULL);
}

// A host of version 1.1 has what is required by extensions.
static void extensions_are_required(void **state) {
    (void)state;
    lk_vulkan_desc vulkan = imported();
    vulkan.api_version = VK_API_VERSION_1_1;
    expect_refused(&vulkan, LK_E_UNSUPPORTED, "VK_KHR_buffer_device_address");
    rig_sentence("VK_KHR_8bit_storage");
}

static void descriptions_are_checked(void **state) {
    (void)state;
    lk_vulkan_desc bad = imported();
    bad.queue = NULL;
    expect_refused(&bad, LK_E_ARGUMENT, "queue");
    bad = imported();
    bad.get_instance_proc_addr = NULL;
    expect_refused(&bad, LK_E_ARGUMENT, "get_instance_proc_addr");
    bad = imported();
    bad.instance = NULL;
    expect_refused(&bad, LK_E_ARGUMENT, "instance");
    bad = imported();
    bad.features = NULL;
    expect_refused(&bad, LK_E_ARGUMENT, "features");
    bad = imported();
    bad.unlock_queue = NULL;
    expect_refused(&bad, LK_E_ARGUMENT, "lock_queue");
    bad = imported();
    bad.mask = 1u << 30;
    expect_refused(&bad, LK_E_ARGUMENT, "mask");
    bad = imported();
    bad.size = 4;
    expect_refused(&bad, LK_E_ARGUMENT, "size");
}

// Messages of the validation layer; lowkey's own sentences come here too.
static int g_n_messages;
static void log_message(void *user, lk_log_level level, const char *message) {
    (void)user;
    if (level > LK_LOG_WARNING || strncmp(message, "Vulkan:", 7) != 0)
        return;
    ++g_n_messages;
    fprintf(stderr, "%s\n", message);
}

static void describe_own(lk_context_desc *desc) {
    static lk_vulkan_desc vulkan;
    assert_int_equal(lk_vulkan_desc_init(&vulkan, sizeof vulkan), LK_OK);
    vulkan.validation = (uint32_t)test_device()->is_validated;
    desc->vulkan = &vulkan;
    desc->log = log_message;
    desc->log_level = LK_LOG_WARNING;
}

// lowkey's own device: opened, checked by the validation layer where it is installed, and used.
static void own_devices(void **state) {
    (void)state;
    lk_context *context = NULL;
    assert_int_equal(open_context(NULL, 77, &context), LK_E_NOT_FOUND);
    rig_sentence("77");
    assert_null(context);
    rig_device own = *rig_vulkan();
    own.queue = NULL;
    own.describe = describe_own;
    rig r;
    model_open(&r, &own, "kitty-pro");
    const lk_sequence id = model_add(&r);
    assert_int_equal(rig_fill(&r, id, 1, 0, 300, 150, NULL), LK_OK);
    assert_int_equal(lk_vulkan_buffer_add(r.context, 1, 64, VULKAN_BUFFER_USAGE), LK_E_UNSUPPORTED);
    rig_sentence("own");
    rig_close(&r);
    assert_int_equal(g_n_messages, 0);
}

static void buffers_are_checked(void **state) {
    (void)state;
    rig r;
    memset(&r, 0, sizeof r);
    r.device = rig_vulkan_buffers();
    rig_open(&r);
    vulkan_buffer good;
    test_check(vulkan_buffer_create(test_device(), 1024, VULKAN_BUFFER_USAGE, 1, &good));
    const uint64_t handle = (uint64_t)good.handle;
    const uint32_t usage = VULKAN_BUFFER_USAGE;
    assert_int_equal(lk_vulkan_buffer_add(NULL, handle, 1024, usage), LK_E_ARGUMENT);
    assert_int_equal(lk_vulkan_buffer_add(r.context, 0, 1024, usage), LK_E_ARGUMENT);
    assert_int_equal(lk_vulkan_buffer_add(r.context, handle, 0, usage), LK_E_ARGUMENT);
    assert_int_equal(
        lk_vulkan_buffer_add(r.context, handle, 1024,
                             usage & ~(uint32_t)VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT),
        LK_E_ARGUMENT);
    rig_sentence("VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT");
    assert_int_equal(lk_vulkan_buffer_add(r.context, handle, 1024,
                                          usage & ~(uint32_t)VK_BUFFER_USAGE_STORAGE_BUFFER_BIT),
                     LK_E_ARGUMENT);
    rig_sentence("VK_BUFFER_USAGE_STORAGE_BUFFER_BIT");
    assert_int_equal(lk_vulkan_buffer_remove(r.context, handle), LK_E_NOT_FOUND);
    assert_int_equal(lk_vulkan_buffer_add(r.context, handle, 1024, usage), LK_OK);
    assert_int_equal(lk_vulkan_buffer_add(r.context, handle, 1024, usage), LK_E_ARGUMENT);
    assert_int_equal(lk_vulkan_buffer_remove(r.context, handle), LK_OK);
    assert_int_equal(lk_vulkan_buffer_remove(r.context, handle), LK_E_NOT_FOUND);
    vulkan_buffer_destroy(test_device(), &good);
    rig_close(&r);

    rig cpu;
    memset(&cpu, 0, sizeof cpu);
    cpu.device = rig_host();
    rig_open(&cpu);
    assert_int_equal(lk_vulkan_buffer_add(cpu.context, handle, 1024, usage), LK_E_UNSUPPORTED);
    assert_int_equal(lk_vulkan_buffer_remove(cpu.context, handle), LK_E_UNSUPPORTED);
    rig_close(&cpu);
}

// Tensors of the first layer for one token: [4][64] and [2][64] floats.
static void tensors_are_checked(void **state) {
    (void)state;
    rig r;
    model_open(&r, rig_vulkan_buffers(), "kivi4");
    const lk_sequence id = model_add(&r);
    const uint32_t n = 1;
    const size_t bytes = 2 * 64 * sizeof(float);
    lk_tensor good;
    rig_tensor(&r, &good, rig_place(&r, NULL, bytes), 2, 64);
    assert_int_equal(rig_begin(&r, 1, &id, &n, NULL), LK_OK);
    lk_tensor bad = good;
    bad.offset_bytes = 4;
    assert_int_equal(lk_append(r.cache, 0, &bad, &good), LK_E_ARGUMENT);
    rig_sentence("512");  // the buffer's bytes
    assert_int_equal(lk_append(r.cache, 0, &good, &bad), LK_E_ARGUMENT);
    bad.offset_bytes = UINT64_MAX - 3;
    assert_int_equal(lk_append(r.cache, 0, &good, &bad), LK_E_ARGUMENT);
    bad = good;
    bad.buffer += 64;
    assert_int_equal(lk_append(r.cache, 0, &good, &bad), LK_E_ARGUMENT);
    rig_sentence("buffer");
    bad = good;
    bad.head_stride = INT64_C(1) << 32;
    bad.offset_bytes = 0;
    assert_int_not_equal(lk_append(r.cache, 0, &good, &bad), LK_OK);
    bad = good;
    bad.data = &r;
    assert_int_equal(lk_append(r.cache, 0, &good, &bad), LK_E_ARGUMENT);
    assert_int_equal(lk_append(r.cache, 0, &good, &good), LK_OK);
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    rig_close(&r);
}

static void queues_are_checked(void **state) {
    (void)state;
    rig r;
    model_open(&r, rig_vulkan_buffers(), "kivi4");
    const lk_sequence id = model_add(&r);
    const uint32_t n = 1;
    lk_queue queue = *r.device->queue;
    queue.handle = &queue;
    assert_int_equal(lk_step_begin(r.cache, &queue, 1, &id, &n, NULL), LK_E_ARGUMENT);
    rig_sentence("queue");
    queue.handle = NULL;
    assert_int_equal(lk_step_begin(r.cache, &queue, 1, &id, &n, NULL), LK_OK);
    assert_int_equal(lk_step_replay(r.cache), LK_E_UNSUPPORTED);
    rig_sentence("Vulkan");
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    assert_int_equal(lk_step_begin(r.cache, NULL, 1, &id, &n, NULL), LK_OK);
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    rig_close(&r);
}

static void describe_faulty(lk_context_desc *desc) {
    static lk_vulkan_desc vulkan;
    test_describe(desc, &vulkan);
    vulkan.get_instance_proc_addr = (lk_vulkan_function)faulty_get_instance_proc_addr;
}

static const rig_device *faulty(const rig_device *device) {
    static rig_device own;
    own = *device;
    own.describe = describe_faulty;
    return &own;
}

// One layer, which few pipelines are made for.
static lk_status open_small(rig *r) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 1, 2, 1, 32);
    r->device = faulty(rig_vulkan_buffers());
    lk_context_desc desc;
    rig_context_desc(r, &desc);
    const lk_status status = lk_context_open(&desc, LK_ABI_VERSION, &r->context);
    if (status)
        return status;
    rig_preset(r, "kivi2");
    return rig_cache(r, 1, 64, 8u << 20);
}

// Steps until one fails. A lost device stays lost, and what hangs on it can be destroyed.
static void lose(const vulkan_faults *faults) {
    rig r;
    assert_int_equal(open_small(&r), LK_OK);
    const lk_sequence id = model_add(&r);
    assert_int_equal(rig_fill(&r, id, 1, 0, 60, 30, NULL), LK_OK);
    faults_set(faults);
    lk_status status = LK_OK;
    for (uint32_t step = 0; step < 100 && !status; ++step)
        status = rig_step(&r, id, 1, 60 + step, 1, NULL);
    assert_int_equal(status, LK_E_DEVICE);
    rig_sentence("lost");
    const uint32_t n = 1;
    assert_int_equal(rig_begin(&r, 1, &id, &n, NULL), LK_E_DEVICE);
    faults_set(NULL);
    assert_int_equal(rig_begin(&r, 1, &id, &n, NULL), LK_E_DEVICE);
    rig_close(&r);
}

static void lost_devices(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 5; ++n)
        lose(&(vulkan_faults){.lost_submit = n});
    for (uint32_t n = 1; n <= 2; ++n)
        lose(&(vulkan_faults){.lost_wait = n});
}

static void no_device_memory(void **state) {
    (void)state;
    uint32_t n = 1;
    for (int is_opened = 0; !is_opened; ++n) {
        rig r;
        faults_set(&(vulkan_faults){.failed_allocation = n});
        const lk_status status = open_small(&r);
        is_opened = !status;
        faults_set(NULL);
        if (!is_opened)
            assert_int_equal(status, LK_E_NOMEM);
        rig_close(&r);
    }
    print_message("%u allocations failed one by one\n", n - 2);
}

// A driver that cannot compile for subgroups: the sentence has the bit that leaves them out.
static void subgroups_that_do_not_compile(void **state) {
    (void)state;
    rig r;
    faults_set(&(vulkan_faults){.fails_subgroups = 1});
    assert_int_equal(open_small(&r), LK_E_DEVICE);
    rig_sentence("LK_VULKAN_NO_SUBGROUP");
    faults_set(NULL);
    rig_close(&r);
}

static void pipeline_caches(void **state) {
    (void)state;
    rig r;
    model_open(&r, rig_vulkan_buffers(), "kivi2");
    uint64_t needed = 0;
    assert_int_equal(lk_vulkan_pipeline_cache(r.context, NULL, 0, &needed), LK_OK);
    assert_true(needed >= 32);  // its header
    void *blob = malloc(needed);
    assert_non_null(blob);
    assert_int_equal(lk_vulkan_pipeline_cache(r.context, blob, needed - 1, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_vulkan_pipeline_cache(r.context, blob, needed, NULL), LK_OK);
    lk_vulkan_desc vulkan = imported();
    vulkan.pipeline_cache = blob;
    vulkan.pipeline_cache_bytes = needed;
    lk_context *context = NULL;
    assert_int_equal(open_context(&vulkan, 0, &context), LK_OK);
    assert_int_equal(lk_context_close(&context), LK_OK);
    memset(blob, 7, needed);  // of no driver
    assert_int_equal(open_context(&vulkan, 0, &context), LK_OK);
    assert_int_equal(lk_context_close(&context), LK_OK);
    free(blob);
    rig_close(&r);
}

// Where the loader finds no driver.
static void no_drivers(void **state) {
    (void)state;
    lk_context *context = NULL;
    assert_int_equal(open_context(NULL, 0, &context), LK_E_UNSUPPORTED);
    rig_sentence("no Vulkan");
    uint32_t n_devices = 0;
    assert_int_equal(lk_device_count(&n_devices), LK_OK);
    for (uint32_t i = 0; i < n_devices; ++i) {
        lk_device_info info;
        assert_int_equal(lk_device_info_init(&info, sizeof info), LK_OK);
        assert_int_equal(lk_device_get(i, &info), LK_OK);
        assert_int_not_equal(info.backend, LK_BACKEND_VULKAN);
    }
}

// What opens devices again and again, which takes a driver on the CPU a minute each, runs apart.
int main(int argc, char **argv) {
    const struct CMUnitTest alone[] = {cmocka_unit_test(no_drivers)};
    const struct CMUnitTest lost[] = {cmocka_unit_test(lost_devices)};
    const struct CMUnitTest memory[] = {cmocka_unit_test(no_device_memory)};
    const struct CMUnitTest refused[] = {
        cmocka_unit_test(features_are_required),
        cmocka_unit_test(properties_are_required),
        cmocka_unit_test(extensions_are_required),
        cmocka_unit_test(descriptions_are_checked),
        cmocka_unit_test(own_devices),
        cmocka_unit_test(buffers_are_checked),
        cmocka_unit_test(tensors_are_checked),
        cmocka_unit_test(queues_are_checked),
        cmocka_unit_test(subgroups_that_do_not_compile),
        cmocka_unit_test(pipeline_caches),
    };
    const char *part = argc > 1 ? argv[1] : "";
    if (!strcmp(part, "--no-drivers"))
        return cmocka_run_group_tests(alone, NULL, NULL);
    test_device();
    if (!strcmp(part, "--lost"))
        return cmocka_run_group_tests(lost, NULL, NULL);
    if (!strcmp(part, "--memory"))
        return cmocka_run_group_tests(memory, NULL, NULL);
    return cmocka_run_group_tests(refused, NULL, NULL);
}
