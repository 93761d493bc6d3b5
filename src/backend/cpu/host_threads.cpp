// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/host_threads.h"

#include <sched.h>

#include "base/float_mode.h"
#include "base/status.h"

namespace lk {
namespace cpu {

lk_status HostThreads::check() const {
    const uint64_t fault = fault_.load();
    if (!fault)
        return LK_OK;
    const auto task = static_cast<uint32_t>(fault);
    const auto n_tasks = static_cast<uint32_t>(fault >> 32 & UINT16_MAX);
    constexpr const char *kEnd = "destroy the caches and close the context";
    switch (static_cast<Fault>(fault >> 48)) {
        case kRepeated:
            return fail(LK_E_DEVICE, "parallel_for ran task %u of %u twice: %s", task, n_tasks,
                        kEnd);
        case kUnknown:
            return fail(LK_E_DEVICE, "parallel_for ran task %u, its tasks are 0 to %u: %s", task,
                        n_tasks - 1, kEnd);
        case kLate:
            return fail(LK_E_DEVICE, "task %u of parallel_for ran after parallel_for: %s", task,
                        kEnd);
        case kUnfinished:
            return fail(LK_E_DEVICE, "parallel_for returned before its %u tasks had returned: %s",
                        n_tasks, kEnd);
        case kLeftOut: break;
    }
    return fail(LK_E_DEVICE, "parallel_for left out task %u of %u: %s", task, n_tasks, kEnd);
}

// The first fault stays: those after it may follow from it.
void HostThreads::note(Fault fault, uint32_t task) {
    uint64_t none = 0;
    fault_.compare_exchange_strong(none, fault << 48 | uint64_t{n_tasks_.load()} << 32 | task);
}

// A task of an earlier run that comes now counts as one of this run.
void HostThreads::open(uint32_t n_jobs, uint32_t n_tasks, Function function, void *context) {
    for (uint32_t i = 0; i * kWordBits < n_tasks; ++i)
        begun_[i].store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    n_tasks_.store(n_tasks);
    n_jobs_ = n_jobs;
    function_ = function;
    context_ = context;
    n_inside_.fetch_and(~kClosed);
}

// Tasks are lowkey's own code, so those that are inside come to an end.
void HostThreads::close() {
    if (n_inside_.fetch_or(kClosed))
        note(kUnfinished, 0);
    while (n_inside_.load() != kClosed)
        sched_yield();
    const uint32_t n_tasks = n_tasks_.load();
    for (uint32_t task = 0; task < n_tasks; ++task)
        if (!(begun_[task / kWordBits].load() >> task % kWordBits & 1))
            note(kLeftOut, task);
}

lk_status HostThreads::run(uint32_t n_jobs, uint32_t n_tasks, Function function, void *context) {
    LK_TRY(check());
    open(n_jobs, n_tasks, function, context);
    parallel_for_(
        user_, n_tasks,
        [](void *threads, uint32_t task) { static_cast<HostThreads *>(threads)->do_task(task); },
        this);
    close();
    FloatMode::set();
    return check();
}

void HostThreads::do_task(uint32_t task) {
    if (n_inside_.fetch_add(1) & kClosed)
        note(kLate, task);
    else if (claim(task))
        take_jobs(task);
    n_inside_.fetch_sub(1);
}

bool HostThreads::claim(uint32_t task) {
    if (task >= n_tasks_.load()) {
        note(kUnknown, task);
        return false;
    }
    const uint64_t bit = uint64_t{1} << task % kWordBits;
    if (!(begun_[task / kWordBits].fetch_or(bit) & bit))
        return true;
    note(kRepeated, task);
    return false;
}

void HostThreads::take_jobs(uint32_t task) {
    const FloatMode mode;
    for (;;) {
        const uint32_t job = next_.fetch_add(1, std::memory_order_relaxed);
        if (job >= n_jobs_)
            return;
        function_(context_, job, task);
    }
}

}  // namespace cpu
}  // namespace lk
