// Which keys of a block a query sees, and what its logits start from.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_VISIBLE_TMPL_H
#define LK_BACKEND_CPU_VISIBLE_TMPL_H

#include "backend/cpu/simd.h"

namespace lk {
namespace cpu {
namespace {

enum class Sight { kNone, kSome, kAll };

// Of all queries of the unit together.
LK_INLINE Sight sight(const Unit &unit, const KeyBlock &block) {
    if (block.n_linear < block.n_tokens)
        return Sight::kSome;
    const uint64_t last = block.position + block.n_tokens - 1;
    if (block.position > unit.last_position)
        return Sight::kNone;
    bool all = last <= unit.first_position;
    if (unit.window_tokens) {
        const bool kept = block.position < unit.window_sink_tokens;
        if (!kept && last + unit.window_tokens <= unit.first_position)
            return Sight::kNone;
        all = all && (last < unit.window_sink_tokens ||
                      block.position + unit.window_tokens > unit.last_position);
    }
    return all ? Sight::kAll : Sight::kSome;
}

inline bool sees(const Unit &unit, const KeyBlock &block, const QueryToken &query, uint32_t token) {
    uint64_t position = block.position + token;
    if (token >= block.n_linear) {
        const uint32_t i = block.tree_first + token - block.n_linear;
        if (!((query.ancestors >> i) & 1u))
            return false;
        position = unit.tree_positions[i];
    }
    return position <= query.position &&
           (!unit.window_tokens || position + unit.window_tokens > query.position ||
            position < unit.window_sink_tokens);
}

inline float start_of(const Unit &unit, uint32_t r) { return unit.starts ? unit.starts[r] : 0; }

// Without a soft-cap, what all logits of a row have in common changes its top alone.
inline void add_starts(const Unit &unit) {
    for (uint32_t r = 0; !(unit.cap > 0) && r < unit.n_rows; ++r)
        unit.top[r] += start_of(unit, r);
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
