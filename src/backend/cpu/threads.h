// The worker threads of a context, its own or the host's. The caller of its own ones takes part in
// every run.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_THREADS_H
#define LK_BACKEND_CPU_THREADS_H

#include <pthread.h>

#include <atomic>
#include <type_traits>

#include "backend/cpu/host_threads.h"
#include "base/memory.h"

#include <lowkey/base.h>

namespace lk {
namespace cpu {

class ThreadPool {
  public:
    explicit ThreadPool(const Allocator &allocator) : threads_(allocator) {}
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    // Once: the pool's own threads, of which n_threads counts the caller's, or those of the host.
    lk_status start(uint32_t n_threads);
    void start_on(lk_parallel_for_fn run_tasks, void *user, uint32_t n_tasks);
    // In a process that fork() made, where the threads are not: start them anew.
    lk_status enter_child();
    uint32_t size() const { return n_threads_; }
    // LK_OK, or LK_E_DEVICE where the host's threads have failed: see HostThreads.
    lk_status check() const { return host_.check(); }

    // body(job, thread) for jobs 0 .. n_jobs-1 in any order; thread < size(), and two bodies with
    // the same thread never run at once. Returns when all are done. One run at a time.
    template <class Body>
    lk_status parallel_for(uint32_t n_jobs, Body &&body) {
        using Plain = std::remove_reference_t<Body>;
        return run(
            n_jobs,
            [](void *context, uint32_t job, uint32_t thread) {
                (*static_cast<Plain *>(context))(job, thread);
            },
            &body);
    }

  private:
    using Function = HostThreads::Function;
    struct Worker {
        ThreadPool *pool;
        pthread_t thread;
        uint32_t index;
    };
    lk_status start_workers();
    void stop_workers();
    static void *enter(void *worker);
    void serve(uint32_t index);
    bool await(uint64_t *seen);
    lk_status run(uint32_t n_jobs, Function function, void *context);
    void run_own(uint32_t n_jobs, Function function, void *context);
    void take_units(uint32_t thread);

    uint32_t n_threads_ = 1;
    HostThreads host_;
    Array<Worker> threads_;  // without the caller's
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t started_ = PTHREAD_COND_INITIALIZER;
    pthread_cond_t finished_ = PTHREAD_COND_INITIALIZER;
    std::atomic<uint64_t> generation_{0};
    std::atomic<uint32_t> n_busy_{0};
    std::atomic<uint32_t> next_{0};
    std::atomic<bool> stop_{false};
    uint32_t n_jobs_ = 0;
    Function function_ = nullptr;
    void *context_ = nullptr;
};

}  // namespace cpu
}  // namespace lk

#endif
