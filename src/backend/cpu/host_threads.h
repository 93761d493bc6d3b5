// The threads of a host that runs tasks itself: lk_context_desc.parallel_for.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_HOST_THREADS_H
#define LK_BACKEND_CPU_HOST_THREADS_H

#include <atomic>

#include <lowkey/context.h>

namespace lk {
namespace cpu {

constexpr uint32_t kMaxThreads = 1024;

// A host's callback is not trusted to keep its contract: a task touches nothing unless it is the
// first of its index in a run, and run() returns when no task is in it.
class HostThreads {
  public:
    HostThreads() = default;
    HostThreads(const HostThreads &) = delete;
    HostThreads &operator=(const HostThreads &) = delete;

    // Once.
    void set(lk_parallel_for_fn parallel_for, void *user) {
        parallel_for_ = parallel_for;
        user_ = user;
    }
    bool is_set() const { return parallel_for_; }
    // In a process that fork() made: the tasks of other threads are not here.
    void enter_child() { n_inside_.store(kClosed); }

    // LK_OK, or LK_E_DEVICE once the callback has broken its contract.
    lk_status check() const;
    // function(context, job, task) for jobs 0 .. n_jobs-1 in any order; two calls with the same
    // task, which is less than n_tasks, never run at once. n_tasks is at most kMaxThreads.
    using Function = void (*)(void *context, uint32_t job, uint32_t task);
    lk_status run(uint32_t n_jobs, uint32_t n_tasks, Function function, void *context);

  private:
    // What a callback did that its contract forbids.
    enum Fault : uint64_t { kRepeated = 1, kUnknown, kLate, kUnfinished, kLeftOut };
    static constexpr uint32_t kClosed = UINT32_C(1) << 31;
    static constexpr uint32_t kWordBits = 64;

    void open(uint32_t n_jobs, uint32_t n_tasks, Function function, void *context);
    void close();
    void do_task(uint32_t task);
    bool claim(uint32_t task);
    void take_jobs(uint32_t task);
    void note(Fault fault, uint32_t task);

    lk_parallel_for_fn parallel_for_ = nullptr;
    void *user_ = nullptr;
    std::atomic<uint32_t> n_inside_{kClosed};  // tasks, and kClosed between runs
    std::atomic<uint64_t> fault_{0};           // the first one: Fault, n_tasks, task
    std::atomic<uint32_t> next_{0};
    std::atomic<uint64_t> begun_[kMaxThreads / kWordBits] = {};  // a bit for each task
    uint32_t n_jobs_ = 0;
    std::atomic<uint32_t> n_tasks_{0};
    Function function_ = nullptr;
    void *context_ = nullptr;
};

}  // namespace cpu
}  // namespace lk

#endif
