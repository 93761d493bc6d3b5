// Recurrent states on Vulkan: a host that records its commands reads and writes them through the
// buffer of lk_step_state(), and a device of lowkey's own has no such buffer.
//
// SPDX-License-Identifier: Apache-2.0
#include "api/rig.h"
#include "device.h"

#define BYTES 4112u

static const uint64_t kBytes[] = {16, BYTES};

typedef struct fixture {
    rig r;
    lk_sequence id;
    vulkan_buffer from, to;  // what the host writes to the second state, and reads of it
    lk_tensor kv;            // of any step
} fixture;

static void make_cache(rig *r) {
    lk_cache_desc desc;
    rig_is_ok(lk_cache_desc_init(&desc, sizeof desc));
    desc.max_sequences = 2;
    desc.max_step_tokens = 64;
    desc.budget_bytes = 64u << 20;
    desc.slab_bytes = 1u << 20;
    desc.state_bytes = kBytes;
    desc.n_states = 2;
    desc.state_versions = 2;
    desc.state_interval_tokens = 4;
    rig_is_ok(lk_cache_create(r->context, &r->geometry, r->plan, &desc, &r->cache));
    r->max_step_tokens = 64;
}

static void open_fixture(fixture *f) {
    memset(f, 0, sizeof *f);
    f->r.device = rig_vulkan_buffers();
    rig_geometry(&f->r, 1, 2, 1, 32);
    rig_open(&f->r);
    rig_preset(&f->r, "fp16");
    make_cache(&f->r);
    rig_is_ok(lk_sequence_add(f->r.cache, &f->id));
    test_check(vulkan_buffer_create(test_device(), BYTES, VULKAN_BUFFER_USAGE, 1, &f->from));
    test_check(vulkan_buffer_create(test_device(), BYTES, VULKAN_BUFFER_USAGE, 1, &f->to));
    rig_tensor(&f->r, &f->kv, rig_place(&f->r, NULL, 64 * 32 * sizeof(float)), 1, 32);
}

static void close_fixture(fixture *f) {
    vulkan_buffer_destroy(test_device(), &f->from);
    vulkan_buffer_destroy(test_device(), &f->to);
    rig_close(&f->r);
}

static void copy(VkBuffer from, uint64_t from_bytes, VkBuffer to, uint64_t to_bytes) {
    const vulkan_host *host = test_device();
    const VkBufferCopy region = {from_bytes, to_bytes, BYTES};
    vulkan_host_barrier(host);
    host->vk.CmdCopyBuffer(host->commands, from, to, 1, &region);
    vulkan_host_barrier(host);
}

// One command buffer: lowkey's step, in which the host copies the state out and writes it. Returns
// a byte of what it copied out.
static uint8_t recorded_step(fixture *f, uint32_t n, uint8_t byte, int keeps) {
    vulkan_host *host = test_device();
    memset(f->from.mapped, byte, BYTES);
    test_check(vulkan_host_record(host));
    lk_queue queue;
    rig_is_ok(lk_queue_init(&queue, sizeof queue));
    queue.kind = LK_QUEUE_VULKAN_RECORD;
    queue.handle = host->commands;
    rig_is_ok(lk_step_begin(f->r.cache, &queue, 1, &f->id, &n, NULL));
    lk_state state;
    rig_is_ok(lk_state_init(&state, sizeof state));
    rig_is_ok(lk_step_state(f->r.cache, 0, 1, &state));
    assert_true(state.memory == LK_MEMORY_VULKAN && !state.data && state.bytes == BYTES);
    uint8_t own[BYTES];
    assert_int_equal(lk_step_read_state(f->r.cache, 0, 1, own, BYTES), LK_E_UNSUPPORTED);
    rig_sentence("the step is recorded");
    copy((VkBuffer)state.buffer, state.offset_bytes, f->to.handle, 0);
    copy(f->from.handle, 0, (VkBuffer)state.buffer, state.offset_bytes);
    rig_is_ok(lk_append(f->r.cache, 0, &f->kv, &f->kv));
    test_check(vulkan_host_submit(host));
    rig_is_ok(keeps ? lk_step_commit(f->r.cache, NULL) : lk_step_discard(f->r.cache));
    const uint8_t *got = f->to.mapped;
    for (uint32_t i = 1; i < BYTES; ++i)
        assert_int_equal(got[i], got[0]);
    return got[0];
}

static void recorded_copies_are_in_order(void **unused) {
    (void)unused;
    fixture f;
    open_fixture(&f);
    for (uint8_t i = 0; i < 6; ++i) {
        assert_int_equal(recorded_step(&f, 4, i + 1, 1), i);
        assert_int_equal(recorded_step(&f, 4, 99, 0), i + 1);
    }
    uint64_t kept = 0;
    rig_is_ok(lk_sequence_rollback(f.r.cache, f.id, 18, &kept));
    assert_int_equal(kept, 16);
    assert_int_equal(recorded_step(&f, 2, 50, 1), 4);
    // A submitted step goes on with what the recorded one left.
    const uint32_t n = 1;
    uint8_t own[BYTES];
    rig_is_ok(rig_begin(&f.r, 1, &f.id, &n, NULL));
    rig_is_ok(lk_step_read_state(f.r.cache, 0, 1, own, BYTES));
    assert_true(own[0] == 50 && own[BYTES - 1] == 50);
    rig_is_ok(lk_step_discard(f.r.cache));
    close_fixture(&f);
}

static void an_own_device_has_no_buffer(void **unused) {
    (void)unused;
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, 1, 2, 1, 32);
    lk_context_desc where;
    rig_is_ok(lk_context_desc_init(&where, sizeof where));
    where.backend = LK_BACKEND_VULKAN;
    rig_is_ok(lk_context_open(&where, LK_ABI_VERSION, &r.context));
    rig_preset(&r, "fp16");
    make_cache(&r);
    lk_sequence id = 0;
    const uint32_t n = 1;
    uint8_t own[BYTES];
    lk_state state;
    rig_is_ok(lk_sequence_add(r.cache, &id));
    rig_is_ok(lk_step_begin(r.cache, NULL, 1, &id, &n, NULL));
    rig_is_ok(lk_state_init(&state, sizeof state));
    assert_int_equal(lk_step_state(r.cache, 0, 1, &state), LK_E_UNSUPPORTED);
    rig_sentence("a device of its own");
    memset(own, 7, BYTES);
    rig_is_ok(lk_step_write_state(r.cache, 0, 1, own, BYTES));
    memset(own, 0, BYTES);
    rig_is_ok(lk_step_read_state(r.cache, 0, 1, own, BYTES));
    assert_true(own[0] == 7 && own[BYTES - 1] == 7);
    rig_is_ok(lk_step_discard(r.cache));
    lk_cache_destroy(&r.cache);
    lk_plan_destroy(&r.plan);
    rig_is_ok(lk_context_close(&r.context));
}

int main(void) {
    test_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_copies_are_in_order),
        cmocka_unit_test(an_own_device_has_no_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
