// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/threads.h"

#include "base/float_mode.h"
#include "base/signals.h"
#include "base/status.h"

namespace lk {
namespace cpu {

namespace {

// A layer's calls follow each other within microseconds, where a sleep and a wake-up cost more
// than the work; a host's own work between layers takes longer and should have the core.
constexpr uint32_t kSpins = 2000;

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::~ThreadPool() {
    stop_workers();
    pthread_cond_destroy(&finished_);
    pthread_cond_destroy(&started_);
    pthread_mutex_destroy(&mutex_);
}

void ThreadPool::stop_workers() {
    pthread_mutex_lock(&mutex_);
    stop_.store(true);
    pthread_cond_broadcast(&started_);
    pthread_mutex_unlock(&mutex_);
    for (Worker &worker : threads_)
        pthread_join(worker.thread, nullptr);
    threads_.clear();
}

lk_status ThreadPool::start(uint32_t n_threads) {
    if (!threads_.reserve(n_threads))
        return fail(LK_E_NOMEM, "no memory for %u threads", n_threads);
    n_threads_ = n_threads;
    return start_workers();
}

void ThreadPool::start_on(lk_parallel_for_fn run_tasks, void *user, uint32_t n_tasks) {
    host_.set(run_tasks, user);
    n_threads_ = n_tasks;
}

lk_status ThreadPool::start_workers() {
    const SignalBlock block;
    stop_.store(false);
    generation_.store(0);
    for (uint32_t i = 1; i < n_threads_; ++i) {
        threads_.push({this, {}, i});
        if (pthread_create(&threads_.back().thread, nullptr, enter, &threads_.back()) != 0) {
            threads_.pop();
            stop_workers();
            return fail(LK_E_NOMEM, "thread %u of %u could not be started", i, n_threads_);
        }
    }
    return LK_OK;
}

lk_status ThreadPool::enter_child() {
    pthread_mutex_init(&mutex_, nullptr);
    pthread_cond_init(&started_, nullptr);
    pthread_cond_init(&finished_, nullptr);
    threads_.clear();
    host_.enter_child();
    return host_.is_set() ? LK_OK : start_workers();
}

void *ThreadPool::enter(void *argument) {
    const auto *worker = static_cast<const Worker *>(argument);
    const FloatMode mode;  // not the one that the opening thread had
    worker->pool->serve(worker->index);
    return nullptr;
}

// Wait for a run that this worker has not seen; false to end.
bool ThreadPool::await(uint64_t *seen) {
    for (uint32_t i = 0; i < kSpins; ++i) {
        if (generation_.load(std::memory_order_acquire) != *seen) {
            ++*seen;
            return true;
        }
        pause_core();
    }
    pthread_mutex_lock(&mutex_);
    while (!stop_.load() && generation_.load() == *seen)
        pthread_cond_wait(&started_, &mutex_);
    const bool go = generation_.load() != *seen;
    pthread_mutex_unlock(&mutex_);
    ++*seen;
    return go;
}

void ThreadPool::serve(uint32_t index) {
    uint64_t seen = 0;
    while (await(&seen)) {
        take_units(index);
        if (n_busy_.fetch_sub(1) == 1) {
            pthread_mutex_lock(&mutex_);
            pthread_cond_signal(&finished_);
            pthread_mutex_unlock(&mutex_);
        }
    }
}

void ThreadPool::take_units(uint32_t thread) {
    for (;;) {
        const uint32_t job = next_.fetch_add(1, std::memory_order_relaxed);
        if (job >= n_jobs_)
            return;
        function_(context_, job, thread);
    }
}

lk_status ThreadPool::run(uint32_t n_jobs, Function function, void *context) {
    LK_TRY(check());
    if (n_jobs <= 1 || n_threads_ == 1)
        for (uint32_t job = 0; job < n_jobs; ++job)
            function(context, job, 0);
    else if (host_.is_set())
        return host_.run(n_jobs, n_jobs < n_threads_ ? n_jobs : n_threads_, function, context);
    else
        run_own(n_jobs, function, context);
    return LK_OK;
}

void ThreadPool::run_own(uint32_t n_jobs, Function function, void *context) {
    n_jobs_ = n_jobs;
    function_ = function;
    context_ = context;
    next_.store(0);
    n_busy_.store(static_cast<uint32_t>(threads_.size()));
    pthread_mutex_lock(&mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    pthread_cond_broadcast(&started_);
    pthread_mutex_unlock(&mutex_);
    take_units(0);
    for (uint32_t i = 0; i < kSpins && n_busy_.load(std::memory_order_acquire); ++i)
        pause_core();
    pthread_mutex_lock(&mutex_);
    while (n_busy_.load())
        pthread_cond_wait(&finished_, &mutex_);
    pthread_mutex_unlock(&mutex_);
}

}  // namespace cpu
}  // namespace lk
