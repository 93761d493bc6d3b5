// Steps that were captured into graphs: a graph replays in a step of the same shape.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_STEP_REPLAY_H
#define LK_CORE_STEP_REPLAY_H

#include "base/memory.h"
#include "base/status.h"

#include <lowkey/cache.h>

namespace lk {

struct StepSequence;

// Calls of a layer that graphs hold: bits.
enum CapturedCall : uint8_t { kCapturedAppend = 1, kCapturedAttend = 2 };

// A shape is how many sequences a step has and how many new tokens each, in their order. Of each
// shape that was captured, the calls that were.
class ReplayShapes {
  public:
    explicit ReplayShapes(const Allocator &allocator) : counts_(allocator), calls_(allocator) {}

    // CapturedCall bits of each layer; null = no step of the shape was captured. Valid until add().
    uint8_t *calls(const Array<StepSequence> &members);
    // Once for each shape. LK_E_NOMEM.
    lk_status add(const Array<StepSequence> &members, uint32_t n_layers);

  private:
    Array<uint32_t> counts_;  // of each shape: its layers, its sequences, the new tokens of each
    Array<uint8_t> calls_;    // of each shape: [layers]
};

// Note the open step's shape while its queue is captured, before a layer's call does its work.
// calls: the layer's CapturedCall bits, to which the call adds its own after the work; null = the
// queue is not captured. LK_E_UNSUPPORTED, LK_E_NOMEM.
lk_status note_capture(lk_cache *cache, uint32_t layer, uint8_t **calls);

}  // namespace lk

#endif
