// Attention of long steps: the pages of a pass in FP16.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_PASS_CUH
#define LK_CUDA_PREFILL_PASS_CUH

#include "cuda/prefill/pages.cuh"
#include "cuda/prefill/pass.h"

namespace lk {
namespace cuda {

static_assert(kSlotTokens == kStagedTokens && kSlotTokens == LK_MAX_PAGE_TOKENS,
              "a slot holds a page");

// The first page of a sequence that may need a slot, and so the pass's, counted from its first
// block.
__device__ inline uint32_t first_slot_page(const PagePass &pass, const SequenceInfo &sequence) {
    return (pass.skips_blocks ? sequence.n_attended : 0) + pass.first_page;
}

// Where the tiles of a page lie that needs a slot.
__device__ inline uint8_t *slot_tiles(const PagePass &pass, uint32_t head_dim, uint32_t pair,
                                      uint32_t page, uint32_t side) {
    const uint64_t slot = static_cast<uint64_t>(pair) * pass.n_pages + page;
    return pass.slots + slot * slot_bytes(head_dim) + side * (slot_bytes(head_dim) / 2);
}

// The K page or the V page of a page, as tiles: strips, each of tiles of 16 tokens. In a slot of
// matrices, those begin at `tiles`.
struct TilesView {
    const uint8_t *tiles;
    uint32_t strip_bytes;
    uint32_t n_tiles;  // of a strip
};
struct PassView : PageSpan {
    TilesView sides[2];
};

__device__ inline TilesView slot_view(const uint8_t *tiles, uint32_t n_tokens) {
    return {tiles, kSlotTokens / LK_TILE_TOKENS * kTileBytes, n_tokens / LK_TILE_TOKENS};
}

// Page `page` of the list of the columns. pair: of the launch.
__device__ inline void view_tiles(const TileArgs &args, const PagePass &pass, const Mask &mask,
                                  uint32_t pair, uint32_t page, PassView *view) {
    const SequenceInfo &sequence = mask.sequence;
    const bool is_block = page < mask.blocks.n;
    const uint32_t index = is_block ? mask.blocks.at(page) : mask.staged.at(page - mask.blocks.n);
    const uint32_t slot_page =
        (is_block ? index : sequence.n_attended + index) - first_slot_page(pass, sequence);
    const uint32_t head_dim = args.layer.head_dim;
    const uint8_t *const slots[2] = {slot_tiles(pass, head_dim, pair, slot_page, 0),
                                     slot_tiles(pass, head_dim, pair, slot_page, 1)};
    if (!is_block) {
        for (uint32_t side = 0; side < 2; ++side)
            view->sides[side] = slot_view(slots[side], kStagedTokens);
        view_stages(args, mask, sequence.n_history + index * kStagedTokens, kStagedTokens,
                    sequence.n_history + sequence.n_new, view);
        return;
    }
    const BlockInfo info = args.step.blocks[sequence.first_block + index];
    const Entry entry =
        reinterpret_cast<const Entry *>(info.entries)[args.layer.first_entry + mask.kv_head];
    for (uint32_t side = 0; side < 2; ++side) {
        const FormatInfo &c = args.step.formats[side ? entry.value_format : entry.key_format];
        const uint64_t payload = side ? entry.value_payload : entry.key_payload;
        view->sides[side] = c.is_raw && !pass.has_matrices
                                ? TilesView{reinterpret_cast<const uint8_t *>(payload),
                                            2u * LK_STRIP_CHANNELS * c.page_tokens,
                                            uint32_t{c.page_tokens} / LK_TILE_TOKENS}
                                : slot_view(slots[side], c.page_tokens);
    }
    const uint32_t end = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0);
    view_stages(args, mask, info.first_token, info.capacity_tokens, end, view);
}

// How many pages of a list come before page `page` of the sequence's?
__device__ inline uint32_t pages_before(const Runs &runs, uint32_t page) {
    const uint32_t after = page > runs.window ? page - runs.window : 0;
    return min(page, runs.n_sinks) + min(after, runs.n - runs.n_sinks);
}
__device__ inline uint32_t pages_before(const Mask &mask, uint32_t page) {
    const uint32_t n_blocks = mask.sequence.n_attended;
    return page < n_blocks ? pages_before(mask.blocks, page)
                           : mask.blocks.n + pages_before(mask.staged, page - n_blocks);
}

// The thread block's split of the pages of the list that lie in the pass.
__device__ inline void cut_pass(const TileArgs &args, const PagePass &pass, uint32_t split,
                                Mask *mask) {
    const uint32_t first = first_slot_page(pass, mask->sequence);
    const uint32_t begin = pass.is_first ? 0 : pages_before(*mask, first);
    cut_pages(args, begin, pages_before(*mask, first + pass.n_pages) - begin, split, mask);
}

}  // namespace cuda
}  // namespace lk

#endif
