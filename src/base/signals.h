// Signals of the host.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_SIGNALS_H
#define LK_BASE_SIGNALS_H

#include <csignal>

namespace lk {

// While it lives, the calling thread blocks every signal that another process or a timer may send,
// and a thread that it starts blocks them for its whole life: they come to the host's own threads.
// The signals of a thread's own faults stay as they are, since a blocked one ends the process
// without its handler.
class SignalBlock {
  public:
    SignalBlock();
    ~SignalBlock();
    SignalBlock(const SignalBlock &) = delete;
    SignalBlock &operator=(const SignalBlock &) = delete;

  private:
    sigset_t before_;
};

}  // namespace lk

#endif
