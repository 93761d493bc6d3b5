// An open device and what its caches share.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CONTEXT_CONTEXT_H
#define LK_CORE_CONTEXT_CONTEXT_H

#include "backend/backend.h"
#include "base/memory.h"
#include "base/status.h"
#include "core/context/process.h"
#include "core/context/tensor.h"

#include <lowkey/context.h>

#include <atomic>
#include <mutex>

struct lk_context {
    explicit lk_context(const lk::Allocator &from) : allocator(from) {}

    lk::Allocator allocator;  // of everything below this context
    lk_context_desc desc{};
    lk::Backend *backend = nullptr;
    mutable std::mutex children;  // guards n_caches, and caches that enter a child process
    uint32_t n_caches = 0;

    // Of core/context/call.h. In a process that fork() made, the first call changes them.
    mutable lk::Process process;
    mutable std::atomic<uint32_t> n_calls{0};     // that run, on the context and on its caches
    mutable std::atomic<uint32_t> generation{0};  // child processes between its opening and here
    mutable bool is_lost = false;                 // the device stayed with the parent process
    mutable bool is_torn =
        false;  // and a thread of the parent was changing the host's memory of it
};

namespace lk {

// Send a sentence to the context's log callback.
void log_line(const lk_context &context, lk_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Log the sentence of a failed call and hand its status on.
lk_status logged(const lk_context *context, lk_status status);

// Is the capability one that exists at all? LK_E_ARGUMENT names what is not.
lk_status check_capability(const lk_capability &capability);

// Does the host submit the work of queues of this kind later? 0 = no queue.
bool is_recorded(const lk_context &context, lk_queue_kind queue);

// The queue as this library knows it, when the backend takes it; null is a queue too.
lk_status import_queue(const lk_context &context, const lk_queue *from, lk_queue *queue);

// As import_tensor(), and that the device can reach the tensor in work for a queue of this kind.
lk_status take_tensor(const lk_context &context, lk_queue_kind queue, const lk_tensor *from,
                      const char *name, const TensorShape &shape, bool is_output, TensorView *view,
                      TensorRange *range);

void add_cache(lk_context *context);
void drop_cache(lk_context *context);

}  // namespace lk

#endif
