// Hosts that run the tasks of a context on their own threads, well or badly. On the CPU alone:
// devices have no part in it.
//
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"

enum { N_TASKS = 4 };

// ---- Hosts that keep the contract.

typedef struct simple_host {
    uint32_t n_calls;
    uint32_t n_bad;  // threads that could not be started, or were given another mode
} simple_host;

static void run_in_order(void *user, uint32_t n_tasks, lk_task_fn task, void *task_data) {
    simple_host *h = user;
    ++h->n_calls;
    for (uint32_t i = 0; i < n_tasks; ++i)
        task(task_data, i);
}

static void run_in_reverse(void *user, uint32_t n_tasks, lk_task_fn task, void *task_data) {
    simple_host *h = user;
    ++h->n_calls;
    for (uint32_t i = n_tasks; i; --i)
        task(task_data, i - 1);
}

// A thread for each task, with another floating-point mode, which the task gives back.
typedef struct thread_task {
    lk_task_fn task;
    void *task_data;
    uint32_t index;
    int has_kept_mode;
} thread_task;

// By the arithmetic itself: fegetround() reads the mode of another unit on some machines.
static int rounds_up(void) {
    volatile float one = 1, little = 1e-10f;
    return one + little > one;
}

static void *run_rounding_up(void *user) {
    thread_task *own = user;
    fesetround(FE_UPWARD);
    own->task(own->task_data, own->index);
    own->has_kept_mode = rounds_up();
    return NULL;
}

// The callback leaves the calling thread in another mode, too.
static void run_on_threads(void *user, uint32_t n_tasks, lk_task_fn task, void *task_data) {
    simple_host *h = user;
    pthread_t threads[N_TASKS];
    thread_task tasks[N_TASKS];
    ++h->n_calls;
    for (uint32_t i = 0; i < n_tasks; ++i) {
        tasks[i] = (thread_task){task, task_data, i, 0};
        h->n_bad += pthread_create(&threads[i], NULL, run_rounding_up, &tasks[i]) != 0;
    }
    for (uint32_t i = 0; i < n_tasks; ++i)
        h->n_bad += pthread_join(threads[i], NULL) || !tasks[i].has_kept_mode;
    fesetround(FE_UPWARD);
}

// A pool of threads that wait for tasks.
typedef struct pool {
    atomic_uint n_calls;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    lk_task_fn task;
    void *task_data;
    uint32_t n_tasks, next, n_done;
    int is_over;
    pthread_t threads[N_TASKS - 1];
} pool;

// With the mutex; 0 when no task is left.
static int take_task(pool *p) {
    if (p->next == p->n_tasks)
        return 0;
    const uint32_t index = p->next++;
    const lk_task_fn task = p->task;
    void *task_data = p->task_data;
    pthread_mutex_unlock(&p->mutex);
    task(task_data, index);
    pthread_mutex_lock(&p->mutex);
    if (++p->n_done == p->n_tasks)
        pthread_cond_broadcast(&p->changed);
    return 1;
}

static void *serve(void *user) {
    pool *p = user;
    pthread_mutex_lock(&p->mutex);
    while (!p->is_over)
        if (!take_task(p))
            pthread_cond_wait(&p->changed, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

static void run_on_pool(void *user, uint32_t n_tasks, lk_task_fn task, void *task_data) {
    pool *p = user;
    atomic_fetch_add(&p->n_calls, 1);
    pthread_mutex_lock(&p->mutex);
    p->task = task;
    p->task_data = task_data;
    p->n_tasks = n_tasks;
    p->next = p->n_done = 0;
    pthread_cond_broadcast(&p->changed);
    while (take_task(p)) {}
    while (p->n_done < p->n_tasks)
        pthread_cond_wait(&p->changed, &p->mutex);
    p->n_tasks = p->next = 0;
    pthread_mutex_unlock(&p->mutex);
}

static void open_pool(pool *p) {
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->changed, NULL);
    for (int i = 0; i < N_TASKS - 1; ++i)
        assert_int_equal(pthread_create(&p->threads[i], NULL, serve, p), 0);
}

static void close_pool(pool *p) {
    pthread_mutex_lock(&p->mutex);
    p->is_over = 1;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < N_TASKS - 1; ++i)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
}

// ---- A host whose threads are all in the same operation of its graph and join the work of lowkey
// there, as those of ggml are in a custom operation. Thread 0 calls lowkey; its callback states the
// tasks, and the other threads take tasks until the operation is over.

typedef struct joined {
    atomic_uint n_calls;
    atomic_int is_over;
    pthread_mutex_t mutex;
    lk_task_fn task;
    void *task_data;
    uint32_t n_tasks, next, n_done;
    atomic_uint n_joined;  // tasks that threads other than 0 took
    // The work of thread 0.
    rig *r;
    lk_sequence id;
    uint32_t chain, place, n;
    float *out;
    lk_status status;
} joined;

// Of those before the last n_left.
static int take_joined_task(joined *j, uint32_t n_left) {
    pthread_mutex_lock(&j->mutex);
    const int is_some = j->next + n_left < j->n_tasks;
    const uint32_t index = is_some ? j->next++ : 0;
    const lk_task_fn task = j->task;
    void *task_data = j->task_data;
    pthread_mutex_unlock(&j->mutex);
    if (!is_some)
        return 0;
    task(task_data, index);
    pthread_mutex_lock(&j->mutex);
    ++j->n_done;
    pthread_mutex_unlock(&j->mutex);
    return 1;
}

static int are_done(joined *j) {
    pthread_mutex_lock(&j->mutex);
    const int done = j->n_done == j->n_tasks;
    pthread_mutex_unlock(&j->mutex);
    return done;
}

static void state_tasks(void *user, uint32_t n_tasks, lk_task_fn task, void *task_data) {
    joined *j = user;
    atomic_fetch_add(&j->n_calls, 1);
    pthread_mutex_lock(&j->mutex);
    j->task = task;
    j->task_data = task_data;
    j->n_tasks = n_tasks;
    j->next = j->n_done = 0;
    pthread_mutex_unlock(&j->mutex);
    // So that the test has other threads in every run, the last task is theirs.
    const uint32_t n_left = atomic_load(&j->is_over) ? 0 : 1;
    while (take_joined_task(j, n_left)) {}
    while (!are_done(j))
        sched_yield();
}

static void operation(joined *j, uint32_t thread) {
    if (thread == 0) {
        j->status = rig_step(j->r, j->id, j->chain, j->place, j->n, j->out);
        atomic_store(&j->is_over, 1);
        return;
    }
    while (!atomic_load(&j->is_over))
        if (take_joined_task(j, 0))
            atomic_fetch_add(&j->n_joined, 1);
        else
            sched_yield();
}

static void *enter_operation(void *user) {
    operation(user, 1);
    return NULL;
}

static lk_status joined_step(joined *j) {
    pthread_t others[N_TASKS - 1];
    atomic_store(&j->is_over, 0);
    for (int i = 0; i < N_TASKS - 1; ++i)
        assert_int_equal(pthread_create(&others[i], NULL, enter_operation, j), 0);
    operation(j, 0);
    for (int i = 0; i < N_TASKS - 1; ++i)
        assert_int_equal(pthread_join(others[i], NULL), 0);
    return j->status;
}

// ---- The same work under each host.

static void open_context(rig *r, uint32_t cpu_mask, uint32_t n_threads, lk_parallel_for_fn run,
                         void *user) {
    memset(r, 0, sizeof *r);
    r->device = rig_host();
    r->cpu_mask = cpu_mask;
    rig_geometry(r, 2, 4, 2, 32);
    lk_context_desc desc;
    rig_context_desc(r, &desc);
    desc.n_threads = n_threads;
    desc.parallel_for = run;
    desc.parallel_for_user = user;
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &r->context), LK_OK);
    rig_preset(r, "kitty");
    rig_recent(r, 32, 16, 32);
    rig_query_ranking(r);
    assert_int_equal(rig_cache(r, 3, 300, 16u << 20), LK_OK);
}

typedef struct answers {
    float *out;
    size_t n;
    void *saved;
    uint64_t n_saved;
} answers;

static const uint32_t kSteps[] = {200, 1, 1, 40, 7, 80, 1, 64, 1, 70, 1, 1};

// Long and short steps, a truncation, a fork, a snapshot.
static void work(rig *r, joined *j, answers *a) {
    memset(a, 0, sizeof *a);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
    const size_t width = rig_width(r);
    a->out = calloc(1000 * width, sizeof *a->out);
    assert_non_null(a->out);
    uint32_t place = 0;
    for (size_t s = 0; s < sizeof kSteps / sizeof *kSteps; ++s) {
        float *out = a->out + a->n;
        if (j) {
            j->r = r, j->id = id, j->chain = 1, j->place = place, j->n = kSteps[s], j->out = out;
            assert_int_equal(joined_step(j), LK_OK);
        } else {
            assert_int_equal(rig_step(r, id, 1, place, kSteps[s], out), LK_OK);
        }
        a->n += kSteps[s] * width;
        place += kSteps[s];
        if (s == 5) {
            assert_int_equal(lk_sequence_truncate(r->cache, id, 303), LK_OK);
            place = 303;
        }
    }
    lk_sequence child;
    assert_int_equal(lk_sequence_fork(r->cache, id, 270, &child), LK_OK);
    assert_int_equal(rig_step(r, child, 2, 270, 20, a->out + a->n), LK_OK);
    a->n += 20 * width;
    assert_int_equal(lk_snapshot_save_memory(r->cache, 0, NULL, NULL, NULL, 0, &a->n_saved), LK_OK);
    a->saved = malloc(a->n_saved);
    assert_non_null(a->saved);
    assert_int_equal(
        lk_snapshot_save_memory(r->cache, 0, NULL, NULL, a->saved, a->n_saved, &a->n_saved), LK_OK);
    assert_int_equal(lk_sequence_remove(r->cache, id), LK_OK);
    assert_int_equal(lk_sequence_remove(r->cache, child), LK_OK);
    lk_sequence ids[2];
    assert_int_equal(lk_snapshot_load_memory(r->cache, NULL, a->saved, a->n_saved, 2, ids, NULL),
                     LK_OK);
    assert_int_equal(rig_step(r, ids[0], 3, place, 30, a->out + a->n), LK_OK);
    a->n += 30 * width;
}

static void drop_answers(answers *a) {
    free(a->out);
    free(a->saved);
}

static void require_equal(const answers *a, const answers *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->out, b->out, a->n * sizeof *a->out);
    assert_int_equal(a->n_saved, b->n_saved);
    assert_memory_equal(a->saved, b->saved, a->n_saved);
}

static int count_threads(void) {
    int n = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n;
}

// On every stride-th host, with each number of tasks, the bits are those of one thread of lowkey.
static void compare_hosts(uint32_t cpu_mask, size_t stride) {
    rig r;
    answers expected;
    open_context(&r, cpu_mask, 1, NULL, NULL);
    work(&r, NULL, &expected);
    rig_close(&r);
    pool own_pool;
    joined own_joined;
    memset(&own_joined, 0, sizeof own_joined);
    pthread_mutex_init(&own_joined.mutex, NULL);
    atomic_store(&own_joined.is_over, 1);
    open_pool(&own_pool);
    simple_host simple = {0, 0};
    const struct {
        lk_parallel_for_fn run;
        void *user;
        uint32_t n_threads;
    } hosts[] = {
        {run_in_order, &simple, 2},         {run_in_reverse, &simple, N_TASKS},
        {run_in_reverse, &simple, 70},      {run_in_order, &simple, 130},
        {run_on_threads, &simple, N_TASKS}, {run_on_pool, &own_pool, N_TASKS},
        {run_on_pool, &own_pool, 17},       {state_tasks, &own_joined, N_TASKS},
        {state_tasks, &own_joined, 9},      {NULL, NULL, N_TASKS},
    };
    for (size_t h = 0; h < sizeof hosts / sizeof *hosts; h += stride) {
        const int n_before = count_threads();
        answers own;
        open_context(&r, cpu_mask, hosts[h].n_threads, hosts[h].run, hosts[h].user);
        lk_device_info info;
        assert_int_equal(lk_device_info_init(&info, sizeof info), LK_OK);
        assert_int_equal(lk_context_device(r.context, &info), LK_OK);
        assert_int_equal(info.n_threads, hosts[h].n_threads);
        work(&r, hosts[h].user == &own_joined ? &own_joined : NULL, &own);
        assert_false(rounds_up());
        fesetround(FE_TONEAREST);
        if (hosts[h].run)
            assert_int_equal(count_threads(), n_before);
        else
            assert_int_equal(count_threads(), n_before + N_TASKS - 1);
        require_equal(&own, &expected);
        drop_answers(&own);
        rig_close(&r);
    }
    assert_true(simple.n_calls > 100);
    assert_int_equal(simple.n_bad, 0);
    if (stride == 1) {
        assert_true(atomic_load(&own_pool.n_calls) > 100);
        assert_true(atomic_load(&own_joined.n_calls) > 100);
        assert_true(atomic_load(&own_joined.n_joined) > 100);
    }
    close_pool(&own_pool);
    pthread_mutex_destroy(&own_joined.mutex);
    drop_answers(&expected);
}

static void all_hosts_get_the_same_bits(void **state) {
    (void)state;
    compare_hosts(0, 1);
}

static void the_reference_too(void **state) {
    (void)state;
    compare_hosts(LK_CPU_REFERENCE_ONLY, 4);
}

// A context of one task has no use for the callback.
static void one_task_is_the_caller(void **state) {
    (void)state;
    rig r;
    simple_host simple = {0, 0};
    answers a;
    open_context(&r, 0, 1, run_in_order, &simple);
    work(&r, NULL, &a);
    assert_int_equal(simple.n_calls, 0);
    drop_answers(&a);
    rig_close(&r);
}

// A struct of a host that was built before the callback existed.
static void an_older_struct_has_none(void **state) {
    (void)state;
    lk_context_desc desc;
    lk_context *context = NULL;
    assert_int_equal(lk_context_desc_init(&desc, offsetof(lk_context_desc, parallel_for)), LK_OK);
    assert_int_equal(desc.size, offsetof(lk_context_desc, parallel_for));
    desc.n_threads = 3;
    desc.parallel_for = run_in_order;  // after the end of its struct
    const int n_before = count_threads();
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &context), LK_OK);
    assert_int_equal(count_threads(), n_before + 2);
    assert_int_equal(lk_context_close(&context), LK_OK);
}

// In a child process, whose only thread is the one that was in fork(), the callback runs its tasks
// there.
static void a_child_process_goes_on(void **state) {
    (void)state;
    rig r;
    simple_host simple = {0, 0};
    open_context(&r, 0, N_TASKS, run_in_order, &simple);
    lk_sequence id, child;
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    assert_int_equal(rig_fill(&r, id, 1, 0, 200, 100, NULL), LK_OK);
    assert_int_equal(lk_sequence_fork(r.cache, id, LK_ALL_TOKENS, &child), LK_OK);
    float *x = calloc(rig_width(&r), sizeof *x);
    float *y = calloc(rig_width(&r), sizeof *y);
    assert_true(x && y);
    assert_int_equal(rig_step(&r, id, 1, 200, 1, x), LK_OK);
    fflush(NULL);
    const pid_t process = fork();
    if (!process) {
        const int n_before = count_threads();  // a sanitizer has one of its own
        _exit(rig_step(&r, child, 1, 200, 1, y) || count_threads() != n_before ||
              memcmp(x, y, rig_width(&r) * sizeof *x));
    }
    int status = -1;
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_int_equal(status, 0);
    free(x);
    free(y);
    rig_close(&r);
}

// ---- Hosts that break it.

typedef enum fault { NO_FAULT, NONE, ALL_BUT_ONE, TWICE, UNKNOWN, LATE, EARLY } fault;

typedef struct bad_host {
    fault fault;
    uint32_t n_tasks;
    lk_task_fn task;
    void *task_data;
    int has_thread;
    pthread_t thread;
    atomic_int goes_on;  // the thread's tasks may begin
} bad_host;

// Tasks of a callback that has returned, on another thread.
static void *run_later(void *user) {
    bad_host *h = user;
    while (!atomic_load(&h->goes_on))
        sched_yield();
    for (uint32_t i = 0; i < h->n_tasks; ++i)
        h->task(h->task_data, i);
    return NULL;
}

static void run_badly(void *user, uint32_t n_tasks, lk_task_fn task, void *task_data) {
    bad_host *h = user;
    h->n_tasks = n_tasks;
    h->task = task;
    h->task_data = task_data;
    if (h->fault == NONE)
        return;
    if (h->fault == EARLY) {
        h->has_thread = !pthread_create(&h->thread, NULL, run_later, h);
        return;
    }
    for (uint32_t i = 0; i < n_tasks; ++i)
        if (h->fault != ALL_BUT_ONE || i != 1)
            task(task_data, i);
    if (h->fault == TWICE)
        task(task_data, 0);
    if (h->fault == UNKNOWN)
        task(task_data, n_tasks);
}

static void require_lost(lk_status status, const char *sentence) {
    assert_int_equal(status, LK_E_DEVICE);
    rig_sentence(sentence);
}

// A fault makes its call fail, and all after it; nothing hangs, and all memory comes back.
static void break_contract(fault which, const char *sentence) {
    bad_host host = {.fault = NO_FAULT};
    rig r;
    open_context(&r, 0, N_TASKS, run_badly, &host);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    assert_int_equal(rig_fill(&r, id, 1, 0, 250, 100, NULL), LK_OK);
    host.fault = which;
    if (which == LATE)
        host.task(host.task_data, 2);
    require_lost(rig_step(&r, id, 1, 250, 200, NULL), sentence);
    assert_int_equal(host.has_thread, which == EARLY);
    atomic_store(&host.goes_on, 1);
    host.fault = NO_FAULT;
    require_lost(rig_step(&r, id, 1, 250, 200, NULL), sentence);
    require_lost(rig_step(&r, id, 1, 250, 1, NULL), sentence);
    uint64_t n_bytes = 0;
    static char bytes[1 << 20];
    require_lost(lk_snapshot_save_memory(r.cache, 0, NULL, NULL, bytes, sizeof bytes, &n_bytes),
                 sentence);
    uint64_t length = 0;
    assert_int_equal(lk_sequence_length(r.cache, id, &length), LK_OK);
    assert_int_equal(length, 250);
    if (host.has_thread)
        assert_int_equal(pthread_join(host.thread, NULL), 0);
    rig_close(&r);
}

static void broken_contracts_are_refused(void **state) {
    (void)state;
    break_contract(NONE, "parallel_for left out task 0 of 4: destroy the caches and close");
    break_contract(ALL_BUT_ONE, "parallel_for left out task 1 of 4");
    break_contract(TWICE, "parallel_for ran task 0 of 4 twice");
    break_contract(UNKNOWN, "parallel_for ran task 4, its tasks are 0 to 3");
    break_contract(LATE, "task 2 of parallel_for ran after parallel_for");
    break_contract(EARLY, "parallel_for left out task 0 of 4");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_hosts_get_the_same_bits),
        cmocka_unit_test(the_reference_too),
        cmocka_unit_test(one_task_is_the_caller),
        cmocka_unit_test(an_older_struct_has_none),
        cmocka_unit_test(a_child_process_goes_on),
        cmocka_unit_test(broken_contracts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
