// Signals of the host come to the host's threads: those of the library and of its drivers block
// them. --device NAME as in suite api.
//
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <pthread.h>
#include <signal.h>

#include "api/rig.h"
#include "child.h"

#define N_THREADS 4

static const int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP};

static int is_fault(int number) {
    for (size_t i = 0; i < sizeof kFaults / sizeof *kFaults; ++i)
        if (kFaults[i] == number)
            return 1;
    return 0;
}

// What /proc states of a thread after "key:".
static void state_of(const char *thread, const char *key, char *value, size_t n) {
    char path[300];
    char line[256];
    *value = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key)))
            snprintf(value, n, "%.*s", (int)strcspn(line, "\n"), line);
    if (file)
        fclose(file);
}

// The first signal of the host that a thread does not block, 0 when there is none.
static int open_signal(const char *thread) {
    char line[256];
    state_of(thread, "SigBlk:", line, sizeof line);
    const unsigned long long mask = strlen(line) > 7 ? strtoull(line + 7, NULL, 16) : ~0ULL;
    for (int s = 1; s < 32; ++s)
        if (!is_fault(s) && !(mask >> (s - 1) & 1))
            return s;
    return 0;
}

// Threads other than this one, and how many of them take a signal of the host.
static void count_threads(int *n, int *n_open) {
    char own[32];
    snprintf(own, sizeof own, "%d", (int)getpid());
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    *n = *n_open = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.' || !strcmp(entry->d_name, own))
            continue;
        char name[256];
        const int number = open_signal(entry->d_name);
        state_of(entry->d_name, "Name:", name, sizeof name);
        if (number)
            print_message("thread %s takes signal %d (%s)\n", entry->d_name, number, name);
        ++*n;
        *n_open += number != 0;
    }
    closedir(folder);
}

static void open_rig(rig *r) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 1, 4, 2, 32);
    lk_context_desc desc;
    rig_context_desc(r, &desc);
    desc.n_threads = rig_default()->backend == LK_BACKEND_CPU ? N_THREADS : 0;
    desc.alloc = NULL;
    desc.free = NULL;
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &r->context), LK_OK);
    rig_preset(r, "kivi2");
    rig_recent(r, 32, 16, 16);
    assert_int_equal(rig_cache(r, 2, 100, 16u << 20), LK_OK);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
    assert_int_equal(rig_fill(r, id, 1, 0, 100, 40, NULL), LK_OK);
}

static void threads_block_signals(void **state) {
    (void)state;
    int n_before;
    int n_open_before;
    count_threads(&n_before, &n_open_before);
    rig r;
    open_rig(&r);
    int n;
    int n_open;
    count_threads(&n, &n_open);
    if (rig_default()->backend == LK_BACKEND_CPU)
        assert_int_equal(n - n_before, N_THREADS - 1);
    assert_int_equal(n_open, n_open_before);
    rig_close(&r);
}

// The mask of the thread that opens a context is as it was.
static void the_host_keeps_its_mask(void **state) {
    (void)state;
    sigset_t before;
    sigset_t after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    rig r;
    open_rig(&r);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int s = 1; s < 32; ++s)
        assert_int_equal(sigismember(&before, s), sigismember(&after, s));
    rig_close(&r);
}

// A signal whose default ends the process waits for sigwait().
static void a_host_waits_with_sigwait(void **state) {
    (void)state;
    sigset_t waited;
    sigset_t before;
    sigemptyset(&waited);
    sigaddset(&waited, SIGUSR1);
    rig r;
    open_rig(&r);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &waited, &before), 0);
    for (int i = 0; i < 50; ++i) {
        int number = 0;
        assert_int_equal(kill(getpid(), SIGUSR1), 0);
        assert_int_equal(sigwait(&waited, &number), 0);
        assert_int_equal(number, SIGUSR1);
    }
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    rig_close(&r);
}

int main(int argc, char **argv) {
    // The rig's own device may have threads: those of a host that keeps this rule.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rig_arguments(argc, argv);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_block_signals),
        cmocka_unit_test(the_host_keeps_its_mask),
        cmocka_unit_test(a_host_waits_with_sigwait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
