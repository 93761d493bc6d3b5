// Calls of the interface on a context: each begins here, so that none runs in a process that the
// context does not work in.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CONTEXT_CALL_H
#define LK_CORE_CONTEXT_CALL_H

#include "base/float_mode.h"
#include "core/context/context.h"

namespace lk {

// LK_OK where calls on the context may run in this process. The first call in a child process
// renews locks and threads. LK_E_DEVICE (the device stayed with the parent process), LK_E_NOMEM (a
// thread could not be started).
lk_status enter_process(const lk_context &context);

// A call while it runs, in the floating-point mode of a new process. In a child process, a call
// that still counts was another thread's.
class Call {
  public:
    explicit Call(const lk_context &context) : context_(context), status_(enter_process(context)) {
        context_.n_calls.fetch_add(1, std::memory_order_relaxed);
    }
    ~Call() { context_.n_calls.fetch_sub(1, std::memory_order_relaxed); }
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

    lk_status status() const { return status_; }

  private:
    const FloatMode mode_;
    const lk_context &context_;
    const lk_status status_;
};

// A call on a context: run() where it may run.
template <class Run>
lk_status on_context(const lk_context *context, const Run &run) {
    if (!context)
        return fail(LK_E_ARGUMENT, "context is NULL");
    const Call call(*context);
    return call.status() ? call.status() : run();
}

}  // namespace lk

#endif
