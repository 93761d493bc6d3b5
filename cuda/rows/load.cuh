// Attention over rows: what a stage's products read, in slots of shared memory.
//
// A slot holds the codes of a latent page of one width, whose codes are multiplied as they are, or
// FP16 tiles of a stage: [strip][tile][lane][4 words] of the keys, then of the values of layers
// that are not latent, as in 16-bit pages; channels in their own order. 16-bit pages are copied,
// tiles of all other pages are made, once for all columns of the thread block.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_LOAD_CUH
#define LK_CUDA_ROWS_LOAD_CUH

#include "cuda/prefill/queries.cuh"
#include "cuda/rows/grid.h"

namespace lk {
namespace cuda {

constexpr uint32_t kMostKeyStrips = LK_MAX_HEAD_DIM / LK_STRIP_CHANNELS;
constexpr uint32_t kMostValueStrips = LK_MAX_PLAIN_DIM / LK_STRIP_CHANNELS;

struct RowsTables : ColumnTables {
    EntryView views[kPageBatch];
    uint32_t code_bits[kPageBatch];       // of pages whose codes are multiplied, else 0
    uint16_t orders[2][LK_MAX_HEAD_DIM];  // stored channel -> channel, where a page has an order
    uint32_t has_order[2];
};

// The fields of a thread block that the functions below need.
struct RowsBlock {
    RowsTables *tables;
    uint8_t *slots;
    uint8_t *queries;
    uint32_t slot_bytes;
    uint32_t page_bytes;
    uint32_t stage_tokens;
    uint32_t n_columns;
    uint32_t key_strips;
    uint32_t value_strips;  // of stored values: 0 in a latent layer

    __device__ uint32_t view_index(const Stage &stage) const {
        return (stage.page - tables->mask.page_begin) % kPageBatch;
    }
    __device__ const EntryView &view(const Stage &stage) const {
        return tables->views[view_index(stage)];
    }
    __device__ uint32_t code_bits(const Stage &stage) const {
        return tables->code_bits[view_index(stage)];
    }
    __device__ uint8_t *slot(const Stage &stage) const {
        return slots + stage.parity * slot_bytes;
    }
    __device__ bool is_wide() const { return n_columns > kRowsColumns; }
    __device__ uint32_t query_strip_bytes() const { return n_columns / 16 * kTileBytes; }
    __device__ uint32_t strips(uint32_t side) const { return side ? value_strips : key_strips; }
};

__device__ __forceinline__ uint32_t stage_tiles(const Stage &stage) {
    return (stage.n_tokens + LK_TILE_TOKENS - 1) / LK_TILE_TOKENS;
}

// The width of a latent page whose codes can be multiplied: one width of 8, 4 or 2 bits, a range
// for each channel, channels in their own order. Else 0.
__device__ inline uint32_t code_bits(const PageView &page) {
    const FormatInfo &c = page.info;
    const bool is_plain = page.source == Source::kCopied && !c.is_token_axis && c.n_groups == 1 &&
                          c.parameter_bytes == bytes_of_parameter(Metadata::kF16) && !c.n_shared &&
                          !c.permutes && !c.permutation;
    const uint32_t n_strips = c.head_dim / LK_STRIP_CHANNELS;
    return !is_plain                         ? 0
           : c.strips[kPlane8] == n_strips   ? 8
           : c.strips[kPlane4] == n_strips   ? 4
           : c.strips[kPlane2] == n_strips   ? 2
                                             : 0;
}

// Views of the pages from `page` on. All threads.
__device__ inline void look_up_rows(const TileArgs &args, const RowsBlock &block, uint32_t page) {
    RowsTables &tables = *block.tables;
    const uint32_t i = threadIdx.x;
    __syncthreads();
    if (i < min(kPageBatch, tables.mask.page_end - page)) {
        EntryView &view = tables.views[i];
        view_page(args, tables.mask, page + i, block.page_bytes, &view);
        const uint32_t bits = args.layer.is_latent ? code_bits(view.pages[0]) : 0;
        tables.code_bits[i] = bits;
        for (PageView &of_side : view.pages)
            if (!bits && of_side.source == Source::kCopied)
                of_side.source = Source::kDistant;
    }
    __syncthreads();
}

// The stage after one, or the first one after none. A page whose codes are multiplied is one stage.
__device__ __noinline__ Stage advance(const TileArgs &args, const RowsBlock block,
                                      const Stage stage, uint32_t n_slots) {
    const Mask &mask = block.tables->mask;
    Stage next = stage;
    next.parity = (stage.parity + 1) % n_slots;
    ++next.index;
    const EntryView &old = block.view(stage);
    if (stage.n_tokens && !block.code_bits(stage) && next.index < old.end_stage) {
        stage_position(old, block.stage_tokens, &next);
        return next;
    }
    next.n_tokens = 0;
    next.page = stage.n_tokens ? stage.page + 1 : mask.page_begin;
    for (; next.page < mask.page_end; ++next.page) {
        if ((next.page - mask.page_begin) % kPageBatch == 0)
            look_up_rows(args, block, next.page);
        const EntryView &view = block.view(next);
        if (view.first_stage >= view.end_stage)
            continue;
        const bool is_whole = block.code_bits(next) != 0;
        next.index = is_whole ? 0 : view.first_stage;
        stage_position(view, is_whole ? kMostRowsTokens : block.stage_tokens, &next);
        break;
    }
    return next;
}

__device__ inline void copy_block(uint8_t *to, const uint8_t *from, uint32_t bytes) {
#pragma unroll 2
    for (uint32_t i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
        copy_async(shared_address(to + i), from + i);
}

// The order of a page's channels, and its bytes on their way to L2.
__device__ inline void describe_page(const RowsBlock &block, const EntryView &view) {
#pragma unroll 1
    for (uint32_t side = 0; side < 2 && block.strips(side); ++side) {
        const PageView &page = view.pages[side];
        const uint8_t *order = nullptr;
        if (page.source == Source::kDistant) {
            order = page.info.permutes ? page.metadata + page.info.permutation_offset
                                       : reinterpret_cast<const uint8_t *>(page.info.permutation);
            for (uint32_t i = 128 * threadIdx.x; i < page.info.payload_bytes; i += 128 * blockDim.x)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(page.payload + i));
        }
        const uint32_t n_channels = block.strips(side) * LK_STRIP_CHANNELS;
        for (uint32_t i = threadIdx.x; order && i < n_channels; i += blockDim.x)
            block.tables->orders[side][i] =
                static_cast<uint16_t>(load_channel(order, n_channels, i));
        if (threadIdx.x == 0)
            block.tables->has_order[side] = order != nullptr;
    }
}

// Begin the copies of a stage.
__device__ __noinline__ void begin_stage(const RowsBlock block, const Stage stage) {
    const EntryView &view = block.view(stage);
    uint8_t *slot = block.slot(stage);
    if (block.code_bits(stage)) {
        const PageView &page = view.pages[0];
        copy_block(slot, page.payload, page.info.payload_bytes);
        copy_block(slot + page.info.payload_bytes, page.metadata, page.info.metadata_bytes);
        commit_copies();
        return;
    }
    if (stage.index == view.first_stage)
        describe_page(block, view);
    const uint32_t bytes = stage_tiles(stage) * kTileBytes;  // of a strip
#pragma unroll 1
    for (uint32_t side = 0; side < 2; ++side) {
        const PageView &page = view.pages[side];
        const uint32_t n_strips = block.strips(side);
        if (page.source == Source::kTiles) {
            const uint32_t stride = 2 * LK_STRIP_CHANNELS * page.info.page_tokens;
            const uint8_t *from =
                page.payload + stage.index * block.stage_tokens / LK_TILE_TOKENS * kTileBytes;
            const uint32_t to = shared_address(slot);
#pragma unroll 1
            for (uint32_t strip = threadIdx.x / kWarp; strip < n_strips; strip += kRowsWarps)
                for (uint32_t at = 16 * (threadIdx.x % kWarp); at < bytes; at += kTileBytes)
                    copy_async(to + strip * bytes + at, from + strip * stride + at);
        }
        slot += n_strips * bytes;
    }
    commit_copies();
}

// A lane's registers of a tile of staged tokens.
template <bool kIsValue>
__device__ inline void load_staged(const uint16_t *rows, uint32_t n_channels, uint32_t strip,
                                   uint32_t first_token, uint32_t n_tokens, uint32_t (&a)[4]) {
    const uint32_t lane = threadIdx.x % kWarp;
    for (uint32_t r = 0; r < 4; ++r) {
        const uint32_t row = LK_TILE_ROW(lane, r);
        const uint32_t k = LK_TILE_K(lane, r);
        const uint32_t token = first_token + (kIsValue ? k : row);
        const uint16_t *at =
            rows + token * n_channels + strip * LK_STRIP_CHANNELS + (kIsValue ? row : k);
        a[r] = 0;
        if (token < n_tokens && kIsValue)
            a[r] = at[0] | (token + 1 < n_tokens ? uint32_t{at[n_channels]} << 16 : 0);
        else if (token < n_tokens)
            a[r] = *reinterpret_cast<const uint32_t *>(at);
    }
}

// Make zeros of numbers of tokens after the last one: memory there may hold NaNs, which a weight of
// 0 would not take away.
template <bool kIsValue>
__device__ __forceinline__ void clear_rest(uint32_t first_token, uint32_t n_tokens,
                                           uint32_t (&a)[4]) {
    const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) {
        const uint32_t token = first_token + (kIsValue ? LK_TILE_K(lane, r) : LK_TILE_ROW(lane, r));
        if (token >= n_tokens)
            a[r] = 0;
        else if (kIsValue && token + 1 == n_tokens)
            a[r] &= 0xFFFFu;
    }
}

// Store a tile with the channels of a strip where they belong.
template <bool kIsValue>
__device__ inline void store_ordered(uint8_t *tiles, const uint16_t *order, uint32_t strip,
                                     uint32_t n_tiles, uint32_t tile, const uint32_t (&a)[4]) {
    const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll 1
    for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t r = i / 2;
        uint32_t row = LK_TILE_ROW(lane, r);
        uint32_t k = LK_TILE_K(lane, r) + i % 2;
        uint32_t &place = kIsValue ? row : k;
        const uint32_t channel = order[strip * LK_STRIP_CHANNELS + place];
        place = channel % LK_STRIP_CHANNELS;
        const uint32_t at = LK_TILE_LANE(row, k) * 16 + (row / 8 + k / 8 * 2) * 4 + k % 2 * 2;
        const uint32_t word = r < 2 ? (r ? a[1] : a[0]) : (r == 2 ? a[2] : a[3]);
        *reinterpret_cast<uint16_t *>(
            tiles + (channel / LK_STRIP_CHANNELS * n_tiles + tile) * kTileBytes + at) =
            static_cast<uint16_t>(word >> 16 * (i % 2));
    }
}

// The tiles of a side that were not copied whole: of packed and of staged pages, and of a 16-bit
// page the tile in whose middle the tokens end. A warp takes a strip.
template <bool kIsValue>
__device__ inline void make_side(const RowsBlock &block, const Stage &stage, uint8_t *tiles) {
    const EntryView &view = block.view(stage);
    const PageView &page = view.pages[kIsValue];
    const bool is_copied = page.source == Source::kTiles;
    const uint32_t n_tiles = stage_tiles(stage);
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t n_strips = block.strips(kIsValue);
    const uint32_t page_tile = stage.index * block.stage_tokens / LK_TILE_TOKENS;
    const uint32_t first = is_copied ? stage.n_tokens / LK_TILE_TOKENS : 0;
#pragma unroll 1
    for (uint32_t strip = threadIdx.x / kWarp; strip < n_strips; strip += kRowsWarps)
#pragma unroll 1
        for (uint32_t tile = first; tile < n_tiles; ++tile) {
            uint8_t *own = tiles + (strip * n_tiles + tile) * kTileBytes + 16 * lane;
            uint32_t a[4];
            if (page.source == Source::kStaged) {
                load_staged<kIsValue>(reinterpret_cast<const uint16_t *>(page.payload),
                                      n_strips * LK_STRIP_CHANNELS, strip,
                                      (page_tile + tile) * LK_TILE_TOKENS, view.n_tokens, a);
            } else if (is_copied) {
                const uint4 words = *reinterpret_cast<const uint4 *>(own);
                a[0] = words.x, a[1] = words.y, a[2] = words.z, a[3] = words.w;
            } else {
                load_values<kIsValue>(page.info, page.payload, page.metadata, strip,
                                      page_tile + tile, lane, a);
            }
            clear_rest<kIsValue>(tile * LK_TILE_TOKENS, stage.n_tokens, a);
            if (block.tables->has_order[kIsValue])
                store_ordered<kIsValue>(tiles, block.tables->orders[kIsValue], strip, n_tiles, tile,
                                        a);
            else
                *reinterpret_cast<uint4 *>(own) = make_uint4(a[0], a[1], a[2], a[3]);
        }
}

// What remains to be done once the copies of a stage have arrived. The next barrier makes it valid.
__device__ __noinline__ void finish_stage(const RowsBlock block, const Stage stage) {
    const EntryView &view = block.view(stage);
    bool is_done = stage.n_tokens % LK_TILE_TOKENS == 0;
    for (uint32_t side = 0; side < 2 && block.strips(side); ++side)
        is_done = is_done && view.pages[side].source == Source::kTiles;
    if (is_done || block.code_bits(stage))
        return;
    __syncthreads();  // all threads' copies, and the order of channels
    uint8_t *slot = block.slot(stage);
    make_side<false>(block, stage, slot);
    if (block.value_strips)
        make_side<true>(block, stage, slot + block.key_strips * stage_tiles(stage) * kTileBytes);
}

}  // namespace cuda
}  // namespace lk

#endif
