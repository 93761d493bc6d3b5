// Bad calls of a CUDA context: each has its status and its sentence, and leaves the cache as it
// was.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "api/model.h"

static void cuda(cudaError_t error) {
    if (error != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(error));
}

static cudaStream_t stream_of(const rig *r) { return r->device->queue->handle; }

// A cache with two sequences of one history. Bad calls name the first one; in the end both give the
// same answers.
typedef struct fixture {
    rig r;
    lk_sequence ids[2];
    uint32_t length;
    lk_cache_stats before;
} fixture;

static void open_fixture(fixture *f) {
    model_open(&f->r, rig_cuda(), "kitty-pro");
    f->length = 230;
    for (int i = 0; i < 2; ++i) {
        f->ids[i] = model_add(&f->r);
        assert_int_equal(rig_fill(&f->r, f->ids[i], 1, 0, f->length, 100, NULL), LK_OK);
    }
    f->before = rig_stats(&f->r);
}

static void expect_unchanged(const fixture *f) {
    const lk_cache_stats now = rig_stats(&f->r);
    assert_memory_equal(&now, &f->before, sizeof now);
}

static void close_fixture(fixture *f) {
    enum { N = 90 };
    const size_t n = (size_t)N * rig_width(&f->r);
    float *x = calloc(n, sizeof *x);
    float *y = calloc(n, sizeof *y);
    assert_non_null(x);
    assert_non_null(y);
    assert_int_equal(rig_fill(&f->r, f->ids[0], 2, 0, N, 7, x), LK_OK);
    assert_int_equal(rig_fill(&f->r, f->ids[1], 2, 0, N, 7, y), LK_OK);
    assert_memory_equal(x, y, n * sizeof *x);
    free(x);
    free(y);
    rig_close(&f->r);
}

static void contexts(void **state) {
    (void)state;
    rig r;
    memset(&r, 0, sizeof r);
    r.device = rig_cuda();
    lk_context_desc desc;
    rig_context_desc(&r, &desc);
    desc.device_index = 77;
    lk_context *context = NULL;
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &context), LK_E_NOT_FOUND);
    rig_sentence("77");
    assert_null(context);
    assert_int_equal(r.memory.live_bytes, 0);
    print_message("a device that this build has no kernels for cannot be provoked here\n");
}

static void capabilities(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    lk_capability good;
    assert_int_equal(lk_capability_init(&good, sizeof good), LK_OK);
    good.group_size = 16;
    good.key_bits = 3;
    good.value_bits = 1;
    good.page_tokens = 64;
    good.memory = LK_MEMORY_CUDA;
    good.dtype = LK_F16;
    good.queue = LK_QUEUE_CUDA_STREAM;
    for (good.head_dim = 32; good.head_dim <= 256; good.head_dim += 16)
        assert_int_equal(lk_context_supports(f.r.context, &good), LK_OK);
    good.head_dim = 72;
    assert_int_equal(lk_context_supports(f.r.context, &good), LK_E_ARGUMENT);
    rig_sentence("72");
    good.head_dim = 528;
    assert_int_equal(lk_context_supports(f.r.context, &good), LK_E_ARGUMENT);
    rig_sentence("528");
    // Prefill above 256 channels needs the shared memory that some devices have.
    good.head_dim = 272;
    const lk_status wide = lk_context_supports(f.r.context, &good);
    if (wide != LK_OK) {
        assert_int_equal(wide, LK_E_UNSUPPORTED);
        rig_sentence("272");
    }
    for (good.head_dim = 288; good.head_dim <= 512; good.head_dim += 16)
        assert_int_equal(lk_context_supports(f.r.context, &good), wide);
    good.head_dim = 64;
    good.memory = LK_MEMORY_HOST;
    assert_int_equal(lk_context_supports(f.r.context, &good), LK_E_UNSUPPORTED);
    rig_sentence("memory");
    good.memory = LK_MEMORY_CUDA;
    good.queue = LK_QUEUE_VULKAN_RECORD;
    assert_int_equal(lk_context_supports(f.r.context, &good), LK_E_UNSUPPORTED);
    rig_sentence("queue");
    expect_unchanged(&f);
    close_fixture(&f);
}

static void caches(void **state) {
    (void)state;
    rig r;
    model_open(&r, rig_cuda(), "kitty-pro");
    lk_cache_destroy(&r.cache);
    assert_int_equal(rig_cache(&r, 1, 64, 1000), LK_E_BUDGET);
    rig_sentence("1000");
    assert_null(r.cache);
    // Tables and workspace fit, a page does not.
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(r.plan, 1, 1, 64, &size), LK_OK);
    assert_int_equal(rig_cache(&r, 1, 64, size.table_bytes + 1000), LK_E_BUDGET);
    assert_null(r.cache);
    // One page fits, a second one does not.
    assert_int_equal(rig_cache(&r, 1, 64, size.cache_bytes), LK_OK);
    const lk_sequence id = model_add(&r);
    lk_status filled = LK_OK;
    for (uint32_t position = 0; !filled; ++position)
        filled = rig_step(&r, id, 0, position, 1, NULL);
    assert_int_equal(filled, LK_E_BUDGET);
    const lk_cache_stats before = rig_stats(&r);
    const uint32_t n = 1;
    assert_int_equal(rig_begin(&r, 1, &id, &n, NULL), LK_E_BUDGET);
    rig_sentence("is short of");
    const lk_cache_stats after = rig_stats(&r);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_E_STATE);
    rig_close(&r);
}

static void queues(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    const uint32_t n = 1;
    lk_queue queue = *f.r.device->queue;
    assert_int_equal(lk_step_begin(f.r.cache, NULL, 1, f.ids, &n, NULL), LK_E_ARGUMENT);
    rig_sentence("queue is NULL");
    queue.kind = 9;
    assert_int_equal(lk_step_begin(f.r.cache, &queue, 1, f.ids, &n, NULL), LK_E_ARGUMENT);
    rig_sentence("9");
    queue.kind = LK_QUEUE_VULKAN_SUBMIT;
    assert_int_equal(lk_step_begin(f.r.cache, &queue, 1, f.ids, &n, NULL), LK_E_UNSUPPORTED);
    rig_sentence("Vulkan");
    expect_unchanged(&f);
    int n_devices = 0;
    cuda(cudaGetDeviceCount(&n_devices));
    if (n_devices > 1) {
        cudaStream_t foreign;
        cuda(cudaSetDevice(1));
        cuda(cudaStreamCreateWithFlags(&foreign, cudaStreamNonBlocking));
        cuda(cudaSetDevice(0));
        queue.kind = LK_QUEUE_CUDA_STREAM;
        queue.handle = foreign;
        assert_int_equal(lk_step_begin(f.r.cache, &queue, 1, f.ids, &n, NULL), LK_E_ARGUMENT);
        rig_sentence("queue is no stream of CUDA device 0");
        cuda(cudaStreamDestroy(foreign));
        expect_unchanged(&f);
    } else {
        print_message("one GPU: no stream of another device\n");
    }
    close_fixture(&f);
}

static void another_queue_follows(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    cudaStream_t second;
    cuda(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    lk_queue queue = *f.r.device->queue;
    queue.handle = second;
    const uint32_t n = 1;
    assert_int_equal(lk_step_begin(f.r.cache, &queue, 1, f.ids, &n, NULL), LK_OK);
    assert_int_equal(lk_step_discard(f.r.cache), LK_OK);
    assert_int_equal(rig_begin(&f.r, 1, f.ids, &n, NULL), LK_OK);
    assert_int_equal(lk_step_discard(f.r.cache), LK_OK);
    cuda(cudaStreamSynchronize(second));
    cuda(cudaStreamDestroy(second));
    close_fixture(&f);
}

static void end_capture(const rig *r) {
    cudaGraph_t graph;
    cuda(cudaStreamEndCapture(stream_of(r), &graph));
    cuda(cudaGraphDestroy(graph));
}

static void captures(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    const uint32_t n = 1;
    cuda(cudaStreamBeginCapture(stream_of(&f.r), cudaStreamCaptureModeGlobal));
    assert_int_equal(rig_begin(&f.r, 1, f.ids, &n, NULL), LK_E_STATE);
    rig_sentence("captured");
    assert_int_equal(lk_sequence_truncate(f.r.cache, f.ids[0], f.length - 70), LK_E_STATE);
    rig_sentence("captured");
    end_capture(&f.r);
    expect_unchanged(&f);
    const uint32_t many = LK_DRAFT_TOKENS + 1;
    assert_int_equal(rig_begin(&f.r, 1, f.ids, &many, NULL), LK_OK);
    const lk_layer *layer = &f.r.layers[0];
    lk_tensor kv;
    rig_tensor(&f.r, &kv,
               rig_place(&f.r, NULL, (size_t)many * layer->n_kv_heads * layer->head_dim * 4),
               layer->n_kv_heads, layer->head_dim);
    cuda(cudaStreamBeginCapture(stream_of(&f.r), cudaStreamCaptureModeGlobal));
    assert_int_equal(lk_append(f.r.cache, 0, &kv, &kv), LK_E_UNSUPPORTED);
    end_capture(&f.r);
    assert_int_equal(lk_step_discard(f.r.cache), LK_OK);
    close_fixture(&f);
}

// Tensors of a layer for one token, zeros.
typedef struct tensors {
    lk_tensor k, v, q, out, lse;
} tensors;

static tensors make_tensors(rig *r, uint32_t index) {
    const lk_layer *layer = &r->layers[index];
    tensors t;
    lk_tensor *const all[] = {&t.k, &t.v, &t.q, &t.out, &t.lse};
    for (int i = 0; i < 5; ++i) {
        const uint32_t n_heads = i < 2 ? layer->n_kv_heads : layer->n_query_heads;
        const uint32_t n_channels = i < 4 ? layer->head_dim : 1;
        rig_tensor(r, all[i], rig_place(r, NULL, (size_t)n_heads * n_channels * sizeof(float)),
                   n_heads, n_channels);
    }
    return t;
}

static lk_status call(rig *r, const tensors *t, int is_attend) {
    return is_attend ? lk_attend(r->cache, 0, &t->q, &t->out, &t->lse)
                     : lk_append(r->cache, 0, &t->k, &t->v);
}

static void pointers(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    const tensors good = make_tensors(&f.r, 0);
    static float host[4 * 64];
    void *pinned = NULL;
    cuda(cudaMallocHost(&pinned, sizeof host));
    const uint32_t n = 1;
    assert_int_equal(rig_begin(&f.r, 1, f.ids, &n, NULL), LK_OK);
    const char *const names[] = {"k", "v", "q", "out", "lse"};
    for (int i = 0; i < 5; ++i) {
        if (i == 2)
            assert_int_equal(call(&f.r, &good, 0), LK_OK);
        tensors bad = good;
        lk_tensor *const all[] = {&bad.k, &bad.v, &bad.q, &bad.out, &bad.lse};
        all[i]->data = host;
        assert_int_equal(call(&f.r, &bad, i >= 2), LK_E_ARGUMENT);
        rig_sentence(names[i]);
        rig_sentence("host memory");
        all[i]->data = pinned;
        assert_int_equal(call(&f.r, &bad, i >= 2), LK_E_ARGUMENT);
        rig_sentence("pinned");
        all[i]->data = NULL;
        assert_int_equal(call(&f.r, &bad, i >= 2), LK_E_ARGUMENT);
        rig_sentence("NULL");
        all[i]->data = host;
        all[i]->memory = LK_MEMORY_HOST;
        assert_int_equal(call(&f.r, &bad, i >= 2), LK_E_UNSUPPORTED);
        rig_sentence(names[i]);
    }
    assert_int_equal(lk_append(f.r.cache, 1, NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_attend(f.r.cache, 0, NULL, NULL, NULL), LK_E_ARGUMENT);
    assert_int_equal(call(&f.r, &good, 1), LK_OK);
    assert_int_equal(lk_step_discard(f.r.cache), LK_OK);
    cuda(cudaFreeHost(pinned));
    close_fixture(&f);
}

static void CUDART_CB hold_stream(void *user) {
    while (!atomic_load((atomic_int *)user)) {}
}

// Work that has not run when the step is committed: nothing waits for it, and the next step is
// reported.
static void late_faults(void **state) {
    (void)state;
    rig r;
    model_open(&r, rig_cuda(), "kivi4");
    const lk_sequence id = model_add(&r);
    assert_int_equal(rig_fill(&r, id, 1, 0, 230, 100, NULL), LK_OK);
    const uint32_t n = 1;
    tensors all[RIG_LAYERS];
    for (uint32_t l = 0; l < RIG_LAYERS; ++l)
        all[l] = make_tensors(&r, l);
    float values[2 * 64] = {0};
    values[64 + 3] = NAN;
    r.device->put(all[0].v.data, values, sizeof values);
    // What the first step of one token makes is there before the stream is held.
    assert_int_equal(rig_step(&r, id, 1, 230, 1, NULL), LK_OK);
    r.device->wait();
    static atomic_int is_free;
    cuda(cudaLaunchHostFunc(stream_of(&r), hold_stream, &is_free));
    assert_int_equal(rig_begin(&r, 1, &id, &n, NULL), LK_OK);
    for (uint32_t l = 0; l < RIG_LAYERS; ++l) {
        assert_int_equal(lk_append(r.cache, l, &all[l].k, &all[l].v), LK_OK);
        assert_int_equal(lk_attend(r.cache, l, &all[l].q, &all[l].out, NULL), LK_OK);
    }
    assert_int_equal(lk_cache_poll(r.cache), LK_OK);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_OK);
    atomic_store(&is_free, 1);
    r.device->wait();
    assert_int_equal(lk_cache_poll(r.cache), LK_E_DATA);
    assert_int_equal(rig_begin(&r, 1, &id, &n, NULL), LK_E_DATA);
    rig_sentence("values of layer 0, KV head 1, token 0");
    rig_sentence("committed");
    uint64_t length = 0;
    assert_int_equal(lk_sequence_length(r.cache, id, &length), LK_OK);
    assert_int_equal(length, 232);
    assert_int_equal(lk_sequence_truncate(r.cache, id, 231), LK_OK);
    assert_int_equal(rig_step(&r, id, 1, 231, 1, NULL), LK_OK);
    assert_int_equal(lk_cache_poll(r.cache), LK_OK);
    rig_close(&r);
}

int main(void) {
    rig_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts),
        cmocka_unit_test(capabilities),
        cmocka_unit_test(caches),
        cmocka_unit_test(queues),
        cmocka_unit_test(another_queue_follows),
        cmocka_unit_test(captures),
        cmocka_unit_test(pointers),
        cmocka_unit_test(late_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
