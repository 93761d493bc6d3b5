// SPDX-License-Identifier: Apache-2.0
#include "plan/replay.h"

namespace lk {

namespace {

// Those of a step of n tokens on `length`.
AppendedBlocks appended_blocks(const Plan &plan, uint64_t length, uint64_t n) {
    const uint64_t sinks = sink_blocks(plan);
    const uint64_t blocks = block_count(plan, length);
    const uint64_t first = blocks < sinks ? sinks : blocks;
    const uint64_t due = due_blocks(plan, length + n);
    return {first - sinks,
            due > first && packs_on_append(plan, first, length, n) ? due - first : 0};
}

uint64_t lesser(uint64_t a, uint64_t b) { return a < b ? a : b; }

}  // namespace

ReplayStep Replay::step(uint64_t index) const {
    const uint64_t length = index * step_tokens;
    return {length, lesser(n_tokens - length, step_tokens), index ? step_tokens : 0};
}

uint64_t Replay::period(const Plan &plan) const {
    return plan.page_tokens / gcd(step_tokens, plan.page_tokens);
}

ReplayBlocks blocks_before(const Plan &plan, const ReplayStep &step) {
    const uint64_t earlier = step.length - step.previous;
    return {block_count(plan, step.length), due_blocks(plan, earlier) - sink_blocks(plan),
            appended_blocks(plan, earlier, step.previous), step.length, true};
}

ReplayBlocks blocks_after(const Plan &plan, const ReplayStep &step) {
    return {block_count(plan, step.length + step.n),
            due_blocks(plan, step.length) - sink_blocks(plan),
            appended_blocks(plan, step.length, step.n), step.length, false};
}

uint64_t dropped_blocks(const Plan &plan, const lk_layer &layer, const ReplayBlocks &blocks) {
    const uint64_t hidden = hidden_blocks(plan, layer, blocks.length) - sink_blocks(plan);
    const AppendedBlocks &appended = blocks.appended;
    const bool reaches = blocks.drops_appended && hidden > appended.first;
    return lesser(hidden, blocks.due) + (reaches ? lesser(hidden - appended.first, appended.n) : 0);
}

}  // namespace lk
