// Tables that kernels and shaders read in device memory and the host sides of both device backends
// write: formats, blocks, sequences, work items and jobs. shaders/tables.glsl has the same bytes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_TABLES_H
#define LK_FORMAT_TABLES_H

#include <cstdint>

#include "format/parameter_formats.h"
#include "format/planes.h"

namespace lk {

constexpr uint32_t kDraftTokens = 64;            // new tokens of a sequence that can have ancestors
constexpr uint32_t kAttentionScoreColumns = 64;  // query columns of a tile of ChunkAttention

// PageFormat as kernels read it.
struct alignas(16) FormatInfo {
    uint64_t
        permutation;  // permutation_bytes(), stored channel -> channel; 0 = identity or the page's
    uint32_t payload_bytes;
    uint32_t metadata_bytes;      // 0 when raw
    uint32_t minima_offset;       // bytes into the metadata; ranges begin at 0
    uint32_t permutation_offset;  // bytes into the metadata, when permutes
    uint16_t head_dim;
    uint16_t page_tokens;
    uint16_t group;     // tokens (axis channel) or channels (axis token)
    uint16_t n_groups;  // along tokens or channels
    uint16_t n_shared;
    uint16_t n_ranked;
    uint8_t is_value;
    uint8_t is_token_axis;
    uint8_t parameter_bytes;  // of a range or a minimum: 2 = FP16, 1 = FP8
    uint8_t permutes;
    uint8_t ranking;  // 0 none, 1 key, 2 query range
    uint8_t is_raw;
    uint8_t strips[kPlaneCount];
    uint8_t is_native;     // Vulkan's decode multiplies its codes as they are; else values are made
    uint8_t by_deviation;  // groups of 1-bit codes are measured by mean and deviation
    uint16_t form;         // of Vulkan's decode: pages of one number have one form; 0: raw, or none
    float clip_margin;     // cut off the range of a group of 2-bit codes at each end, a share of it
};
static_assert(sizeof(FormatInfo) == 64, "formats are read by 16 bytes");
static_assert(kPlaneCount == 6,
              "shaders/tables.glsl reads the members after strips by their bytes");

// Can decode multiply the codes of a format as they are? Keys by channel with planes that are not
// split, down to 2 bits, with pairs or without; values by token, of one such width or 1 bit, in the
// order of their channels. Vulkan has kernels for pages of 128 tokens, CUDA for shorter ones too if
// their parameters are FP16.
inline bool is_native_format(const FormatInfo &c) {
    if (c.is_raw)
        return true;
    if (has_split_plane(c.strips) || c.n_groups > 8)
        return false;
    if (!c.is_value)
        return !c.is_token_axis && !c.strips[kPlane1];
    return c.is_token_axis && only_width(c.strips) && !c.permutes && !c.permutation;
}

// PageEntry, with device addresses.
struct Entry {
    uint64_t key_payload;
    uint64_t key_metadata;
    uint64_t value_payload;
    uint64_t value_metadata;
    uint16_t key_format;
    uint16_t value_format;
    uint32_t reserved;
};
static_assert(sizeof(Entry) == 40, "as PageEntry");

// A block of a step's sequence.
struct alignas(16) BlockInfo {
    uint64_t entries;  // Entry [entries of a block]
    uint32_t first_token;
    uint16_t capacity_tokens;
    // 1: its new tokens are packed by the step, so Vulkan's append stores none of them. CUDA's goes
    // by the formats.
    uint16_t is_packed_on_append;
};

// A sequence of the step.
struct alignas(16) SequenceInfo {
    uint64_t id;
    uint32_t first_block;  // in the step's blocks
    uint32_t n_blocks;     // all, those of new tokens included
    uint32_t n_attended;   // the first of them that attention reads
    uint32_t n_history;    // committed tokens
    uint32_t n_new;
    uint32_t first_new;      // of the batch
    uint32_t new_in_blocks;  // 0: attention reads the new tokens from the staging area
    uint32_t has_tree;       // ancestors and positions are set; else new token i follows i - 1
    // Positions are set to those of the last token that each new token attends to, without a tree:
    // 1 = in layers with a window alone, 2 = in all.
    uint32_t has_spans;
    uint32_t reserved;
};
static_assert(sizeof(SequenceInfo) == 48, "read by 16 bytes");

// Are n_tokens tokens from first_token on outside a layer's window for every new token after
// n_history? A cache frees pages of such tokens, so nothing may read them.
template <class Layer, typename Count>
constexpr bool is_outside_window(const Layer &layer, Count first_token, uint32_t n_tokens,
                                 Count n_history) {
    return layer.window_tokens && first_token >= layer.window_sink_tokens &&
           first_token + n_tokens + layer.window_tokens <= n_history + 1;
}

struct StepHeader {
    uint32_t n_sequences;
    uint32_t n_tokens;
    uint32_t serial;  // of the step, counts up
    uint32_t reserved;
};

// The first fault of a cache's steps is the lowest of these.
constexpr uint64_t kNoFault = ~uint64_t{0};
// Layers order faults first, then tokens of the batch, heads, K before V. The serial modulo 16
// identifies the step in whose batch the token counts.
constexpr uint64_t fault_key(uint32_t serial, uint32_t layer, uint32_t token, uint32_t head,
                             uint32_t is_value) {
    return (uint64_t{layer} << 45) | (uint64_t{token} << 21) | (uint64_t{head} << 5) |
           (uint64_t{serial & 15u} << 1) | is_value;
}
// first_bad of a graph that was captured from a step of another shape.
constexpr uint64_t kShapeFault = 0;  // layer 0, token 0 and so on would be this plus kFaultBias
constexpr uint64_t kFaultBias = uint64_t{1} << 62;  // real faults have it set

// One page to pack (PackItem).
struct PackJob {
    uint64_t payload;
    uint64_t metadata;
    uint64_t source;       // raw page's payload, or staged FP16 [page_tokens][head_dim]
    uint64_t query_stats;  // u64 [head_dim] for ranking 2
    uint32_t target_format;
    uint32_t source_format;  // kStaged, or a raw format
};
constexpr uint32_t kStaged = ~0u;

// Copy the first n_tokens of a page into a raw page, rounded to FP16 (DequantizeItem).
struct DequantizeJob {
    uint64_t payload;
    uint64_t metadata;
    uint64_t target;
    uint32_t source_format;
    uint32_t target_format;
    uint32_t n_tokens;
    uint32_t reserved;
};

// Tokens of a raw page that move to earlier positions (MoveItem).
struct MoveJob {
    uint64_t source;
    uint64_t target;
    uint32_t source_format;
    uint32_t target_format;
    uint32_t first_source;
    uint32_t first_target;
    uint64_t mask;
};

// Payload bytes that get narrower, or move (ShrinkItem).
struct ShrinkJob {
    uint64_t source;
    uint64_t target;
    uint32_t stride_bytes;
    uint32_t tail_bytes;
    uint16_t n_pages;
    uint16_t n_strips;
    uint16_t bits;
    uint16_t page_tokens;
};
static_assert(sizeof(ShrinkJob) == 32, "read by 16 bytes");

// A thread block's share of decode attention: blocks of one KV head of one sequence. Entries whose
// two pages are raw (at most two runs of blocks) are cut into KV tiles of 16 tokens, the others are
// a KV tile each; the warps of the thread block take KV tiles in turn.
struct alignas(16) WorkItem {
    uint16_t kv_head;
    uint16_t column_tile;  // of 4, 8 or 16 query columns (new token, head of the group)
    uint32_t raw_begin[2];
    uint32_t raw_count[2];
    uint32_t packed_begin;
    uint32_t packed_count;
    uint16_t split;          // of n_splits that are merged
    uint16_t n_splits;       // 1: written straight to the output
    uint32_t first_partial;  // floats: of the work tile's splits in the partial results
    uint32_t work_tile;      // its counter
    // Of the sequence, as in SequenceInfo; what changes with every step is read there.
    uint32_t sequence;
    uint32_t first_block;
    uint32_t first_new;
    uint16_t n_new;
    uint8_t new_in_blocks;
    uint8_t has_tree;
    uint32_t reserved[2];
};
static_assert(sizeof(WorkItem) == 64, "read by 16 bytes");

}  // namespace lk

#endif
