// Shapes of steps that were captured into graphs: a graph replays in a step of the same shape.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_STEP_REPLAY_H
#define LK_CORE_STEP_REPLAY_H

#include "base/memory.h"
#include "base/status.h"

#include <lowkey/cache.h>

namespace lk {

struct StepSequence;

// A shape is how many sequences a step has and how many new tokens each, in their order.
class ReplayShapes {
  public:
    explicit ReplayShapes(const Allocator &allocator) : counts_(allocator) {}

    bool has(const Array<StepSequence> &members) const;
    // Once for each shape. LK_E_NOMEM.
    lk_status add(const Array<StepSequence> &members);

  private:
    Array<uint32_t> counts_;  // of each shape: its sequences, then the new tokens of each
};

// Note the open step's shape while its queue is captured. LK_E_UNSUPPORTED, LK_E_NOMEM.
lk_status note_capture(lk_cache *cache);

}  // namespace lk

#endif
