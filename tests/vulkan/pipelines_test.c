// Pipelines of plans that come and go: those of open caches stay, of the others a number, and what
// the driver compiled of late can be saved. A stand-in that compiles at once is made in place of
// each, but of those that run.
//
// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <stdio.h>

#include "api/model.h"
#include "faults.h"

#define MOST_IDLE 64    // Pipelines::kMostIdle
#define MOST_SHARED 12  // that no plan changes
#define MOST_OF_CACHE 8
#define ROUNDS 3

static const uint32_t kStandInWords[] = {
#include "scale.inc"  // generated
};

static void describe_counted(lk_context_desc *desc) {
    static lk_vulkan_desc vulkan;
    test_describe(desc, &vulkan);
    vulkan.get_instance_proc_addr = (lk_vulkan_function)faulty_get_instance_proc_addr;
}

static const rig_device *counted(void) {
    static rig_device own;
    own = *rig_vulkan_buffers();
    own.describe = describe_counted;
    return &own;
}

static lk_status open_cache(rig *r, uint32_t n_query_heads, uint32_t head_dim) {
    rig_geometry(r, 1, n_query_heads, 1, head_dim);
    rig_preset(r, "kivi2");
    return rig_cache(r, 1, 64, 8u << 20);
}

// A second cache in the context of `first`, which keeps what it placed.
static rig open_another(const rig *first) {
    rig second;
    memset(&second, 0, sizeof second);
    second.device = first->device;
    second.context = first->context;
    return second;
}

static void open_rig(rig *r) {
    memset(r, 0, sizeof *r);
    r->device = counted();
    rig_open(r);
}

static VkShaderModule stand_in(void) {
    const vulkan_host *host = test_device();
    const VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                           .codeSize = sizeof kStandInWords,
                                           .pCode = kStandInWords};
    VkShaderModule module = VK_NULL_HANDLE;
    assert_int_equal(host->vk.CreateShaderModule(host->device, &info, NULL, &module), VK_SUCCESS);
    return module;
}

// A cache of each head dim and group of queries, one after another; its pipelines go with the
// plan. The most pipelines that lived at once.
static uint32_t open_all(const rig *first) {
    uint32_t most = 0;
    for (uint32_t head_dim = 32; head_dim <= 256; head_dim += 16)
        for (uint32_t group = 1; group <= 4; group *= 2) {
            rig r = open_another(first);
            assert_int_equal(open_cache(&r, group, head_dim), LK_OK);
            if (faults_pipelines().live > most)
                most = faults_pipelines().live;
            rig_drop_cache(&r);
        }
    return most;
}

typedef struct walk {
    const rig *first;
    int is_down;
} walk;

// Null when all caches opened.
static void *open_one_by_one(void *user) {
    const walk *w = user;
    for (uint32_t i = 0; i < 45; ++i) {
        const uint32_t at = w->is_down ? 44 - i : i;
        rig r = open_another(w->first);
        if (open_cache(&r, 1u << at / 15, 32 + 16 * (at % 15)))
            return user;
        rig_drop_cache(&r);
    }
    return NULL;
}

static void step(rig *r, lk_sequence id, uint32_t place, uint32_t n, float *out) {
    assert_int_equal(rig_step(r, id, 1, place, n, out), LK_OK);
}

// A cache, and one like it on the CPU.
static void open_beside_host(rig *r, rig *cpu) {
    open_rig(r);
    assert_int_equal(open_cache(r, 2, 48), LK_OK);
    memset(cpu, 0, sizeof *cpu);
    cpu->device = rig_host();
    rig_open(cpu);
    assert_int_equal(open_cache(cpu, 2, 48), LK_OK);
}

// The first cache lives through hundreds of others, and answers as one that was opened alone.
static void plans_come_and_go(void **state) {
    (void)state;
    static float out[64 * 2 * 48], expected[64 * 2 * 48];
    rig first, cpu;
    open_beside_host(&first, &cpu);
    const lk_sequence id = model_add(&first);
    const lk_sequence same = model_add(&cpu);
    step(&first, id, 0, 40, out);
    step(&cpu, same, 0, 40, expected);

    const uint32_t n_first = faults_pipelines().live;
    const VkShaderModule module = stand_in();
    faults_set(&(vulkan_faults){.stand_in = module});
    for (int round = 0; round < ROUNDS; ++round) {
        const uint32_t most = open_all(&first);
        assert_true(most > MOST_IDLE);  // else nothing would have gone
        assert_true(most <= n_first + MOST_IDLE + MOST_OF_CACHE);
        assert_int_equal(faults_pipelines().live, n_first + MOST_IDLE);
    }
    const uint32_t n_made = faults_pipelines().made;
    assert_true(n_made >= 3 * MOST_IDLE);
    print_message("%u pipelines made, %u live\n", n_made, faults_pipelines().live);

    // The last ones are there yet.
    rig r = open_another(&first);
    assert_int_equal(open_cache(&r, 4, 256), LK_OK);
    rig_drop_cache(&r);
    assert_int_equal(faults_pipelines().made, n_made);
    // Another cache may share the pipelines of the live one too.
    r = open_another(&first);
    assert_int_equal(open_cache(&r, 2, 48), LK_OK);
    rig_drop_cache(&r);
    assert_int_equal(faults_pipelines().made, n_made);
    faults_set(NULL);

    step(&first, id, 40, 1, out);
    step(&cpu, same, 40, 1, expected);
    assert_true(rig_distance(out, expected, 2 * 48) <= 2e-2f);
    step(&first, id, 41, 30, out);
    step(&cpu, same, 41, 30, expected);
    assert_true(rig_distance(out, expected, 30 * 2 * 48) <= 2e-2f);
    rig_close(&first);
    rig_close(&cpu);
    assert_int_equal(faults_pipelines().live, 0);
    test_device()->vk.DestroyShaderModule(test_device()->device, module, NULL);
}

// Two generations of compiled pipelines are saved, and the next context takes them.
static void what_was_compiled_of_late(void **state) {
    (void)state;
    rig r;
    open_rig(&r);
    const VkShaderModule module = stand_in();
    faults_set(&(vulkan_faults){.stand_in = module});
    for (int round = 0; round < ROUNDS; ++round)
        (void)open_all(&r);
    assert_true(faults_pipelines().live <= MOST_SHARED + MOST_IDLE);
    assert_true(faults_pipelines().live_caches == 2);
    uint64_t needed = 0;
    assert_int_equal(lk_vulkan_pipeline_cache(r.context, NULL, 0, &needed), LK_OK);
    assert_true(needed >= 32);  // its header
    void *blob = malloc(needed);
    assert_non_null(blob);
    assert_int_equal(lk_vulkan_pipeline_cache(r.context, blob, needed - 1, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_vulkan_pipeline_cache(r.context, blob, needed, NULL), LK_OK);
    assert_true(faults_pipelines().live_caches == 2);
    rig_close(&r);
    assert_int_equal(faults_pipelines().live_caches, 0);

    lk_context_desc desc;
    lk_vulkan_desc vulkan;
    rig second;
    memset(&second, 0, sizeof second);
    second.device = counted();
    rig_context_desc(&second, &desc);
    vulkan = *desc.vulkan;
    vulkan.pipeline_cache = blob;
    vulkan.pipeline_cache_bytes = needed;
    desc.vulkan = &vulkan;
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &second.context), LK_OK);
    assert_int_equal(open_cache(&second, 1, 64), LK_OK);
    rig_close(&second);
    free(blob);
    faults_set(NULL);
    test_device()->vk.DestroyShaderModule(test_device()->device, module, NULL);
}

// A driver that cannot compile the kernels of a step, the first of them or a later one: the step
// does not begin, and the cache is as it was.
static void steps_without_kernels(void **state) {
    (void)state;
    static float out[30 * 2 * 48], expected[30 * 2 * 48];
    rig r, cpu;
    open_beside_host(&r, &cpu);
    const lk_sequence id = model_add(&r);
    const lk_sequence same = model_add(&cpu);
    const uint32_t n_live = faults_pipelines().live;
    for (uint32_t failed = 1; failed <= 2; ++failed) {
        faults_set(&(vulkan_faults){.failed_pipeline = failed});
        assert_int_equal(rig_step(&r, id, 1, 0, 30, out), LK_E_NOMEM);
        rig_sentence("compiling shader attend_prefill");
        assert_int_equal(faults_pipelines().live, n_live);
    }
    faults_set(NULL);
    step(&r, id, 0, 30, out);
    step(&cpu, same, 0, 30, expected);
    assert_true(rig_distance(out, expected, 30 * 2 * 48) <= 2e-2f);
    assert_int_equal(faults_pipelines().live, n_live + 2);
    step(&r, id, 30, 30, out);
    assert_int_equal(faults_pipelines().live, n_live + 2);
    rig_close(&r);
    rig_close(&cpu);
}

// Caches of one context on two threads, which want the same pipelines as they meet.
static void on_two_threads(void **state) {
    (void)state;
    rig r;
    memset(&r, 0, sizeof r);
    r.device = counted();
    lk_context_desc desc;
    rig_context_desc(&r, &desc);
    desc.alloc = NULL;  // the rig's hooks count without a lock
    desc.free = NULL;
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &r.context), LK_OK);
    const VkShaderModule module = stand_in();
    faults_set(&(vulkan_faults){.stand_in = module});
    walk up = {&r, 0}, down = {&r, 1};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, open_one_by_one, &down), 0);
    assert_null(open_one_by_one(&up));
    void *failed = NULL;
    assert_int_equal(pthread_join(other, &failed), 0);
    assert_null(failed);
    assert_true(faults_pipelines().live >= MOST_IDLE);
    assert_true(faults_pipelines().live <= MOST_SHARED + MOST_IDLE);
    rig_close(&r);
    assert_int_equal(faults_pipelines().live, 0);
    faults_set(NULL);
    test_device()->vk.DestroyShaderModule(test_device()->device, module, NULL);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    test_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_come_and_go),
        cmocka_unit_test(what_was_compiled_of_late),
        cmocka_unit_test(steps_without_kernels),
        cmocka_unit_test(on_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
