// Attention of many columns: from pages to stages of FP16 tiles in shared memory.
//
// Copies of the next stage are under way while one is multiplied. 16-bit pages are copied straight
// to the stage's memory. Packed pages are copied whole, one ahead where shared memory allows, and
// staged tokens a stage at a time, to a page's memory; when they have arrived, the warps of the
// thread block share the work of making tiles of them, once for all columns.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_LOAD_CUH
#define LK_CUDA_PREFILL_LOAD_CUH

#include "cuda/prefill/unpack.cuh"

namespace lk {
namespace cuda {

// Fixed shared memory of a thread block.
struct TileTables : ColumnTables {
    EntryView views[kPageBatch];
    StripInfo strips[2][2][kMaxStrips];  // of two pages
    // The offset of the queries of a stored channel's channel, for two pages: [channel of a
    // strip][strip].
    alignas(16) uint16_t query_rows[2][LK_STRIP_CHANNELS][kMaxStrips];
};

// Where the tables and tiles of a thread block lie in its dynamic shared memory, in bytes.
struct TileLayout {
    uint32_t stages;  // [2][rounds][keys, values][strips][tiles]; queries begin at 0
    uint32_t pages;
    uint32_t total;
};

__host__ __device__ inline uint32_t stage_bytes(uint32_t head_dim, uint32_t stage_tokens) {
    return 2 * stage_tokens * head_dim * 2;
}
// A row of staged tokens takes 16 bytes more, so that neighbouring rows lie in other banks.
__host__ __device__ inline uint32_t staged_row_bytes(uint32_t head_dim) {
    return 2 * head_dim + 16;
}
// Queries lie as [warp][channel][columns of the warp].
__host__ __device__ inline TileLayout tile_layout(uint32_t head_dim, uint32_t block_columns,
                                                  uint32_t stage_tokens, uint32_t pages_bytes) {
    TileLayout layout;
    layout.stages = block_columns * head_dim * 2;
    layout.pages = layout.stages + 2 * stage_bytes(head_dim, stage_tokens);
    layout.total = layout.pages + pages_bytes;
    return layout;
}

// A page is copied ahead if the one before is looked up together with it and has two stages: the
// barrier between them lets all threads see the copy.
template <class Block>
__device__ inline void find_leads(const Block &block, uint32_t n_views) {
    EntryView *views = block.tables->views;
    const uint32_t i = threadIdx.x;
    const auto follows = [&](uint32_t next) {
        return block.page_stride && next > 0 && next < n_views &&
               views[next - 1].first_stage + 2 <= views[next - 1].end_stage &&
               views[next].first_stage < views[next].end_stage;
    };
    if (i < n_views) {
        views[i].is_ahead = follows(i);
        views[i].leads = follows(i + 1);
    }
}

// The fields of a thread block that the functions below need. kSlices: of a warp's columns.
template <int kSlices>
struct TileBlock {
    static constexpr uint32_t kParityBits = 3;
    static constexpr uint32_t kRoundTiles = cuda::kRoundTiles<kSlices>;
    static constexpr uint32_t kRoundTokens = cuda::kRoundTokens<kSlices>;
    static constexpr uint32_t kStripRoundBytes = cuda::kStripRoundBytes<kSlices>;

    TileTables *tables;
    uint8_t *stages;
    uint8_t *pages;  // a copy, or two in turn
    uint32_t head_dim;
    uint32_t n_strips;
    uint32_t page_bytes;   // of a copy
    uint32_t page_stride;  // 0 with one copy
    uint32_t stage_tokens;
    uint32_t row_shift;  // log2 of the bytes of a channel's queries of a warp

    __device__ const Mask &mask() const { return tables->mask; }
    __device__ uint32_t tokens_of_stage() const { return stage_tokens; }
    __device__ void look_up(const TileArgs &args, uint32_t page) const {
        const uint32_t n_views = min(kPageBatch, tables->mask.page_end - page);
        __syncthreads();
        if (threadIdx.x < n_views)
            view_page(args, tables->mask, page + threadIdx.x, page_bytes,
                      &tables->views[threadIdx.x]);
        __syncthreads();
        find_leads(*this, n_views);
        __syncthreads();
    }
    __device__ const EntryView &view(const Stage &stage) const {
        return tables->views[(stage.page - tables->mask.page_begin) % kPageBatch];
    }
    __device__ uint8_t *page(const Stage &stage) const {
        return pages + stage.parity / 2 * page_stride;
    }
    __device__ uint8_t *tiles(const Stage &stage, uint32_t round, uint32_t side) const {
        const uint32_t at = stage.parity % 2 * (stage_tokens / kRoundTokens) + round;
        return stages + (2 * at + side) * n_strips * kStripRoundBytes;
    }
};

// Calls f(strip, tile of the stage, address of the lane's 16 bytes) for the tiles of a side that
// the warp copies.
template <class Block, class F>
__device__ __forceinline__ void for_tiles(const Block &block, const Stage &stage, uint32_t side,
                                          F f) {
    const uint32_t n_rounds = (stage.n_tokens + Block::kRoundTokens - 1) / Block::kRoundTokens;
    const uint32_t n_tiles = n_rounds * Block::kRoundTiles;
    uint8_t *to = block.tiles(stage, 0, side) + 16 * (threadIdx.x % kWarp);
    const uint32_t round_bytes = 2 * block.n_strips * Block::kStripRoundBytes;
    const uint32_t n = block.n_strips * n_tiles;
    const uint32_t n_warps = blockDim.x / kWarp;
#pragma unroll 2
    for (uint32_t i = threadIdx.x / kWarp; i < n; i += n_warps) {
        const uint32_t strip = n_tiles == 4 ? i / 4 : n_tiles == 2 ? i / 2 : i;
        const uint32_t tile = i % n_tiles;
        f(strip, tile,
          to + tile / Block::kRoundTiles * round_bytes + strip * Block::kStripRoundBytes +
              tile % Block::kRoundTiles * kTileBytes);
    }
}

template <class Block>
__device__ inline void copy_tiles(const Block &block, const PageView &page, const Stage &stage,
                                  uint32_t side) {
    const uint32_t strip_bytes = 2 * LK_STRIP_CHANNELS * page.info.page_tokens;
    const uint32_t first = stage.index * block.stage_tokens / LK_TILE_TOKENS;
    const uint8_t *payload = page.payload + 16 * (threadIdx.x % kWarp);
    for_tiles(block, stage, side, [&](uint32_t strip, uint32_t tile, uint8_t *to) {
        const uint32_t at = (first + tile) * kTileBytes;
        const bool exists = at < strip_bytes;
        copy_or_clear(shared_address(to), payload + strip * strip_bytes + (exists ? at : 0),
                      exists);
    });
}

// Make zeros of the tokens after the last one in a thread's words of a tile of values: memory there
// may hold NaNs, which a weight of 0 would not take away.
__device__ __forceinline__ void clear_hidden(uint32_t *words, uint32_t tile, uint32_t n_tokens) {
    const uint32_t k = tile * LK_TILE_TOKENS + 2 * (threadIdx.x % 4);
    for (uint32_t r = 0; r < LK_TILE_WORDS; ++r) {
        const uint32_t token = k + 8 * (r / 2);
        if (token >= n_tokens)
            words[r] = 0;
        else if (token + 1 == n_tokens)
            words[r] &= 0xFFFFu;
    }
}

// A thread clears the bytes that it copied.
template <class Block>
__device__ inline void clear_rest(const Block &block, const Stage &stage) {
    for_tiles(block, stage, 1, [&](uint32_t, uint32_t tile, uint8_t *to) {
        clear_hidden(reinterpret_cast<uint32_t *>(to), tile, stage.n_tokens);
    });
}

__device__ inline void copy_bytes_async(uint8_t *to, const uint8_t *from, uint32_t bytes) {
    for (uint32_t i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
        copy_async(shared_address(to + i), from + i);
}

__device__ inline void copy_page(const PageView &page, uint8_t *copies) {
    uint8_t *to = copies + page.copy_offset;
    copy_bytes_async(to, page.payload, page.info.payload_bytes);
    copy_bytes_async(to + page.info.payload_bytes, page.metadata, page.info.metadata_bytes);
}

template <class Block>
__device__ inline void copy_staged(const Block &block, const PageView &page, const Stage &stage,
                                   uint8_t *to) {
    const uint32_t row_bytes = 2 * block.head_dim;
    const uint32_t token_chunks = row_bytes / 16;
    const uint8_t *from = page.payload + stage.index * block.stage_tokens * row_bytes;
    for (uint32_t i = threadIdx.x; i < block.stage_tokens * token_chunks; i += blockDim.x) {
        const uint32_t token = i / token_chunks;
        const uint32_t at = 16 * (i % token_chunks);
        const bool exists = token < stage.n_tokens;
        copy_or_clear(shared_address(to + token * staged_row_bytes(block.head_dim) + at),
                      from + (exists ? token : 0) * row_bytes + at, exists);
    }
}

template <class Block>
__device__ inline uint8_t *staged_rows(const Block &block, uint32_t side) {
    return block.pages + side * block.stage_tokens * staged_row_bytes(block.head_dim);
}

// Does the stage use what other threads are to copy or to look up since the last barrier?
template <class Block>
__device__ inline bool needs_barrier(const Block &block, const Stage &stage) {
    const EntryView &view = block.view(stage);
    return view.pages[0].source == Source::kStaged ||
           (stage.index == view.first_stage && !view.is_ahead);
}

// Were all pages of the stage copied for an earlier stage?
template <class Block>
__device__ inline bool is_copied(const Block &block, const Stage &stage) {
    const EntryView &view = block.view(stage);
    return !needs_barrier(block, stage) && view.pages[0].source != Source::kTiles &&
           view.pages[1].source != Source::kTiles;
}

// Begin the copies of a packed page, and make its tables.
template <class Block>
__device__ inline void start_page(const Block &block, const EntryView &view, uint32_t position) {
    for (const PageView &page : view.pages)
        if (page.source == Source::kCopied)
            copy_page(page, block.pages + position * block.page_stride);
    for (uint32_t i = threadIdx.x; i < 2 * block.n_strips; i += blockDim.x) {
        const uint32_t side = i >= block.n_strips;
        const uint32_t strip = i - side * block.n_strips;
        block.tables->strips[position][side][strip] = describe_strip(view.pages[side], strip);
    }
}

// Begin the copies of a stage, and, in a group of its own, those of the page after one that begins.
template <class Block>
__device__ inline void start_stage(const Block &block, const Stage &stage) {
    const EntryView &view = block.view(stage);
    const bool is_first = stage.index == view.first_stage;
    if (is_first && !view.is_ahead)
        start_page(block, view, stage.parity / 2);
    for (uint32_t side = 0; side < 2; ++side) {
        const PageView &page = view.pages[side];
        if (page.source == Source::kTiles)
            copy_tiles(block, page, stage, side);
        else if (page.source == Source::kStaged)
            copy_staged(block, page, stage, staged_rows(block, side));
    }
    commit_copies();
    if (is_first && view.leads)
        start_page(block, (&view)[1], stage.parity / 2 ^ 1);
    commit_copies();
}

// Rows of tokens are those of a tile of keys, and the columns of one of values.
template <bool kIsValue, class Block>
__device__ void convert_strip(const Block &block, uint32_t strip, uint32_t first_tile,
                              uint8_t *to) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t matrix = lane / 8;
    const uint32_t token = lane % 8 + 8 * (kIsValue ? matrix / 2 : matrix % 2);
    const uint32_t channel = 8 * (kIsValue ? matrix % 2 : matrix / 2);
    const uint32_t row_bytes = staged_row_bytes(block.head_dim);
    const uint8_t *from = staged_rows(block, kIsValue) + token * row_bytes +
                          2 * (LK_STRIP_CHANNELS * strip + channel);
    make_round<Block::kRoundTiles>(first_tile, to, [&](uint32_t tile, uint32_t, uint32_t(&a)[4]) {
        const uint32_t address = shared_address(from + tile * LK_TILE_TOKENS * row_bytes);
        if (kIsValue)
            load_matrices_transposed(a, address);
        else
            load_matrices(a, address);
    });
}

template <bool kIsValue, class Block>
__device__ inline void make_tiles(const Block &block, const PageView &page, const StripInfo &info,
                                  const uint8_t *copies, uint32_t strip, uint32_t first_tile,
                                  uint32_t round, uint8_t *to) {
    if (page.source == Source::kStaged)
        convert_strip<kIsValue>(block, strip, round * Block::kRoundTiles, to);
    else if (page.source != Source::kTiles)
        unpack_strip<kIsValue, Block::kRoundTiles>(page, info, copies, strip, first_tile, to);
}

// The stage's tiles of a strip of keys or values.
template <class Block>
__device__ inline void make_strip(const Block &block, const EntryView &view, const Stage &stage,
                                  uint32_t side, uint32_t strip) {
    const StripInfo info = block.tables->strips[stage.parity / 2][side][strip];
    const uint8_t *copies = block.page(stage);
    const uint32_t stage_tile = stage.index * block.stage_tokens / LK_TILE_TOKENS;
#pragma unroll 1
    for (uint32_t round = 0; round * Block::kRoundTokens < stage.n_tokens; ++round) {
        uint8_t *to = block.tiles(stage, round, side) + strip * Block::kStripRoundBytes;
        const uint32_t first_tile = stage_tile + Block::kRoundTiles * round;
        if (info.is_plain)
            unpack_plain_strip<Block::kRoundTiles>(info, copies, first_tile, to);
        else if (side)
            make_tiles<true>(block, view.pages[1], info, copies, strip, first_tile, round, to);
        else
            make_tiles<false>(block, view.pages[0], info, copies, strip, first_tile, round, to);
    }
}

// A warp's queries of a channel take 1 << shift bytes, in runs of 16 that change positions from
// row to row: eight rows at the same columns lie in different banks.
__device__ __forceinline__ uint32_t query_row(uint32_t channel, uint32_t shift) {
    const uint32_t turn = shift == 6 ? channel / 2 % 4 : shift == 5 ? channel / 4 % 2 : 0;
    return (channel << shift) + 16 * turn;
}

// The page's permutation of keys belongs to the rows of the queries.
template <class Block>
__device__ inline void find_query_rows(const Block &block, const PageView &page,
                                       const Stage &stage) {
    const uint8_t *permutation = nullptr;
    if (page.source == Source::kCopied || page.source == Source::kDistant) {
        permutation = reinterpret_cast<const uint8_t *>(page.info.permutation);
        if (page.info.permutes) {
            const uint8_t *metadata =
                page.source == Source::kDistant
                    ? page.metadata
                    : block.page(stage) + page.copy_offset + page.info.payload_bytes;
            permutation = metadata + page.info.permutation_offset;
        }
    }
    for (uint32_t slot = threadIdx.x; slot < block.head_dim; slot += blockDim.x)
        block.tables->query_rows[stage.parity / 2][slot % LK_STRIP_CHANNELS]
                                [slot / LK_STRIP_CHANNELS] = static_cast<uint16_t>(query_row(
            permutation ? load_channel(permutation, block.head_dim, slot) : slot, block.row_shift));
}

// The rest of the work, once the copies have arrived.
template <class Block>
__device__ inline void finish_stage(const Block &block, const Stage &stage) {
    const EntryView &view = block.view(stage);
    if (stage.index == view.first_stage)
        find_query_rows(block, view.pages[0], stage);
    if (view.pages[1].source == Source::kTiles && stage.n_tokens < block.stage_tokens)
        clear_rest(block, stage);
    if (view.pages[0].source == Source::kTiles && view.pages[1].source == Source::kTiles)
        return;
    const uint32_t n_warps = blockDim.x / kWarp;
#pragma unroll 1
    for (uint32_t i = threadIdx.x / kWarp; i < 2 * block.n_strips; i += n_warps) {
        const uint32_t side = i >= block.n_strips;
        make_strip(block, view, stage, side, i - side * block.n_strips);
    }
}

// A stage that start_stage() began, if there is one, becomes tiles, which are valid after the next
// barrier.
template <class Block>
__device__ inline void await_stage(const Block &block, const Stage &stage) {
    if (!stage.n_tokens)
        return;
    wait_copies<1>();  // all but the page after
    if (needs_barrier(block, stage))
        __syncthreads();
    finish_stage(block, stage);
}

}  // namespace cuda
}  // namespace lk

#endif
