// Attention of uneven layers: what a stage's products read, in slots of shared memory.
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
    uint32_t n_slots;
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
    // A stage's parity is the number of its slot.
    __device__ uint8_t *slot(const Stage &stage) const { return slots + stage.parity * slot_bytes; }
    __device__ bool is_wide() const { return n_columns > kRowsColumns; }
    __device__ uint32_t query_strip_bytes() const { return n_columns / 16 * kTileBytes; }
    __device__ uint32_t strips(uint32_t side) const { return side ? value_strips : key_strips; }
};

__device__ __forceinline__ uint32_t stage_tiles(const Stage &stage) {
    return (stage.n_tokens + LK_TILE_TOKENS - 1) / LK_TILE_TOKENS;
}

// The threads that look up pages and copy them: here the whole thread block.
struct AllThreads {
    static constexpr uint32_t kN = kRowsThreads;
    static __device__ __forceinline__ uint32_t index() { return threadIdx.x; }
    static __device__ __forceinline__ void meet() { __syncthreads(); }
};

// Views of the pages from `page` on.
template <class Threads>
__device__ inline void look_up_rows(const TileArgs &args, const RowsBlock &block, uint32_t page) {
    RowsTables &tables = *block.tables;
    const uint32_t i = Threads::index();
    Threads::meet();
    if (i < min(kPageBatch, tables.mask.page_end - page)) {
        EntryView &view = tables.views[i];
        view_page(args, tables.mask, page + i, block.page_bytes, &view);
        const bool is_coded = args.layer.is_latent && view.pages[0].source == Source::kCopied;
        const uint32_t bits = is_coded ? latent_code_bits(view.pages[0].info) : 0;
        tables.code_bits[i] = bits;
        for (PageView &of_side : view.pages)
            if (!bits && of_side.source == Source::kCopied)
                of_side.source = Source::kDistant;
    }
    Threads::meet();
}

// The stage after one, or the first one after none. A page whose codes are multiplied is one stage.
template <class Threads>
__device__ __noinline__ Stage advance(const TileArgs &args, const RowsBlock block,
                                      const Stage stage) {
    const Mask &mask = block.tables->mask;
    Stage next = stage;
    next.parity = stage.parity + 1 < block.n_slots ? stage.parity + 1 : 0;
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
            look_up_rows<Threads>(args, block, next.page);
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

// The order of a page's channels, and its bytes on their way to L2.
template <class Threads>
__device__ inline void describe_page(const RowsBlock &block, const EntryView &view) {
#pragma unroll 1
    for (uint32_t side = 0; side < 2 && block.strips(side); ++side) {
        const PageView &page = view.pages[side];
        const uint8_t *order = nullptr;
        if (page.source == Source::kDistant) {
            order = page.info.permutes ? page.metadata + page.info.permutation_offset
                                       : reinterpret_cast<const uint8_t *>(page.info.permutation);
            for (uint32_t i = 128 * Threads::index(); i < page.info.payload_bytes;
                 i += 128 * Threads::kN)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(page.payload + i));
        }
        const uint32_t n_channels = block.strips(side) * LK_STRIP_CHANNELS;
        for (uint32_t i = Threads::index(); order && i < n_channels; i += Threads::kN)
            block.tables->orders[side][i] =
                static_cast<uint16_t>(load_channel(order, n_channels, i));
        if (Threads::index() == 0)
            block.tables->has_order[side] = order != nullptr;
    }
}

// Copy n runs of bytes that lie apart.
template <class Threads>
__device__ __forceinline__ void copy_runs(uint32_t n, uint32_t to, const uint8_t *from,
                                          uint32_t stride, uint32_t bytes) {
    const uint32_t n_warps = n > 1 ? Threads::kN / kWarp : 1;
    const uint32_t thread = n > 1 ? threadIdx.x % kWarp : Threads::index();
    const uint32_t step = 16 * (n > 1 ? kWarp : Threads::kN);
#pragma unroll 1
    for (uint32_t i = n > 1 ? Threads::index() / kWarp : 0; i < n; i += n_warps)
        for (uint32_t at = 16 * thread; at < bytes; at += step)
            copy_async(to + i * bytes + at, from + i * stride + at);
}

// Begin the copies of a stage.
template <class Threads>
__device__ __noinline__ void begin_stage(const RowsBlock block, const Stage stage) {
    const EntryView &view = block.view(stage);
    const uint32_t slot = shared_address(block.slot(stage));
    if (block.code_bits(stage)) {
        const PageView &page = view.pages[0];
        const FormatInfo &c = page.info;
        copy_runs<Threads>(1, slot, page.payload, 0, c.payload_bytes);
        copy_runs<Threads>(1, slot + c.payload_bytes, page.metadata, 0, c.metadata_bytes);
        commit_copies();
        return;
    }
    if (stage.index == view.first_stage)
        describe_page<Threads>(block, view);
    const uint32_t bytes = stage_tiles(stage) * kTileBytes;  // of a strip
#pragma unroll 1
    for (uint32_t side = 0; side < 2; ++side) {
        const PageView &page = view.pages[side];
        if (page.source != Source::kTiles)
            continue;
        const uint32_t tile = stage.index * block.stage_tokens / LK_TILE_TOKENS;
        copy_runs<Threads>(block.strips(side), slot + side * block.key_strips * bytes,
                           page.payload + tile * kTileBytes,
                           2 * LK_STRIP_CHANNELS * page.info.page_tokens, bytes);
    }
    commit_copies();
}

// A lane's registers of a tile of staged tokens, from the tile's first one on.
__device__ __forceinline__ void load_staged(const uint16_t *rows, bool is_value,
                                            uint32_t n_channels, uint32_t n_tokens,
                                            uint32_t (&a)[4]) {
    const uint32_t lane = threadIdx.x % kWarp;
    for (uint32_t r = 0; r < 4; ++r) {
        const uint32_t row = LK_TILE_ROW(lane, r);
        const uint32_t k = LK_TILE_K(lane, r);
        const uint32_t token = is_value ? k : row;
        const uint16_t *at = rows + token * n_channels + (is_value ? row : k);
        a[r] = 0;
        if (token < n_tokens && is_value)
            a[r] = at[0] | (token + 1 < n_tokens ? uint32_t{at[n_channels]} << 16 : 0);
        else if (token < n_tokens)
            a[r] = *reinterpret_cast<const uint32_t *>(at);
    }
}

// Make zeros of numbers of tokens after the last one: memory there may hold NaNs, which a weight of
// 0 would not take away.
__device__ __forceinline__ void clear_rest(bool is_value, uint32_t n_tokens, uint32_t (&a)[4]) {
    const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) {
        const uint32_t token = is_value ? LK_TILE_K(lane, r) : LK_TILE_ROW(lane, r);
        if (token >= n_tokens)
            a[r] = 0;
        else if (is_value && token + 1 == n_tokens)
            a[r] &= 0xFFFFu;
    }
}

// The tiles of a side of a stage in its slot.
struct SideTiles {
    uint8_t *tiles;
    const uint16_t *order;  // of channels, or null
    uint32_t n_tiles;       // of a strip
    bool is_value;

    __device__ __forceinline__ uint8_t *tile(uint32_t strip, uint32_t tile) const {
        return tiles + (strip * n_tiles + tile) * kTileBytes;
    }
    __device__ __forceinline__ void store(uint32_t strip, uint32_t at,
                                          const uint32_t (&a)[4]) const {
        const uint32_t lane = threadIdx.x % kWarp;
        if (!order) {
            reinterpret_cast<uint4 *>(tile(strip, at))[lane] = make_uint4(a[0], a[1], a[2], a[3]);
            return;
        }
        // With the channels where they belong.
#pragma unroll 1
        for (uint32_t i = 0; i < 8; ++i) {
            const uint32_t r = i / 2;
            uint32_t row = LK_TILE_ROW(lane, r);
            uint32_t k = LK_TILE_K(lane, r) + i % 2;
            const uint32_t channel = order[strip * LK_STRIP_CHANNELS + (is_value ? row : k)];
            (is_value ? row : k) = channel % LK_STRIP_CHANNELS;
            const uint32_t to = LK_TILE_LANE(row, k) * 16 + (row / 8 + k / 8 * 2) * 4 + k % 2 * 2;
            const uint32_t word = r < 2 ? (r ? a[1] : a[0]) : (r == 2 ? a[2] : a[3]);
            *reinterpret_cast<uint16_t *>(tile(channel / LK_STRIP_CHANNELS, at) + to) =
                static_cast<uint16_t>(word >> 16 * (i % 2));
        }
    }
};

// The tiles of a side that were not copied whole: of packed and of staged pages, and of a 16-bit
// page the tile in whose middle the tokens end. A warp takes a strip.
__device__ __forceinline__ void make_side(const RowsBlock &block, const Stage &stage,
                                          const SideTiles &to) {
    const EntryView &view = block.view(stage);
    const PageView &page = view.pages[to.is_value];
    const bool is_copied = page.source == Source::kTiles;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t n_strips = block.strips(to.is_value);
    const uint32_t n_channels = n_strips * LK_STRIP_CHANNELS;
    const uint32_t page_tile = stage.index * block.stage_tokens / LK_TILE_TOKENS;
    const uint32_t first = is_copied ? stage.n_tokens / LK_TILE_TOKENS : 0;
#pragma unroll 1
    for (uint32_t strip = threadIdx.x / kWarp; strip < n_strips; strip += kRowsWarps)
#pragma unroll 1
        for (uint32_t tile = first; tile < to.n_tiles; ++tile) {
            const uint32_t rest = stage.n_tokens - tile * LK_TILE_TOKENS;
            uint32_t a[4];
            if (page.source == Source::kStaged) {
                load_staged(reinterpret_cast<const uint16_t *>(page.payload) +
                                (page_tile + tile) * LK_TILE_TOKENS * n_channels +
                                strip * LK_STRIP_CHANNELS,
                            to.is_value, n_channels, rest, a);
            } else if (is_copied) {
                const uint4 words = reinterpret_cast<const uint4 *>(to.tile(strip, tile))[lane];
                a[0] = words.x, a[1] = words.y, a[2] = words.z, a[3] = words.w;
            } else {
                load_values(page.info, to.is_value, find_strip(page.info, strip), page.payload,
                            page.metadata, strip, page_tile + tile, lane, a);
            }
            clear_rest(to.is_value, rest, a);
            to.store(strip, tile, a);
        }
}

// Is all of a stage there once its copies have arrived?
__device__ __forceinline__ bool is_copied_whole(const RowsBlock &block, const Stage &stage) {
    const EntryView &view = block.view(stage);
    bool is_done = stage.n_tokens % LK_TILE_TOKENS == 0;
    for (uint32_t side = 0; side < 2 && block.strips(side); ++side)
        is_done = is_done && view.pages[side].source == Source::kTiles;
    return is_done || block.code_bits(stage);
}

// What remains to be done then. All threads; the next barrier makes it valid.
__device__ __noinline__ void finish_stage(const RowsBlock block, const Stage stage) {
    if (is_copied_whole(block, stage))
        return;
    __syncthreads();  // all threads' copies, and the order of channels
    SideTiles to = {block.slot(stage), nullptr, stage_tiles(stage), false};
#pragma unroll 1
    for (uint32_t side = 0; side < 2 && block.strips(side); ++side) {
        to.is_value = side;
        to.order = block.tables->has_order[side] ? block.tables->orders[side] : nullptr;
        make_side(block, stage, to);
        to.tiles = to.tile(block.key_strips, 0);
    }
}

}  // namespace cuda
}  // namespace lk

#endif
