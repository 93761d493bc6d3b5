// Attention of latent layers: products of the codes of a packed page of any format.
//
// Codes are multiplied in the order in which the page stores them. Queries lie in rows of a
// channel, so that the loads of a B operand follow the page's order; values go to sums in shared
// memory, each stored channel's to those of its channel. Codes of 4 bits and fewer become fields of
// four bits, of which 16 bits hold those of two tokens and two channels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_ANY_CODES_CUH
#define LK_CUDA_ROWS_ANY_CODES_CUH

#include "cuda/decode/parameters.cuh"
#include "cuda/rows/key_warp.cuh"

namespace lk {
namespace cuda {

// What products need of a page's format, once value warps have found its stage.
struct AnyFormat {
    uint32_t order;  // shared address, 0 where stored channels are in their order
    uint32_t ranges_bytes;
    uint16_t n_stored;    // channels
    uint16_t n_shared;    // pairs of shared stored channels
    uint8_t group_shift;  // of tiles to groups of tokens, where channels have parameters
    bool is_token_axis;
    bool is_f8;
};
struct FoundPage {
    AnyFormat format;
    uint16_t parameters[kMostKeyStrips];  // index of a strip's first one
    StripPosition strips[kMostKeyStrips];
};

// The same in registers, but for the arrays.
struct AnyPage : AnyFormat {
    const StripPosition *strips;
    const uint16_t *parameters;

    __device__ __forceinline__ explicit AnyPage(const FoundPage &found)
        : AnyFormat(found.format), strips(found.strips), parameters(found.parameters) {}
    __device__ __forceinline__ uint32_t channel(uint32_t stored) const {
        return !order                        ? stored
               : n_stored > LK_BYTE_CHANNELS ? load_shared_half(order + 2 * stored)
                                             : load_shared_byte(order + stored);
    }
    // Of the first parameter of a strip and a tile.
    __device__ __forceinline__ uint32_t parameter(uint32_t strip, uint32_t tile) const {
        return parameters[strip] + (is_token_axis ? tile : tile >> group_shift) * LK_STRIP_CHANNELS;
    }
    // Of a stored channel, where channels have parameters.
    __device__ __forceinline__ uint32_t parameter_of(uint32_t stored, uint32_t tile) const {
        return parameter(stored / LK_STRIP_CHANNELS, tile) + LK_K_ORDER(stored % LK_STRIP_CHANNELS);
    }
    // Four parameters as two pairs of FP16 numbers, which are 1 / unit() of them.
    __device__ __forceinline__ uint2 load_four(uint32_t array, uint32_t index) const {
        if (!is_f8)
            return load_shared2(array + 2 * index);
        const uint32_t bytes = load_shared1(array + index);
        return make_uint2(f8_minima(bytes, kLowPair), f8_minima(bytes, kHighPair));
    }
    __device__ __forceinline__ float load_one(uint32_t array, uint32_t index) const {
        return is_f8 ? f8_to_float(load_shared_byte(array + index))
                     : half_to_float(load_shared_half(array + 2 * index));
    }
    __device__ __forceinline__ float unit() const { return is_f8 ? 128 : 1; }

    // Pairs of shared stored channels: the first n_shared of the 2-bit plane have the partners of
    // the next ones.
    __device__ __forceinline__ bool shares(const StripPosition &at) const {
        return at.bits == 2 && at.in_plane * LK_STRIP_CHANNELS < 2u * n_shared;
    }
    __device__ __forceinline__ bool has_partners(const StripPosition &at) const {
        return at.bits == 2 && at.in_plane * LK_STRIP_CHANNELS < n_shared;
    }
    // The stored channel that a code belongs to, of channel k of a strip.
    __device__ __forceinline__ uint32_t owner(uint32_t strip, const StripPosition &at, uint32_t k,
                                              bool is_high) const {
        const bool is_partner = at.in_plane * LK_STRIP_CHANNELS + k < n_shared;
        return strip * LK_STRIP_CHANNELS + k + (is_high && is_partner ? n_shared : 0);
    }
    // is_high: of the upper bits of outliers' codes, which are fields of two bits without the
    // lower.
    __device__ __forceinline__ float step_of(const StripPosition &at, uint32_t k,
                                             bool is_high) const {
        const uint32_t slot = at.in_plane * LK_STRIP_CHANNELS + k;
        return is_high                ? 2 * code_step(3)
               : slot < n_shared      ? code_step(1)
               : slot < 2u * n_shared ? code_step(3)
                                      : code_step(2);
    }
};

// The bits of a lane's fields that are codes, or the upper bits of outliers.
__device__ __forceinline__ uint32_t field_mask(const AnyPage &page, const StripPosition &at,
                                               bool is_high) {
    const uint32_t slot = at.in_plane * LK_STRIP_CHANNELS + 2 * (threadIdx.x % 4);
    const auto field = [&](uint32_t k) {
        return slot + k < page.n_shared ? 1u + is_high : is_high ? 0u : 3u;
    };
    return (field(0) | field(8) << 4) * 0x0101u | (field(1) | field(9) << 4) * 0x01010000u;
}

// A lane's codes of a tile: a word of fields, two words of bytes, or four of FP16 numbers.
__device__ __forceinline__ uint32_t load_fields(const Codes &codes, uint32_t offset, uint32_t bits,
                                                uint32_t tile) {
    const uint32_t word =
        strip_word_index(lane_words(codes.page_tokens, bits), threadIdx.x % kWarp, tile * bits / 4);
    const uint32_t first_bit = bits == 4   ? 0
                               : bits == 2 ? tile % 2 * 2
                                           : tile % 2 * 2 + tile / 2 % 2;
    const uint32_t mask = bits == 4 ? ~0u : bits == 2 ? 0x33333333u : 0x11111111u;
    return load_shared1(codes.words + offset + 4 * word) >> first_bit & mask;
}
template <bool kTransposes>
__device__ __forceinline__ void load_any(const Codes &codes, const StripPosition &at, uint32_t tile,
                                         uint32_t mask, uint32_t (&a)[4]) {
    const auto turned = [](uint32_t x) { return kTransposes ? transpose(x) : x; };
    const uint32_t lane = threadIdx.x % kWarp;
    if (at.bits < 8) {
        uint32_t fields = load_fields(codes, at.offset, LK_LOW_BITS(at.bits), tile) & mask;
        if (at.bits == 3)
            fields |= load_fields(codes, at.high_offset, 1, tile) << 2;
        fields = turned(fields);
        mask_codes<4>(fields, fields, a);
    } else if (at.bits == 8) {
        const uint2 two =
            load_shared2(codes.words + at.offset +
                         4 * strip_word_index(lane_words(codes.page_tokens, 8), lane, 2 * tile));
        mask_codes<8>(turned(two.x), turned(two.y), a);
    } else {
        const uint4 four = load_shared4(codes.words + at.offset + tile * kTileBytes + 16 * lane);
        a[0] = turned(four.x), a[1] = turned(four.y), a[2] = turned(four.z), a[3] = turned(four.w);
    }
}

// FP16 numbers 2^exponent, twice.
__device__ __forceinline__ uint32_t two_powers(int exponent) {
    const float power = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
    return pack_f16(power, power);
}
// The exponent that brings the largest range of a page below 2^exponent, at most 14.
__device__ __forceinline__ int range_exponent(const AnyPage &page, const Codes &codes,
                                              int exponent) {
    const uint32_t end = codes.ranges + page.ranges_bytes;
    uint32_t most = 0;
#pragma unroll 1
    for (uint32_t at = codes.ranges + 16 * (threadIdx.x % kWarp); at < end; at += 16 * kWarp) {
        // Numbers that are not negative are ordered as their bits.
        const uint4 four = load_shared4(at);
#pragma unroll
        for (const uint32_t word : {four.x, four.y, four.z, four.w})
            most = __vmaxu2(
                most, page.is_f8 ? __vmaxu2(f8_ranges(word, kLowPair), f8_ranges(word, kHighPair))
                                 : word);
    }
    most = __reduce_max_sync(kAllLanes, max(most & 0xFFFFu, most >> 16));
    return min(14, exponent + 14 - static_cast<int>(most >> 10));
}

// Queries of 16 channels as B operands; a lane names the channel of a row of the matrices.
__device__ __forceinline__ void load_own_queries(const RowsBlock &block, uint32_t channel,
                                                 uint32_t (&b)[4]) {
    load_matrices_transposed(
        b, shared_address(block.queries) + channel / LK_STRIP_CHANNELS * kTileBytes +
               channel % LK_STRIP_CHANNELS * 16 + threadIdx.x % kWarp / 16 * (kTileBytes / 2));
}
// The operands that load_query_columns() leaves become such rows: 8 columns of a channel.
__device__ __forceinline__ void turn_queries(const RowsBlock &block) {
    const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll 1
    for (uint32_t strip = threadIdx.x / kWarp; strip < block.key_strips; strip += kRowsWarps) {
        auto *operands = reinterpret_cast<uint32_t *>(block.queries + strip * kTileBytes);
        const uint4 q = reinterpret_cast<const uint4 *>(operands)[lane];
        __syncwarp();
        operands[lane] = transpose(q.x);
        operands[kWarp + lane] = transpose(q.y);
        operands[2 * kWarp + lane] = transpose(q.z);
        operands[3 * kWarp + lane] = transpose(q.w);
    }
}

// S of the codes of a tile.
struct AnyKeys {
    const RowsBlock &block;
    const AnyPage &page;
    const Codes &codes;
    uint32_t tile;
    int exponent;  // of ranges, or of queries where a token has a range

    __device__ __forceinline__ uint32_t scale(bool is_upper, uint32_t bits) const {
        return two_powers(exponent - (is_upper && bits < 8 ? 4 : 0));
    }
    // A strip; is_high: the higher bits of outliers, which lie with their partners, alone.
    // channel: of the lane's row of queries.
    __device__ __forceinline__ void multiply(uint32_t strip, const StripPosition &at,
                                             uint32_t channel, bool is_high, uint32_t lower,
                                             uint32_t upper, TileProducts &products,
                                             TileProducts &least) const {
        const uint32_t lane = threadIdx.x % kWarp;
        uint32_t a[4], b[4];
        load_own_queries(block, channel, b);
        const bool shares = page.shares(at);
        load_any<false>(codes, at, tile, shares ? field_mask(page, at, is_high) : ~0u, a);
        if (at.bits < 16) {
            const uint32_t first = page.parameter(strip, tile);
            uint2 ranges = make_uint2(kOnes, kOnes);
            uint2 minima = ranges;
            if (!page.is_token_axis) {
                ranges = page.load_four(codes.ranges, first + 4 * (lane % 4));
                minima = page.load_four(codes.minima, first + 4 * (lane % 4));
            }
            if (shares) {
                float own[4];
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) {
                    const uint32_t k = 2 * (lane % 4) + i % 2 + i / 2 * 8;
                    own[i] =
                        page.load_one(codes.ranges,
                                      page.parameter_of(page.owner(strip, at, k, is_high), tile)) *
                        (page.step_of(at, k, is_high) * (page.is_f8 ? 3.0f / 128 : 3.0f));
                }
                ranges = make_uint2(pack_f16(own[0], own[1]), pack_f16(own[2], own[3]));
            }
            if (!is_high)
#pragma unroll
                for (int n = 0; n < kNarrowEights; ++n)
                    mma(least[n], minima.x, minima.x, minima.y, minima.y, b[2 * n], b[2 * n + 1]);
            lower = multiply_f16(ranges.x, lower);
            upper = multiply_f16(ranges.y, upper);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                b[i] = multiply_f16(b[i], i % 2 ? upper : lower);
        }
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
            mma(products[n], a[0], a[1], a[2], a[3], b[2 * n], b[2 * n + 1]);
    }
};
__device__ __forceinline__ void multiply_any_keys(const RowsBlock &block, const FoundPage &found,
                                                  const Codes codes, uint32_t tile,
                                                  TileProducts &sums) {
    const AnyPage page(found);
    const AnyKeys keys = {block, page, codes, tile,
                          page.is_token_axis ? 13 : range_exponent(page, codes, 14)};
    const float inverse =
        __uint_as_float(static_cast<uint32_t>(127 - keys.exponent) << 23) * 0x1p24f;
    const uint32_t row = threadIdx.x % LK_STRIP_CHANNELS;
    StripPosition at = page.strips[0];
    uint32_t channel = page.channel(row);
    uint32_t strip = 0;
#pragma unroll 1
    while (strip < block.key_strips) {
        const uint32_t first = strip;
        const uint32_t bits = at.bits;
        // Strips of a width, and of a group of channels where a token has a range.
        const uint32_t lower = keys.scale(false, bits);
        const uint32_t upper = keys.scale(true, bits);
        TileProducts products = {}, least = {};
#pragma unroll 1
        do {
            // The next strip's place and order come while this one is multiplied.
            const uint32_t next = min(strip + 1, block.key_strips - 1);
            const StripPosition next_at = page.strips[next];
            const uint32_t next_channel = page.channel(next * LK_STRIP_CHANNELS + row);
            const bool has_high = page.has_partners(at);
#pragma unroll 1
            for (uint32_t turn = 0; turn <= has_high; ++turn) {
                keys.multiply(strip, at, channel, turn, lower, upper, products, least);
                if (has_high)
                    channel = page.channel(page.owner(strip, at, row, true));
            }
            at = next_at;
            channel = next_channel;
        } while (++strip < block.key_strips && at.bits == bits &&
                 (!page.is_token_axis || page.parameters[strip] == page.parameters[first]));
        const float factor = bits < 16 ? code_step(bits) * inverse : 1;
        float ranges[2] = {factor * page.unit(), factor * page.unit()};
        float minima[2] = {page.unit(), page.unit()};
        if (bits == 16)
            ranges[0] = ranges[1] = 1;
        else if (page.is_token_axis) {
            const uint32_t index = page.parameter(first, tile) + 2 * (threadIdx.x % kWarp / 4);
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
                ranges[i] = factor * page.load_one(codes.ranges, index + i);
                minima[i] = page.load_one(codes.minima, index + i);
            }
        }
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums[n][i] += fmaf(products[n][i], ranges[i / 2], least[n][i] * minima[i / 2]);
    }
}

// Sums of values, [channel][column], in shared memory.
struct ChannelSums {
    float *sums;
    uint32_t n_channels;

    __device__ __forceinline__ float2 *at(uint32_t channel, int n) const {
        return reinterpret_cast<float2 *>(sums + channel * kRowsColumns + 8 * n +
                                          2 * (threadIdx.x % 4));
    }
};

// O of the codes of a page.
struct AnyValues {
    const AnyPage &page;
    const Codes &codes;
    const ValueWork &work;
    int exponent;  // of ranges of tokens

    // Of the tiles of a group of tokens.
    __device__ __forceinline__ void multiply(uint32_t strip, const StripPosition &at, uint32_t mask,
                                             uint32_t first_tile, uint32_t end_tile,
                                             TileProducts &products, TileProducts &least) const {
        const uint32_t scale = two_powers(exponent);
#pragma unroll 2
        for (uint32_t tile = first_tile; tile < end_tile; ++tile) {
            ColumnOperands<false> weights = work.operands<false>(tile);
            uint32_t a[4];
            load_any<true>(codes, at, tile, mask, a);
            uint32_t lower = kOnes;
            uint32_t upper = kOnes;
            uint32_t range_pairs[2] = {};
            if (page.is_token_axis) {
                const uint32_t index = page.parameter(strip, tile) + 4 * (threadIdx.x % 4);
                const uint2 minima = page.load_four(codes.minima, index);
                const uint2 ranges = page.load_four(codes.ranges, index);
                // Parameters of tokens 8 apart lie together.
                lower = __byte_perm(minima.x, minima.y, 0x5410);
                upper = __byte_perm(minima.x, minima.y, 0x7632);
                range_pairs[0] = multiply_f16(__byte_perm(ranges.x, ranges.y, 0x5410), scale);
                range_pairs[1] = multiply_f16(__byte_perm(ranges.x, ranges.y, 0x7632), scale);
            }
            if (at.bits < 16)
                weights.multiply({lower, lower, upper, upper}, least);
            if (page.is_token_axis && at.bits < 16)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    weights.b[0][i] = multiply_f16(weights.b[0][i], range_pairs[i % 2]);
            weights.multiply({a[0], a[2], a[1], a[3]}, products);
        }
    }
    // What products of a row and sums of weights are multiplied by. k: the row's channel of the
    // strip; stored: the channel whose codes they are.
    __device__ __forceinline__ float2 factors(const StripPosition &at, uint32_t k, uint32_t stored,
                                              uint32_t tile, bool is_high) const {
        if (at.bits == 16)
            return make_float2(1, 0);
        const float step = page.shares(at) ? page.step_of(at, k, is_high) : code_step(at.bits);
        const float factor = step * (k >= 8 && at.bits < 8 ? 0x1p20f : 0x1p24f);
        if (page.is_token_axis)
            return make_float2(
                factor * page.unit() * __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23),
                page.unit());
        const uint32_t index = page.parameter_of(stored, tile);
        return make_float2(factor * page.load_one(codes.ranges, index),
                           is_high ? 0 : page.load_one(codes.minima, index));
    }
    // A strip; is_high: the higher bits of outliers, of its partners.
    __device__ __forceinline__ void add_strip(uint32_t strip, bool is_high,
                                              const ChannelSums &to) const {
        const StripPosition at = page.strips[strip];
        const uint32_t mask = page.shares(at) ? field_mask(page, at, is_high) : ~0u;
        const uint32_t row = threadIdx.x % kWarp / 4;
        const uint32_t first = strip * LK_STRIP_CHANNELS + (is_high ? page.n_shared : 0);
        const uint32_t group_tiles = page.is_token_axis ? work.n_tiles : 1u << page.group_shift;
        TileProducts sums = {};
#pragma unroll 1
        for (uint32_t tile = 0; tile < work.n_tiles; tile += group_tiles) {
            TileProducts products = {}, least = {};
            multiply(strip, at, mask, tile, min(tile + group_tiles, work.n_tiles), products, least);
#pragma unroll
            for (uint32_t half = 0; half < 2; ++half) {
                const uint32_t k = row + 8 * half;
                const uint32_t stored = min(first + k, page.n_stored - 1u);
                const float2 f = factors(at, k, stored, tile, is_high);
#pragma unroll
                for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        sums[n][2 * half + j] +=
                            fmaf(products[n][2 * half + j], f.x, least[n][2 * half + j] * f.y);
            }
        }
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t k = row + 8 * half;
            if (is_high && at.in_plane * LK_STRIP_CHANNELS + k >= page.n_shared)
                continue;
            const uint32_t channel = page.channel(first + k);
            if (channel >= to.n_channels)
                continue;
#pragma unroll
            for (int n = 0; n < kNarrowEights; ++n) {
                float2 *sum = to.at(channel, n);
                *sum = make_float2(sum->x + sums[n][2 * half], sum->y + sums[n][2 * half + 1]);
            }
        }
    }
};
__device__ __forceinline__ void multiply_any_values(const RowsBlock &block, const FoundPage &found,
                                                    const Codes &codes, const ValueWork &work,
                                                    const ChannelSums to) {
    const AnyPage page(found);
    const AnyValues values = {page, codes, work,
                              page.is_token_axis ? range_exponent(page, codes, 0) : 0};
    const uint32_t n_strips = page.order ? block.key_strips : work.n_strips;
    // Outliers get their higher bits once other warps have added the lower ones.
#pragma unroll 1
    for (uint32_t turn = 0; turn < (page.n_shared ? 2 : 1); ++turn) {
        if (turn)
            ValueThreads<true>::meet();
#pragma unroll 1
        for (uint32_t strip = work.reader; strip < (turn ? block.key_strips : n_strips);
             strip += kSideWarps) {
            if (!turn || page.has_partners(page.strips[strip]))
                values.add_strip(strip, turn, to);
        }
    }
}

}  // namespace cuda
}  // namespace lk

#endif
