// Contexts in processes that fork() makes: on the CPU they work on, on a device every call is
// refused and closing gives the host's memory back. --device NAME as in suite api.
//
// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <stdatomic.h>

#include "api/rig.h"
#include "child.h"
#include "verbs.h"

#define N_THREADS 3
#define N_TOKENS 150
#define N_FORKS 40

typedef struct scene {
    rig r;
    lk_sequence id;
    float *expected;  // of the step after N_TOKENS tokens
} scene;

static int is_device(void) { return rig_default()->backend != LK_BACKEND_CPU; }

static float *next_step(rig *r, lk_sequence id) {
    float *out = calloc(rig_width(r), sizeof *out);
    if (out && rig_step(r, id, 1, N_TOKENS, 1, out)) {
        free(out);
        return NULL;
    }
    return out;
}

static void open_cache(rig *r, lk_sequence *id) {
    rig_preset(r, "kivi2");
    rig_recent(r, 32, 16, 16);
    assert_int_equal(rig_cache(r, 4, 100, 16u << 20), LK_OK);
    assert_int_equal(lk_sequence_add(r->cache, id), LK_OK);
    assert_int_equal(rig_fill(r, *id, 1, 0, N_TOKENS, 40, NULL), LK_OK);
}

// has_hooks: memory counts without a lock, for scenes of one thread.
static void open_scene(scene *s, int has_hooks) {
    memset(s, 0, sizeof *s);
    rig_geometry(&s->r, 2, 4, 2, 32);
    lk_context_desc desc;
    rig_context_desc(&s->r, &desc);
    desc.n_threads = is_device() ? 0 : N_THREADS;
    if (!has_hooks)
        desc.alloc = NULL, desc.free = NULL;
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &s->r.context), LK_OK);
    open_cache(&s->r, &s->id);
    lk_sequence fork_id;
    assert_int_equal(lk_sequence_fork(s->r.cache, s->id, N_TOKENS, &fork_id), LK_OK);
    s->expected = next_step(&s->r, fork_id);
    assert_non_null(s->expected);
    assert_int_equal(lk_sequence_remove(s->r.cache, fork_id), LK_OK);
}

static void close_scene(scene *s) {
    free(s->expected);
    rig_close(&s->r);
}

static int steps_alike(scene *s, rig *r, lk_sequence id) {
    float *out = next_step(r, id);
    const int is_alike = out && !memcmp(out, s->expected, rig_width(r) * sizeof *out);
    free(out);
    return is_alike;
}

// Tensors on a device are the parent's.
static void drop_all(scene *s) {
    lk_plan_destroy(&s->r.plan);
    lk_cache_destroy(&s->r.cache);
    REQUIRE(!s->r.cache);
    REQUIRE(lk_context_close(&s->r.context) == LK_OK);
    REQUIRE(!s->r.context);
    REQUIRE(s->r.memory.live_bytes == 0);
}

static void require_refused(scene *s) {
    for (int v = 0; v < n_verbs; ++v) {
        const lk_status status = verbs[v].call(s->r.context, s->r.cache, s->id);
        char sentence[512];
        lk_last_error(sentence, sizeof sentence, NULL);
        if (status == LK_E_DEVICE && strstr(sentence, "fork()"))
            continue;
        fprintf(stderr, "%s returned %d: %s\n", verbs[v].name, status, sentence);
        _exit(1);
    }
}

static void use_all(void *user) {
    scene *s = user;
    if (is_device()) {
        require_refused(s);
    } else {
        lk_device_info info;
        REQUIRE(!lk_device_info_init(&info, sizeof info));
        REQUIRE(lk_context_device(s->r.context, &info) == LK_OK);
        REQUIRE(info.n_threads == N_THREADS);
        REQUIRE(steps_alike(s, &s->r, s->id));
        REQUIRE(lk_sequence_truncate(s->r.cache, s->id, 70) == LK_OK);
        REQUIRE(rig_fill(&s->r, s->id, 1, 70, 40, 20, NULL) == LK_OK);
    }
    drop_all(s);
}

static void the_child_goes_on_or_is_refused(void **state) {
    (void)state;
    scene s;
    open_scene(&s, 1);
    assert_int_equal(in_child(use_all, &s), 0);
    assert_true(steps_alike(&s, &s.r, s.id));
    close_scene(&s);
}

static void close_alone(void *user) { drop_all(user); }

static void a_child_closes_at_once(void **state) {
    (void)state;
    scene s;
    open_scene(&s, 1);
    assert_int_equal(in_child(close_alone, &s), 0);
    assert_true(steps_alike(&s, &s.r, s.id));
    close_scene(&s);
}

static void fork_again(void *user) {
    scene *s = user;
    REQUIRE(in_child(use_all, s) == 0);
    REQUIRE(is_device() || steps_alike(s, &s->r, s->id));
    REQUIRE(in_child(close_alone, s) == 0);
    drop_all(s);
}

static void children_of_children(void **state) {
    (void)state;
    scene s;
    open_scene(&s, 1);
    assert_int_equal(in_child(fork_again, &s), 0);
    close_scene(&s);
}

// With a step that is open: it goes on in both processes.
static void finish_step(void *user) {
    scene *s = user;
    const rig_token token = {1, N_TOKENS};
    float *out = calloc(rig_width(&s->r), sizeof *out);
    REQUIRE(out);
    if (!is_device()) {
        REQUIRE(rig_layers(&s->r, &token, 1, out) == LK_OK);
        REQUIRE(lk_step_commit(s->r.cache, NULL) == LK_OK);
        REQUIRE(!memcmp(out, s->expected, rig_width(&s->r) * sizeof *out));
    }
    free(out);
    drop_all(s);
}

static void a_step_is_open(void **state) {
    (void)state;
    scene s;
    open_scene(&s, 1);
    const uint32_t n = 1;
    assert_int_equal(rig_begin(&s.r, 1, &s.id, &n, NULL), LK_OK);
    assert_int_equal(in_child(finish_step, &s), 0);
    assert_int_equal(in_child(close_alone, &s), 0);
    const rig_token token = {1, N_TOKENS};
    assert_int_equal(rig_layers(&s.r, &token, 1, NULL), LK_OK);
    assert_int_equal(lk_step_commit(s.r.cache, NULL), LK_OK);
    close_scene(&s);
}

typedef struct busy {
    rig r;  // another cache of the same context
    lk_sequence id;
    scene *s;
    atomic_int stop;
    int n_bad;
} busy;

// Steps, statistics and snapshots without end.
static void *work(void *user) {
    busy *b = user;
    while (!atomic_load(&b->stop)) {
        uint64_t n_bytes = 0;
        b->n_bad += rig_step(&b->r, b->id, 1, N_TOKENS, 30, NULL) != LK_OK;
        b->n_bad += lk_sequence_truncate(b->r.cache, b->id, N_TOKENS) != LK_OK;
        b->n_bad += lk_snapshot_save_memory(b->r.cache, 0, NULL, NULL, NULL, 0, &n_bytes) != LK_OK;
    }
    return NULL;
}

// The cache that was in use is whole, or refused and destroyed; the other one works.
static void use_both(void *user) {
    busy *b = user;
    scene *s = b->s;
    lk_cache_stats stats;
    REQUIRE(!lk_cache_stats_init(&stats, sizeof stats));
    const lk_status status = lk_cache_get_stats(b->r.cache, &stats);
    if (status) {
        REQUIRE(status == LK_E_DEVICE);
        scene torn = *s;
        torn.r.cache = b->r.cache;
        for (int v = 0; v < n_verbs; ++v)
            REQUIRE(!verbs[v].of_cache ||
                    verbs[v].call(s->r.context, torn.r.cache, b->id) == LK_E_DEVICE);
    }
    REQUIRE(steps_alike(s, &s->r, s->id));
    lk_cache_destroy(&b->r.cache);
    lk_cache_destroy(&s->r.cache);
    REQUIRE(lk_context_close(&s->r.context) == LK_OK);
    _exit(status ? 2 : 0);
}

static void refuse_both(void *user) {
    busy *b = user;
    require_refused(b->s);
    lk_cache_destroy(&b->r.cache);
    lk_cache_destroy(&b->s->r.cache);
    REQUIRE(lk_context_close(&b->s->r.context) == LK_OK);
}

// AddressSanitizer's allocator has locks that fork() copies as they are: a child waits for ever
// when the other thread was in malloc() or free().
#if defined(__SANITIZE_ADDRESS__)
enum { MAY_FORK_IN_MALLOC = 0 };
#else
enum { MAY_FORK_IN_MALLOC = 1 };
#endif

static void another_thread_is_in_a_call(void **state) {
    (void)state;
    if (!MAY_FORK_IN_MALLOC)
        skip();
    scene s;
    open_scene(&s, 0);
    busy b;
    memset(&b, 0, sizeof b);
    b.r = s.r;
    b.r.plan = NULL;
    b.r.cache = NULL;
    b.r.geometry.layers = b.r.layers;
    memset(b.r.buffers, 0, sizeof b.r.buffers);
    b.s = &s;
    open_cache(&b.r, &b.id);
    pthread_t worker;
    assert_int_equal(pthread_create(&worker, NULL, work, &b), 0);
    int n_torn = 0;
    for (int i = 0; i < N_FORKS; ++i) {
        const int status = in_child(is_device() ? refuse_both : use_both, &b);
        const int is_torn = WIFEXITED(status) && WEXITSTATUS(status) == 2;
        n_torn += is_torn;
        assert_true(!status || is_torn);
    }
    atomic_store(&b.stop, 1);
    assert_int_equal(pthread_join(worker, NULL), 0);
    assert_int_equal(b.n_bad, 0);
    print_message("%d forks, %d of them in the middle of a call\n", N_FORKS, n_torn);
    assert_true(is_device() || n_torn);
    assert_true(steps_alike(&s, &s.r, s.id));
    rig_drop_cache(&b.r);
    close_scene(&s);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_child_goes_on_or_is_refused),
        cmocka_unit_test(a_child_closes_at_once),
        cmocka_unit_test(children_of_children),
        cmocka_unit_test(a_step_is_open),
        cmocka_unit_test(another_thread_is_in_a_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
