// The mask: which keys of a KV tile are visible to a query; and the start of its logits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_MASK_TMPL_H
#define LK_BACKEND_CPU_MASK_TMPL_H

#include "backend/cpu/simd.h"

namespace lk {
namespace cpu {
namespace {

// The larger one of the dims of keys and values.
LK_INLINE uint32_t largest_dim(const WorkTile &work) {
    return work.head_dim > work.value_dim ? work.head_dim : work.value_dim;
}

// The channel of a page's stored channel.
LK_INLINE uint32_t load_channel(const uint8_t *channels, uint32_t head_dim, uint32_t stored) {
    return head_dim > LK_BYTE_CHANNELS ? channels[2 * stored] | channels[2 * stored + 1] << 8
                                       : channels[stored];
}

enum class Visible { kNone, kSome, kAll };

// To all queries of the work tile together.
LK_INLINE Visible visible_keys(const WorkTile &work, const KvTile &kv_tile) {
    if (kv_tile.n_linear < kv_tile.n_tokens)
        return Visible::kSome;
    const uint64_t last = kv_tile.position + kv_tile.n_tokens - 1;
    if (kv_tile.position > work.last_position)
        return Visible::kNone;
    bool all = last <= work.first_position;
    if (work.window_tokens) {
        const bool kept = kv_tile.position < work.window_sink_tokens;
        if (!kept && last + work.window_tokens <= work.first_position)
            return Visible::kNone;
        all = all && (last < work.window_sink_tokens ||
                      kv_tile.position + work.window_tokens > work.last_position);
    }
    return all ? Visible::kAll : Visible::kSome;
}

inline bool is_visible(const WorkTile &work, const KvTile &kv_tile, const QueryToken &query,
                       uint32_t token) {
    uint64_t position = kv_tile.position + token;
    if (token >= kv_tile.n_linear) {
        const uint32_t i = kv_tile.tree_first + token - kv_tile.n_linear;
        if (!((query.ancestors >> i) & 1u))
            return false;
        position = work.tree_positions[i];
    }
    return position <= query.reach &&
           (!work.window_tokens || position + work.window_tokens > query.position ||
            position < work.window_sink_tokens);
}

inline float start_of(const WorkTile &work, uint32_t r) { return work.starts ? work.starts[r] : 0; }

// Without a soft-cap, a summand of all logits of a row changes its row_max alone.
inline void add_starts(const WorkTile &work) {
    for (uint32_t r = 0; !(work.cap > 0) && r < work.n_rows; ++r)
        work.row_max[r] += start_of(work, r);
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
