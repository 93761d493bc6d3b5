// Decode: logits of a piece. Tokens are mma rows, channels k, query columns n.
//
// A code is one AND away from the tensor core: at its bit position it is an exact FP16 subnormal,
// code * 2^(bit - 24). What the positions differ by is made up for elsewhere: R2 and R3 (k 8-15)
// lie 4 bits higher than R0 and R1, so their queries are divided by 16; odd tiles of 2 bits lie 2
// bits higher, so their logits are divided by 4. R1 and R3 come from the word shifted by 8.
//
// Ranges are multiplied into the queries, which rounds them: q'. So that this error meets codes
// around their middle only, a key counts as middle - range / 2 + code * step. The middles are rows
// of an A tile of their own, times the plain queries, and so is -1/2, times q'; both are added to
// the logits of their tokens.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_KEYS_CUH
#define LK_CUDA_DECODE_KEYS_CUH

#include "decode_ring.cuh"

namespace lk {
namespace cuda {

constexpr int kPageTiles = 8;

// Copies of the queries in shared memory, [copy][column tile][channel][8 columns] halves: as they
// are, and divided by 16 for k 8-15 of codes below 8 bits.
enum QueryCopy : uint32_t { kPlain, kSixteenth };
static_assert(kSixteenth + 1 == kQueryCopies, "the host sizes shared memory by it");

// The step of a code is its range times this.
template <int kBits>
constexpr float kStepFactor = 1.0f / static_cast<float>((1 << kBits) - 1);

struct Queries {
    uint32_t address;     // shared, of the first copy
    uint32_t tile_bytes;  // of a column tile of a copy: head_dim * 16
};

// FP16 or e4m3fnuz numbers (2t, 2t+1, 2t+8, 2t+9 of 16) as two pairs of halves.
__device__ __forceinline__ uint32_t f8_pair(uint32_t bytes) {
    const uint32_t spread = (bytes & 0xFFu) | ((bytes & 0xFF00u) << 8);
    const uint32_t bits = ((spread & 0x007F007Fu) << 7) | ((spread & 0x00800080u) << 8);
    return multiply_halves(bits, 0x58005800u);  // 2^7: the exponents' biases are 8 and 15
}
// minimum + range / 2
__device__ __forceinline__ uint32_t middle_of(uint32_t range, uint32_t minimum) {
    return as_word(__hfma2(as_half2(range), as_half2(0x38003800u), as_half2(minimum)));
}
template <bool kGrouped>
__device__ __forceinline__ uint2 load_numbers(uint32_t array, uint32_t index, bool is_f8) {
    if (kGrouped && is_f8) {
        const uint32_t bytes = load_shared1(array + index);
        return make_uint2(f8_pair(bytes), f8_pair(bytes >> 16));
    }
    return load_shared2(array + index * 2);
}

// A tile at 4 or 2 bits from its word; `shift` is 2 for odd tiles of 2 bits.
template <int kBits, int kTiles>
__device__ __forceinline__ void multiply_tile(float (&s)[kTiles][4], uint32_t word, uint32_t shift,
                                              const uint32_t (&b)[kTiles][2]) {
    const uint32_t mask = (kBits == 4 ? 0x000F000Fu : 0x00030003u) << shift;
    const uint32_t high = word >> 8;
    const uint32_t a0 = word & mask;
    const uint32_t a1 = high & mask;
    const uint32_t a2 = word & (mask << 4);
    const uint32_t a3 = high & (mask << 4);
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
        mma(s[c], a0, a1, a2, a3, b[c][0], b[c][1]);
}
template <int kTiles>
__device__ __forceinline__ void multiply_byte_tile(float (&s)[kTiles][4], uint32_t low,
                                                   uint32_t high, const uint32_t (&b)[kTiles][2]) {
    constexpr uint32_t kMask = 0x00FF00FFu;
    const uint32_t a1 = low >> 8 & kMask;
    const uint32_t a3 = high >> 8 & kMask;
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
        mma(s[c], low & kMask, a1, high & kMask, a3, b[c][0], b[c][1]);
}
template <int kTiles>
__device__ __forceinline__ void multiply_half_tile(float (&s)[kTiles][4], const uint4 &w,
                                                   const uint32_t (&b)[kTiles][2]) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
        mma(s[c], w.x, w.y, w.z, w.w, b[c][0], b[c][1]);
}

// What a piece is at: first the logits of its tokens, then their weights in the same registers.
template <int kTiles>
struct Work {
    float s[kPageTiles][kTiles][4];  // products of codes and ranges, without the middles
    float middle[kTiles][4];         // row g: of token group g

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int c = 0; c < kTiles; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                middle[c][i] = 0;
#pragma unroll
                for (int t = 0; t < kPageTiles; ++t)
                    s[t][c][i] = 0;
            }
    }
    __device__ __forceinline__ void scale(float even, float odd) {
#pragma unroll
        for (int t = 0; t < kPageTiles; ++t)
#pragma unroll
            for (int c = 0; c < kTiles; ++c)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    s[t][c][i] *= t % 2 ? odd : even;
    }
    // The weights of a tile as a B fragment, plain or with the ranges folded in.
    __device__ __forceinline__ void set(int t, int c, int fragment, uint32_t b0, uint32_t b1) {
        s[t][c][2 * fragment] = __uint_as_float(b0);
        s[t][c][2 * fragment + 1] = __uint_as_float(b1);
    }
    __device__ __forceinline__ uint32_t get(int t, int c, int fragment, int i) const {
        return __float_as_uint(s[t][c][2 * fragment + i]);
    }
};

// kCount strips of packed keys of one width at once: their queries, and the product of each tile.
template <int kBits, int kCount, int kTiles, bool kGrouped>
class KeyStrips {
  public:
    // slots: shared, the channels of the slots; metadata: ranges, then minima.
    __device__ __forceinline__ KeyStrips(const Keys &keys, const Queries &queries,
                                         uint32_t metadata, uint32_t slots, uint32_t strip,
                                         uint32_t lane)
        : keys_(keys), metadata_(metadata), strip_(strip), lane_(lane) {
        // Matrices: k 0-7, k 8-15 to be folded, k 0-7 again, k 8-15 as they are.
        const uint32_t copy = kBits < 8 && lane >> 3 == 1 ? kSixteenth : kPlain;
        const uint32_t address = queries.address + copy * kTiles * queries.tile_bytes;
        slots += strip * 16 + (lane & 15u);
        uint32_t channel[kCount];
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            channel[n] = load_shared_byte(slots + n * 16);
#pragma unroll
        for (int n = 0; n < kCount; ++n)
#pragma unroll
            for (int c = 0; c < kTiles; ++c) {
                uint32_t r[4];
                load_matrices_transposed(r, address + channel[n] * 16 + c * queries.tile_bytes);
                queries_[n][c][0] = r[0];
                queries_[n][c][1] = r[1];
                plain_high_[n][c] = r[3];
            }
    }

    __device__ __forceinline__ void multiply(Work<kTiles> &out, uint32_t words) {
        if (kBits < 16) {
            add_middles(out);
            fold_ranges(0, out);
        }
#pragma unroll
        for (int v = 0; v < kBits / 2; ++v) {
            uint4 w[kCount];
#pragma unroll
            for (int n = 0; n < kCount; ++n)
                w[n] = load_shared4(words + n * kBits * 256 + v * 512);
            multiply_vector(out, v, w);
        }
    }

  private:
    __device__ __forceinline__ void multiply_vector(Work<kTiles> &out, int v,
                                                    const uint4 (&w)[kCount]) {
#pragma unroll
        for (int i = 0; i < 16 / kBits; ++i) {
            const int t = v * 16 / kBits + i;
            if (kGrouped && kBits < 16 && t)
                fold_ranges(t, out);
#pragma unroll
            for (int n = 0; n < kCount; ++n) {
                const uint32_t word[4] = {w[n].x, w[n].y, w[n].z, w[n].w};
                if (kBits == 16)
                    multiply_half_tile(out.s[t], w[n], queries_[n]);
                else if (kBits == 8)
                    multiply_byte_tile(out.s[t], word[2 * i], word[2 * i + 1], folded_[n]);
                else if (kBits == 4)
                    multiply_tile<4>(out.s[t], word[i], 0, folded_[n]);
                else
                    multiply_tile<2>(out.s[t], word[i / 2], i % 2 * 2, folded_[n]);
            }
        }
    }
    // A lane's four numbers of (strip, group) in the ranges or in the minima.
    __device__ __forceinline__ uint2 numbers(uint32_t offset, int n, uint32_t group) const {
        const uint32_t row = kGrouped ? (strip_ + n) * keys_.n_groups + group : strip_ + n;
        return load_numbers<kGrouped>(metadata_ + offset, row * 16 + (lane_ & 3u) * 4, keys_.is_f8);
    }
    __device__ __forceinline__ void add_middles(Work<kTiles> &out) {
        const uint32_t group = kGrouped ? min(lane_ >> 2, keys_.n_groups - 1u) : 0;
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
            const uint2 r = numbers(0, n, group);
            const uint2 z = numbers(keys_.minima_offset, n, group);
            const uint32_t low = middle_of(r.x, z.x);
            const uint32_t high = middle_of(r.y, z.y);
#pragma unroll
            for (int c = 0; c < kTiles; ++c)
                mma(out.middle[c], low, 0, high, 0, queries_[n][c][0], plain_high_[n][c]);
        }
    }
    // Where a token group begins with this tile (a page has 1, 2, 4 or 8): its ranges into folded_.
    __device__ __forceinline__ void fold_ranges(uint32_t tile, Work<kTiles> &out) {
        if (kGrouped && (tile * keys_.n_groups & 7u))
            return;
        const uint32_t group = kGrouped ? tile * keys_.n_groups >> 3 : 0;
        // -1/2, and 16 times as much where the queries are divided by 16.
        const bool is_row = !kGrouped || (lane_ >> 2) == group;
        const uint32_t low = is_row ? 0xB800B800u : 0;
        const uint32_t high = !is_row ? 0 : kBits == 8 ? 0xB800B800u : 0xC800C800u;
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
            const uint2 r = numbers(0, n, group);
#pragma unroll
            for (int c = 0; c < kTiles; ++c) {
                folded_[n][c][0] = multiply_halves(queries_[n][c][0], r.x);
                folded_[n][c][1] = multiply_halves(queries_[n][c][1], r.y);
                mma(out.middle[c], low, 0, high, 0, folded_[n][c][0], folded_[n][c][1]);
            }
        }
    }

    const Keys &keys_;
    const uint32_t metadata_;
    const uint32_t strip_;
    const uint32_t lane_;
    uint32_t queries_[kCount][kTiles][2];
    uint32_t plain_high_[kCount][kTiles];
    uint32_t folded_[kCount][kTiles][2];
};

// A packed page's products are logits of its columns times 1 / all; odd tiles are 1 / odd times as
// large as the others. The factors of the last width count: the sums change with the width.
struct LogitUnits {
    float all;
    float odd;
};
template <int kStrips>
__device__ __forceinline__ LogitUnits logit_units(const Keys &keys) {
    constexpr float kCode = 0x1p24f;
    if (keys.end4 < kStrips)
        return {kCode * kStepFactor<2>, 0.25f};
    if (keys.end8 < kStrips)
        return {kCode * kStepFactor<4>, 1.0f};
    return {keys.end16 < kStrips ? kCode * kStepFactor<8> : 1.0f, 1.0f};
}

// A chunk of packed keys goes through the widths that it holds. Strips [strip, end) are of kBits,
// as far as the chunk has them: in twos, which keeps more products under way, then a last one.
template <int kBits, int kTiles, bool kGrouped>
__device__ __forceinline__ void multiply_width(const Keys &keys, const Queries &queries,
                                               uint32_t metadata, uint32_t slots, uint32_t end,
                                               uint32_t lane, uint32_t chunk_end, uint32_t &strip,
                                               uint32_t &words, Work<kTiles> &work) {
    constexpr int kCount = kBits <= 4 && kTiles == 1 && !kGrouped ? 2 : 1;
    end = min(end, strip + (chunk_end - words) / (kBits * 256));
#pragma unroll 1
    for (; strip + kCount <= end; strip += kCount, words += kCount * kBits * 256)
        KeyStrips<kBits, kCount, kTiles, kGrouped>(keys, queries, metadata, slots, strip, lane)
            .multiply(work, words + lane * 16);
    if (kCount > 1 && strip < end) {
        KeyStrips<kBits, 1, kTiles, kGrouped>(keys, queries, metadata, slots, strip, lane)
            .multiply(work, words + lane * 16);
        ++strip;
        words += kBits * 256;
    }
}

// The sums of wider strips, in the units of strips of 2 bits.
template <int kTiles>
__device__ __forceinline__ void scale_to_2(const Keys &keys, Work<kTiles> &work) {
    const float from = keys.end4 > keys.end8    ? kStepFactor<4>
                       : keys.end8 > keys.end16 ? kStepFactor<8>
                                                : 0x1p-24f;
    work.scale(from / kStepFactor<2>, 4.0f * (from / kStepFactor<2>));
}

// Keys of a packed page.
template <int kStrips, int kTiles, bool kGrouped>
__device__ __forceinline__ void multiply_keys(Ring &ring, const Keys &keys, const Queries &queries,
                                              uint32_t slots, uint32_t lane, Work<kTiles> &work) {
    const uint32_t metadata = ring.key_metadata();
    const uint32_t chunk_bytes = keys.end8 ? 4096 : kChunkBytes;
    if (keys.permutation_offset)
        slots = metadata + keys.permutation_offset;
    work.clear();
    uint32_t strip = 0;
#pragma unroll 1
    while (true) {
        uint32_t words = ring.wait();
        const uint32_t end = words + chunk_bytes;
        if (keys.end8) {
            multiply_width<16, kTiles, kGrouped>(keys, queries, metadata, slots, keys.end16, lane,
                                                 end, strip, words, work);
            if (strip && strip == keys.end16 && words < end && strip < keys.end8)
                work.scale(0x1p-24f / kStepFactor<8>, 0x1p-24f / kStepFactor<8>);
            multiply_width<8, kTiles, kGrouped>(keys, queries, metadata, slots, keys.end8, lane,
                                                end, strip, words, work);
            if (strip == keys.end8 && words < end && strip < keys.end4) {
                const float factor = keys.end16 == keys.end8 ? 0x1p-24f / kStepFactor<4>
                                                             : kStepFactor<8> / kStepFactor<4>;
                work.scale(factor, factor);
            }
        }
        multiply_width<4, kTiles, kGrouped>(keys, queries, metadata, slots, keys.end4, lane, end,
                                            strip, words, work);
        if (strip && strip == keys.end4 && words < end && strip < kStrips)
            scale_to_2(keys, work);
        multiply_width<2, kTiles, kGrouped>(keys, queries, metadata, slots, kStrips, lane, end,
                                            strip, words, work);
        ring.next();
        if (strip == kStrips)
            return;
    }
}

// Keys of a tile of a raw row.
template <int kStrips, int kTiles>
__device__ __forceinline__ void multiply_raw_keys(Ring &ring, const Queries &queries, uint32_t lane,
                                                  float (&s)[kTiles][4]) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            s[c][i] = 0;
    uint32_t row = queries.address + (lane & 15u) * 16;
    uint32_t strip = 0;
#pragma unroll 1
    while (true) {
        uint32_t words = ring.wait() + lane * 16;
        const uint32_t end = min(strip + kRawStrips, uint32_t{kStrips});
#pragma unroll 1
        for (; strip < end; ++strip, words += 512, row += 256) {
            uint32_t b[kTiles][2];
#pragma unroll
            for (int c = 0; c < kTiles; ++c) {
                uint32_t r[4];
                load_matrices_transposed(r, row + c * queries.tile_bytes);
                b[c][0] = r[0];
                b[c][1] = r[1];
            }
            multiply_half_tile(s, load_shared4(words), b);
        }
        ring.next();
        if (strip == kStrips)
            return;
    }
}

}  // namespace cuda
}  // namespace lk

#endif
