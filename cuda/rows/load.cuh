// Attention of uneven layers: what a stage's products read, in slots of shared memory.
//
// A slot holds the codes of a latent page of one width, or a part of it, which are multiplied, or
// FP16 tiles of a stage: [strip][tile][lane][4 words] of the keys, then of the values of layers
// that are not latent. Pages of 16 bits are copied, tiles of staged tokens are made.
// channel_rows.cuh has the stages of layers with packed pages that become FP16.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_LOAD_CUH
#define LK_CUDA_ROWS_LOAD_CUH

#include "cuda/fragment.cuh"
#include "cuda/prefill/queries.cuh"
#include "cuda/rows/grid.h"

namespace lk {
namespace cuda {

constexpr uint32_t kMostKeyStrips = LK_MAX_HEAD_DIM / LK_STRIP_CHANNELS;
constexpr uint32_t kMostValueStrips = LK_MAX_PLAIN_DIM / LK_STRIP_CHANNELS;

constexpr uint32_t kPartTokens = kMostRowsTokens / 2;  // of a page of two stages

struct RowsTables : ColumnTablesOf<kMostRowsColumns> {
    EntryView views[kPageBatch];
    uint32_t code_bits[kPageBatch];  // of pages whose codes are multiplied, else 0
};

// The fields of a thread block that the functions below need.
struct RowsBlock {
    RowsTables *tables;
    uint8_t *slots;
    uint8_t *queries;
    uint8_t *copy;  // of a packed page that becomes rows of channels
    uint32_t n_slots;
    uint32_t slot_bytes;
    uint32_t page_bytes;
    uint32_t copy_bytes;
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
    // Is a page of codes two stages, as slots have no place for the largest one? Words of 2 bits
    // have tokens of both; slots have place for such a page.
    __device__ bool cuts_page(uint32_t bits) const { return page_bytes > slot_bytes && bits > 2; }
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
    static constexpr bool kCanCut = true;  // pages of codes
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

// The stage after one, or the first one after none.
// A function of each kernel, so that the compiler knows where its shared memory is.
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
    if (Threads::kCanCut && stage.n_tokens && next.index == 1 && old.n_tokens > kPartTokens &&
        block.cuts_page(block.code_bits(stage))) {
        stage_position(old, kPartTokens, &next);
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
        if (Threads::kCanCut && block.cuts_page(block.code_bits(next)))
            next.n_tokens = min(next.n_tokens, kPartTokens);
        break;
    }
    return next;
}

template <class Threads>
__device__ __forceinline__ void copy_bytes(uint32_t to, const uint8_t *from, uint32_t n_bytes) {
#pragma unroll 2
    for (uint32_t at = 16 * Threads::index(); at < n_bytes; at += 16 * Threads::kN)
        copy_async(to + at, from + at);
}

// Copy a part of each strip of a page of codes, of a power of two bytes, and the metadata.
template <class Threads>
__device__ __forceinline__ void copy_part(uint32_t to, const PageView &page, uint32_t part,
                                          uint32_t of_strip) {
    const uint8_t *from = page.payload + part * of_strip;
    const uint32_t n_bytes = page.info.payload_bytes / 2;
#pragma unroll 1
    for (uint32_t at = 16 * Threads::index(); at < n_bytes; at += 16 * Threads::kN)
        copy_async(to + at, from + at + (at & ~(of_strip - 1)));
    copy_bytes<Threads>(to + n_bytes, page.metadata, page.info.metadata_bytes);
}

// Make zeros of numbers of tokens after the last one: memory there may hold NaNs, which a weight of
// 0 would not take away.
__device__ __forceinline__ void clear_rest(bool is_value, uint32_t n_tokens, uint32_t (&a)[4]) {
    const uint32_t lane = threadIdx.x % kWarp;
    if (n_tokens >= LK_TILE_TOKENS)
        return;
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) {
        const uint32_t token = is_value ? LK_TILE_K(lane, r) : LK_TILE_ROW(lane, r);
        if (token >= n_tokens)
            a[r] = 0;
        else if (is_value && token + 1 == n_tokens)
            a[r] &= 0xFFFFu;
    }
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
            a[r] = __ldg(at) | (token + 1 < n_tokens ? uint32_t{__ldg(at + n_channels)} << 16 : 0);
        else if (token < n_tokens)
            a[r] = __ldg(reinterpret_cast<const uint32_t *>(at));
    }
}

// The tiles of a strip in a stage.
struct StripPart {
    uint32_t first_tile;  // of the page
    uint32_t n_tiles;
    uint32_t tokens;  // from the first tile on; later ones become zeros
    bool is_value;
};

// A side of a stage, in its slot.
struct SideTiles {
    const PageView *page;
    uint32_t tiles;  // shared address
    uint32_t n_strips;
    StripPart part;

    __device__ __forceinline__ uint32_t strip(uint32_t i) const {
        return tiles + i * part.n_tiles * kTileBytes;
    }
};

// Copy the first n tiles of each strip of a 16-bit page; a warp takes a strip.
template <class Threads>
__device__ __forceinline__ void copy_tiles(const SideTiles &side, uint32_t n) {
    const PageView &page = *side.page;
    const uint8_t *from = page.payload + side.part.first_tile * kTileBytes;
#pragma unroll 1
    for (uint32_t strip = Threads::index() / kWarp; strip < side.n_strips;
         strip += Threads::kN / kWarp)
        for (uint32_t at = 16 * (threadIdx.x % kWarp); at < n * kTileBytes; at += 16 * kWarp)
            copy_async(side.strip(strip) + at,
                       from + strip * 2 * LK_STRIP_CHANNELS * page.info.page_tokens + at);
}

// 16 bytes of each lane from an address on.
__device__ __forceinline__ void store_lane(uint32_t address, const uint32_t (&a)[4]) {
    asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(address + 16 * (threadIdx.x % kWarp)),
                 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
                 : "memory");
}

// Make tiles from `first` on of staged tokens, or of a 16-bit page in whose last tile the tokens
// end. Loads of some strips are under way at once.
template <class Threads>
__device__ __forceinline__ void round_tiles(const SideTiles &side, uint32_t first) {
    constexpr uint32_t kStep = Threads::kN / kWarp;
    constexpr uint32_t kAhead = 3;
    const PageView &page = *side.page;
    const StripPart &part = side.part;
    const uint32_t n_channels = side.n_strips * LK_STRIP_CHANNELS;
#pragma unroll 1
    for (uint32_t tile = first; tile < part.n_tiles; ++tile) {
        const uint32_t page_tile = part.first_tile + tile;
        const uint32_t rest = part.tokens - tile * LK_TILE_TOKENS;
#pragma unroll 1
        for (uint32_t strip = Threads::index() / kWarp; strip < side.n_strips;
             strip += kAhead * kStep) {
            uint32_t a[kAhead][4];
#pragma unroll
            for (uint32_t i = 0; i < kAhead; ++i) {
                const uint32_t own = min(strip + i * kStep, side.n_strips - 1);
                if (page.source == Source::kStaged) {
                    load_staged(reinterpret_cast<const uint16_t *>(page.payload) +
                                    page_tile * LK_TILE_TOKENS * n_channels +
                                    own * LK_STRIP_CHANNELS,
                                part.is_value, n_channels, rest, a[i]);
                } else {
                    const uint4 words = __ldg(
                        reinterpret_cast<const uint4 *>(
                            page.payload + own * 2 * LK_STRIP_CHANNELS * page.info.page_tokens +
                            page_tile * kTileBytes) +
                        threadIdx.x % kWarp);
                    a[i][0] = words.x, a[i][1] = words.y, a[i][2] = words.z, a[i][3] = words.w;
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < kAhead; ++i)
                if (strip + i * kStep < side.n_strips) {
                    clear_rest(part.is_value, rest, a[i]);
                    store_lane(side.strip(strip + i * kStep) + tile * kTileBytes, a[i]);
                }
        }
    }
}

// The sides of a stage: f(side).
template <class F>
__device__ __forceinline__ void each_side(const RowsBlock &block, const Stage &stage, F f) {
    const EntryView &view = block.view(stage);
    SideTiles side = {};
    side.tiles = shared_address(block.slot(stage));
    side.part = {stage.index * block.stage_tokens / LK_TILE_TOKENS, stage_tiles(stage),
                 stage.n_tokens, false};
#pragma unroll 1
    for (uint32_t i = 0; i < 2 && block.strips(i); ++i) {
        side.page = &view.pages[i];
        side.n_strips = block.strips(i);
        side.part.is_value = i;
        f(side);
        side.tiles = side.strip(side.n_strips);
    }
}
// How many tiles of a strip are copied: those of a 16-bit page that are whole.
__device__ __forceinline__ uint32_t copied_tiles(const SideTiles &side) {
    return side.page->source == Source::kTiles ? side.part.tokens / LK_TILE_TOKENS : 0;
}

// Begin a stage: copies. finish_stage() makes the rest. A stage is there once its copies have
// arrived and all threads have met.
template <class Threads>
__device__ __noinline__ void begin_stage(const RowsBlock block, const Stage stage) {
    if (block.code_bits(stage)) {
        const PageView &page = block.view(stage).pages[0];
        const uint32_t slot = shared_address(block.slot(stage));
        if (Threads::kCanCut && block.cuts_page(block.code_bits(stage))) {
            copy_part<Threads>(slot, page, stage.index,
                               strip_bytes(kPartTokens, block.code_bits(stage)));
        } else {
            copy_bytes<Threads>(slot, page.payload, page.info.payload_bytes);
            copy_bytes<Threads>(slot + page.info.payload_bytes, page.metadata,
                                page.info.metadata_bytes);
        }
    } else {
        each_side(block, stage,
                  [](const SideTiles &side) { copy_tiles<Threads>(side, copied_tiles(side)); });
    }
    commit_copies();
}

// Make the tiles that are not copied.
template <class Threads>
__device__ __noinline__ void finish_stage(const RowsBlock block, const Stage stage) {
    if (block.code_bits(stage))
        return;
    each_side(block, stage,
              [](const SideTiles &side) { round_tiles<Threads>(side, copied_tiles(side)); });
}

}  // namespace cuda
}  // namespace lk

#endif
