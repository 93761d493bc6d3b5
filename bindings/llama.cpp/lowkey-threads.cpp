// SPDX-License-Identifier: Apache-2.0
#include "lowkey-threads.h"

#include <thread>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace lowkey {
namespace {

// A ticket: 32 bits of the job's number, 16 of n_tasks (at most 1024), 16 of the next task.
constexpr uint32_t kTasksShift = 16, kJobShift = 32;
constexpr uint64_t kCountMask = 0xffff;

// Rounds of a wait before its thread offers its CPU to others: about 50 us of an EPYC.
constexpr uint32_t kSpinRounds = 1000;

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ __volatile__("yield" ::: "memory");
#endif
}

class Wait {
  public:
    void once() {
        if (n_rounds_ < kSpinRounds) {
            ++n_rounds_;
            pause();
        } else {
            std::this_thread::yield();
        }
    }
    void restart() { n_rounds_ = 0; }

  private:
    uint32_t n_rounds_ = 0;
};

}  // namespace

bool HostThreads::take_task() {
    uint64_t ticket = ticket_.load(std::memory_order_relaxed);
    for (;;) {
        const uint32_t index = static_cast<uint32_t>(ticket & kCountMask);
        if (index >= ((ticket >> kTasksShift) & kCountMask))
            return false;
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire,
                                           std::memory_order_relaxed))
            continue;
        // The job waits for this task, so its data stays.
        task_(task_data_, index);
        n_done_.fetch_add(1, std::memory_order_release);
        return true;
    }
}

void HostThreads::run_tasks(void *user, uint32_t n_tasks, lk_task_fn task, void *task_data) {
    HostThreads &threads = *static_cast<HostThreads *>(user);
    // Every task of the job before is taken, so no thread reads these.
    threads.task_ = task;
    threads.task_data_ = task_data;
    threads.n_done_.store(0, std::memory_order_relaxed);
    const uint64_t job = (threads.ticket_.load(std::memory_order_relaxed) >> kJobShift) + 1;
    threads.ticket_.store(job << kJobShift | static_cast<uint64_t>(n_tasks) << kTasksShift,
                          std::memory_order_release);
    while (threads.take_task()) {}
    for (Wait wait; threads.n_done_.load(std::memory_order_acquire) != n_tasks;)
        wait.once();
}

void HostThreads::join() {
    for (Wait wait; !is_over_.load(std::memory_order_acquire);) {
        if (take_task())
            wait.restart();
        else
            wait.once();
    }
}

// The last thread to leave opens the next operation, which none enters before. A thread that came
// when thread 0 had left finds the operation that it came for over.
void HostThreads::leave(uint32_t n_threads) {
    if (n_left_.fetch_add(1, std::memory_order_acq_rel) + 1 != n_threads)
        return;
    n_left_.store(0, std::memory_order_relaxed);
    is_over_.store(false, std::memory_order_release);
}

}  // namespace lowkey
