// How the blocks of a sequence stand, step by step: what a cache does by footprint.h, without it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLAN_REPLAY_H
#define LK_PLAN_REPLAY_H

#include "plan/footprint.h"

namespace lk {

// Blocks that a step packs on append, counted from the first block after the sinks.
struct AppendedBlocks {
    uint64_t first;
    uint64_t n;
};

// Blocks of one sequence by state.
struct ReplayBlocks {
    uint64_t total;           // sink blocks included
    uint64_t due;             // blocks that are packed, without those of `appended`
    AppendedBlocks appended;  // packed on append by the last step
    uint64_t length;          // at which windows last dropped pages
    bool drops_appended;      // and whether they dropped pages of `appended` too
    uint64_t packed() const { return due + appended.n; }
};

// A step of n tokens after `length` committed ones; the step before had `previous` tokens.
struct ReplayStep {
    uint64_t length;
    uint64_t n;
    uint64_t previous;
};

// Steps [begin, end).
struct Span {
    uint64_t begin;
    uint64_t end;
};

// Sequences that grow side by side; the last step may be shorter.
struct Replay {
    uint64_t n_tokens;
    uint64_t n_sequences;
    uint64_t step_tokens;

    uint64_t n_steps() const { return ceil_div(n_tokens, step_tokens); }
    ReplayStep step(uint64_t index) const;
    // Steps after which blocks stand as before, each a whole number of blocks further.
    uint64_t period(const Plan &plan) const;
};

// As the step begins, before it packs what is due: the commit before has dropped hidden pages.
ReplayBlocks blocks_before(const Plan &plan, const ReplayStep &step);
// With its packing done and the blocks of its tokens there.
ReplayBlocks blocks_after(const Plan &plan, const ReplayStep &step);
// Blocks whose pages a layer with a window has dropped.
uint64_t dropped_blocks(const Plan &plan, const lk_layer &layer, const ReplayBlocks &blocks);

constexpr uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

}  // namespace lk

#endif
