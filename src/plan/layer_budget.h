// Budgets of layers: what a layer's blocks take at each rung, and the rung that a budget leaves.
//
// A layer's bytes are a sum over the distinct blocks of a cache, each counted once by its state, so
// they follow from a few counts. The cache and lk_plan_bytes() call the same functions.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLAN_LAYER_BUDGET_H
#define LK_PLAN_LAYER_BUDGET_H

#include "plan/replay.h"

namespace lk {

// A block's state, as far as its bytes depend on it. A block that is packed in part is still at 16
// bits. A plan with budgets of layers has no chunks.
enum BlockState : uint32_t { kSinkBlock, kLastSinkBlock, kRecentBlock, kPackedBlock, kBlockStates };

// Blocks by state.
struct BlockTally {
    uint64_t n[kBlockStates];
};

// Bytes of the slots that a layer has in one block, by rung and state.
struct LayerBlockBytes {
    uint64_t at[kMaxRungs][kBlockStates];
};
LayerBlockBytes layer_block_bytes(const Plan &plan, uint32_t layer);

// The rung that a layer with a ladder begins at, as an index.
inline uint32_t first_rung(const LayerPlan &layer) {
    uint32_t rung = 0;
    while (layer.rungs[rung] != layer.rung)
        ++rung;
    return rung;
}

uint64_t tally_bytes(const uint64_t (&block_bytes)[kBlockStates], const BlockTally &tally);

// The widest rung, `rung` or a lower one, at which the blocks are within the budget; the last rung
// where there is none.
uint32_t rung_within(uint64_t budget_bytes, const LayerBlockBytes &bytes, const BlockTally &tally,
                     uint32_t rung, uint32_t n_rungs);

// A layer of a replay goes to a rung as a step begins.
struct RungChange {
    uint64_t step;
    uint32_t layer;
    uint32_t rung;
};
// All of them by ascending steps; none in a plan without budgets of layers. LK_E_NOMEM.
lk_status list_rung_changes(const Plan &plan, bool keeps_windowed, const Replay &replay,
                            Array<RungChange> *out);

// The most bytes of a layer's slots that a replay comes to at a rung.
uint64_t most_layer_bytes(const Plan &plan, uint32_t layer, uint32_t rung, const Replay &replay);

}  // namespace lk

#endif
