// The process that a context is used in. fork() gives a child process a copy of all host memory,
// with every lock as it was, and of all threads only the one that called it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CONTEXT_PROCESS_H
#define LK_CORE_CONTEXT_PROCESS_H

#include <lowkey/base.h>

#include <sched.h>

#include <atomic>

namespace lk {

class Process {
  public:
    Process();
    ~Process();
    Process(const Process &) = delete;
    Process &operator=(const Process &) = delete;

    // Does this process know the context? One load of memory where the kernel clears it in a child
    // process (MADV_WIPEONFORK), else a system call.
    bool is_entered() const { return mark_->load(std::memory_order_acquire) == own_mark(); }

    // In a child process: one thread runs renew(), which returns a status, while the others wait.
    // After LK_OK the process knows the context, else the next call tries again.
    template <class Renew>
    lk_status enter(const Renew &renew) {
        const int32_t own = own_mark();
        for (int32_t seen = mark_->load(); seen != own; seen = mark_->load()) {
            if (seen == -own) {
                (void)sched_yield();
                continue;
            }
            if (!mark_->compare_exchange_strong(seen, -own))
                continue;
            const lk_status status = renew();
            mark_->store(status ? 0 : own, std::memory_order_release);
            return status;
        }
        return LK_OK;
    }

  private:
    using Mark = std::atomic<int32_t>;

    int32_t own_mark() const;

    void *page_;   // null where the kernel clears none
    Mark own_{0};  // used without a page
    Mark *mark_;   // own_mark(), its negative while a thread renews, else another number
};

}  // namespace lk

#endif
