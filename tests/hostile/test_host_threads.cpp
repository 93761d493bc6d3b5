// Hosts whose parallel_for breaks its contract in the middle of a run: lowkey waits for the tasks
// that have begun, runs no job twice, and refuses from then on.
//
// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/host_threads.h"

#include <pthread.h>
#include <sched.h>

#include <cfenv>
#include <cstring>
#include <initializer_list>

#include "base/float_mode.h"
#include "base/status.h"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

namespace {

constexpr uint32_t kJobs = 500;
constexpr uint32_t kTasks = 70;  // more than a word of bits

// By the arithmetic itself: fegetround() reads the mode of another unit on some machines.
bool rounds_up() {
    volatile float one = 1;
    volatile float little = 1e-10f;
    return one + little > one;
}

// What jobs find and leave.
struct Work {
    std::atomic<uint32_t> n_runs[kJobs] = {};
    std::atomic<bool> in_task[kTasks] = {};
    std::atomic<uint32_t> n_bad{0};  // jobs of a task that had one already, or in another mode
    std::atomic<bool> is_held{false};
    std::atomic<uint32_t> n_held{0};

    static void run(void *context, uint32_t job, uint32_t task) {
        auto *work = static_cast<Work *>(context);
        work->n_bad += task >= kTasks || work->in_task[task].exchange(true);
        work->n_bad += rounds_up();
        ++work->n_runs[job];
        ++work->n_held;
        while (work->is_held)
            sched_yield();
        --work->n_held;
        work->in_task[task] = false;
    }
    uint32_t n_done_once() const {
        uint32_t n = 0;
        for (const std::atomic<uint32_t> &n_runs_of : n_runs)
            n += n_runs_of == 1;
        return n;
    }
};

struct Host {
    void (*run)(Host *host) = nullptr;
    uint32_t n_tasks = 0;
    lk_task_fn task = nullptr;
    void *task_data = nullptr;
    Work work;
    lk::cpu::HostThreads threads;
    pthread_t thread{};

    Host() { threads.set(&Host::call, this); }
    static void call(void *user, uint32_t n, lk_task_fn task, void *task_data) {
        auto *host = static_cast<Host *>(user);
        host->n_tasks = n;
        host->task = task;
        host->task_data = task_data;
        host->run(host);
    }
    lk_status start(void (*how)(Host *), uint32_t n_jobs = kJobs) {
        run = how;
        return threads.run(n_jobs, kTasks, &Work::run, &work);
    }
};

void run_all(Host *host) {
    for (uint32_t i = 0; i < host->n_tasks; ++i)
        host->task(host->task_data, i);
}

void require_lost(const Host &host, lk_status status, const char *sentence) {
    assert_int_equal(status, LK_E_DEVICE);
    if (!std::strstr(lk::last_sentence(), sentence))
        fail_msg("\"%s\" does not hold \"%s\"", lk::last_sentence(), sentence);
    assert_int_equal(host.threads.check(), LK_E_DEVICE);
    assert_int_equal(host.work.n_bad.load(), 0);
}

void jobs_run_once(void **) {
    Host host;
    assert_int_equal(host.start(run_all), LK_OK);
    assert_int_equal(host.work.n_done_once(), kJobs);
    assert_int_equal(host.work.n_bad.load(), 0);
    // Fewer jobs than tasks, and no job.
    assert_int_equal(host.start(run_all, 3), LK_OK);
    assert_int_equal(host.start(run_all, 0), LK_OK);
    assert_int_equal(host.work.n_runs[2].load(), 2);
}

// A host that returns while a task runs: the call ends when the task has.
void *hold_a_task(void *user) {
    auto *host = static_cast<Host *>(user);
    host->task(host->task_data, 5);
    return nullptr;
}

// Lets the task go on once lowkey has found that it is late.
void *release_when_found(void *user) {
    auto *host = static_cast<Host *>(user);
    while (host->threads.check() == LK_OK)
        sched_yield();
    host->work.is_held = false;
    return nullptr;
}

void run_early(Host *host) {
    host->work.is_held = true;
    (void)pthread_create(&host->thread, nullptr, hold_a_task, host);
    while (!host->work.n_held)
        sched_yield();
}

void an_early_return_waits(void **) {
    Host host;
    pthread_t releaser;
    assert_int_equal(pthread_create(&releaser, nullptr, release_when_found, &host), 0);
    const lk_status status = host.start(run_early);
    assert_int_equal(host.work.n_held.load(), 0);
    require_lost(host, status, "parallel_for returned before its 70 tasks had returned");
    assert_int_equal(pthread_join(host.thread, nullptr), 0);
    assert_int_equal(pthread_join(releaser, nullptr), 0);
    assert_int_equal(host.work.n_done_once(), kJobs);
}

// The same task on two threads at once: one of them does nothing.
void *run_sixth(void *user) {
    auto *host = static_cast<Host *>(user);
    host->task(host->task_data, 6);
    return nullptr;
}

void run_twice_at_once(Host *host) {
    pthread_t other;
    host->work.is_held = true;
    (void)pthread_create(&other, nullptr, run_sixth, host);
    while (!host->work.n_held)
        sched_yield();
    host->task(host->task_data, 6);
    host->work.is_held = false;
    (void)pthread_join(other, nullptr);
    for (uint32_t i = 0; i < host->n_tasks; ++i)
        if (i != 6)
            host->task(host->task_data, i);
}

void a_task_has_one_thread(void **) {
    Host host;
    require_lost(host, host.start(run_twice_at_once), "parallel_for ran task 6 of 70 twice");
    assert_int_equal(host.work.n_done_once(), kJobs);
}

void indices_are_checked(void **) {
    for (const uint32_t index : {kTasks, uint32_t{1023}, uint32_t{1024}, UINT32_MAX}) {
        static uint32_t wrong;
        wrong = index;
        Host host;
        const auto run_wrong = [](Host *h) {
            h->task(h->task_data, wrong);
            run_all(h);
        };
        require_lost(host, host.start(run_wrong), "its tasks are 0 to 69");
    }
}

// Tasks of an earlier run, between runs: nothing is done, and the next run is refused.
void late_tasks_do_nothing(void **) {
    Host host;
    assert_int_equal(host.start(run_all), LK_OK);
    for (uint32_t i = 0; i < 3; ++i)
        host.task(host.task_data, i);
    assert_int_equal(host.work.n_done_once(), kJobs);
    require_lost(host, host.start(run_all), "task 0 of parallel_for ran after parallel_for");
    assert_int_equal(host.work.n_done_once(), kJobs);
}

// The first fault is the one that is stated.
void nothing_runs(void **) {
    Host host;
    require_lost(host, host.start([](Host *) {}), "parallel_for left out task 0 of 70");
    assert_int_equal(host.work.n_done_once(), 0);
    require_lost(host, host.start(run_all), "parallel_for left out task 0 of 70");
    assert_int_equal(host.work.n_done_once(), 0);
}

// Of a fork in the middle of a run the child process has the counts, and none of the tasks.
void a_child_process_begins_anew(void **) {
    Host host;
    const auto run_in_child = [](Host *h) {
        h->threads.enter_child();
        h->run = run_all;
        h->work.n_bad += h->threads.run(kJobs, kTasks, &Work::run, &h->work) != LK_OK;
    };
    (void)host.start(run_in_child);
    assert_int_equal(host.work.n_done_once(), kJobs);
    assert_int_equal(host.work.n_bad.load(), 0);
}

// A task computes to the nearest, and the thread keeps its mode; so does the caller's, which the
// callback leaves in another one.
void modes_are_kept(void **) {
    Host host;
    const lk::FloatMode call;
    const auto run_upward = [](Host *h) {
        std::fesetround(FE_UPWARD);
        run_all(h);
        h->work.n_bad += !rounds_up();
    };
    assert_int_equal(host.start(run_upward), LK_OK);
    assert_false(rounds_up());
    std::fesetround(FE_TONEAREST);
    assert_int_equal(host.work.n_bad.load(), 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(jobs_run_once),
        cmocka_unit_test(an_early_return_waits),
        cmocka_unit_test(a_task_has_one_thread),
        cmocka_unit_test(indices_are_checked),
        cmocka_unit_test(late_tasks_do_nothing),
        cmocka_unit_test(nothing_runs),
        cmocka_unit_test(a_child_process_begins_anew),
        cmocka_unit_test(modes_are_kept),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
