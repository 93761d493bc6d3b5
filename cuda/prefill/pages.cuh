// Attention of many columns: the keys visible to the columns of a thread block, as a list of pages.
//
// A column is a new token under one query head; those of a token, one for each head of the group,
// are neighbours. A page belongs to a block of the sequence's table, or is a run of new tokens in
// the staging area.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_PAGES_CUH
#define LK_CUDA_PREFILL_PAGES_CUH

#include "cuda/dequantize.cuh"
#include "cuda/prefill/instances.h"

namespace lk {
namespace cuda {

constexpr uint32_t kTileWarps = 8;      // most of a block
constexpr uint32_t kTileColumns = 256;  // most of a block
constexpr uint32_t kMaxRounds = 2;      // of a stage, between two barriers
constexpr uint32_t kTileBytes = 512;    // FP16, [lane][4 words]
template <int kSlices>
constexpr uint32_t kRoundTiles = round_tiles(kSlices);
template <int kSlices>
constexpr uint32_t kRoundTokens = kRoundTiles<kSlices> *LK_TILE_TOKENS;
template <int kSlices>
constexpr uint32_t kStripRoundBytes = kRoundTiles<kSlices> *kTileBytes;
constexpr uint32_t kPageBatch = 16;      // pages looked up together
constexpr uint32_t kStagedTokens = 128;  // of a page of staged tokens

// Pages of a list that a window leaves: the first n_sinks and those from `window` on.
struct Runs {
    uint32_t n_sinks;
    uint32_t window;
    uint32_t n;

    __device__ uint32_t at(uint32_t i) const { return i < n_sinks ? i : i - n_sinks + window; }
};

struct Mask {
    SequenceInfo sequence;
    uint32_t kv_head;
    uint32_t group_size;
    uint32_t stage_tokens;
    uint32_t first_column;    // of the sequence
    uint32_t n_columns;       // of the block
    uint32_t first_position;  // lowest of the columns, and highest that they attend to
    uint32_t last_position;
    uint32_t window_begin;  // first token that a window reaches, 0 without one
    Runs blocks;
    Runs staged;          // pages that follow those of blocks
    uint32_t page_begin;  // this thread block's split of both
    uint32_t page_end;
};

// The columns of a thread block, at most kMost, in shared memory.
template <uint32_t kMost>
struct ColumnTablesOf {
    static constexpr uint32_t kMostColumns = kMost;

    Mask mask;
    uint32_t positions[kMost];
    uint32_t reaches[kMost];  // positions of the last tokens that they attend to
    uint64_t ancestors[kMost];
    float factors[kMost];  // what queries were divided by
    float offsets[kMost];  // of logits: products of the queries and the center of keys
    int has_factors;       // some factor is not 1, or some offset not 0
};
using ColumnTables = ColumnTablesOf<kTileColumns>;

enum class Source : uint32_t {
    kTiles,    // FP16 tiles as they are multiplied
    kCopied,   // codes, copied to shared memory with their metadata
    kDistant,  // codes of a page that shared memory does not hold
    kStaged    // FP16 [token][head_dim]
};

struct PageView {
    const uint8_t *payload;
    const uint8_t *metadata;
    FormatInfo info;
    Source source;
    uint32_t copy_offset;  // of the payload in the page's copy; the metadata follows
    uint32_t format;       // of StepView
};
// The tokens of a page, and the stages that they are multiplied in.
struct PageSpan {
    uint32_t first_token;
    uint32_t n_tokens;     // that exist and may be visible to a column
    uint32_t first_stage;  // earlier ones are outside the window
    uint32_t end_stage;
};
struct EntryView : PageSpan {
    PageView pages[2];
    bool is_ahead;  // copied while the page before is multiplied
    bool leads;     // the page after is copied meanwhile
};

// How many blocks begin before `token`.
__device__ inline uint32_t blocks_before(const BlockInfo *blocks, uint32_t n_rows, uint32_t token) {
    uint32_t low = 0;
    uint32_t high = n_rows;
    while (low < high) {
        const uint32_t midpoint = (low + high) / 2;
        if (blocks[midpoint].first_token < token)
            low = midpoint + 1;
        else
            high = midpoint;
    }
    return low;
}

__device__ inline Runs make_runs(uint32_t n_pages, uint32_t n_sinks, uint32_t window) {
    const uint32_t kept = min(n_sinks, n_pages);
    const uint32_t from = max(window, kept);
    return {kept, from, kept + n_pages - from};
}

__device__ inline Runs find_blocks(const TileArgs &args, const Mask &mask) {
    const uint32_t n = mask.sequence.n_attended;
    if (!mask.window_begin)
        return make_runs(n, 0, 0);
    const BlockInfo *blocks = args.step.blocks + mask.sequence.first_block;
    const uint32_t reached = blocks_before(blocks, n, mask.window_begin + 1);
    return make_runs(n, blocks_before(blocks, n, args.layer.window_sink_tokens),
                     reached ? reached - 1 : 0);
}

__device__ inline Runs find_staged(const TileArgs &args, const Mask &mask, uint32_t last_token) {
    const SequenceInfo &sequence = mask.sequence;
    if (sequence.new_in_blocks)
        return make_runs(0, 0, 0);
    const uint32_t n = last_token / kStagedTokens + 1;
    if (!mask.window_begin)
        return make_runs(n, 0, 0);
    const auto pages_before = [&](uint32_t token, uint32_t round) {
        return token > sequence.n_history ? (token - sequence.n_history + round) / kStagedTokens
                                          : 0;
    };
    return make_runs(n, pages_before(args.layer.window_sink_tokens, kStagedTokens - 1),
                     pages_before(mask.window_begin, 0));
}

// The column tile of a thread block.
struct TilePosition {
    uint32_t sequence;
    uint32_t kv_head;
    uint32_t tile;
};

// The pages visible to the columns up to those of last_token.
__device__ inline void find_pages(const TileArgs &args, uint32_t last_token, Mask *mask) {
    const uint32_t window = args.layer.window_tokens;
    const bool cuts = window && mask->first_position >= window;
    mask->window_begin = cuts ? mask->first_position + 1 - window : 0;
    mask->blocks = find_blocks(args, *mask);
    mask->staged = find_staged(args, *mask, last_token);
}

// Split `split` of args.n_splits of n pages of the list from `begin` on.
__device__ inline void cut_pages(const TileArgs &args, uint32_t begin, uint64_t n, uint32_t split,
                                 Mask *mask) {
    mask->page_begin = begin + static_cast<uint32_t>(n * split / args.n_splits);
    mask->page_end = begin + static_cast<uint32_t>(n * (split + 1) / args.n_splits);
}

// Position of the last token that new token `token` attends to; without a tree.
__device__ inline uint32_t find_reach(const TileArgs &args, const SequenceInfo &sequence,
                                      uint32_t token) {
    return sequence.has_spans >= (args.layer.window_tokens ? 1u : 2u)
               ? args.step.positions[sequence.first_new + token]
               : sequence.n_history + token;
}

// All but the split. False when the tile has no columns.
__device__ inline bool find_mask(const TileArgs &args, const TilePosition &position,
                                 uint32_t block_columns, Mask *mask) {
    if (args.step.header->n_sequences != args.n_sequences ||
        args.step.header->n_tokens != args.n_tokens)
        return false;
    mask->sequence = args.step.sequences[position.sequence];
    const SequenceInfo &sequence = mask->sequence;
    mask->kv_head = position.kv_head;
    mask->group_size = args.layer.n_query_heads / args.layer.n_kv_heads;
    mask->first_column = position.tile * block_columns;
    const uint32_t n_columns = sequence.n_new * mask->group_size;
    if (mask->first_column >= n_columns)
        return false;
    mask->n_columns = min(block_columns, n_columns - mask->first_column);
    const uint32_t last_token = (mask->first_column + mask->n_columns - 1) / mask->group_size;
    mask->first_position =
        sequence.n_history + (sequence.has_tree ? 0 : mask->first_column / mask->group_size);
    mask->last_position = sequence.has_tree ? sequence.n_history + sequence.n_new - 1
                                            : find_reach(args, sequence, last_token);
    find_pages(args, sequence.has_tree ? last_token : mask->last_position - sequence.n_history,
               mask);
    return true;
}

__device__ inline void view_stages(const TileArgs &args, const Mask &mask, uint32_t first_token,
                                   uint32_t capacity, uint32_t end_token, PageSpan *view) {
    const uint32_t end = min(end_token, mask.last_position + 1);
    view->first_token = first_token;
    view->n_tokens = first_token < end ? min(capacity, end - first_token) : 0;
    view->end_stage = (view->n_tokens + mask.stage_tokens - 1) / mask.stage_tokens;
    const bool in_window =
        first_token >= mask.window_begin || first_token < args.layer.window_sink_tokens;
    // A stage may be longer than a page that ends where the window begins.
    const bool is_freed =
        is_outside_window(args.layer, first_token, view->n_tokens, mask.first_position);
    view->first_stage = in_window  ? 0
                        : is_freed ? view->end_stage
                                   : (mask.window_begin - first_token) / mask.stage_tokens;
}

__device__ inline void view_page(const TileArgs &args, uint64_t payload, uint64_t metadata,
                                 uint32_t page_format, PageView *view) {
    view->payload = reinterpret_cast<const uint8_t *>(payload);
    view->metadata = reinterpret_cast<const uint8_t *>(metadata);
    view->info = args.step.formats[page_format];
    view->format = page_format;
    view->source = view->info.is_raw ? Source::kTiles : Source::kCopied;
    view->copy_offset = 0;
}

__device__ inline uint32_t copy_bytes(const PageView &page) {
    return page.source == Source::kCopied ? page.info.payload_bytes + page.info.metadata_bytes : 0;
}

__device__ inline void view_block(const TileArgs &args, const Mask &mask, uint32_t index,
                                  uint32_t page_bytes, EntryView *view) {
    const SequenceInfo &sequence = mask.sequence;
    const BlockInfo info = args.step.blocks[sequence.first_block + index];
    const Entry entry =
        reinterpret_cast<const Entry *>(info.entries)[args.layer.first_entry + mask.kv_head];
    view_page(args, entry.key_payload, entry.key_metadata, entry.key_format, &view->pages[0]);
    view_page(args, entry.value_payload, entry.value_metadata, entry.value_format, &view->pages[1]);
    view->pages[1].copy_offset = copy_bytes(view->pages[0]);
    if (copy_bytes(view->pages[0]) + copy_bytes(view->pages[1]) > page_bytes)
        for (PageView &page : view->pages)
            page.source = page.source == Source::kCopied ? Source::kDistant : page.source;
    const uint32_t end = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0);
    view_stages(args, mask, info.first_token, info.capacity_tokens, end, view);
}

__device__ inline void view_staged(const TileArgs &args, const Mask &mask, uint32_t index,
                                   EntryView *view) {
    const SequenceInfo &sequence = mask.sequence;
    const uint32_t first = index * kStagedTokens;
    const uint64_t row =
        static_cast<uint64_t>(mask.kv_head) * args.staging.n_tokens + sequence.first_new + first;
    const uint16_t *const from[2] = {args.staging.k + row * args.layer.head_dim,
                                     args.staging.v + row * stored_dim(args.layer, true)};
    for (uint32_t side = 0; side < 2; ++side) {
        view->pages[side].payload = reinterpret_cast<const uint8_t *>(from[side]);
        view->pages[side].source = Source::kStaged;
    }
    view_stages(args, mask, sequence.n_history + first, kStagedTokens,
                sequence.n_history + sequence.n_new, view);
}

// Page `page` of the list.
__device__ inline void view_page(const TileArgs &args, const Mask &mask, uint32_t page,
                                 uint32_t page_bytes, EntryView *view) {
    if (page < mask.blocks.n)
        view_block(args, mask, mask.blocks.at(page), page_bytes, view);
    else
        view_staged(args, mask, mask.staged.at(page - mask.blocks.n), view);
}

// A stage of the thread block's work, of one or more rounds.
struct Stage {
    uint32_t page;
    uint32_t index;        // in the page
    uint32_t first_token;  // position
    uint32_t n_tokens;     // 0 when the thread block has no more
    uint32_t parity;       // bit 0: of its tiles' memory; bit 1: of its page's tables
};

__device__ __forceinline__ void stage_position(const PageSpan &view, uint32_t stage_tokens,
                                               Stage *stage) {
    const uint32_t first = stage->index * stage_tokens;
    stage->first_token = view.first_token + first;
    stage->n_tokens = min(stage_tokens, view.n_tokens - first);
}

}  // namespace cuda
}  // namespace lk

#endif
