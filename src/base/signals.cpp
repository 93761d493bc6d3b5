// SPDX-License-Identifier: Apache-2.0
#include "base/signals.h"

#include <initializer_list>

namespace lk {

SignalBlock::SignalBlock() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS})
        sigdelset(&blocked, fault);
    (void)pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

SignalBlock::~SignalBlock() { (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace lk
