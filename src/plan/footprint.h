// What a cache allocates for a plan, and when: the rules that core follows and that bytes.cpp
// replays. Both call these functions, so a size query and a cache cannot differ.
//
// Blocks. A sequence is a list of blocks: first its sink blocks (16 bits for good), then blocks of
// page_tokens tokens. A block holds a K page and a V page for every entry, that is every
// (layer, KV head). A page is a payload slot, and a metadata slot where PageSlots says so.
//
// Slots. An extent of LK_EXTENT_BYTES serves a family of sizes: one size, or, where layers have a
// ladder, the size of a page's 16-bit payload and that divided by powers of two (slot_families()).
// An extent is given back with its last slot. A family's slots fill slots of its largest size, as
// buddies do, and these fill extents: in use are
// ceil(ceil(bytes in use / largest) / slots_per_extent(largest)) extents. With a ladder that has a
// rung left, one extent more is kept for pages that move while they shrink; packing may use it too.
//
// A step. At its begin, with L committed tokens:
//   1. for each sequence of the step, for each block that is_due(L) and still at 16 bits, in
//      ascending order, for each entry: allocate the packed slots (K payload, K metadata, V
//      payload, V metadata), pack, free the entry's 16-bit payload slots. Raw pages stay, and a
//      metadata slot that a 16-bit page already has is kept and not allocated again.
//   2. for each sequence, entries of packed blocks are given back as frees_hidden_pages() says.
//   3. for each sequence, a longer block table where needed, then the blocks of its n new tokens:
//      packed slots for packs_on_append() (raw pages 16-bit ones), else 16-bit slots.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLAN_FOOTPRINT_H
#define LK_PLAN_FOOTPRINT_H

#include <lowkey/step.h>

#include "plan/plan.h"

namespace lk {

// Tables: what a sequence, a block and an entry of a block take on the host or the device.
constexpr uint64_t kSequenceBytes = 512;  // for each of max_sequences, from the start
constexpr uint64_t kBlockBytes = 128;
constexpr uint64_t kEntryBytes = 40;
constexpr uint64_t kLinkBytes = 8;  // of a block table

// Blocks that a sequence's block table has space for when it has grown to n_blocks: 8, 16, .. 64,
// then eighths to quarters more. In a step that lengthens tables the longest of the old ones counts
// next to them.
constexpr uint64_t table_capacity(uint64_t n_blocks) {
    uint64_t step = 8;
    while (n_blocks > 8 * step)
        step *= 2;
    return round_up(n_blocks, step);
}

constexpr uint64_t slots_per_extent(uint64_t slot) { return LK_EXTENT_BYTES / slot; }

// A sink block has at most page_tokens tokens, so a 16-bit page is at most 128 KiB.
inline uint64_t sink_blocks(const Plan &plan) {
    return ceil_div(plan.sink_tokens, plan.page_tokens);
}
inline bool is_sink_block(const Plan &plan, uint64_t block) { return block < sink_blocks(plan); }
// First token of a block.
inline uint64_t block_first_token(const Plan &plan, uint64_t block) {
    const uint64_t sinks = sink_blocks(plan);
    return block < sinks ? block * plan.page_tokens
                         : plan.sink_tokens + (block - sinks) * plan.page_tokens;
}
// Tokens that a block can hold: a multiple of 16.
inline uint32_t block_capacity(const Plan &plan, uint64_t block) {
    return static_cast<uint32_t>(block_first_token(plan, block + 1) -
                                 block_first_token(plan, block));
}
inline uint64_t block_of_token(const Plan &plan, uint64_t token) {
    return token < plan.sink_tokens
               ? token / plan.page_tokens
               : sink_blocks(plan) + (token - plan.sink_tokens) / plan.page_tokens;
}
// Blocks of a sequence of `length` tokens.
inline uint64_t block_count(const Plan &plan, uint64_t length) {
    return length ? block_of_token(plan, length - 1) + 1 : 0;
}

// Blocks [0, due_blocks) of a sequence of `length` tokens have left the recent tokens or are sinks.
inline uint64_t due_blocks(const Plan &plan, uint64_t length) {
    const uint64_t kept = static_cast<uint64_t>(plan.sink_tokens) + plan.recent_tokens;
    return sink_blocks(plan) + (length > kept ? (length - kept) / plan.page_tokens : 0);
}
// A block is packed by the first step that begins with all its tokens and recent_tokens more.
inline bool is_due(const Plan &plan, uint64_t block, uint64_t length) {
    return !is_sink_block(plan, block) && block < due_blocks(plan, length);
}
// Does a step of n_new tokens on `length` committed ones write this block at its packed width
// at once? Only steps that cannot be partly dropped do, and only blocks without committed tokens.
inline bool packs_on_append(const Plan &plan, uint64_t block, uint64_t length, uint64_t n_new) {
    return n_new > LK_DRAFT_TOKENS && block_first_token(plan, block) >= length &&
           is_due(plan, block, length + n_new);
}

// Sliding windows. A layer that frees_hidden_pages() gives back its entries of packed blocks
// below hidden_blocks(), all of their slots: at a step's begin, and at commit with the new length.
// Sink blocks stay. Where tokens after the sink blocks stay visible, nothing is dropped, nor in a
// cache with LK_CACHE_KEEP_WINDOWED.
inline bool frees_hidden_pages(const Plan &plan, const lk_layer &layer) {
    return layer.window_tokens && layer.window_sink_tokens <= plan.sink_tokens;
}
// Packed blocks before this one are visible to no query that comes after `length` tokens; the first
// such query has position `length`. No less than sink_blocks().
inline uint64_t hidden_blocks(const Plan &plan, const lk_layer &layer, uint64_t length) {
    const uint64_t kept = static_cast<uint64_t>(plan.sink_tokens) + layer.window_tokens;
    const bool hides = frees_hidden_pages(plan, layer) && length + 1 > kept;
    return sink_blocks(plan) + (hides ? (length + 1 - kept) / plan.page_tokens : 0);
}

// Slot sizes in bytes of one page of an entry in a block after the sinks; 0 = no such slot.
struct PageSlots {
    uint64_t recent_payload;   // at 16 bits
    uint64_t recent_metadata;  // of a page that may shrink in place: the layer has a ladder
    uint64_t packed_payload;   // 0 when raw
    uint64_t packed_metadata;  // 0 when raw; already there when recent_metadata is not 0
};
PageSlots key_slots(const Plan &plan, uint32_t layer, uint32_t head);  // at the layer's own rung
PageSlots value_slots(const Plan &plan, uint32_t layer, uint32_t head);
// Under one of width_caps().
PageSlots key_slots_at(const Plan &plan, uint32_t layer, uint32_t head, uint32_t cap);
PageSlots value_slots_at(const Plan &plan, uint32_t layer, uint32_t head, uint32_t cap);
// Slot sizes of the pages of a layer's entry in a sink block. value: 0 in a latent layer.
struct SinkSlots {
    uint64_t key;
    uint64_t value;
};
inline SinkSlots sink_slots(const Plan &plan, uint32_t layer, uint64_t block) {
    const lk_layer &geometry = plan.layers[layer].geometry;
    const uint32_t tokens = block_capacity(plan, block);
    const auto slot = [&](Side side, uint32_t dim) {
        return slot_bytes(payload_bytes(raw_layout(side, dim, tokens)));
    };
    return {slot(Side::kKey, geometry.head_dim), slot(Side::kValue, stored_value_dim(geometry))};
}

// Sizes that shrink into each other: `top` bytes, divided by powers of two down to `least`.
struct SlotFamily {
    uint64_t top;
    uint64_t least;
};
constexpr uint32_t kMaxFamilies = 18;  // odd parts of dims / 16
static_assert(LK_MAX_HEAD_DIM / LK_STRIP_CHANNELS / 2 <= kMaxFamilies);
// Those of a plan; returns how many.
uint32_t slot_families(const Plan &plan, SlotFamily *out);
// Has a layer a rung below the one that it begins with?
bool can_shrink(const Plan &plan);
inline uint64_t spare_bytes(const Plan &plan) { return can_shrink(plan) ? LK_EXTENT_BYTES : 0; }

// lk_cache_desc.flags.
constexpr uint32_t kCacheFlags = LK_CACHE_EVICT | LK_CACHE_KEEP_WINDOWED;

inline uint64_t block_bytes(const Plan &plan) {
    return kBlockBytes + plan.n_entries() * kEntryBytes;
}

// FP16 K and V of one new token of a layer.
inline uint64_t staged_token_bytes(const lk_layer &layer) {
    return uint64_t{layer.n_kv_heads} * (layer.head_dim + stored_value_dim(layer)) * 2;
}
// Bytes of FP16 staging per new token of a step: an area of the widest layer, which all layers use
// one after another, and after it one for each KV layer of reading layers, which stays for them.
// With an offset per layer, [n_layers], also where the layer's area begins; a reading layer's is
// its KV layer's.
uint64_t staging_bytes(const Plan &plan, uint64_t *offsets = nullptr);
inline uint64_t workspace_bytes(const Plan &plan, uint64_t max_step_tokens) {
    return round_up(max_step_tokens * staging_bytes(plan), LK_SLOT_ALIGN);
}

// Sums of |Q| that LK_RANKING_QUERY_RANGE keeps: u64 [1 + query_stat_slots][head_dim] per entry
// that ranks by them: the sum up to the last packed block, and those of the blocks not packed yet.
// A step of more than LK_DRAFT_TOKENS leaves such blocks at both of its ends, and the gap between
// them.
inline uint64_t query_stat_slots(const Plan &plan) {
    // Two such steps may come before anything else is packed.
    return 2 * ceil_div(plan.recent_tokens, plan.page_tokens) + 4;
}
inline bool ranks_by_queries(const KeyFormat &key) {
    return key.boosted_channels && key.boost_ranking == LK_RANKING_QUERY_RANGE;
}
inline uint64_t query_stat_entry_bytes(const Plan &plan, uint32_t head_dim) {
    return static_cast<uint64_t>(head_dim) * 8 * (1 + query_stat_slots(plan));
}
// The list of them.
inline uint64_t query_stat_list_bytes(const Plan &plan) {
    return 128 + 32 * (1 + query_stat_slots(plan));
}
// Of one sequence, allocated with it.
uint64_t sequence_stat_bytes(const Plan &plan);

// Chunks of a sequence that have classes: their order and the class assigned to each.
constexpr uint64_t chunks_bytes(uint64_t n_chunks) { return 128 + n_chunks * 5; }
// Classes of chunks that are still to come: order, width and class of each.
constexpr uint64_t pending_bytes(uint64_t n_chunks) { return 192 + n_chunks * 6; }

// Counted from lk_cache_create() on.
inline uint64_t fixed_bytes(const Plan &plan, uint64_t max_sequences, uint64_t max_step_tokens) {
    return workspace_bytes(plan, max_step_tokens) + max_sequences * kSequenceBytes;
}

}  // namespace lk

#endif
