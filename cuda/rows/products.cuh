// Attention of uneven layers: products of a stage, of FP16 tiles or of the codes of a latent page.
//
// Query columns are n of both products. S^T = K Q^T: tokens are the rows, a tile as it lies is an A
// operand. O^T = V^T P^T: channels are the rows. A tile of keys becomes one of values by
// transposing its matrices; four codes that lie in 16 bits are transposed at once. Masked fields of
// a word are FP16 numbers, 2^-24 times the codes, those of the upper 8 of k 16 times as much at 4
// and 2 bits. So ranges belong to the queries of the first product and to the sums of the second,
// and minima are products with the queries and with the sums of the weights of a page.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_PRODUCTS_CUH
#define LK_CUDA_ROWS_PRODUCTS_CUH

#include "cuda/rows/queries.cuh"

namespace lk {
namespace cuda {

constexpr int kOwnTiles = 2;                               // of 16 tokens, of a warp's S
constexpr int kOwnStrips = kMostValueStrips / kRowsWarps;  // of its output
constexpr uint32_t kTokenParts = kRowsWarps / kKeyShares;
static_assert(kTokenParts * kOwnTiles * LK_TILE_TOKENS == kMostRowsTokens,
              "warps share the tokens of a stage");

constexpr int kEights = kMostRowsColumns / 8;  // n of a product is 8 columns
constexpr int kNarrowEights = kRowsColumns / 8;

// A warp's part of the output: every so many-th strip, 8 columns kN times.
template <int kStrips, int kN>
using StripSums = float[kStrips][kN][4];
template <int kStrips>
constexpr uint32_t kReaders = kMostValueStrips / kStrips;  // warps that share the strips
using OwnSums = StripSums<kOwnStrips, kEights>;

// Queries of 16 channels, or weights of 16 tokens, as B operands of 16 columns, if they are wide of
// twice as many.
template <bool kWide>
struct ColumnOperands {
    static constexpr int kSixteens = kWide ? 2 : 1;
    uint32_t b[kSixteens][4];

    template <int kN>
    __device__ __forceinline__ void multiply(const uint32_t (&a)[4], float (&sums)[kN][4]) const {
#pragma unroll
        for (int n = 0; n < 2 * kSixteens; ++n)
            mma(sums[n], a[0], a[1], a[2], a[3], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
};
template <bool kWide>
__device__ __forceinline__ ColumnOperands<kWide> load_queries(uint32_t address) {
    ColumnOperands<kWide> columns;
#pragma unroll
    for (int i = 0; i < columns.kSixteens; ++i) {
        const uint4 q = load_shared4(address + i * kTileBytes);
        columns.b[i][0] = q.x, columns.b[i][1] = q.y;
        columns.b[i][2] = q.z, columns.b[i][3] = q.w;
    }
    return columns;
}
template <bool kWide>
__device__ __forceinline__ ColumnOperands<kWide> load_weights(uint32_t address, uint32_t stride) {
    ColumnOperands<kWide> columns;
#pragma unroll
    for (int i = 0; i < columns.kSixteens; ++i)
        load_matrices(columns.b[i], address + i * 2 * kRowsColumns * stride);
    return columns;
}

// The codes of a stage in shared memory.
struct Codes {
    uint32_t bits;
    uint32_t page_tokens;
    uint32_t words;   // shared addresses
    uint32_t ranges;  // [strip][16]
    uint32_t minima;
};

// Words of pair `pair` of tiles, which lie together in a lane; address: of the lane's first word.
template <uint32_t kBits>
__device__ __forceinline__ void load_pair(uint32_t address, uint32_t pair, uint32_t (&words)[4]) {
    constexpr uint32_t kVectorBytes = 4 * LK_VECTOR_WORDS * LK_LANES;
    if (kBits == 8) {
        const uint4 four = load_shared4(address + pair * kVectorBytes);
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else if (kBits == 4) {
        const uint2 two = load_shared2(address + pair / 2 * kVectorBytes + pair % 2 * 8);
        words[0] = two.x, words[2] = two.y;
    } else {
        words[0] = load_shared1(address + 4 * pair);
        words[2] = words[0] >> 2;
    }
}
template <uint32_t kBits>
__device__ __forceinline__ uint32_t lane_offset(const Codes &codes) {
    return 4 * strip_word_index(lane_words(codes.page_tokens, kBits), threadIdx.x % kWarp, 0);
}
// R0 .. R3 of a tile.
template <uint32_t kBits>
__device__ __forceinline__ void mask_codes(uint32_t low, uint32_t high, uint32_t (&a)[4]) {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
    constexpr uint32_t kUpper = kBits == 8 ? kMask : kMask << 4;
    a[0] = low & kMask;
    a[1] = low >> 8 & kMask;
    a[2] = high & kUpper;
    a[3] = high >> 8 & kUpper;
}
// What makes products of codes numbers of ranges.
__device__ __forceinline__ float code_factor(uint32_t bits) {
    return bits == 4   ? code_step(4) * 0x1p24f
           : bits == 2 ? code_step(2) * 0x1p24f
                       : code_step(8) * 0x1p24f;
}
__device__ __forceinline__ uint32_t upper_shift(uint32_t bits) { return bits == 8 ? 0 : 4; }

// A warp's sums of products, [token][column], go to its share's [column][token].
template <bool kWide>
__device__ __forceinline__ void store_products(float *partial, uint32_t stride,
                                               const float (&s)[kEights][4], float factor) {
    const uint32_t lane = threadIdx.x % kWarp;
    float *to = partial + 2 * (lane % 4) * stride + lane / 4;
#pragma unroll
    for (int n = 0; n < (kWide ? kEights : kEights / 2); ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            to[(8 * n + i % 2) * stride + i / 2 * 8] = s[n][i] * factor;
}

// A warp's part of S: a share of the strips, a part of the tokens.
struct KeyPart {
    uint32_t first_strip;
    uint32_t end_strip;
    uint32_t first_tile;
    float *partial;  // of the share
    uint32_t stride;
    uint32_t queries;  // shared address of the lane's operands of the first strip

    __device__ __forceinline__ KeyPart(const RowsBlock &block, float *partials, uint32_t stride_,
                                       uint32_t n_tiles) {
        const uint32_t share = threadIdx.x / kWarp % kKeyShares;
        const uint32_t n = (block.key_strips + kKeyShares - 1) / kKeyShares;
        first_strip = min(share * n, block.key_strips);
        end_strip = min(first_strip + n, block.key_strips);
        first_tile = threadIdx.x / kWarp / kKeyShares * n_tiles;
        partial = partials + share * block.n_columns * stride_ + first_tile * LK_TILE_TOKENS;
        stride = stride_;
        queries = shared_address(block.queries) + first_strip * block.query_strip_bytes() +
                  16 * (threadIdx.x % kWarp);
    }
};

using KeyProducts = float[kOwnTiles][kEights][4];

// S of a stage of tiles: a warp has every fourth tile.
template <bool kWide>
__device__ __forceinline__ void multiply_key_tiles(const RowsBlock &block, const KeyPart &part,
                                                   uint32_t tiles, uint32_t n_tiles,
                                                   KeyProducts &products) {
    const uint32_t lane = threadIdx.x % kWarp;
    uint32_t at = tiles + (part.first_strip * n_tiles + part.first_tile) * kTileBytes + 16 * lane;
    uint32_t query = part.queries;
#pragma unroll 1
    for (uint32_t strip = part.first_strip; strip < part.end_strip; ++strip) {
        const uint4 a = load_shared4(at);
        load_queries<kWide>(query).multiply({a.x, a.y, a.z, a.w}, products[0]);
        at += n_tiles * kTileBytes;
        query += ColumnOperands<kWide>::kSixteens * kTileBytes;
    }
}

// What brings the largest range of some strips next to 2^14, as FP16 numbers, and back.
struct KeyRangeScale {
    uint32_t lower;  // of ranges of the lower 8 of k
    uint32_t upper;
    float inverse;
};
__device__ __forceinline__ KeyRangeScale find_range_scale(const Codes &codes, uint32_t first_strip,
                                                          uint32_t end_strip) {
    constexpr uint32_t kStripBytes = 2 * LK_STRIP_CHANNELS;
    const uint32_t end = codes.ranges + end_strip * kStripBytes;
    uint32_t most = 0;
#pragma unroll 1
    for (uint32_t at = codes.ranges + first_strip * kStripBytes + 16 * (threadIdx.x % kWarp);
         at < end; at += 16 * kWarp) {
        // Numbers that are not negative are ordered as their bits.
        const uint4 eight = load_shared4(at);
        most = __vmaxu2(most, __vmaxu2(__vmaxu2(eight.x, eight.y), __vmaxu2(eight.z, eight.w)));
    }
    most = __reduce_max_sync(kAllLanes, max(most & 0xFFFFu, most >> 16));
    const uint32_t exponent = min(30u, 15 + 28 - (most >> 10));
    KeyRangeScale scale;
    scale.lower = (exponent << 10) * 0x10001u;
    scale.upper = ((exponent - upper_shift(codes.bits)) << 10) * 0x10001u;
    scale.inverse = __uint_as_float((127 + 15 - exponent) << 23);
    // Kept, not computed for each strip.
    asm volatile("" : "+r"(scale.lower), "+r"(scale.upper));
    return scale;
}

// The queries' products with the minima of every kStep-th strip. queries: shared address of the
// lane's operands of the first strip; minima: [column][kWarps], of the warp.
template <bool kWide, uint32_t kStep, uint32_t kWarps>
__device__ __forceinline__ void multiply_minima(const Codes &codes, uint32_t queries,
                                                uint32_t first_strip, uint32_t end_strip,
                                                float *minima) {
    const uint32_t lane = threadIdx.x % kWarp;
    constexpr uint32_t kQueryBytes = ColumnOperands<kWide>::kSixteens * kTileBytes;
    constexpr int kN = kWide ? kEights : kEights / 2;
    float sums[kN][4] = {};
#pragma unroll 1
    for (uint32_t strip = first_strip; strip < end_strip; strip += kStep) {
        const uint2 m = load_shared2(codes.minima + 32 * strip + 8 * (lane % 4));
        load_queries<kWide>(queries).multiply({m.x, m.x, m.y, m.y}, sums);
        queries += kStep * kQueryBytes;
    }
    // All rows are the same.
    float *to = minima + 2 * lane * kWarps;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; lane < 4 && i < 2; ++i)
            to[(8 * n + i) * kWarps] = sums[n][i];
}

// S of a page of codes: a warp has two tiles.
template <uint32_t kBits, bool kWide>
__device__ __forceinline__ void multiply_key_codes(const RowsBlock &block, const KeyPart &part,
                                                   const Codes &codes, const KeyRangeScale &scale,
                                                   KeyProducts &products) {
    const uint32_t bytes = strip_bytes(codes.page_tokens, kBits);
    uint32_t at = codes.words + part.first_strip * bytes + lane_offset<kBits>(codes);
    uint32_t query = part.queries;
    uint32_t range = codes.ranges + 32 * part.first_strip + 8 * (threadIdx.x % 4);
#pragma unroll 1
    for (uint32_t strip = part.first_strip; strip < part.end_strip; ++strip) {
        ColumnOperands<kWide> queries = load_queries<kWide>(query);
        const uint2 r = load_shared2(range);
        uint32_t words[4];
        load_pair<kBits>(at, part.first_tile / 2, words);
        const uint32_t lower = multiply_f16(r.x, scale.lower);
        const uint32_t upper = multiply_f16(r.y, scale.upper);
#pragma unroll
        for (uint32_t i = 0; i < 4 * queries.kSixteens; ++i) {
            uint32_t &b = queries.b[i / 4][i % 4];
            b = multiply_f16(b, i % 2 ? upper : lower);
        }
#pragma unroll
        for (int t = 0; t < kOwnTiles; ++t) {
            uint32_t a[4];
            mask_codes<kBits>(words[2 * t], words[2 * t + (kBits == 8)], a);
            queries.multiply(a, products[t]);
        }
        at += bytes;
        query += ColumnOperands<kWide>::kSixteens * kTileBytes;
        range += 32;
    }
}

// S of a stage, in shares.
template <bool kWide>
__device__ __forceinline__ void multiply_keys(const RowsBlock &block, const Codes &codes,
                                              uint32_t slot, uint32_t n_tiles, float *partials,
                                              uint32_t stride, float *minima) {
    const KeyPart part(block, partials, stride, codes.bits ? kOwnTiles : 1);
    const uint32_t first =
        threadIdx.x / kWarp / kKeyShares;  // of strips that part a share's minima
    if (codes.bits)
        multiply_minima<kWide, kTokenParts, kRowsWarps>(
            codes, part.queries + first * block.query_strip_bytes(), part.first_strip + first,
            part.end_strip, minima + threadIdx.x / kWarp);
    if (part.first_tile >= n_tiles)
        return;
    KeyProducts products = {};
    float factor = 1;
    if (codes.bits) {
        const KeyRangeScale scale = find_range_scale(codes, part.first_strip, part.end_strip);
        factor = scale.inverse * code_factor(codes.bits);
        if (codes.bits == 4)
            multiply_key_codes<4, kWide>(block, part, codes, scale, products);
        else if (codes.bits == 2)
            multiply_key_codes<2, kWide>(block, part, codes, scale, products);
        else
            multiply_key_codes<8, kWide>(block, part, codes, scale, products);
    } else {
        multiply_key_tiles<kWide>(block, part, slot, n_tiles, products);
    }
#pragma unroll
    for (int t = 0; t < kOwnTiles; ++t)
        if (t == 0 || codes.bits)
            store_products<kWide>(part.partial + t * LK_TILE_TOKENS, stride, products[t], factor);
}

// Sums of a stage's weights, which the products of minima and weights are made of: of each column,
// as another warp wrote them.
struct StoredSums {
    const float *sums;

    template <bool kWide>
    __device__ __forceinline__ void add(const ColumnOperands<kWide> &) {}
    __device__ __forceinline__ float of(int n, int i) const {
        return sums[8 * n + 2 * (threadIdx.x % 4) + i];
    }
};

// What the products of weights and values read.
struct ValueWork {
    uint32_t n_strips;
    uint32_t n_tiles;
    uint32_t reader;   // which of the warps that share the strips
    uint32_t weights;  // shared address, of the lane's row of a matrix
    uint32_t stride;   // of weights

    template <bool kWide>
    __device__ __forceinline__ ColumnOperands<kWide> operands(uint32_t tile) const {
        return load_weights<kWide>(weights + 32 * tile, stride);
    }
};
__device__ __forceinline__ uint32_t weights_address(const __half *weights, uint32_t stride) {
    const uint32_t lane = threadIdx.x % kWarp;
    return renewed(shared_address(weights)) + 2 * stride * (lane % 8 + 8 * (lane / 16)) +
           16 * (lane / 8 % 2);
}

// A strip of the warp's output; the last one in place of those that the values do not have.
template <int kStrips>
__device__ __forceinline__ uint32_t own_strip(const ValueWork &work, int i) {
    return min(work.reader + kReaders<kStrips> * i, work.n_strips - 1);
}

// O of a stage of tiles, which are keys or values.
template <bool kIsLatent, bool kWide, int kStrips, int kN, class Sums>
__device__ __forceinline__ void multiply_value_tiles(uint32_t tiles, const ValueWork &work,
                                                     Sums &sums, StripSums<kStrips, kN> &out) {
    uint32_t at[kStrips];
#pragma unroll
    for (int i = 0; i < kStrips; ++i)
        at[i] = tiles + own_strip<kStrips>(work, i) * work.n_tiles * kTileBytes +
                16 * (threadIdx.x % kWarp);
#pragma unroll 1
    for (uint32_t tile = 0; tile < work.n_tiles; ++tile) {
        const ColumnOperands<kWide> weights = work.operands<kWide>(tile);
        sums.add(weights);
#pragma unroll
        for (int i = 0; i < kStrips; ++i) {
            const uint4 v = load_shared4(at[i] + tile * kTileBytes);
            if (kIsLatent)
                weights.multiply({transpose(v.x), transpose(v.z), transpose(v.y), transpose(v.w)},
                                 out[i]);
            else
                weights.multiply({v.x, v.y, v.z, v.w}, out[i]);
        }
    }
}

// O of a page of codes.
template <uint32_t kBits, bool kWide, int kStrips, int kN, class Sums>
__device__ __forceinline__ void multiply_value_codes(const Codes &codes, const ValueWork &work,
                                                     Sums &sums, StripSums<kStrips, kN> &products) {
    uint32_t at[kStrips];
#pragma unroll
    for (int i = 0; i < kStrips; ++i)
        at[i] = codes.words + own_strip<kStrips>(work, i) * strip_bytes(codes.page_tokens, kBits) +
                lane_offset<kBits>(codes);
#pragma unroll 1
    for (uint32_t pair = 0; 2 * pair < work.n_tiles; ++pair) {
        uint32_t words[kStrips][4];
#pragma unroll
        for (int i = 0; i < kStrips; ++i)
            load_pair<kBits>(at[i], pair, words[i]);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            const ColumnOperands<kWide> weights = work.operands<kWide>(2 * pair + t);
            sums.add(weights);
#pragma unroll
            for (int i = 0; i < kStrips; ++i) {
                const uint32_t low =
                    kBits == 2 ? transpose(words[i][0]) >> 2 * t : transpose(words[i][2 * t]);
                uint32_t a[4];
                mask_codes<kBits>(low, kBits == 8 ? transpose(words[i][2 * t + 1]) : low, a);
                weights.multiply({a[0], a[2], a[1], a[3]}, products[i]);
            }
        }
    }
}

// Products of the codes of a page become outputs.
template <bool kWide, int kStrips, int kN, class Sums>
__device__ __forceinline__ void add_codes(const Codes &codes, const ValueWork &work,
                                          const Sums &sums, const StripSums<kStrips, kN> &products,
                                          StripSums<kStrips, kN> &out) {
    const uint32_t lane = threadIdx.x % kWarp;
    const float factor = code_factor(codes.bits);
    const float upper_factor = factor / (1 << upper_shift(codes.bits));
    // Parameters of rows lane / 4 and 8 more lie 2 numbers apart.
    const uint32_t own = 2 * (lane / 8 * 4 + lane / 4 % 2);
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
        const uint32_t strip = work.reader + kReaders<kStrips> * i;
        if (strip >= work.n_strips)
            continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t offset = 32 * strip + own + 4 * half;
            const float range = half_to_float(load_shared_half(codes.ranges + offset)) *
                                (half ? upper_factor : factor);
            const float least = half_to_float(load_shared_half(codes.minima + offset));
#pragma unroll
            for (int n = 0; n < (kWide ? kEights : kEights / 2); ++n)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float &to = out[i][n][2 * half + j];
                    to = fmaf(products[i][n][2 * half + j], range, fmaf(sums.of(n, j), least, to));
                }
        }
    }
}

// O of a stage.
template <bool kWide, int kStrips, int kN, class Sums>
__device__ __forceinline__ void multiply_values(const RowsBlock &block, const Codes &codes,
                                                uint32_t slot, const ValueWork &work, Sums &sums,
                                                StripSums<kStrips, kN> &out) {
    if (codes.bits) {
        StripSums<kStrips, kN> products = {};
        if (codes.bits == 4)
            multiply_value_codes<4, kWide, kStrips, kN>(codes, work, sums, products);
        else if (codes.bits == 2)
            multiply_value_codes<2, kWide, kStrips, kN>(codes, work, sums, products);
        else
            multiply_value_codes<8, kWide, kStrips, kN>(codes, work, sums, products);
        add_codes<kWide, kStrips, kN>(codes, work, sums, products, out);
    } else if (block.value_strips) {
        multiply_value_tiles<false, kWide, kStrips, kN>(
            slot + block.key_strips * work.n_tiles * kTileBytes, work, sums, out);
    } else {
        multiply_value_tiles<true, kWide, kStrips, kN>(slot, work, sums, out);
    }
}

}  // namespace cuda
}  // namespace lk

#endif
