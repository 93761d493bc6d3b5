// Threads of a host that run every operation of its graph together, as those of ggml do: in an
// operation that calls lowkey they take lowkey's tasks, so lowkey needs no threads of its own. This
// header knows no llama.cpp.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_THREADS_H
#define LOWKEY_THREADS_H

#include <lowkey/context.h>

#include <atomic>
#include <cstdint>

namespace lowkey {

// One for each context of lowkey, which it must outlive.
class HostThreads {
  public:
    HostThreads() = default;
    HostThreads(const HostThreads &) = delete;
    HostThreads &operator=(const HostThreads &) = delete;

    // The context's lk_parallel_for_fn; user is a HostThreads. In a call of lowkey outside of
    // run(), the calling thread runs all tasks.
    static void run_tasks(void *user, uint32_t n_tasks, lk_task_fn task, void *task_data);

    // One operation. Each of the threads 0 .. n_threads - 1 calls it once, and no thread calls it
    // again before all of them have returned: the host has a barrier after each operation. Thread 0
    // runs work(), which calls lowkey and throws nothing; the others take tasks until work() has
    // returned, those that come late included.
    template <typename Work>
    void run(uint32_t thread, uint32_t n_threads, const Work &work) {
        if (thread == 0) {
            work();
            is_over_.store(true, std::memory_order_release);
        } else {
            join();
        }
        leave(n_threads);
    }

  private:
    void join();
    void leave(uint32_t n_threads);
    bool take_task();

    // The number of the job, its n_tasks and the next task: one word, so that a thread never takes
    // a task of one job with the data of another.
    std::atomic<uint64_t> ticket_{0};
    lk_task_fn task_ = nullptr;  // of the job, as task_data_; read by those that have taken a task
    void *task_data_ = nullptr;
    std::atomic<uint32_t> n_done_{0};  // tasks of the job that have returned
    std::atomic<bool> is_over_{false};
    std::atomic<uint32_t> n_left_{0};  // threads that have left the operation
};

}  // namespace lowkey

#endif
