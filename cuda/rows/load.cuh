// Attention over rows: from pages to FP16 rows in shared memory, keys [token][channel], values of
// layers that are not latent [channel][token]; channels in their own order.
//
// Packed pages are copied whole and 16-bit pages a stage at a time while the stage before is
// multiplied; what shared memory does not hold is read where it lies. The warps share the work of
// making rows, once for all columns of the thread block.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_LOAD_CUH
#define LK_CUDA_ROWS_LOAD_CUH

#include "cuda/prefill/queries.cuh"
#include "cuda/prefill/stages.cuh"
#include "cuda/rows/grid.h"

namespace lk {
namespace cuda {

constexpr uint32_t kMostKeyStrips = LK_MAX_HEAD_DIM / LK_STRIP_CHANNELS;
constexpr uint32_t kMostValueStrips = LK_MAX_PLAIN_DIM / LK_STRIP_CHANNELS;
static_assert(kRowsTokens == 2 * LK_TILE_TOKENS, "a warp unpacks a strip of a stage at once");

struct RowsTables : ColumnTables {
    EntryView views[kPageBatch];
    StripInfo strips[2][kMostKeyStrips];  // of the page under way
    uint16_t orders[2][LK_MAX_HEAD_DIM];  // stored channel -> channel, where it has an order
    uint32_t has_order[2];
};

// The fields of a thread block that the functions below need.
struct RowsBlock {
    RowsTables *tables;
    uint8_t *keys;    // rows
    uint8_t *values;  // rows
    uint8_t *pages;
    uint32_t key_strips;
    uint32_t value_strips;  // of stored values: 0 in a latent layer
    uint32_t page_bytes;
    static constexpr uint32_t stage_tokens = kRowsTokens;
    static constexpr uint32_t page_stride = 0;  // no page is copied before the one that it follows

    __device__ const EntryView &view(const Stage &stage) const {
        return tables->views[(stage.page - tables->mask.page_begin) % kPageBatch];
    }
    __device__ uint32_t strips(uint32_t side) const { return side ? value_strips : key_strips; }
    __device__ uint32_t key_row_bytes() const {
        return 2 * (key_strips * LK_STRIP_CHANNELS + kRowPad);
    }
    __device__ uint32_t value_row_bytes() const { return 2 * (kRowsTokens + kRowPad); }
};

__device__ inline uint32_t stage_tiles(const Stage &stage) {
    return (stage.n_tokens + LK_TILE_TOKENS - 1) / LK_TILE_TOKENS;
}
// Where the tiles of a 16-bit page's stage are copied to, after packed pages; page_bytes or more
// where they do not fit.
__device__ inline uint32_t stage_offset(const RowsBlock &block, const EntryView &view,
                                        uint32_t side) {
    const uint32_t strip_bytes = 2 * LK_STRIP_CHANNELS * kRowsTokens;
    const uint32_t offset = copy_bytes(view.pages[0]) + copy_bytes(view.pages[1]);
    const bool follows = side && view.pages[0].source == Source::kTiles;
    const uint32_t begin = offset + (follows ? block.key_strips * strip_bytes : 0);
    return begin + block.strips(side) * strip_bytes <= block.page_bytes ? begin : ~0u;
}

__device__ inline void copy_block(uint8_t *to, const uint8_t *from, uint32_t bytes) {
#pragma unroll 2
    for (uint32_t i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
        copy_async(shared_address(to + i), from + i);
}

// A thread block's tables of a page: strips, and the order of channels.
__device__ inline void describe_page(const RowsBlock &block, const EntryView &view) {
#pragma unroll 1
    for (uint32_t side = 0; side < 2; ++side) {
        const PageView &page = view.pages[side];
        const bool is_packed = page.source == Source::kCopied || page.source == Source::kDistant;
        const uint32_t n_strips = block.strips(side);
        for (uint32_t strip = threadIdx.x; strip < n_strips; strip += blockDim.x)
            block.tables->strips[side][strip] = describe_strip(page, strip);
        const uint8_t *order = nullptr;
        if (is_packed)
            order = page.info.permutes ? page.metadata + page.info.permutation_offset
                                       : reinterpret_cast<const uint8_t *>(page.info.permutation);
        const uint32_t n_channels = n_strips * LK_STRIP_CHANNELS;
        for (uint32_t i = threadIdx.x; order && i < n_channels; i += blockDim.x)
            block.tables->orders[side][i] =
                static_cast<uint16_t>(load_channel(order, n_channels, i));
        if (threadIdx.x == 0)
            block.tables->has_order[side] = order != nullptr;
    }
}

// Begin the copies of a stage; those of a packed page with its first one.
__device__ __noinline__ void begin_stage(const RowsBlock block, const Stage &stage) {
    const EntryView &view = block.view(stage);
    const bool is_first = stage.index == view.first_stage;
    if (is_first)
        describe_page(block, view);
#pragma unroll 1
    for (uint32_t side = 0; side < 2 && block.strips(side); ++side) {
        const PageView &page = view.pages[side];
        if (page.source == Source::kCopied && is_first) {
            uint8_t *to = block.pages + page.copy_offset;
            copy_block(to, page.payload, page.info.payload_bytes);
            copy_block(to + page.info.payload_bytes, page.metadata, page.info.metadata_bytes);
        }
        const uint32_t offset =
            page.source == Source::kTiles ? stage_offset(block, view, side) : ~0u;
        if (offset == ~0u)
            continue;
        const uint32_t strip_bytes = 2 * LK_STRIP_CHANNELS * page.info.page_tokens;
        const uint32_t stage_bytes = stage_tiles(stage) * kTileBytes;  // of a strip
        const uint8_t *from =
            page.payload + stage.index * kRowsTokens / LK_TILE_TOKENS * kTileBytes;
        const uint32_t to = shared_address(block.pages + offset);
        const uint32_t n_strips = block.strips(side);
#pragma unroll 1
        for (uint32_t strip = threadIdx.x / kWarp; strip < n_strips; strip += kRowsWarps)
            for (uint32_t at = 16 * (threadIdx.x % kWarp); at < stage_bytes; at += kTileBytes)
                copy_async(to + strip * stage_bytes + at, from + strip * strip_bytes + at);
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

// A lane's registers of a tile of the stage, of any page.
template <bool kIsValue>
__device__ inline void load_tile(const RowsBlock &block, const EntryView &view, const Stage &stage,
                                 uint32_t strip, uint32_t tile, uint32_t (&a)[4]) {
    const PageView &page = view.pages[kIsValue];
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t page_tile = stage.index * kRowsTokens / LK_TILE_TOKENS + tile;
    if (page.source == Source::kStaged) {
        load_staged<kIsValue>(reinterpret_cast<const uint16_t *>(page.payload),
                              block.strips(kIsValue) * LK_STRIP_CHANNELS, strip,
                              page_tile * LK_TILE_TOKENS, view.n_tokens, a);
        return;
    }
    if (page.source == Source::kTiles) {
        const uint32_t offset = stage_offset(block, view, kIsValue);
        const uint8_t *at =
            offset != ~0u ? block.pages + offset + (strip * stage_tiles(stage) + tile) * kTileBytes
                          : page.payload + 2 * LK_STRIP_CHANNELS * page.info.page_tokens * strip +
                                page_tile * kTileBytes;
        const uint4 words = reinterpret_cast<const uint4 *>(at)[lane];
        a[0] = words.x;
        a[1] = words.y;
        a[2] = words.z;
        a[3] = words.w;
        return;
    }
    const bool is_distant = page.source == Source::kDistant;
    const uint8_t *payload = is_distant ? page.payload : block.pages + page.copy_offset;
    load_values<kIsValue>(page.info, block.tables->strips[kIsValue][strip].position, payload,
                          is_distant ? page.metadata : payload + page.info.payload_bytes, strip,
                          page_tile, lane, a);
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

// The rows of a side as tiles are stored there: a tile's rows are tokens of keys and channels of
// values.
struct RowsTarget {
    uint8_t *rows;
    uint32_t row_bytes;
    const uint16_t *order;  // of channels, or null
    bool is_value;

    __device__ RowsTarget(const RowsBlock &block, bool is_value_)
        : rows(is_value_ ? block.values : block.keys),
          row_bytes(is_value_ ? block.value_row_bytes() : block.key_row_bytes()),
          order(block.tables->has_order[is_value_] ? block.tables->orders[is_value_] : nullptr),
          is_value(is_value_) {}

    __device__ __forceinline__ void store(uint32_t strip, uint32_t tile,
                                          const uint32_t (&a)[4]) const {
        const uint32_t lane = threadIdx.x % kWarp;
        const uint32_t row = LK_STRIP_CHANNELS * (is_value ? strip : tile) + LK_TILE_ROW(lane, 0);
        const uint32_t k = LK_STRIP_CHANNELS * (is_value ? tile : strip) + LK_TILE_K(lane, 0);
        if (!order) {
            uint8_t *to = rows + row * row_bytes + 2 * k;
#pragma unroll
            for (uint32_t r = 0; r < 4; ++r)
                *reinterpret_cast<uint32_t *>(to + r % 2 * (8 * row_bytes) + r / 2 * 16) = a[r];
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i) {
            const uint32_t own_row = row + i / 2 % 2 * 8;
            const uint32_t own_k = k + i / 4 * 8 + i % 2;
            const uint32_t to = (is_value ? order[own_row] : own_row) * row_bytes +
                                2 * (is_value ? own_k : order[own_k]);
            *reinterpret_cast<uint16_t *>(rows + to) =
                static_cast<uint16_t>(a[i / 2] >> (16 * (i % 2)));
        }
    }
};
static_assert(LK_TILE_TOKENS == LK_STRIP_CHANNELS, "tiles are as high as they are wide");

// A tile of any strip, zeros after the last token. All kernels share the code.
__device__ __noinline__ uint4 make_tile(const RowsBlock block, const Stage stage, bool is_value,
                                        uint32_t strip, uint32_t tile) {
    const EntryView &view = block.view(stage);
    const uint32_t first = tile * LK_TILE_TOKENS;
    uint32_t a[4] = {};
    if (first >= stage.n_tokens)
        return make_uint4(0, 0, 0, 0);
    if (is_value) {
        load_tile<true>(block, view, stage, strip, tile, a);
        clear_rest<true>(first, stage.n_tokens, a);
    } else {
        load_tile<false>(block, view, stage, strip, tile, a);
        clear_rest<false>(first, stage.n_tokens, a);
    }
    return make_uint4(a[0], a[1], a[2], a[3]);
}

// Two values of two fields of kBits from bit kBit on. 1024 and a field are an FP16 number; the
// first step makes code / 2^(kBits - 1) of it, exactly, the second rounds once.
template <uint32_t kBits, uint32_t kBit>
__device__ __forceinline__ uint32_t scale_fields(uint32_t word, uint32_t step, uint32_t minimum) {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u << kBit;
    constexpr float kFactor = 1.0f / (1u << (kBit + kBits - 1));
    const __half2 code = __hfma2(as_half2((word & kMask) | 0x64006400u), __float2half2_rn(kFactor),
                                 __float2half2_rn(-1024 * kFactor));
    const __half2 values = __hfma2(code, as_half2(step), as_half2(minimum));
    return as_word(__hmin2(values, as_half2(0x7BFF7BFFu)));
}

// Of a lane's four k of a tile: ranges times 2^(kBits - 1) / (2^kBits - 1), and minima.
struct HalfScale {
    uint32_t steps[2];
    uint32_t minima[2];
};
// Parameters index .. index + 3 of an array as FP16 numbers. A byte of FP8 at the right bits is one
// of 2^-7 times its value.
__device__ __forceinline__ uint2 load_four(const uint8_t *array, uint32_t parameter_bytes,
                                           uint32_t index) {
    if (parameter_bytes == bytes_of_parameter(Metadata::kF16))
        return *reinterpret_cast<const uint2 *>(array + 2 * index);
    const uint32_t bytes = *reinterpret_cast<const uint32_t *>(array + index);
    const auto widen = [](uint32_t pair) {
        const uint32_t bits = (pair & 0x00800080u) << 8 | (pair & 0x007F007Fu) << 7;
        return as_word(__hmul2(as_half2(bits), __float2half2_rn(128)));
    };
    return make_uint2(widen(__byte_perm(bytes, 0, 0x4140)), widen(__byte_perm(bytes, 0, 0x4342)));
}
template <uint32_t kBits>
__device__ __forceinline__ HalfScale load_half_scale(const StripInfo &info, const uint8_t *page,
                                                     uint32_t tile) {
    constexpr float kFactor = code_step(kBits) * (1u << (kBits - 1));
    const uint32_t index =
        (tile >> info.parameter_shift) * LK_STRIP_CHANNELS + threadIdx.x % kWarp % 4 * 4;
    const uint2 ranges = load_four(page + info.ranges, info.parameter_bytes, index);
    const uint2 minima = load_four(page + info.minima, info.parameter_bytes, index);
    const float2 low = __half22float2(as_half2(ranges.x));
    const float2 high = __half22float2(as_half2(ranges.y));
    return {
        {pack_f16(low.x * kFactor, low.y * kFactor), pack_f16(high.x * kFactor, high.y * kFactor)},
        {minima.x, minima.y}};
}

// Two tiles of a plain strip: as make_plain_round(), with a step that is rounded to FP16.
template <uint32_t kBits>
__device__ __forceinline__ void make_pair(const StripInfo &info, const uint8_t *page,
                                          uint32_t first_tile, const RowsTarget &target,
                                          uint32_t strip) {
    uint32_t words[4];
    load_round_words<kBits, 2>(info, page, first_tile, words);
    HalfScale scale = load_half_scale<kBits>(info, page, first_tile);
#pragma unroll
    for (uint32_t t = 0; t < 2; ++t) {
        if (t && !info.parameter_shift)
            scale = load_half_scale<kBits>(info, page, first_tile + t);
        uint32_t a[4];
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            const uint32_t low = words[2 * t] >> 8 * i;
            const uint32_t high = words[2 * t + 1] >> 8 * i;
            constexpr uint32_t kUpper = kBits == 8 ? 0 : 4;
            if (kBits == 2 && t) {
                a[i] = scale_fields < kBits,
                kBits == 2 ? 2 : 0 > (low, scale.steps[0], scale.minima[0]);
                a[2 + i] = scale_fields < kBits,
                      kBits == 2 ? 6 : 0 > (high, scale.steps[1], scale.minima[1]);
            } else {
                a[i] = scale_fields<kBits, 0>(low, scale.steps[0], scale.minima[0]);
                a[2 + i] = scale_fields<kBits, kUpper>(high, scale.steps[1], scale.minima[1]);
            }
        }
        target.store(strip, t, a);
    }
}

// Two tiles of a 16-bit page, zeros after the last token: memory there may hold NaNs, which a
// weight of 0 would not take away.
__device__ __forceinline__ void make_raw_pair(const RowsBlock &block, const EntryView &view,
                                              const Stage &stage, const RowsTarget &target,
                                              uint32_t strip) {
    const bool is_value = target.is_value;
    const PageView &page = view.pages[is_value];
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t offset = stage_offset(block, view, is_value);
    const uint8_t *from = block.pages + offset + strip * stage_tiles(stage) * kTileBytes;
    if (offset == ~0u)
        from = page.payload + 2 * LK_STRIP_CHANNELS * page.info.page_tokens * strip +
               stage.index * kRowsTokens / LK_TILE_TOKENS * kTileBytes;
#pragma unroll
    for (uint32_t t = 0; t < 2; ++t) {
        const uint32_t first = t * LK_TILE_TOKENS;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (first < stage.n_tokens)
            words = reinterpret_cast<const uint4 *>(from + t * kTileBytes)[lane];
        uint32_t a[4] = {words.x, words.y, words.z, words.w};
        if (first + LK_TILE_TOKENS > stage.n_tokens) {
            if (is_value)
                clear_rest<true>(first, stage.n_tokens, a);
            else
                clear_rest<false>(first, stage.n_tokens, a);
        }
        target.store(strip, t, a);
    }
}

// The rows of a stage whose copies have arrived. A warp takes a strip.
__device__ inline void make_rows(const RowsBlock &block, const Stage &stage) {
    const EntryView &view = block.view(stage);
    const uint32_t n_strips = block.key_strips + block.value_strips;
    const uint32_t page_tile = stage.index * kRowsTokens / LK_TILE_TOKENS;
#pragma unroll 1
    for (uint32_t i = threadIdx.x / kWarp; i < n_strips; i += kRowsWarps) {
        const bool is_value = i >= block.key_strips;
        const uint32_t strip = i - (is_value ? block.key_strips : 0);
        const StripInfo &info = block.tables->strips[is_value][strip];
        const RowsTarget target(block, is_value);
        if (view.pages[is_value].source == Source::kTiles) {
            make_raw_pair(block, view, stage, target, strip);
        } else if (!info.is_plain) {
#pragma unroll 1
            for (uint32_t t = 0; t < 2; ++t) {
                const uint4 words = make_tile(block, stage, is_value, strip, t);
                target.store(strip, t, {words.x, words.y, words.z, words.w});
            }
        } else if (info.position.bits == 4) {
            make_pair<4>(info, block.pages, page_tile, target, strip);
        } else if (info.position.bits == 2) {
            make_pair<2>(info, block.pages, page_tile, target, strip);
        } else {
            make_pair<8>(info, block.pages, page_tile, target, strip);
        }
    }
}

}  // namespace cuda
}  // namespace lk

#endif
