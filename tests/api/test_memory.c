// Every allocation of host memory may fail: LK_E_NOMEM, nothing lost, nothing changed, and the same
// call works once there is memory. Device memory does not come from these hooks.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

static void start(rig *r) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 2, 2, 2, 32);
    rig_open(r);
    rig_preset(r, "kitty");
    rig_recent(r, 32, 16, 32);
    rig_query_ranking(r);
}

static void opening(void **state) {
    (void)state;
    rig r;
    memset(&r, 0, sizeof r);
    lk_context_desc desc;
    rig_context_desc(&r, &desc);
    desc.n_threads = 2;
    lk_status status = LK_E_NOMEM;
    for (int64_t nth = 1; status; ++nth) {
        lk_context *context = NULL;
        r.memory.n_calls = 0;
        r.memory.fail_at = nth;
        status = lk_context_open(&desc, LK_ABI_VERSION, &context);
        if (status) {
            assert_int_equal(status, LK_E_NOMEM);
            assert_null(context);
        } else {
            assert_true(nth > 1);
            assert_int_equal(lk_context_close(&context), LK_OK);
        }
        assert_int_equal(r.memory.live_bytes, 0);
    }
}

static void creating(void **state) {
    (void)state;
    rig r;
    start(&r);
    // On Vulkan a context keeps the pipelines that it made.
    const int keeps_some = r.device->backend == LK_BACKEND_VULKAN;
    const int64_t live = r.memory.live_bytes;
    lk_status status = LK_E_NOMEM;
    for (int64_t nth = 1; status; ++nth) {
        r.memory.n_calls = 0;
        r.memory.fail_at = nth;
        status = rig_cache(&r, 2, 200, 64u << 20);
        if (!status)
            break;
        assert_int_equal(status, LK_E_NOMEM);
        assert_null(r.cache);
        assert_true(keeps_some || r.memory.live_bytes == live);
    }
    r.memory.fail_at = 0;
    rig_close(&r);
}

// A step with a failing allocation, again and again until none fails; its outputs.
static void stubborn_step(rig *r, lk_sequence id, uint32_t place, uint32_t n, float *out) {
    lk_status status = LK_E_NOMEM;
    for (int64_t nth = 1; status; ++nth) {
        const lk_cache_stats before = rig_stats(r);
        r->memory.n_calls = 0;
        r->memory.fail_at = nth;
        status = rig_step(r, id, 1, place, n, out);
        r->memory.fail_at = 0;
        if (!status)
            break;
        assert_int_equal(status, LK_E_NOMEM);
        const lk_cache_stats after = rig_stats(r);
        assert_int_equal(after.n_tokens, before.n_tokens);
        assert_int_equal(after.table_bytes, before.table_bytes);
        if (after.pages_packed == before.pages_packed)
            assert_int_equal(after.recent_bytes, before.recent_bytes);
    }
}

static void stepping(void **state) {
    (void)state;
    rig r;
    start(&r);
    assert_int_equal(rig_cache(&r, 2, 200, 64u << 20), LK_OK);
    lk_sequence a = 0;
    lk_status status = LK_E_NOMEM;
    for (int64_t nth = 1; status; ++nth) {
        r.memory.n_calls = 0;
        r.memory.fail_at = nth;
        status = lk_sequence_add(r.cache, &a);
        if (status)
            assert_int_equal(a, 0);
    }
    r.memory.fail_at = 0;
    lk_sequence b;
    assert_int_equal(lk_sequence_add(r.cache, &b), LK_OK);
    const uint32_t steps[] = {40, 90, 1, 180, 64, 20};
    uint32_t place = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; ++i) {
        const size_t n = (size_t)steps[i] * rig_width(&r);
        float *x = calloc(n, sizeof *x);
        float *y = calloc(n, sizeof *y);
        assert_non_null(x);
        assert_non_null(y);
        stubborn_step(&r, a, place, steps[i], x);
        assert_int_equal(rig_step(&r, b, 1, place, steps[i], y), LK_OK);
        assert_memory_equal(x, y, n * sizeof *x);
        free(x);
        free(y);
        place += steps[i];
    }
    uint64_t length = 0;
    status = LK_E_NOMEM;
    for (int64_t nth = 1; status; ++nth) {
        r.memory.n_calls = 0;
        r.memory.fail_at = nth;
        status = lk_sequence_truncate(r.cache, a, 70);
        assert_int_equal(lk_sequence_length(r.cache, a, &length), LK_OK);
        assert_int_equal(length, status ? place : 70);
    }
    r.memory.fail_at = 0;
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),
        cmocka_unit_test(creating),
        cmocka_unit_test(stepping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
