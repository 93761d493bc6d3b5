// A host that owns its Vulkan device: lowkey's steps are recorded into the host's command buffer
// between dispatches of the host, or submitted between its semaphores. Answers are those of the
// CPU.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "api/model.h"
#include "device.h"

// The model's answers by two ways may be apart as far as test_steps.c derives.
#define MOST 3.6e-2f
#define MAX_TOKENS 300
#define GROUP_SIZE 64       // of scale.comp
#define INPUT_FACTOR 0.25f  // exact, as its inverse is
#define OUTPUT_FACTOR 2.0f

static const uint32_t kScaleWords[] = {
#include "scale.inc"  // generated
};

// The push constants of scale.comp.
typedef struct scale_push {
    uint64_t from;
    uint64_t to;
    uint32_t n;
    float factor;
} scale_push;

// One cache on the CPU and one on the host's device with the same tokens. Tensors lie one after
// the other in a buffer: layer by layer q, k, v; outputs likewise in another one.
typedef struct fixture {
    rig cpu, gpu;
    lk_sequence id;  // the same in both
    uint32_t length;
    vulkan_program scale;
    vulkan_buffer raw, inputs, outputs, results;
    float *expected;
} fixture;

static const uint32_t kInputs[] = {RIG_Q, RIG_K, RIG_V};

static uint32_t heads_of(const lk_layer *layer, uint32_t kind) {
    return kind == RIG_Q ? layer->n_query_heads : layer->n_kv_heads;
}

static uint32_t input_width(const rig *r) {
    uint32_t width = 0;
    for (uint32_t l = 0; l < r->geometry.n_layers; ++l)
        width += (r->layers[l].n_query_heads + 2 * r->layers[l].n_kv_heads) * r->layers[l].head_dim;
    return width;
}

static void make_buffer(const fixture *f, vulkan_buffer *buffer, uint32_t width, int is_known) {
    const uint64_t bytes = (uint64_t)MAX_TOKENS * width * sizeof(float);
    test_check(vulkan_buffer_create(test_device(), bytes, VULKAN_BUFFER_USAGE, 1, buffer));
    if (is_known)
        assert_int_equal(
            lk_vulkan_buffer_add(f->gpu.context, (uint64_t)buffer->handle, bytes, buffer->usage),
            LK_OK);
}

static void open_fixture(fixture *f, const char *plan) {
    memset(f, 0, sizeof *f);
    model_open(&f->cpu, rig_host(), plan);
    model_open(&f->gpu, rig_vulkan_buffers(), plan);
    f->id = model_add(&f->cpu);
    assert_int_equal(model_add(&f->gpu), f->id);
    test_check(vulkan_program_create(test_device(), kScaleWords, sizeof kScaleWords,
                                     sizeof(scale_push), &f->scale));
    make_buffer(f, &f->raw, input_width(&f->gpu), 0);
    make_buffer(f, &f->inputs, input_width(&f->gpu), 1);
    make_buffer(f, &f->outputs, rig_width(&f->gpu), 1);
    make_buffer(f, &f->results, rig_width(&f->gpu), 0);
    f->expected = calloc((size_t)MAX_TOKENS * rig_width(&f->cpu), sizeof(float));
    assert_non_null(f->expected);
}

static void close_fixture(fixture *f) {
    const lk_cache_stats a = rig_stats(&f->cpu);
    const lk_cache_stats b = rig_stats(&f->gpu);
    assert_int_equal(a.pages_packed, b.pages_packed);
    assert_int_equal(a.payload_bytes, b.payload_bytes);
    lk_vulkan_buffer_remove(f->gpu.context, (uint64_t)f->inputs.handle);
    lk_vulkan_buffer_remove(f->gpu.context, (uint64_t)f->outputs.handle);
    rig_close(&f->cpu);
    rig_close(&f->gpu);
    vulkan_buffer *const all[] = {&f->raw, &f->inputs, &f->outputs, &f->results};
    for (int i = 0; i < 4; ++i)
        vulkan_buffer_destroy(test_device(), all[i]);
    vulkan_program_destroy(test_device(), &f->scale);
    free(f->expected);
}

// Queries, keys and values of all layers for the sequence's next n tokens, times `factor`.
static void write_inputs(fixture *f, uint32_t n, float factor, const vulkan_buffer *to) {
    rig_token tokens[MAX_TOKENS];
    for (uint32_t t = 0; t < n; ++t)
        tokens[t] = (rig_token){1, f->length + t};
    float *next = to->mapped;
    for (uint32_t l = 0; l < f->gpu.geometry.n_layers; ++l)
        for (int i = 0; i < 3; ++i) {
            const lk_layer *layer = &f->gpu.layers[l];
            const size_t n_values = (size_t)n * heads_of(layer, kInputs[i]) * layer->head_dim;
            rig_values(&f->gpu, l, kInputs[i], tokens, n, next);
            for (size_t j = 0; j < n_values; ++j)
                next[j] *= factor;
            next += n_values;
        }
}

static lk_tensor tensor_at(const vulkan_buffer *buffer, uint64_t *at, uint32_t n, uint32_t n_heads,
                           uint32_t head_dim) {
    lk_tensor tensor;
    assert_int_equal(lk_tensor_init(&tensor, sizeof tensor), LK_OK);
    tensor.dtype = LK_F32;
    tensor.memory = LK_MEMORY_VULKAN;
    tensor.buffer = (uint64_t)buffer->handle;
    tensor.offset_bytes = *at;
    tensor.token_stride = (int64_t)n_heads * head_dim;
    tensor.head_stride = head_dim;
    *at += (uint64_t)n * n_heads * head_dim * sizeof(float);
    return tensor;
}

// Begin, all layers and commit on a queue; between_layers is called after each append.
static void run_layers(fixture *f, const lk_queue *queue, uint32_t n,
                       void (*after_append)(fixture *f, uint32_t layer)) {
    assert_int_equal(lk_step_begin(f->gpu.cache, queue, 1, &f->id, &n, NULL), LK_OK);
    uint64_t input = 0, output = 0;
    for (uint32_t l = 0; l < f->gpu.geometry.n_layers; ++l) {
        const lk_layer *layer = &f->gpu.layers[l];
        const uint32_t dim = layer->head_dim;
        const lk_tensor q = tensor_at(&f->inputs, &input, n, layer->n_query_heads, dim);
        const lk_tensor k = tensor_at(&f->inputs, &input, n, layer->n_kv_heads, dim);
        const lk_tensor v = tensor_at(&f->inputs, &input, n, layer->n_kv_heads, dim);
        const lk_tensor out = tensor_at(&f->outputs, &output, n, layer->n_query_heads, dim);
        assert_int_equal(lk_append(f->gpu.cache, l, &k, &v), LK_OK);
        if (after_append)
            after_append(f, l);
        assert_int_equal(lk_attend(f->gpu.cache, l, &q, &out, NULL), LK_OK);
    }
    assert_int_equal(lk_step_commit(f->gpu.cache, NULL), LK_OK);
}

// The CPU's step of the same tokens, and what the GPU's gave, layer by layer, times `factor`.
static void compare(fixture *f, uint32_t n, const float *found, float factor) {
    assert_int_equal(rig_step(&f->cpu, f->id, 1, f->length, n, f->expected), LK_OK);
    const uint32_t all = rig_width(&f->cpu);
    uint32_t before = 0;
    for (uint32_t l = 0; l < f->cpu.geometry.n_layers; ++l) {
        const uint32_t width = f->cpu.layers[l].n_query_heads * f->cpu.layers[l].head_dim;
        for (uint32_t t = 0; t < n; ++t)
            for (uint32_t i = 0; i < width; ++i) {
                const float want = f->expected[t * all + before + i];
                const float have = *found++ / factor;
                if (!(fabsf(want - have) <= MOST))
                    fail_msg("layer %u, token %u, element %u: %g on the GPU and %g on the CPU", l,
                             f->length + t, i, (double)have, (double)want);
            }
        before += width;
    }
    f->length += n;
}

static void scale(const fixture *f, const vulkan_buffer *from, const vulkan_buffer *to, uint32_t n,
                  float factor) {
    const scale_push push = {from->address, to->address, n, factor};
    vulkan_program_run(test_device(), &f->scale, &push, (n + GROUP_SIZE - 1) / GROUP_SIZE);
}

static lk_queue recording(void) {
    lk_queue queue;
    assert_int_equal(lk_queue_init(&queue, sizeof queue), LK_OK);
    queue.kind = LK_QUEUE_VULKAN_RECORD;
    queue.handle = test_device()->commands;
    return queue;
}

// The host's dispatch, lowkey's step, the host's dispatch: one command buffer.
static void recorded_step(fixture *f, uint32_t n) {
    vulkan_host *host = test_device();
    write_inputs(f, n, 1 / INPUT_FACTOR, &f->raw);
    test_check(vulkan_host_record(host));
    const lk_queue queue = recording();
    scale(f, &f->raw, &f->inputs, n * input_width(&f->gpu), INPUT_FACTOR);
    run_layers(f, &queue, n, NULL);
    scale(f, &f->outputs, &f->results, n * rig_width(&f->gpu), OUTPUT_FACTOR);
    test_check(vulkan_host_submit(host));
    compare(f, n, f->results.mapped, OUTPUT_FACTOR);
}

static void submitted_step(fixture *f, uint32_t n) {
    write_inputs(f, n, 1, &f->inputs);
    run_layers(f, f->gpu.device->queue, n, NULL);
    test_wait();
    compare(f, n, f->outputs.mapped, 1);
}

static void recorded_between_dispatches(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "kitty-pro");
    recorded_step(&f, 300);
    recorded_step(&f, 90);
    for (int i = 0; i < 30; ++i)
        recorded_step(&f, 1 + (uint32_t)i % 3);
    submitted_step(&f, 70);
    submitted_step(&f, 2);
    recorded_step(&f, 20);
    close_fixture(&f);
}

// ---- A step in several command buffers: after each append the step goes on in another one, which
// the host submits at once, or with the others at the end; or the step goes on by submissions.

enum { MOST_BUFFERS = 1 + RIG_LAYERS };
typedef enum parting { SUBMIT_EACH, SUBMIT_LAST, GO_ON_SUBMITTING } parting;
static parting g_parting;
static VkCommandBuffer g_buffers[MOST_BUFFERS];
static uint32_t g_n_buffers;    // recorded, the present one aside
static uint32_t g_n_submitted;  // of these

static void submit_recorded(void) {
    const vulkan_host *host = test_device();
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .commandBufferCount = g_n_buffers - g_n_submitted,
                               .pCommandBuffers = g_buffers + g_n_submitted};
    if (info.commandBufferCount)
        assert_int_equal(host->vk.QueueSubmit(host->queue, 1, &info, VK_NULL_HANDLE), VK_SUCCESS);
    g_n_submitted = g_n_buffers;
}

static void go_on_elsewhere(fixture *f, uint32_t layer) {
    vulkan_host *host = test_device();
    if (g_parting == GO_ON_SUBMITTING && layer > 1)
        return;
    assert_int_equal(host->vk.EndCommandBuffer(host->commands), VK_SUCCESS);
    ++g_n_buffers;
    if (g_parting != SUBMIT_LAST)
        submit_recorded();
    lk_queue queue = *f->gpu.device->queue;
    if (g_parting != GO_ON_SUBMITTING || layer == 0) {
        host->commands = g_buffers[g_n_buffers];
        test_check(vulkan_host_record(host));
        queue = recording();
    }
    assert_int_equal(lk_step_set_queue(f->gpu.cache, &queue), LK_OK);
}

static void parted_step(fixture *f, uint32_t n, parting how) {
    vulkan_host *host = test_device();
    const VkCommandBuffer own = host->commands;
    g_parting = how;
    g_n_buffers = g_n_submitted = 0;
    write_inputs(f, n, 1 / INPUT_FACTOR, &f->raw);
    host->commands = g_buffers[0];
    test_check(vulkan_host_record(host));
    const lk_queue queue = recording();
    scale(f, &f->raw, &f->inputs, n * input_width(&f->gpu), INPUT_FACTOR);
    run_layers(f, &queue, n, go_on_elsewhere);
    submit_recorded();
    if (how == GO_ON_SUBMITTING) {
        host->commands = own;
        test_check(vulkan_host_record(host));
        vulkan_host_barrier(host);
    }
    scale(f, &f->outputs, &f->results, n * rig_width(&f->gpu), OUTPUT_FACTOR);
    test_check(vulkan_host_submit(host));
    host->commands = own;
    compare(f, n, f->results.mapped, OUTPUT_FACTOR);
}

static void steps_have_several_command_buffers(void **state) {
    (void)state;
    const vulkan_host *host = test_device();
    fixture f;
    open_fixture(&f, "kitty-pro");
    const VkCommandBufferAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = host->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = MOST_BUFFERS};
    assert_int_equal(host->vk.AllocateCommandBuffers(host->device, &info, g_buffers), VK_SUCCESS);
    assert_int_equal(f.gpu.geometry.n_layers, RIG_LAYERS);
    parted_step(&f, 300, SUBMIT_EACH);
    parted_step(&f, 90, SUBMIT_LAST);
    parted_step(&f, 70, GO_ON_SUBMITTING);
    for (int i = 0; i < 12; ++i)
        parted_step(&f, 1 + (uint32_t)i % 3, (parting)(i % 3));
    recorded_step(&f, 2);
    submitted_step(&f, 1);
    close_fixture(&f);
}

static void queues_of_steps_are_checked(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "kivi4");
    submitted_step(&f, 20);
    lk_queue queue = *f.gpu.device->queue;
    assert_int_equal(lk_step_set_queue(f.gpu.cache, &queue), LK_E_STATE);
    rig_sentence("no step is open");
    assert_int_equal(lk_step_set_queue(f.cpu.cache, NULL), LK_E_UNSUPPORTED);
    rig_sentence("a step on the CPU keeps the queue that it began with");
    const uint32_t n = 1;
    assert_int_equal(rig_begin(&f.gpu, 1, &f.id, &n, NULL), LK_OK);
    queue = recording();
    queue.handle = NULL;
    assert_int_equal(lk_step_set_queue(f.gpu.cache, &queue), LK_E_ARGUMENT);
    queue.kind = 9;
    assert_int_equal(lk_step_set_queue(f.gpu.cache, &queue), LK_E_ARGUMENT);
    queue.kind = LK_QUEUE_CUDA_STREAM;
    assert_int_equal(lk_step_set_queue(f.gpu.cache, &queue), LK_E_UNSUPPORTED);
    assert_int_equal(lk_step_set_queue(f.gpu.cache, NULL), LK_OK);
    assert_int_equal(lk_step_discard(f.gpu.cache), LK_OK);
    submitted_step(&f, 3);
    close_fixture(&f);
}

// What recording does not take, and a step that is dropped after it was recorded.
static void recording_refuses(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "kivi4");
    submitted_step(&f, 100);
    lk_queue queue = recording();
    const uint32_t n = 1;
    queue.handle = NULL;
    assert_int_equal(lk_step_begin(f.gpu.cache, &queue, 1, &f.id, &n, NULL), LK_E_ARGUMENT);
    rig_sentence("queue");
    test_check(vulkan_host_record(test_device()));
    queue = recording();
    assert_int_equal(lk_step_begin(f.gpu.cache, &queue, 1, &f.id, &n, NULL), LK_OK);
    static float values[4 * 64];
    lk_tensor host;
    assert_int_equal(lk_tensor_init(&host, sizeof host), LK_OK);
    host.dtype = LK_F32;
    host.memory = LK_MEMORY_HOST;
    host.data = values;
    host.token_stride = 2 * 64;
    host.head_stride = 64;
    assert_int_equal(lk_append(f.gpu.cache, 0, &host, &host), LK_E_UNSUPPORTED);
    rig_sentence("host memory");
    assert_int_equal(lk_step_replay(f.gpu.cache), LK_E_UNSUPPORTED);
    assert_int_equal(lk_step_discard(f.gpu.cache), LK_OK);
    test_check(vulkan_host_submit(test_device()));
    recorded_step(&f, 3);
    close_fixture(&f);
}

// A fault in recorded work is reported when the work has run.
static void recorded_faults(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "kivi2");
    submitted_step(&f, 30);
    write_inputs(&f, 1, 1, &f.inputs);
    float *keys = (float *)f.inputs.mapped + 4 * 64;
    keys[64 + 7] = NAN;
    test_check(vulkan_host_record(test_device()));
    const lk_queue queue = recording();
    run_layers(&f, &queue, 1, NULL);
    assert_int_equal(lk_cache_poll(f.gpu.cache), LK_OK);
    test_check(vulkan_host_submit(test_device()));
    assert_int_equal(lk_cache_poll(f.gpu.cache), LK_E_DATA);
    const uint32_t n = 1;
    assert_int_equal(rig_begin(&f.gpu, 1, &f.id, &n, NULL), LK_E_DATA);
    rig_sentence("keys of layer 0, KV head 1, token 0");
    assert_int_equal(lk_sequence_truncate(f.gpu.cache, f.id, f.length), LK_OK);
    submitted_step(&f, 5);
    close_fixture(&f);
}

// A cut dequantizes a page after recorded steps, whose command buffer is the host's again.
static void cut_after_recorded_steps(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "kitty");
    recorded_step(&f, 300);
    recorded_step(&f, 40);
    for (uint32_t n_tokens = 110; n_tokens > 50; n_tokens -= 40) {
        assert_int_equal(lk_sequence_truncate(f.cpu.cache, f.id, n_tokens), LK_OK);
        assert_int_equal(lk_sequence_truncate(f.gpu.cache, f.id, n_tokens), LK_OK);
        f.length = n_tokens;
        recorded_step(&f, 2);
    }
    assert_true(rig_stats(&f.gpu).pages_dequantized > 0);
    submitted_step(&f, 1);
    close_fixture(&f);
}

// Steps wait for the host's timeline and signal the host's.
static VkSemaphore make_timeline(void) {
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                        .pNext = &type};
    VkSemaphore semaphore = VK_NULL_HANDLE;
    const vulkan_host *host = test_device();
    assert_int_equal(host->vk.CreateSemaphore(host->device, &info, NULL, &semaphore), VK_SUCCESS);
    return semaphore;
}

static uint64_t reached(VkSemaphore semaphore) {
    uint64_t value = 0;
    const vulkan_host *host = test_device();
    assert_int_equal(host->vk.GetSemaphoreCounterValue(host->device, semaphore, &value),
                     VK_SUCCESS);
    return value;
}

#define FIRST_WAIT 10
#define FIRST_SIGNAL 20
static VkSemaphore g_wait;

static void let_layer_go(fixture *f, uint32_t layer) {
    const vulkan_host *host = test_device();
    if (!layer)
        write_inputs(f, 7, 1, &f->inputs);
    const VkSemaphoreSignalInfo signal = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                          .semaphore = g_wait,
                                          .value = FIRST_WAIT + layer};
    assert_int_equal(host->vk.SignalSemaphore(host->device, &signal), VK_SUCCESS);
}

static void steps_between_semaphores(void **state) {
    (void)state;
    const vulkan_host *host = test_device();
    if (!host->features12.timelineSemaphore)
        skip();
    fixture f;
    open_fixture(&f, "kitty");
    submitted_step(&f, 200);
    memset(f.inputs.mapped, 0, f.inputs.bytes);
    g_wait = make_timeline();
    const VkSemaphore done = make_timeline();
    lk_queue queue = *f.gpu.device->queue;
    queue.wait_semaphore = (uint64_t)g_wait;
    queue.wait_value = FIRST_WAIT;
    queue.signal_semaphore = (uint64_t)done;
    queue.signal_value = FIRST_SIGNAL;
    assert_int_equal(reached(done), 0);
    run_layers(&f, &queue, 7, let_layer_go);
    const uint64_t last = FIRST_SIGNAL + RIG_LAYERS - 1;
    const VkSemaphoreWaitInfo wait = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = 1,
                                      .pSemaphores = &done,
                                      .pValues = &last};
    assert_int_equal(host->vk.WaitSemaphores(host->device, &wait, UINT64_C(30000000000)),
                     VK_SUCCESS);
    assert_int_equal(reached(done), last);
    test_wait();
    compare(&f, 7, f.outputs.mapped, 1);
    submitted_step(&f, 1);
    close_fixture(&f);
    host->vk.DestroySemaphore(host->device, g_wait, NULL);
    host->vk.DestroySemaphore(host->device, done, NULL);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    test_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_between_dispatches),
        cmocka_unit_test(steps_have_several_command_buffers),
        cmocka_unit_test(queues_of_steps_are_checked),
        cmocka_unit_test(recording_refuses),
        cmocka_unit_test(recorded_faults),
        cmocka_unit_test(cut_after_recorded_steps),
        cmocka_unit_test(steps_between_semaphores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
