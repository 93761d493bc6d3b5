// Every documented error of contexts, caches, sequences and steps, and that nothing changed.
//
// SPDX-License-Identifier: Apache-2.0
#define _DEFAULT_SOURCE
#include "rig.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#define BUDGET (64u << 20)

static void start(rig *r, const char *preset) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 2, 4, 2, 32);
    rig_open(r);
    rig_preset(r, preset);
    assert_int_equal(rig_cache(r, 2, 100, BUDGET), LK_OK);
}

static lk_sequence add(rig *r) {
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
    return id;
}

static void init_functions(void **state) {
    (void)state;
    char memory[512];
    memset(memory, 7, sizeof memory);
    assert_int_equal(lk_context_desc_init(NULL, 100), LK_E_ARGUMENT);
    assert_int_equal(lk_context_desc_init((lk_context_desc *)memory, 4), LK_E_ARGUMENT);
    assert_int_equal(lk_context_desc_init((lk_context_desc *)memory, sizeof memory), LK_OK);
    assert_int_equal(((lk_context_desc *)memory)->size, sizeof memory);
    assert_int_equal(((lk_context_desc *)memory)->backend, LK_BACKEND_CPU);
    assert_int_equal(lk_cache_desc_init(NULL, 100), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_desc_init((lk_cache_desc *)memory, 8), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_desc_init((lk_cache_desc *)memory, sizeof(lk_cache_desc)), LK_OK);
    assert_int_equal(((lk_cache_desc *)memory)->max_sequences, 1);
    assert_int_equal(((lk_cache_desc *)memory)->max_step_tokens, 512);
    assert_int_equal(lk_cache_stats_init(NULL, 100), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_stats_init((lk_cache_stats *)memory, 8), LK_E_ARGUMENT);
    assert_int_equal(lk_device_info_init(NULL, 100), LK_E_ARGUMENT);
    assert_int_equal(lk_device_info_init((lk_device_info *)memory, 8), LK_E_ARGUMENT);
    assert_int_equal(lk_capability_init(NULL, 100), LK_E_ARGUMENT);
    assert_int_equal(lk_capability_init((lk_capability *)memory, 8), LK_E_ARGUMENT);
}

static void versions(void **state) {
    (void)state;
    assert_string_equal(lk_version(), "0.2.0");
    assert_int_equal(lk_abi_version(), LK_ABI_VERSION);
    assert_non_null(strstr(lk_build_info(), "0.2.0"));
    assert_non_null(strstr(lk_build_info(), "cpu"));
}

static void devices(void **state) {
    (void)state;
    uint32_t count = 0;
    assert_int_equal(lk_device_count(NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_device_count(&count), LK_OK);
    assert_true(count >= 1);
    lk_device_info info;
    assert_int_equal(lk_device_info_init(&info, sizeof info), LK_OK);
    assert_int_equal(lk_device_get(0, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_device_get(count, &info), LK_E_NOT_FOUND);
    assert_int_equal(lk_device_get(0, &info), LK_OK);
    assert_int_equal(info.backend, LK_BACKEND_CPU);
    assert_true(info.n_threads >= 1 && info.name[0]);
    info.size = 4;
    assert_int_equal(lk_device_get(0, &info), LK_E_ARGUMENT);
}

static lk_status open_with(lk_context_desc desc) {
    lk_context *context = (lk_context *)(uintptr_t)1;
    const lk_status status = lk_context_open(&desc, LK_ABI_VERSION, &context);
    if (status)
        assert_null(context);
    else
        assert_int_equal(lk_context_close(&context), LK_OK);
    return status;
}

static void contexts(void **state) {
    (void)state;
    lk_context *context = NULL;
    rig r;
    memset(&r, 0, sizeof r);
    lk_context_desc desc;
    rig_context_desc(&r, &desc);
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_context_open(&desc, (LK_ABI_MAJOR + 1) << 16, &context), LK_E_MISMATCH);
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION + 1, &context), LK_E_MISMATCH);
    assert_null(context);
    lk_context_desc bad = desc;
    bad.size = 8;
    assert_int_equal(open_with(bad), LK_E_ARGUMENT);
    bad = desc;
    bad.backend = 9;
    assert_int_equal(open_with(bad), LK_E_ARGUMENT);
    rig_sentence("9");
    bad = desc;
    bad.device_index = 77;
    if (!desc.vulkan) {  // else the device is the host's
        assert_int_equal(open_with(bad), LK_E_NOT_FOUND);
        rig_sentence("77");
    }
    bad = desc;
    bad.n_threads = 1025;
    assert_int_equal(open_with(bad), LK_E_ARGUMENT);
    bad = desc;
    bad.cpu_mask = 0x100;
    assert_int_equal(open_with(bad), LK_E_ARGUMENT);
    bad = desc;
    bad.log_level = 5;
    assert_int_equal(open_with(bad), LK_E_ARGUMENT);
    bad = desc;
    bad.free = NULL;
    assert_int_equal(open_with(bad), LK_E_ARGUMENT);
    struct {
        lk_context_desc desc;
        uint32_t more[2];
    } longer = {desc, {0, 0}};
    longer.desc.size = sizeof longer;
    assert_int_equal(lk_context_open(&longer.desc, LK_ABI_VERSION, &context), LK_OK);
    assert_int_equal(lk_context_close(&context), LK_OK);
    assert_null(context);
    longer.more[1] = 1;
    assert_int_equal(lk_context_open(&longer.desc, LK_ABI_VERSION, &context), LK_E_UNSUPPORTED);
    assert_int_equal(lk_context_open(NULL, LK_ABI_VERSION, &context), LK_OK);
    assert_int_equal(lk_context_close(&context), LK_OK);
    assert_int_equal(lk_context_close(&context), LK_OK);
    assert_int_equal(lk_context_close(NULL), LK_E_ARGUMENT);
}

// A size that no init wrote: what lies after the struct is not read. The struct ends where its page
// does, and the next page cannot be read.
static void sizes_are_capped(void **state) {
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    lk_context_desc *last = (lk_context_desc *)(void *)(pages + page - sizeof *last);
    const uint32_t sizes[] = {LK_MAX_STRUCT_BYTES + 1, 0xa5a5a5a5, UINT32_MAX};
    lk_context *context = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        assert_int_equal(lk_context_desc_init(last, sizeof *last), LK_OK);
        last->size = sizes[i];
        assert_int_equal(lk_context_open(last, LK_ABI_VERSION, &context), LK_E_ARGUMENT);
        rig_sentence("must be at most 4096: start from its init function");
        lk_device_info *info = (lk_device_info *)(void *)(pages + page - sizeof *info);
        assert_int_equal(lk_device_info_init(info, sizeof *info), LK_OK);
        info->size = sizes[i];
        assert_int_equal(lk_device_get(0, info), LK_E_ARGUMENT);
    }
    assert_int_equal(lk_context_desc_init(last, LK_MAX_STRUCT_BYTES + 1), LK_E_ARGUMENT);
    assert_int_equal(munmap(pages, 2 * page), 0);
    union {
        lk_context_desc desc;
        char bytes[LK_MAX_STRUCT_BYTES];
    } longest;
    assert_int_equal(lk_context_desc_init(&longest.desc, sizeof longest), LK_OK);
    assert_int_equal(lk_context_open(&longest.desc, LK_ABI_VERSION, &context), LK_OK);
    assert_int_equal(lk_context_close(&context), LK_OK);
}

static void children_keep_a_context(void **state) {
    (void)state;
    rig r;
    start(&r, "fp16");
    lk_context *context = r.context;
    assert_int_equal(lk_context_close(&context), LK_E_BUSY);
    assert_non_null(context);
    lk_device_info info;
    assert_int_equal(lk_device_info_init(&info, sizeof info), LK_OK);
    assert_int_equal(lk_context_device(r.context, &info), LK_OK);
    assert_int_equal(lk_context_device(NULL, &info), LK_E_ARGUMENT);
    assert_int_equal(lk_context_device(r.context, NULL), LK_E_ARGUMENT);
    lk_cache_destroy(NULL);
    lk_cache *none = NULL;
    lk_cache_destroy(&none);
    rig_close(&r);
}

static void capabilities(void **state) {
    (void)state;
    rig r;
    start(&r, "fp16");
    lk_capability good;
    assert_int_equal(lk_capability_init(&good, sizeof good), LK_OK);
    good.head_dim = 128;
    good.group_size = 4;
    good.key_bits = 2;
    good.value_bits = 4;
    good.page_tokens = 128;
    good.memory = r.device->memory;
    good.queue = r.device->queue ? r.device->queue->kind : 0;
    good.dtype = LK_BF16;
    assert_int_equal(lk_context_supports(r.context, &good), LK_OK);
    assert_int_equal(lk_context_supports(NULL, &good), LK_E_ARGUMENT);
    assert_int_equal(lk_context_supports(r.context, NULL), LK_E_ARGUMENT);
    const struct {
        size_t offset;
        uint32_t value;
        lk_status status;
    } faults[] = {
        {offsetof(lk_capability, size), 4, LK_E_ARGUMENT},
        {offsetof(lk_capability, head_dim), 40, LK_E_ARGUMENT},
        {offsetof(lk_capability, head_dim), 528, LK_E_ARGUMENT},
        {offsetof(lk_capability, group_size), 0, LK_E_ARGUMENT},
        {offsetof(lk_capability, group_size), 1025, LK_E_ARGUMENT},
        {offsetof(lk_capability, key_bits), 5, LK_E_ARGUMENT},
        {offsetof(lk_capability, value_bits), 0, LK_E_ARGUMENT},
        {offsetof(lk_capability, page_tokens), 48, LK_E_ARGUMENT},
        {offsetof(lk_capability, memory), 0, LK_E_ARGUMENT},
        {offsetof(lk_capability, dtype), 4, LK_E_ARGUMENT},
        {offsetof(lk_capability, queue), 4, LK_E_ARGUMENT},
        {offsetof(lk_capability, memory), rig_other_memory(), LK_E_UNSUPPORTED},
        {offsetof(lk_capability, queue), rig_other_queue(), LK_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
        lk_capability bad = good;
        memcpy((char *)&bad + faults[i].offset, &faults[i].value, sizeof faults[i].value);
        assert_int_equal(lk_context_supports(r.context, &bad), faults[i].status);
    }
    good.key_bits = 1;
    good.page_tokens = 32;
    assert_int_equal(lk_context_supports(r.context, &good), LK_E_ARGUMENT);
    rig_close(&r);
}

static void cache_creation(void **state) {
    (void)state;
    rig r;
    start(&r, "kivi2");
    lk_cache_destroy(&r.cache);
    lk_cache_desc good;
    assert_int_equal(lk_cache_desc_init(&good, sizeof good), LK_OK);
    good.budget_bytes = BUDGET;
    lk_cache *cache = (lk_cache *)(uintptr_t)1;
    assert_int_equal(lk_cache_create(NULL, &r.geometry, r.plan, &good, &cache), LK_E_ARGUMENT);
    assert_null(cache);
    assert_int_equal(lk_cache_create(r.context, NULL, r.plan, &good, &cache), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_create(r.context, &r.geometry, NULL, &good, &cache), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_create(r.context, &r.geometry, r.plan, NULL, &cache), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_create(r.context, &r.geometry, r.plan, &good, NULL), LK_E_ARGUMENT);
    const struct {
        size_t offset;
        uint32_t value;
        lk_status status;
    } faults[] = {
        {offsetof(lk_cache_desc, size), 4, LK_E_ARGUMENT},
        {offsetof(lk_cache_desc, max_sequences), 0, LK_E_ARGUMENT},
        {offsetof(lk_cache_desc, max_sequences), 65537, LK_E_ARGUMENT},
        {offsetof(lk_cache_desc, max_step_tokens), 0, LK_E_ARGUMENT},
        {offsetof(lk_cache_desc, max_step_tokens), 1048577, LK_E_ARGUMENT},
        {offsetof(lk_cache_desc, flags), 4, LK_E_ARGUMENT},
        {offsetof(lk_cache_desc, max_budget_bytes), 1000, LK_E_ARGUMENT},
        {offsetof(lk_cache_desc, slab_bytes), 1000, LK_E_ARGUMENT},
        {offsetof(lk_cache_desc, budget_bytes), 1000, LK_E_BUDGET},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
        lk_cache_desc bad = good;
        memcpy((char *)&bad + faults[i].offset, &faults[i].value, sizeof faults[i].value);
        assert_int_equal(lk_cache_create(r.context, &r.geometry, r.plan, &bad, &cache),
                         faults[i].status);
        assert_null(cache);
    }
    rig_sentence("1000");
    rig other;
    memset(&other, 0, sizeof other);
    rig_geometry(&other, 2, 4, 2, 64);
    assert_int_equal(lk_cache_create(r.context, &other.geometry, r.plan, &good, &cache),
                     LK_E_MISMATCH);
    rig_sentence("head_dim");
    r.layers[1].n_kv_heads = 1025;
    assert_int_equal(lk_cache_create(r.context, &r.geometry, r.plan, &good, &cache), LK_E_ARGUMENT);
    r.layers[1].n_kv_heads = 2;
    r.geometry.n_layers = UINT32_MAX;
    assert_int_equal(lk_cache_create(r.context, &r.geometry, r.plan, &good, &cache), LK_E_ARGUMENT);
    r.geometry.n_layers = 2;
    rig_close(&r);
}

static void small_calls(void **state) {
    (void)state;
    rig r;
    start(&r, "kitty");
    lk_cache_stats stats;
    assert_int_equal(lk_cache_stats_init(&stats, sizeof stats), LK_OK);
    assert_int_equal(lk_cache_get_stats(NULL, &stats), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_get_stats(r.cache, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_get_stats(r.cache, &stats), LK_OK);
    assert_int_equal(stats.budget_bytes, BUDGET);
    const lk_backend backend = r.device->backend;
    assert_int_equal(stats.device_bytes == 0, backend == LK_BACKEND_CPU);
    assert_int_equal(lk_step_replay(NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_step_replay(r.cache),
                     backend == LK_BACKEND_CUDA ? LK_E_STATE : LK_E_UNSUPPORTED);
    assert_int_equal(lk_step_set_queue(NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_step_set_queue(r.cache, NULL),
                     backend == LK_BACKEND_VULKAN ? LK_E_STATE : LK_E_UNSUPPORTED);
    assert_null(lk_cache_plan(NULL));
    assert_string_equal(lk_plan_name(lk_cache_plan(r.cache)), "kitty");
    assert_int_equal(lk_cache_poll(NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_poll(r.cache), LK_OK);
    rig_close(&r);
}

static void sequences(void **state) {
    (void)state;
    rig r;
    start(&r, "kivi2");
    lk_sequence id = 5;
    uint64_t n = 0;
    assert_int_equal(lk_sequence_add(NULL, &id), LK_E_ARGUMENT);
    assert_int_equal(id, 0);
    assert_int_equal(lk_sequence_add(r.cache, NULL), LK_E_ARGUMENT);
    const lk_sequence a = add(&r);
    const lk_sequence b = add(&r);
    assert_true(a && b && a != b);
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_E_BUDGET);
    rig_sentence("max_sequences of 2");
    assert_int_equal(id, 0);
    assert_int_equal(lk_sequence_remove(NULL, a), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_remove(r.cache, 99), LK_E_NOT_FOUND);
    rig_sentence("99");
    assert_int_equal(lk_sequence_length(NULL, a, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_length(r.cache, a, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_length(r.cache, 0, &n), LK_E_NOT_FOUND);
    assert_int_equal(lk_sequence_truncate(NULL, a, 0), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_truncate(r.cache, 99, 0), LK_E_NOT_FOUND);
    assert_int_equal(lk_sequence_truncate(r.cache, a, 1), LK_E_ARGUMENT);
    uint32_t one = 1;
    assert_int_equal(rig_begin(&r, 1, &a, &one, NULL), LK_OK);
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_E_BUSY);
    assert_int_equal(lk_sequence_remove(r.cache, b), LK_E_BUSY);
    assert_int_equal(lk_sequence_truncate(r.cache, a, 0), LK_E_BUSY);
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    assert_int_equal(lk_sequence_remove(r.cache, a), LK_OK);
    assert_int_equal(lk_sequence_remove(r.cache, a), LK_E_NOT_FOUND);
    assert_true(add(&r) > b);
    rig_close(&r);
}

// The CPU takes no queue, CUDA a stream, and Vulkan a queue of its own kinds or none.
static void queue_errors(rig *r, const lk_sequence *ids, const uint32_t *n) {
    lk_queue queue;
    assert_int_equal(lk_queue_init(&queue, sizeof queue), LK_OK);
    assert_int_equal(lk_step_begin(r->cache, &queue, 2, ids, n, NULL), LK_E_ARGUMENT);
    if (r->device->backend == LK_BACKEND_CUDA) {
        assert_int_equal(lk_step_begin(r->cache, NULL, 2, ids, n, NULL), LK_E_ARGUMENT);
        rig_sentence("queue is NULL");
    }
    queue.kind = rig_other_queue();
    assert_int_equal(lk_step_begin(r->cache, &queue, 2, ids, n, NULL), LK_E_UNSUPPORTED);
    rig_sentence(queue.kind == LK_QUEUE_CUDA_STREAM ? "CUDA" : "Vulkan");
    queue.size = 2;
    assert_int_equal(lk_step_begin(r->cache, &queue, 2, ids, n, NULL), LK_E_ARGUMENT);
}

static void begin_errors(void **state) {
    (void)state;
    rig r;
    start(&r, "kivi2");
    const lk_sequence a = add(&r);
    const lk_sequence b = add(&r);
    const lk_sequence both[3] = {a, b, a};
    const lk_sequence twice[2] = {a, a};
    const lk_sequence unknown[2] = {a, 44};
    const uint32_t n[3] = {2, 3, 1};
    const uint32_t zero[2] = {2, 0};
    const uint32_t many[2] = {60, 41};
    const uint32_t huge[2] = {UINT32_MAX, UINT32_MAX};
    assert_int_equal(lk_step_begin(NULL, r.device->queue, 2, both, n, NULL), LK_E_ARGUMENT);
    assert_int_equal(rig_begin(&r, 0, both, n, NULL), LK_E_ARGUMENT);
    assert_int_equal(rig_begin(&r, 3, both, n, NULL), LK_E_ARGUMENT);
    assert_int_equal(rig_begin(&r, 2, NULL, n, NULL), LK_E_ARGUMENT);
    assert_int_equal(rig_begin(&r, 2, both, NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(rig_begin(&r, 2, twice, n, NULL), LK_E_ARGUMENT);
    rig_sentence("twice");
    assert_int_equal(rig_begin(&r, 2, unknown, n, NULL), LK_E_NOT_FOUND);
    rig_sentence("44");
    assert_int_equal(rig_begin(&r, 2, both, zero, NULL), LK_E_ARGUMENT);
    assert_int_equal(rig_begin(&r, 2, both, many, NULL), LK_E_ARGUMENT);
    rig_sentence("101");
    assert_int_equal(rig_begin(&r, 2, both, huge, NULL), LK_E_ARGUMENT);
    const int32_t forward[5] = {-1, 0, -1, 2, 0};
    assert_int_equal(rig_begin(&r, 2, both, n, forward), LK_E_ARGUMENT);
    const int32_t negative[5] = {-1, -2, -1, 0, 0};
    assert_int_equal(rig_begin(&r, 2, both, n, negative), LK_E_ARGUMENT);
    const uint32_t draft = 65;
    int32_t chain[65];
    for (int32_t i = 0; i < 65; ++i)
        chain[i] = i - 1;
    assert_int_equal(rig_begin(&r, 1, &a, &draft, chain), LK_E_ARGUMENT);
    rig_sentence("65");
    queue_errors(&r, both, n);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_E_STATE);
    assert_int_equal(rig_begin(&r, 2, both, n, NULL), LK_OK);
    assert_int_equal(rig_begin(&r, 2, both, n, NULL), LK_E_STATE);
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    rig_close(&r);
}

static void step_order(void **state) {
    (void)state;
    rig r;
    start(&r, "kivi2");
    const lk_sequence a = add(&r);
    const uint32_t n = 2;
    const rig_token tokens[2] = {{1, 0}, {1, 1}};
    void *memory = rig_place(&r, NULL, 2 * 4 * 32 * sizeof(float));
    void *more = rig_place(&r, NULL, 2 * 4 * 32 * sizeof(float));
    lk_tensor kv, q, out;
    rig_tensor(&r, &kv, memory, 2, 32);
    rig_tensor(&r, &q, memory, 4, 32);
    rig_tensor(&r, &out, more, 4, 32);
    assert_int_equal(lk_append(NULL, 0, &kv, &kv), LK_E_ARGUMENT);
    assert_int_equal(lk_attend(NULL, 0, &q, &out, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_step_commit(NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_step_discard(NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_append(r.cache, 0, &kv, &kv), LK_E_STATE);
    assert_int_equal(lk_attend(r.cache, 0, &q, &out, NULL), LK_E_STATE);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_E_STATE);
    assert_int_equal(lk_step_discard(r.cache), LK_E_STATE);
    assert_int_equal(rig_begin(&r, 1, &a, &n, NULL), LK_OK);
    assert_int_equal(lk_append(r.cache, 2, &kv, &kv), LK_E_ARGUMENT);
    rig_sentence("2");
    assert_int_equal(lk_attend(r.cache, 2, &q, &out, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_attend(r.cache, 0, &q, &out, NULL), LK_E_STATE);
    assert_int_equal(rig_append(&r, 1, tokens, n), LK_OK);
    assert_int_equal(rig_append(&r, 1, tokens, n), LK_E_STATE);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_E_STATE);
    rig_sentence("layer 0");
    assert_int_equal(rig_layer(&r, 0, tokens, n, NULL), LK_OK);
    assert_int_equal(lk_attend(r.cache, 0, &q, &out, NULL), LK_E_STATE);
    assert_int_equal(lk_attend(r.cache, 1, &q, &out, NULL), LK_E_STATE);
    const uint32_t too_many = 3;
    assert_int_equal(lk_step_commit(r.cache, &too_many), LK_E_ARGUMENT);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_OK);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_E_STATE);
    const uint32_t long_step = 70;
    rig_token many[70];
    for (uint32_t t = 0; t < 70; ++t)
        many[t] = (rig_token){1, 2 + t};
    assert_int_equal(rig_begin(&r, 1, &a, &long_step, NULL), LK_OK);
    assert_int_equal(rig_layers(&r, many, 70, NULL), LK_OK);
    const uint32_t some = 69;
    assert_int_equal(lk_step_commit(r.cache, &some), LK_E_ARGUMENT);
    const uint32_t none = 0;
    assert_int_equal(lk_step_commit(r.cache, &none), LK_OK);
    uint64_t length = 0;
    assert_int_equal(lk_sequence_length(r.cache, a, &length), LK_OK);
    assert_int_equal(length, 2);
    rig_close(&r);
}

static void ranking_needs_attention(void **state) {
    (void)state;
    rig r;
    start(&r, "kitty");
    lk_cache_destroy(&r.cache);
    rig_query_ranking(&r);
    assert_int_equal(rig_cache(&r, 1, 10, BUDGET), LK_OK);
    const lk_sequence a = add(&r);
    const uint32_t n = 1;
    const rig_token token = {1, 0};
    assert_int_equal(rig_begin(&r, 1, &a, &n, NULL), LK_OK);
    assert_int_equal(rig_layer(&r, 0, &token, 1, NULL), LK_OK);
    assert_int_equal(rig_append(&r, 1, &token, 1), LK_OK);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_E_STATE);
    rig_sentence("layer 1");
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    rig_close(&r);
}

static void tensors(void **state) {
    (void)state;
    rig r;
    start(&r, "kivi2");
    const lk_sequence a = add(&r);
    const uint32_t n = 2;
    void *memory = rig_place(&r, NULL, 2 * 4 * 32 * sizeof(float));
    void *more = rig_place(&r, NULL, 2 * 4 * 32 * sizeof(float));
    void *sums = rig_place(&r, NULL, 2 * 4 * sizeof(float));
    lk_tensor kv, q, out, lse;
    rig_tensor(&r, &kv, memory, 2, 32);
    rig_tensor(&r, &q, memory, 4, 32);
    rig_tensor(&r, &out, more, 4, 32);
    rig_tensor(&r, &lse, sums, 4, 1);
    assert_int_equal(rig_begin(&r, 1, &a, &n, NULL), LK_OK);
    for (int fault = 0; fault < 13; ++fault) {
        lk_tensor bad = kv;
        lk_status expected = LK_E_ARGUMENT;
        switch (fault) {
            case 0: bad.size = 8; break;
            case 1: bad.dtype = 0; break;
            case 2: bad.dtype = 4; break;
            case 3: bad.memory = 0; break;
            case 4:
                bad.memory = rig_other_memory();
                expected = LK_E_UNSUPPORTED;
                break;
            case 5: bad.flags = 1; break;
            case 6: rig_point(&r, &bad, NULL); break;
            case 7: rig_point(&r, &bad, (char *)memory + 2); break;
            case 8: bad.buffer = 1; break;
            case 9: bad.offset_bytes = 1u << 20; break;
            case 10: bad.token_stride = -1; break;
            case 11: bad.head_stride = -64; break;
            default: bad.token_stride = INT64_MAX; break;
        }
        assert_int_equal(lk_append(r.cache, 0, &bad, &kv), expected);
        rig_sentence("k");
        assert_int_equal(lk_append(r.cache, 0, &kv, &bad), expected);
        rig_sentence("v");
    }
    assert_int_equal(lk_append(r.cache, 0, NULL, &kv), LK_E_ARGUMENT);
    assert_int_equal(lk_append(r.cache, 0, &kv, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_append(r.cache, 0, &kv, &kv), LK_OK);
    assert_int_equal(lk_attend(r.cache, 0, NULL, &out, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_attend(r.cache, 0, &q, NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_attend(r.cache, 0, &q, &q, NULL), LK_E_ARGUMENT);
    rig_sentence("overlaps");
    lk_tensor flat = out;
    flat.token_stride = 0;
    assert_int_equal(lk_attend(r.cache, 0, &q, &flat, NULL), LK_E_ARGUMENT);
    lk_tensor half = lse;
    half.dtype = LK_F16;
    assert_int_equal(lk_attend(r.cache, 0, &q, &out, &half), LK_E_ARGUMENT);
    rig_sentence("lse");
    lk_tensor inside = lse;
    rig_point(&r, &inside, more);
    assert_int_equal(lk_attend(r.cache, 0, &q, &out, &inside), LK_E_ARGUMENT);
    assert_int_equal(lk_attend(r.cache, 0, &q, &out, &lse), LK_OK);
    assert_int_equal(lk_append(r.cache, 1, &kv, &kv), LK_OK);
    assert_int_equal(lk_attend(r.cache, 1, &q, &out, NULL), LK_OK);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_OK);
    rig_close(&r);
}

// The CPU finds what is no number in the call; a device finds it when its work has run, which may
// be before the call looks for faults.
static void faulty_append(rig *r, uint32_t layer, const lk_tensor *k, const lk_tensor *v,
                          const char *sentence) {
    const lk_status status = lk_append(r->cache, layer, k, v);
    if (status || !r->device->queue) {
        assert_int_equal(status, LK_E_DATA);
        rig_sentence(sentence);
    } else {
        r->device->wait();
    }
    assert_int_equal(lk_cache_poll(r->cache), LK_E_DATA);
    rig_sentence(sentence);
}

static void bad_numbers(void **state) {
    (void)state;
    rig r;
    start(&r, "kivi2");
    const lk_sequence a = add(&r);
    assert_int_equal(rig_fill(&r, a, 1, 0, 90, 90, NULL), LK_OK);
    const uint32_t n = 3;
    float k[3 * 2 * 32] = {0};
    float v[3 * 2 * 32] = {0};
    v[2 * 64 + 32 + 5] = NAN;
    k[2] = 1e6f;
    lk_tensor kt, vt, q, out;
    rig_tensor(&r, &kt, rig_place(&r, k, sizeof k), 2, 32);
    rig_tensor(&r, &vt, rig_place(&r, v, sizeof v), 2, 32);
    rig_tensor(&r, &q, rig_place(&r, NULL, 3 * 4 * 32 * sizeof(float)), 4, 32);
    rig_tensor(&r, &out, rig_place(&r, NULL, 3 * 4 * 32 * sizeof(float)), 4, 32);
    assert_int_equal(rig_begin(&r, 1, &a, &n, NULL), LK_OK);
    assert_int_equal(lk_append(r.cache, 0, &kt, &kt), LK_OK);
    r.device->wait();
    assert_int_equal(rig_stats(&r).values_saturated, 2);
    faulty_append(&r, 1, &kt, &vt, "values of layer 1, KV head 1, token 2");
    rig_sentence("of sequence 1");
    assert_int_equal(lk_append(r.cache, 1, &kt, &kt), LK_E_DATA);
    assert_int_equal(lk_attend(r.cache, 0, &q, &out, NULL), LK_E_DATA);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_E_DATA);
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    assert_int_equal(lk_cache_poll(r.cache), LK_OK);
    k[2] = -INFINITY;
    r.device->put(rig_first(&r, &kt), k, sizeof k);
    assert_int_equal(rig_begin(&r, 1, &a, &n, NULL), LK_OK);
    faulty_append(&r, 0, &kt, &kt, "keys of layer 0, KV head 0, token 0");
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    assert_int_equal(rig_fill(&r, a, 1, 90, 10, 3, NULL), LK_OK);
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_functions),
        cmocka_unit_test(versions),
        cmocka_unit_test(devices),
        cmocka_unit_test(contexts),
        cmocka_unit_test(sizes_are_capped),
        cmocka_unit_test(children_keep_a_context),
        cmocka_unit_test(capabilities),
        cmocka_unit_test(cache_creation),
        cmocka_unit_test(small_calls),
        cmocka_unit_test(sequences),
        cmocka_unit_test(begin_errors),
        cmocka_unit_test(step_order),
        cmocka_unit_test(ranking_needs_attention),
        cmocka_unit_test(tensors),
        cmocka_unit_test(bad_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
