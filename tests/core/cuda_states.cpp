// Recurrent states on the fake runtime, whose queue runs late: copies come in the order of the
// calls.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda_states.h"

#include <cuda_runtime_api.h>
#include <lowkey/lowkey.h>

#include "core/cache.h"
#include "fake_runtime.h"
#include "suite.h"

namespace {

constexpr uint64_t kBytes[] = {16, 272};

#define assert_ok(call) assert_int_equal(call, LK_OK)

struct Device {
    Device() {
        lk_context_desc where;
        assert_ok(lk_context_desc_init(&where, sizeof where));
        where.backend = LK_BACKEND_CUDA;
        assert_ok(lk_context_open(&where, LK_ABI_VERSION, &context));
        lk_layer layer;
        assert_ok(lk_layer_init(&layer, sizeof layer));
        layer.n_query_heads = layer.n_kv_heads = 1;
        layer.head_dim = 64;
        lk_geometry geometry;
        assert_ok(lk_geometry_init(&geometry, sizeof geometry));
        geometry.n_layers = 1;
        geometry.layers = &layer;
        lk_plan *plan = nullptr;
        assert_ok(lk_plan_preset("fp16", &geometry, &plan));
        lk_cache_desc desc;
        assert_ok(lk_cache_desc_init(&desc, sizeof desc));
        desc.max_sequences = 4;
        desc.budget_bytes = 64u << 20;
        desc.slab_bytes = 1u << 20;
        desc.state_bytes = kBytes;
        desc.n_states = 2;
        desc.state_versions = 2;
        desc.state_interval_tokens = 3;
        assert_ok(lk_cache_create(context, &geometry, plan, &desc, &cache));
        lk_plan_destroy(&plan);
        const lk::Formats &formats = cache->formats;
        fake_use(formats.table.data(), static_cast<uint32_t>(formats.table.size()),
                 static_cast<uint32_t>(formats.entries.size()));
        assert_ok(lk_queue_init(&queue, sizeof queue));
        queue.kind = LK_QUEUE_CUDA_STREAM;
        cudaMalloc(&values, 64 * 64 * sizeof(float));
    }
    ~Device() {
        lk_cache_destroy(&cache);
        assert_ok(lk_context_close(&context));
        cudaFree(values);
    }
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    void begin(lk_sequence id, uint32_t n) {
        assert_ok(lk_step_begin(cache, &queue, 1, &id, &n, nullptr));
    }
    uint8_t *place() {
        lk_state state;
        assert_ok(lk_state_init(&state, sizeof state));
        assert_ok(lk_step_state(cache, 0, 1, &state));
        assert_int_equal(state.memory, LK_MEMORY_CUDA);
        return static_cast<uint8_t *>(state.data);
    }
    void append() {
        lk_tensor kv;
        assert_ok(lk_tensor_init(&kv, sizeof kv));
        kv.dtype = LK_F32;
        kv.memory = LK_MEMORY_CUDA;
        kv.data = values;
        kv.token_stride = kv.head_stride = 64;
        assert_ok(lk_append(cache, 0, &kv, &kv));
    }
    // The host's work on the queue, which no call waits for.
    void write(uint8_t byte) { cudaMemsetAsync(place(), byte, kBytes[1], nullptr); }
    void step(lk_sequence id, uint32_t n, uint8_t byte) {
        begin(id, n);
        append();
        write(byte);
        assert_ok(lk_step_commit(cache, nullptr));
    }
    uint8_t at_begin(lk_sequence id) {
        uint8_t got[kBytes[1]];
        begin(id, 1);
        assert_ok(lk_step_read_state(cache, 0, 1, got, sizeof got));
        assert_int_equal(got[0], got[sizeof got - 1]);
        write(99);
        assert_ok(lk_step_discard(cache));
        return got[0];
    }

    lk_context *context = nullptr;
    lk_cache *cache = nullptr;
    lk_queue queue;
    void *values = nullptr;
};

}  // namespace

void test_states(void **) {
    Device device;
    lk_sequence first = 0, second = 0;
    assert_ok(lk_sequence_add(device.cache, &first));
    assert_ok(lk_sequence_add(device.cache, &second));
    for (uint8_t i = 1; i < 6; ++i)
        device.step(first, 3, i);
    device.step(second, 1, 50);
    assert_int_equal(device.at_begin(first), 5);
    assert_int_equal(device.at_begin(second), 50);
    assert_int_equal(device.at_begin(first), 5);
    lk_sequence child = 0;
    assert_ok(lk_sequence_fork(device.cache, first, 9, &child));
    device.step(child, 1, 60);
    uint64_t kept = 0;
    assert_ok(lk_sequence_rollback(device.cache, first, 13, &kept));
    assert_int_equal(kept, 12);
    assert_int_equal(device.at_begin(first), 4);
    assert_int_equal(device.at_begin(child), 60);
    assert_ok(lk_sequence_remove(device.cache, child));
    assert_ok(lk_sequence_rollback(device.cache, first, 11, &kept));
    assert_int_equal(device.at_begin(first), 3);
}

// A step in the same place copies one version, and a graph finds its states there.
void test_state_copies(void **) {
    Device device;
    lk_sequence id = 0;
    assert_ok(lk_sequence_add(device.cache, &id));
    device.step(id, 1, 1);
    device.step(id, 1, 2);
    device.begin(id, 1);
    const uint64_t of_states = fake_counts().n_state_copies;
    uint8_t *place = device.place();
    fake_capture(true);
    device.append();
    uint8_t got[kBytes[1]];
    assert_int_equal(lk_step_read_state(device.cache, 0, 1, got, sizeof got), LK_E_STATE);
    fake_capture(false);
    fake_replay();
    device.write(3);
    assert_ok(lk_step_commit(device.cache, nullptr));
    device.begin(id, 1);
    assert_ptr_equal(device.place(), place);
    assert_int_equal(fake_counts().n_state_copies, of_states + 1);
    fake_replay();
    assert_ok(lk_step_replay(device.cache));
    device.write(4);
    assert_ok(lk_step_commit(device.cache, nullptr));
    assert_int_equal(device.at_begin(id), 4);
}
