// Statistics and the poll are read during steps and snapshots; two caches of one context run side
// by side.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct stats_reader {
    const rig *r;
    atomic_int stop;
    int n_bad;
} stats_reader;

static void *read_stats(void *user) {
    stats_reader *w = user;
    while (!atomic_load(&w->stop)) {
        lk_cache_stats stats;
        if (lk_cache_stats_init(&stats, sizeof stats) || lk_cache_get_stats(w->r->cache, &stats) ||
            stats.reserved_bytes > stats.budget_bytes || lk_cache_poll(w->r->cache))
            ++w->n_bad;
    }
    return NULL;
}

// Out to memory and in again, in place of itself.
static lk_status save_and_load(rig *r, lk_sequence id) {
    uint64_t n_bytes = 0;
    lk_status status = lk_snapshot_save_memory(r->cache, 1, &id, NULL, NULL, 0, &n_bytes);
    void *saved = status ? NULL : malloc(n_bytes);
    if (!saved)
        return LK_E_NOMEM;
    status = lk_snapshot_save_memory(r->cache, 1, &id, NULL, saved, n_bytes, NULL);
    if (!status)
        status = lk_sequence_remove(r->cache, id);
    if (!status)
        status = lk_snapshot_load_memory(r->cache, NULL, saved, n_bytes, 1, &id, NULL);
    if (!status)
        status = rig_fill(r, id, 1, 200, 40, 8, NULL);
    free(saved);
    return status;
}

static void *run_steps(void *user) {
    rig *r = user;
    lk_sequence id;
    return lk_sequence_add(r->cache, &id) || rig_fill(r, id, 1, 0, 200, 11, NULL) ||
                   save_and_load(r, id)
               ? user
               : NULL;
}

static void readers_during_steps(void **state) {
    (void)state;
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, 1, 2, 1, 32);
    lk_context_desc desc;
    rig_context_desc(&r, &desc);
    desc.n_threads = 0;
    desc.alloc = NULL;  // the rig's hooks count without a lock
    desc.free = NULL;
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &r.context), LK_OK);
    rig_preset(&r, "kivi2");
    rig_recent(&r, 32, 16, 16);
    assert_int_equal(rig_cache(&r, 2, 100, 16u << 20), LK_OK);
    rig second = r;
    second.plan = NULL;
    second.geometry.layers = second.layers;
    rig_preset(&second, "kitty");
    rig_recent(&second, 32, 0, 32);
    second.cache = NULL;
    memset(second.buffers, 0, sizeof second.buffers);
    assert_int_equal(rig_cache(&second, 1, 100, 16u << 20), LK_OK);
    stats_reader w = {&r, 0, 0};
    pthread_t reader;
    pthread_t other;
    assert_int_equal(pthread_create(&reader, NULL, read_stats, &w), 0);
    assert_int_equal(pthread_create(&other, NULL, run_steps, &second), 0);
    assert_null(run_steps(&r));
    void *failed = NULL;
    assert_int_equal(pthread_join(other, &failed), 0);
    assert_null(failed);
    atomic_store(&w.stop, 1);
    assert_int_equal(pthread_join(reader, NULL), 0);
    assert_int_equal(w.n_bad, 0);
    rig_drop_cache(&second);
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(readers_during_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
