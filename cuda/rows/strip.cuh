// Attention of uneven layers: a strip of a packed page, of any format, becomes FP16 tiles in shared
// memory.
//
// A warp takes a strip. Pages were copied to shared memory before.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_STRIP_CUH
#define LK_CUDA_ROWS_STRIP_CUH

#include "cuda/prefill/unpack.cuh"

namespace lk {
namespace cuda {

// Tiles in slots have their lanes' 16 bytes in another order, so that the eight rows of a channel
// lie in different banks, and so do eight lanes next to each other.
__device__ __forceinline__ uint32_t swizzled(uint32_t offset) {
    return offset ^ (offset >> 3 & 0x30);
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t word) {
    asm volatile("st.shared.b32 [%0],%1;" ::"r"(address), "r"(word) : "memory");
}
__device__ __forceinline__ void store_shared_half(uint32_t address, uint32_t half) {
    asm volatile(
        "{\n.reg .b16 own, rest;\nmov.b32 {own, rest}, %1;\nst.shared.b16 [%0],own;\n}" ::"r"(
            address),
        "r"(half)
        : "memory");
}

// A packed page: its copy in shared memory, or, where that has no place, the page itself. Offsets
// are those of StripInfo, in the copy. No pointer is to either, since loads would be generic.
struct PackedPage {
    const PageView *view;
    uint32_t copy;  // shared address, or 0

    __device__ __forceinline__ const FormatInfo &info() const { return view->info; }
    __device__ __forceinline__ bool has_order() const {
        return info().permutes || info().permutation;
    }
    __device__ __forceinline__ uint32_t load_word(uint32_t offset) const {
        return copy ? load_shared1(copy + offset)
                    : __ldg(reinterpret_cast<const uint32_t *>(view->payload + offset -
                                                               view->copy_offset));
    }
    __device__ __forceinline__ uint32_t load_metadata(uint32_t offset) const {
        return copy ? load_shared1(copy + offset)
                    : __ldg(reinterpret_cast<const uint32_t *>(
                          view->metadata + offset - view->copy_offset - info().payload_bytes));
    }
    // Four numbers from a multiple of four on.
    __device__ __forceinline__ void load_four(uint32_t offset, uint32_t parameter_bytes,
                                              float (&x)[4]) const {
        uint2 words;
        words.x = load_metadata(offset);
        if (parameter_bytes == bytes_of_parameter(Metadata::kF8)) {
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i)
                x[i] = f8_to_float(words.x >> 8 * i & 0xFFu);
            return;
        }
        words.y = load_metadata(offset + 4);
        x[0] = half_to_float(words.x & 0xFFFFu);
        x[1] = half_to_float(words.x >> 16);
        x[2] = half_to_float(words.y & 0xFFFFu);
        x[3] = half_to_float(words.y >> 16);
    }
    // The channels of two stored ones next to each other, 16 bits each.
    __device__ __forceinline__ uint32_t load_channels(uint32_t stored) const {
        const FormatInfo &c = info();
        const bool is_wide = c.head_dim > LK_BYTE_CHANNELS;
        const uint32_t at = is_wide ? 2 * stored : stored;
        const uint32_t of_bytes = at % 4;
        uint32_t word =
            c.permutes ? load_metadata(view->copy_offset + c.payload_bytes + c.permutation_offset +
                                       at - of_bytes)
                       : __ldg(reinterpret_cast<const uint32_t *>(c.permutation + at - of_bytes));
        if (is_wide)
            return word;
        word >>= 8 * of_bytes;
        return (word & 0xFFu) | (word >> 8 & 0xFFu) << 16;
    }
};

// The tiles of a strip that a lane makes: [tile][lane][4 words] of a stage.
struct StripPart {
    uint32_t first_tile;  // of the page
    uint32_t n_tiles;
    uint32_t tokens;  // from the first tile on; later ones become zeros
    bool is_value;
};

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

// Where a lane's numbers of a strip go in a slot.
class StripTarget {
  public:
    // In the order of the strips.
    __device__ __forceinline__ StripTarget(uint32_t strip, const StripPart &part, uint32_t tiles)
        : is_ordered_(false) {
        at_[0] = tiles + strip * part.n_tiles * kTileBytes + swizzled(16 * (threadIdx.x % kWarp));
    }
    // Where the channels of a packed page belong.
    __device__ __forceinline__ StripTarget(const PackedPage &page, uint32_t strip,
                                           const StripPart &part, uint32_t tiles)
        : StripTarget(strip, part, tiles) {
        if (!page.has_order())
            return;
        is_ordered_ = true;
        const uint32_t lane = threadIdx.x % kWarp;
        const uint32_t first = strip * LK_STRIP_CHANNELS;
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            const uint32_t stored =
                first + 8 * i + (part.is_value ? lane / 4 / 2 * 2 : LK_TILE_K(lane, 0));
            const uint32_t two = page.load_channels(stored);
            const uint32_t own = part.is_value ? two >> 16 * (lane / 4 % 2) : two;
            at_[2 * i] = tiles + offset(own & 0xFFFFu, part);
            at_[2 * i + 1] = tiles + offset(two >> 16, part);
        }
    }

    // Tile `tile` of the stage; numbers of tokens after the last one become zeros.
    __device__ __forceinline__ void store(uint32_t tile, const StripPart &part,
                                          uint32_t (&a)[4]) const {
        const uint32_t offset = tile * kTileBytes;
        clear_rest(part.is_value, part.tokens - tile * LK_TILE_TOKENS, a);
        if (!is_ordered_) {
            asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(at_[0] + offset), "r"(a[0]),
                         "r"(a[1]), "r"(a[2]), "r"(a[3])
                         : "memory");
        } else if (part.is_value) {
#pragma unroll
            for (uint32_t r = 0; r < 4; ++r)
                store_shared(at_[r % 2 * 2] + offset + r / 2 * 8, a[r]);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 8; ++i)  // channel i / 2, row lane / 4 or 8 more
                store_shared_half(at_[i / 2] + offset + i % 2 * 4,
                                  a[i / 4 * 2 + i % 2] >> 16 * (i / 2 % 2));
        }
    }

  private:
    // Of the lane's first token of a channel.
    static __device__ __forceinline__ uint32_t offset(uint32_t channel, const StripPart &part) {
        const uint32_t lane = threadIdx.x % kWarp;
        const uint32_t in_strip = channel % LK_STRIP_CHANNELS;
        const uint32_t row = part.is_value ? in_strip : lane / 4;
        const uint32_t k = part.is_value ? LK_TILE_K(lane, 0) : in_strip;
        return channel / LK_STRIP_CHANNELS * part.n_tiles * kTileBytes +
               swizzled(16 * LK_TILE_LANE(row, k)) + row / 8 * 4 + k / 8 * 8 + k % 2 * 2;
    }

    uint32_t at_[4];
    bool is_ordered_;
};

// A lane's words of a strip.
struct StripWords {
    uint32_t bits;
    uint32_t low;   // offset of the lane's first word of low bits
    uint32_t more;  // of words of the upper 8 of k of 8 bits, or of the highest of 3 bits
    bool has_more;

    __device__ __forceinline__ StripWords(const PackedPage &page, const StripInfo &strip)
        : bits(strip.position.bits), has_more(bits == 8 || bits == 3) {
        const uint32_t page_tokens = page.info().page_tokens;
        low = strip.words + lane_offset(lane_words(page_tokens, LK_LOW_BITS(bits)));
        more = low + 4;
        if (bits == 3)
            more = strip.words + strip.position.high_offset - strip.position.offset +
                   lane_offset(lane_words(page_tokens, 1));
    }
    // The parts of strip_word_index() of a lane and of a word.
    static __device__ __forceinline__ uint32_t lane_offset(uint32_t n_words) {
        return 4 * (threadIdx.x % kWarp) * min(n_words, LK_VECTOR_WORDS);
    }
    static __device__ __forceinline__ uint32_t word_offset(uint32_t word) {
        return word / LK_VECTOR_WORDS * (4 * LK_LANES * LK_VECTOR_WORDS) +
               word % LK_VECTOR_WORDS * 4;
    }
    __device__ __forceinline__ uint32_t load_low(const PackedPage &page, uint32_t tile) const {
        return page.load_word(low + word_offset(tile * LK_LOW_BITS(bits) / 4));
    }
    __device__ __forceinline__ uint32_t load_more(const PackedPage &page, uint32_t tile) const {
        return has_more ? page.load_word(more + word_offset(bits == 8 ? 2 * tile : tile / 4)) : 0;
    }
};

// The first bit of a tile in a word of 4 / bits tiles.
__device__ __forceinline__ uint32_t first_bit(uint32_t bits, uint32_t tile) {
    return bits == 2 ? 2 * (tile % 2) : bits == 1 ? tile % 2 * 2 | tile / 2 % 2 : 0;
}

// Codes of pairs that share a stored channel, in 21ths of their range, as all channels of the strip
// then are. A partner has one bit, and the highest of an outlier's three lies with its partner.
__device__ __forceinline__ void share_bits(const PackedPage &page, const StripInfo &strip,
                                           uint32_t tile, uint32_t (&a)[4]) {
    const FormatInfo &c = page.info();
    const uint32_t strip_bytes = 4u * c.page_tokens;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t plane = strip.words - strip.position.in_plane * strip_bytes;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t r = i / 2 * 2;
        const uint32_t half = 16 * (i % 2);
        const uint32_t slot =
            strip.position.in_plane * LK_STRIP_CHANNELS + LK_TILE_K(lane, r) + i % 2;
        const uint32_t bits = shared_bits(c, slot);
        uint32_t top = 0;
        if (bits == 3) {
            const uint32_t partner = slot - c.n_shared;
            const uint32_t k = partner % LK_STRIP_CHANNELS;
            const uint32_t index =
                strip_word_index(lane_words(c.page_tokens, 2), LK_TILE_LANE(lane / 4, k), tile / 2);
            top = page.load_word(plane + partner / LK_STRIP_CHANNELS * strip_bytes + 4 * index) >>
                  (first_bit(2, tile) + 16 * LK_TILE_HALF(k) + k / 8 * 4 + 1);
        }
        const uint32_t own = bits == 1 ? 1 : 3;
        const uint32_t times = 21 / ((1u << bits) - 1);
#pragma unroll
        for (uint32_t row = 0; row < 2; ++row) {
            const uint32_t code = (a[r + row] >> half & own) | (top >> 8 * row & 1u) << 2;
            a[r + row] = (a[r + row] & 0xFFFF0000u >> half) | code * times << half;
        }
    }
}

// The ranges and minima that a lane needs of a tile: of its four channels or tokens, or, of a range
// for each token of keys, of its two rows.
__device__ __forceinline__ void load_tile_scale(const PackedPage &page, const StripInfo &strip,
                                                bool by_row, uint32_t tile, TileScale *scale) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t first = (tile >> strip.parameter_shift) * LK_TILE_TOKENS;
    const uint32_t index = by_row ? first + lane / 8 * 4 : first + lane % 4 * 4;
    const uint32_t offset = index * strip.parameter_bytes;
    page.load_four(strip.ranges + offset, strip.parameter_bytes, scale->range);
    page.load_four(strip.minima + offset, strip.parameter_bytes, scale->minimum);
    if (by_row && lane / 4 % 2)
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            scale->range[i] = scale->range[i + 2];
            scale->minimum[i] = scale->minimum[i + 2];
        }
}

// The tiles of a strip of 16 bits.
__device__ __forceinline__ void copy_strip(const PackedPage &page, uint32_t offset,
                                           const StripPart &part, const StripTarget &to) {
#pragma unroll 1
    for (uint32_t t = 0; t < part.n_tiles; ++t) {
        const uint32_t at = offset + (part.first_tile + t) * kTileBytes + threadIdx.x % kWarp * 16;
        uint32_t a[4];
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r)
            a[r] = page.load_word(at + 4 * r);
        to.store(t, part, a);
    }
}

// Make the tiles of a strip of a packed page. tiles: shared address of those of the side.
__device__ __forceinline__ void unpack_strip(const PackedPage &page, const StripInfo &info,
                                             uint32_t strip, const StripPart &part,
                                             uint32_t tiles) {
    const FormatInfo &c = page.info();
    const StripTarget to(page, strip, part, tiles);
    if (info.position.bits == 16) {
        copy_strip(page, info.words, part, to);
        return;
    }
    const StripWords words(page, info);
    const uint32_t low_bits = LK_LOW_BITS(words.bits);
    const uint32_t mask = ((1u << low_bits) - 1) * 0x10001u;
    const bool by_row = scales_by_row(c, part.is_value);
    const bool is_shared = !part.is_value && words.bits == 2 &&
                           info.position.in_plane * LK_STRIP_CHANNELS < 2u * c.n_shared;
    // Of ranges, for codes that are FP16 subnormals.
    const float factor = (is_shared ? 1.0f / 21 : code_step(words.bits)) * 0x1p24f;
    TileScale scale;
#pragma unroll 1
    for (uint32_t t = 0; t < part.n_tiles; ++t) {
        const uint32_t tile = part.first_tile + t;
        const uint32_t low = words.load_low(page, tile) >> first_bit(low_bits, tile);
        const uint32_t more = words.load_more(page, tile);
        if (t == 0 || tile % (1u << info.parameter_shift) == 0) {
            load_tile_scale(page, info, by_row, tile, &scale);
#pragma unroll
            for (float &range : scale.range)
                range *= factor;
        }
        const uint32_t high = words.bits == 8 ? more : low >> 4;
        uint32_t a[4] = {low & mask, low >> 8 & mask, high & mask, high >> 8 & mask};
        if (words.bits == 3) {
            const uint32_t top = more >> first_bit(1, tile) << 2;
            a[0] |= top & 0x40004u;
            a[1] |= top >> 8 & 0x40004u;
            a[2] |= top >> 4 & 0x40004u;
            a[3] |= top >> 12 & 0x40004u;
        }
        if (is_shared)
            share_bits(page, info, tile, a);
        if (by_row) {
#pragma unroll
            for (uint32_t r = 0; r < 4; ++r)
                a[r] = scale_pair(a[r], scale.range[r % 2], scale.range[r % 2],
                                  scale.minimum[r % 2], scale.minimum[r % 2]);
        } else {
#pragma unroll
            for (uint32_t r = 0; r < 4; ++r)
                a[r] = scale_pair(a[r], scale.range[r / 2 * 2], scale.range[r / 2 * 2 + 1],
                                  scale.minimum[r / 2 * 2], scale.minimum[r / 2 * 2 + 1]);
        }
        to.store(t, part, a);
    }
}

}  // namespace cuda
}  // namespace lk

#endif
