// Attention of uneven layers with packed pages that become FP16: stages as rows of channels.
//
// A row has a channel's numbers of the stage's tokens, in quads of 64, or one of 32 or 16 tokens. A
// quad consists of eight sets. A set has every eighth token of its quad, which is what a lane has
// of a channel of a strip: it stores them at once, whatever channel that is. Parts of 16 bytes are
// swizzled. row_products.cuh multiplies them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_CHANNEL_ROWS_CUH
#define LK_CUDA_ROWS_CHANNEL_ROWS_CUH

#include "cuda/rows/load.cuh"
#include "cuda/rows/strip.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kRowsStrips = kMostKeyStrips + kMostValueStrips;  // of a stage
constexpr uint32_t kQuadBytes = 2 * kQuadTokens;                     // of a row
static_assert(kQuadTokens == kQuadTiles * LK_TILE_TOKENS, "a quad of tiles");

// The rows of a thread block's stages.
struct RowShape {
    uint32_t log_tiles;  // log2 of the tiles of 16 tokens that a quad has
    uint32_t n_quads;

    __device__ __forceinline__ explicit RowShape(const RowsBlock &block)
        : log_tiles(min(block.stage_tokens / 2 / LK_TILE_TOKENS, 2u)),
          n_quads(stage_quads(block.stage_tokens)) {}

    __device__ __forceinline__ uint32_t quad_tokens() const { return LK_TILE_TOKENS << log_tiles; }
    __device__ __forceinline__ uint32_t n_tiles() const { return n_quads << log_tiles; }
    __device__ __forceinline__ uint32_t log_row() const { return 4 + log_tiles + n_quads; }
    __device__ __forceinline__ uint32_t strip_bytes() const {
        return LK_STRIP_CHANNELS << log_row();
    }
    // Where the part of a row at an offset below 128 lies.
    __device__ __forceinline__ uint32_t at(uint32_t channel, uint32_t offset) const {
        const uint32_t swizzled = (channel << (2 + log_tiles) & ((32u << log_tiles) - 16)) ^ offset;
        return (channel << log_row()) + swizzled;
    }
    // Where a set of a row's tokens lies, of its first quad.
    __device__ __forceinline__ uint32_t set_at(uint32_t channel, uint32_t set) const {
        return at(channel, set << (2 + log_tiles));
    }
    // Where a tile's matrices lie. first: address of those of the first tile.
    static __device__ __forceinline__ uint32_t tile_at(uint32_t first, uint32_t tile) {
        return (first ^ 32 * (tile % kQuadTiles)) + tile / kQuadTiles * kQuadBytes;
    }
    // The token, of the stage, of a number's place in its row; a place after the row has none.
    __device__ __forceinline__ uint32_t token_at(uint32_t place) const {
        const uint32_t quad = place >> (4 + log_tiles);
        const uint32_t of_set = place & ((2u << log_tiles) - 1);
        const uint32_t set = place >> (1 + log_tiles) & 7;
        return quad < n_quads ? quad * quad_tokens() + of_set * 8 + set : ~0u;
    }
};

// Where a lane's numbers of a strip go.
struct LaneRows {
    uint32_t at[4];  // shared addresses, of a tile's four words
    uint32_t log_tiles;
    bool is_value;

    // Channels of two stored ones next to each other, 16 bits each, of the lower and the upper half
    // of a strip: of the lane's k of keys, or those that have its row of values.
    __device__ __forceinline__ LaneRows(uint32_t rows, const RowShape &shape, bool is_value_,
                                        uint2 channels)
        : log_tiles(shape.log_tiles), is_value(is_value_) {
        const uint32_t lane = threadIdx.x % kWarp;
        const uint32_t set = is_value ? LK_TILE_K(lane, 0) : lane / 4;
        const uint32_t own = !is_value ? 0x3210 : lane / 4 % 2 ? 0x3232 : 0x1010;
        channels.x = __byte_perm(channels.x, 0, own);
        channels.y = __byte_perm(channels.y, 0, own);
        at[0] = rows + shape.set_at(channels.x & 0xFFFFu, set);
        at[1] = rows + shape.set_at(channels.x >> 16, set + is_value);
        at[2] = rows + shape.set_at(channels.y & 0xFFFFu, set);
        at[3] = rows + shape.set_at(channels.y >> 16, set + is_value);
    }
    // The words of a tile: two tokens of a channel, eight apart.
    __device__ __forceinline__ void pair_tokens(uint32_t (&a)[4]) const {
        const uint32_t first = a[0];
        const uint32_t second = is_value ? a[2] : a[1];
        const uint32_t third = is_value ? a[1] : a[2];
        const uint32_t fourth = a[3];
        a[0] = __byte_perm(first, second, 0x5410);
        a[1] = __byte_perm(first, second, 0x7632);
        a[2] = __byte_perm(third, fourth, 0x5410);
        a[3] = __byte_perm(third, fourth, 0x7632);
    }
    // Tile `tile` of the stage; numbers of tokens after the last one become zeros.
    __device__ __forceinline__ void store(uint32_t tile, uint32_t tokens, uint32_t (&a)[4]) const {
        const uint32_t offset = tile / kQuadTiles * kQuadBytes + tile % kQuadTiles * 4;
        clear_rest(is_value, tokens - min(tokens, tile * LK_TILE_TOKENS), a);
        pair_tokens(a);
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i)
            asm volatile("st.shared.b32 [%0],%1;" ::"r"(at[i] + offset), "r"(a[i]) : "memory");
    }
    // Quad `quad` of the stage.
    __device__ __forceinline__ void store(uint32_t quad, uint32_t tokens, Quad &a) const {
        if (tokens < (quad + 1) * kQuadTokens) {
            // Not known before, so that nothing of it is done for quads that are whole.
            const uint32_t first = renewed(quad) * kQuadTokens;
#pragma unroll
            for (uint32_t t = 0; t < kQuadTiles; ++t)
                clear_rest(is_value, tokens - min(tokens, first + t * LK_TILE_TOKENS), a[t]);
        }
#pragma unroll
        for (uint32_t t = 0; t < kQuadTiles; ++t)
            pair_tokens(a[t]);
        const uint32_t offset = quad * kQuadBytes;
        if (log_tiles == 2) {
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i)
                asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(at[i] + offset),
                             "r"(a[0][i]), "r"(a[1][i]), "r"(a[2][i]), "r"(a[3][i])
                             : "memory");
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            asm volatile("st.shared.b32 [%0],%1;" ::"r"(at[i]), "r"(a[0][i]) : "memory");
            if (log_tiles)
                asm volatile("st.shared.b32 [%0],%1;" ::"r"(at[i] + 4), "r"(a[1][i]) : "memory");
        }
    }
};
// The first of a lane's stored channels in each half of a strip.
__device__ __forceinline__ uint32_t first_channel(bool is_value) {
    const uint32_t lane = threadIdx.x % kWarp;
    return is_value ? lane / 8 * 2 : LK_TILE_K(lane, 0);
}
// Two of them in each half, of channels in their own order.
__device__ __forceinline__ uint2 plain_channels(bool is_value, uint32_t strip) {
    const uint32_t first = strip * LK_STRIP_CHANNELS + first_channel(is_value);
    const uint32_t lower = first * 0x10001u + 0x10000u;
    return make_uint2(lower, lower + 0x80008u);
}
// Of a strip of a packed page.
__device__ __forceinline__ uint2 find_channels(bool is_value, const StripCodes &strip, uint32_t i) {
    if (!strip.order)
        return plain_channels(is_value, i);
    const uint32_t first = first_channel(is_value);
    if (!(strip.kind & kStripByteOrder))
        return make_uint2(load_shared1(strip.order + 2 * first),
                          load_shared1(strip.order + 2 * first + 16));
    return make_uint2(__byte_perm(load_shared_half(strip.order + first), 0, 0x4140),
                      __byte_perm(load_shared_half(strip.order + first + 8), 0, 0x4140));
}

// The tiles of a stage that begins inside a quad become the first ones.
__device__ __forceinline__ void begin_at(uint32_t tile, Quad &a) {
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) {
        if (tile & 2) {
            a[0][r] = a[2][r];
            a[1][r] = a[3][r];
        }
        if (tile & 1)
            a[0][r] = a[1][r];
    }
}

// A side of a stage, in its slot.
struct SideRows {
    const PageView *page;
    uint32_t rows;  // shared address
    uint32_t n_strips;
    uint32_t first_tile;  // of the page
    uint32_t tokens;
    bool is_value;
    RowShape shape;
};

// How the quads of a strip are unpacked: without pairs that share stored channels, and with them.
struct PlainStrip {
    static constexpr uint32_t kShares = 0;
    TileParameters parameters;

    __device__ __forceinline__ PlainStrip(const FormatInfo &, const StripCodes &strip,
                                          uint32_t first_quad)
        : parameters(load_parameters(strip, first_quad * kQuadTiles)) {}
    __device__ __forceinline__ void unpack(const StripCodes &strip, uint32_t quad, bool is_first,
                                           Quad &a) {
        if (!is_first && kQuadTiles >> (strip.kind >> kStripShift))
            parameters = load_parameters(strip, quad * kQuadTiles);
        unpack_quad(strip, quad, parameters, a);
    }
};
struct SharedStrip {
    static constexpr uint32_t kShares = kStripShares;
    SharedChannels lane;

    __device__ __forceinline__ SharedStrip(const FormatInfo &c, const StripCodes &strip, uint32_t)
        : lane(strip, c.n_shared, c.page_tokens) {}
    __device__ __forceinline__ void unpack(const StripCodes &strip, uint32_t quad, bool,
                                           Quad &a) const {
        unpack_shared_quad(strip, lane, quad, a);
    }
};

// Make the rows of a packed page's strips of a kind; a warp takes a strip.
template <class Strip>
__device__ __forceinline__ void unpack_strips(const SideRows &side, const StripCodes *strips) {
    const uint32_t first_quad = side.first_tile / kQuadTiles;
#pragma unroll 1
    for (uint32_t i = threadIdx.x / kWarp; i < side.n_strips; i += kRowsWarps) {
        const StripCodes &strip = strips[i];
        if ((strip.kind & kStripShares) != Strip::kShares)
            continue;
        const LaneRows to(side.rows, side.shape, side.is_value,
                          find_channels(side.is_value, strip, i));
        Strip own(side.page->info, strip, first_quad);
#pragma unroll 1
        for (uint32_t quad = 0; quad < side.shape.n_quads; ++quad) {
            Quad a;
            own.unpack(strip, first_quad + quad, quad == 0, a);
            if (side.first_tile % kQuadTiles)
                begin_at(side.first_tile, a);
            to.store(quad, side.tokens, a);
        }
    }
}
// A function, so that plain strips keep the registers.
__device__ __noinline__ void unpack_shared_rows(const SideRows side, const StripCodes *strips) {
    unpack_strips<SharedStrip>(side, strips);
}

// The same of a page that shared memory has no place for, from where it lies.
__device__ __noinline__ void unpack_distant_rows(const SideRows side) {
    const PageView &page = *side.page;
    const FormatInfo &c = page.info;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint8_t *order = c.permutes ? page.metadata + c.permutation_offset
                                      : reinterpret_cast<const uint8_t *>(c.permutation);
#pragma unroll 1
    for (uint32_t i = threadIdx.x / kWarp; i < side.n_strips; i += kRowsWarps) {
        const StripPosition position = find_strip(c, i);
        const uint32_t first = i * LK_STRIP_CHANNELS + first_channel(side.is_value);
        uint2 channels = plain_channels(side.is_value, i);
        if (order)
            channels = make_uint2(load_channel(order, c.head_dim, first) |
                                      load_channel(order, c.head_dim, first + 1) << 16,
                                  load_channel(order, c.head_dim, first + 8) |
                                      load_channel(order, c.head_dim, first + 9) << 16);
        const LaneRows to(side.rows, side.shape, side.is_value, channels);
#pragma unroll 1
        for (uint32_t t = 0; t < side.shape.n_tiles(); ++t) {
            uint32_t a[4] = {};
            if (t * LK_TILE_TOKENS < side.tokens)
                load_values(c, side.is_value, position, page.payload, page.metadata, i,
                            side.first_tile + t, lane, a);
            to.store(t, side.tokens, a);
        }
    }
}

// Make the rows of staged tokens, or of a 16-bit page.
__device__ __noinline__ void turn_rows(const SideRows side) {
    const PageView &page = *side.page;
    const uint32_t n_channels = side.n_strips * LK_STRIP_CHANNELS;
    const uint32_t n_quads = side.n_strips * side.shape.n_quads;
#pragma unroll 1
    for (uint32_t i = threadIdx.x / kWarp; i < n_quads; i += kRowsWarps) {
        const uint32_t strip = i % side.n_strips;
        const uint32_t quad = i / side.n_strips;
        const uint32_t first_tile = side.first_tile + quad * kQuadTiles;
        const auto *staged = reinterpret_cast<const uint16_t *>(page.payload) +
                             first_tile * LK_TILE_TOKENS * n_channels + strip * LK_STRIP_CHANNELS;
        const auto *tiles = reinterpret_cast<const uint4 *>(
                                page.payload + strip * strip_bytes(page.info.page_tokens, 16) +
                                first_tile * kTileBytes) +
                            threadIdx.x % kWarp;
        Quad a = {};
#pragma unroll
        for (uint32_t t = 0; t < kQuadTiles; ++t) {
            const uint32_t token = (quad * kQuadTiles + t) * LK_TILE_TOKENS;
            if (token >= side.tokens || t >> side.shape.log_tiles)
                continue;
            if (page.source == Source::kStaged) {
                load_staged(staged + t * LK_TILE_TOKENS * n_channels, side.is_value, n_channels,
                            side.tokens - token, a[t]);
            } else {
                const uint4 four = __ldg(tiles + t * LK_LANES);
                a[t][0] = four.x, a[t][1] = four.y, a[t][2] = four.z, a[t][3] = four.w;
            }
        }
        LaneRows(side.rows, side.shape, side.is_value, plain_channels(side.is_value, strip))
            .store(quad, side.tokens, a);
    }
}

// A stage's sides: f(side).
template <class F>
__device__ __forceinline__ void each_side(const RowsBlock &block, const RowShape &shape,
                                          const Stage &stage, F f) {
    const EntryView &view = block.view(stage);
    SideRows side = {&view.pages[0],
                     shared_address(block.slots),
                     block.key_strips,
                     stage.index * shape.n_tiles(),
                     stage.n_tokens,
                     false,
                     shape};
#pragma unroll 1
    for (;;) {
        f(side);
        if (side.is_value || !block.value_strips)
            return;
        side.page = &view.pages[1];
        side.rows += side.n_strips * shape.strip_bytes();
        side.n_strips = block.value_strips;
        side.is_value = true;
    }
}

// The page that was copied last, and the formats whose strips are described.
struct FetchedPage {
    uint32_t page;
    uint32_t formats[2];
    uint32_t copies[2];  // where those pages were copied to
};

// Request what make_rows() reads: copy a packed page and describe its strips, if there is a place
// for it; bring 16-bit tiles closer.
__device__ __forceinline__ void fetch_stage(const RowsBlock &block, const RowShape &shape,
                                            StripCodes *strips, const Stage &stage,
                                            FetchedPage *fetched) {
    const bool is_new = fetched->page != stage.page;
    fetched->page = stage.page;
    uint32_t to = shared_address(block.copy);
    each_side(block, shape, stage, [&](const SideRows &side) {
        const PageView &page = *side.page;
        const FormatInfo &c = page.info;
        if (page.source == Source::kTiles) {
            constexpr uint32_t kLine = 128;
            const uint32_t n_tiles = (side.tokens + LK_TILE_TOKENS - 1) / LK_TILE_TOKENS;
            const uint32_t of_strip = n_tiles * (kTileBytes / kLine);
#pragma unroll 1
            for (uint32_t i = threadIdx.x; i < side.n_strips * of_strip; i += kRowsThreads)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(
                    page.payload + i / of_strip * strip_bytes(c.page_tokens, 16) +
                    side.first_tile * kTileBytes + i % of_strip * kLine));
        }
        if (page.source != Source::kDistant || !block.copy_bytes || !is_new)
            return;
        const uint32_t metadata = to + c.payload_bytes;
        const uint32_t end = metadata + c.metadata_bytes;
        copy_bytes<AllThreads>(to, page.payload, c.payload_bytes);
        copy_bytes<AllThreads>(metadata, page.metadata, c.metadata_bytes);
        if (c.permutation)
            copy_bytes<AllThreads>(end, reinterpret_cast<const uint8_t *>(c.permutation),
                                   permutation_bytes(c.head_dim));
        const bool is_described =
            fetched->formats[side.is_value] == page.format && fetched->copies[side.is_value] == to;
        if (!is_described && threadIdx.x < side.n_strips)
            strips[(side.is_value ? block.key_strips : 0) + threadIdx.x] =
                describe_codes(c, to,
                               c.permutes      ? metadata + c.permutation_offset
                               : c.permutation ? end
                                               : 0,
                               threadIdx.x);
        fetched->formats[side.is_value] = page.format;
        fetched->copies[side.is_value] = to;
        to = end + (c.permutation ? permutation_bytes(c.head_dim) : 0);
    });
    commit_copies();
}

// Make the rows of a stage.
__device__ __forceinline__ void make_rows(const RowsBlock &block, const RowShape &shape,
                                          const StripCodes *strips, const Stage &stage) {
    each_side(block, shape, stage, [&](const SideRows &side) {
        const StripCodes *own = strips + (side.is_value ? block.key_strips : 0);
        if (side.page->source != Source::kDistant) {
            turn_rows(side);
        } else if (!block.copy_bytes) {
            unpack_distant_rows(side);
        } else {
            if (side.page->info.n_shared)
                unpack_shared_rows(side, own);
            unpack_strips<PlainStrip>(side, own);
        }
    });
}

}  // namespace cuda
}  // namespace lk

#endif
