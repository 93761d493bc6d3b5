// Products of few rows with the bytes of native pages: 16-bit tiles in FP32, packed strips in
// integers with ranges folded into 16-bit factors.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_NATIVE_TMPL_H
#define LK_BACKEND_CPU_NATIVE_TMPL_H

#include "backend/cpu/unpack_tmpl.h"

namespace lk {
namespace cpu {
namespace {

// A chunk is 64 bytes: the registers of the 4 lanes of one g at 16 bits, or 4 words of each of
// them when packed.
constexpr uint32_t kChunkWords = 16;
constexpr uint32_t kChunkVectors = kChunkWords / kWidth;    // of words
constexpr uint32_t kChunkFloatVectors = 2 * kChunkVectors;  // of its 32 FP16 values

// Of n factors of 16 bits: codes are below 256, so the sum of n products fits in 32 bits.
LK_INLINE float largest_factor(uint32_t n) { return n > 256 ? 16383.0f : 32767.0f; }

#if defined(__SSE2__)
// Keeps a chain of additions as it is: a compiler that turns it into a tree needs more registers
// than there are.
LK_INLINE Vi in_order(Vi sum) {
    __asm__("" : "+x"(sum));
    return sum;
}
#endif

// sum += the products of the two 16-bit integers of each word.
LK_INLINE Vi dot_pairs(Vi sum, Vu codes, Vi factors) {
#if defined(__AVX512VNNI__)
    const __m512i r =
        _mm512_dpwssd_epi32(reinterpret_cast<__m512i &>(sum), reinterpret_cast<__m512i &>(codes),
                            reinterpret_cast<__m512i &>(factors));
    return Vi(r);
#elif defined(__AVX2__)
    const __m256i r =
        _mm256_madd_epi16(reinterpret_cast<__m256i &>(codes), reinterpret_cast<__m256i &>(factors));
    return in_order(sum + Vi(r));
#elif defined(__SSE2__)
    typedef short V8 __attribute__((vector_size(16)));
    return in_order(sum + Vi(__builtin_ia32_pmaddwd128(V8(codes), V8(factors))));
#elif defined(__ARM_NEON)
    const auto c = int16x8_t(codes);
    const auto f = int16x8_t(factors);
    const int32x4_t low = vmull_s16(vget_low_s16(c), vget_low_s16(f));
    return sum + Vi(vpaddq_s32(low, vmull_high_s16(c, f)));
#else
    const Vi even = Vi(codes & 0xFFFFu) * ((factors << 16) >> 16);
    return sum + even + Vi(codes >> 16) * (factors >> 16);
#endif
}

// ---- the next page ----

// Pages have any address, and packed ones are too short for the hardware to detect a stream, so the
// bytes of the next KV tile are prefetched in the steps of this one: as a burst they would wait for
// each other.
struct Fetch {
    const uint8_t *at[4];  // of keys and values: payload, metadata
    uint32_t n_lines[4];
    uint32_t first;
    uint32_t step_lines;

    LK_INLINE void lines(uint32_t n) {
        for (; n && first < 4; ++first) {
            for (; n && n_lines[first]; --n, --n_lines[first], at[first] += 64)
                __builtin_prefetch(at[first], 0, 3);
            if (n_lines[first])
                return;
        }
    }
    LK_INLINE void step() { lines(step_lines); }
};

// ---- 16 bits ----

// 16 values of a tile's k as the 32 factors of a chunk: lane t, register r, low or high value h.
LK_INLINE void spread_tile(const float *values, float *spread) {
    for (uint32_t t = 0; t < 4; t += 2)
        for (uint32_t part = 0; part < 2; ++part) {  // registers 0 and 1, 2 and 3
            const Vf4 two = load<Vf4>(values + 2 * t + 8 * part);
            float *to = spread + 8 * t + 4 * part;
            store(to, __builtin_shufflevector(two, two, 0, 1, 0, 1));
            store(to + 8, __builtin_shufflevector(two, two, 2, 3, 2, 3));
        }
}

struct RawProduct {
    const uint8_t *tiles;
    uint64_t row_stride;  // bytes between tiles
    uint64_t k_stride;
    uint32_t n_row_tiles;
    uint32_t n_k_tiles;
    const float *spread;  // [row][spread_stride], 32 for each tile
    uint32_t spread_stride;
    const uint16_t *mask;  // [32] ANDed to the bits, or null
    float *out;            // [row][out_stride]
    uint32_t out_stride;
    bool add;
    Fetch *fetch;
};

// Sums of a chunk's row for 4 values of g, as many of them at once as registers have sums.
template <uint32_t kRows, bool kMasked>
LK_INLINE void multiply_raw_rows(const RawProduct &p) {
    constexpr uint32_t kHeight = LK_SIMD_SUMS / kRows < 4 ? LK_SIMD_SUMS / kRows : 4;
    for (uint32_t row_tile = 0; row_tile < p.n_row_tiles; ++row_tile)
        for (uint32_t g = 0; g < 8; g += 4) {
            p.fetch->step();
            Vf4 folded[kRows][4];  // [row][g][even, odd of the row; even, odd of the row + 8]
            for (uint32_t first = 0; first < 4; first += kHeight) {
                Vf sums[kHeight][kRows] = {};
                for (uint32_t k = 0; k < p.n_k_tiles; ++k) {
                    const uint8_t *chunk =
                        p.tiles + row_tile * p.row_stride + k * p.k_stride + (g + first) * 64ull;
                    LK_UNROLL(8)
                    for (uint32_t u = 0; u < kChunkFloatVectors; ++u) {
                        Vf factors[kRows];
                        LK_UNROLL(4)
                        for (uint32_t r = 0; r < kRows; ++r)
                            factors[r] =
                                load<Vf>(p.spread + r * p.spread_stride + k * 32 + u * kWidth);
                        LK_UNROLL(4)
                        for (uint32_t i = 0; i < kHeight; ++i) {
                            Vh bits = load<Vh>(chunk + i * 64 + u * kWidth * 2);
                            if (kMasked)
                                bits &= load<Vh>(p.mask + u * kWidth);
                            const Vf values = halves_to_floats(bits);
                            LK_UNROLL(4)
                            for (uint32_t r = 0; r < kRows; ++r)
                                sums[i][r] += values * factors[r];
                        }
                    }
                }
                LK_UNROLL(4)
                for (uint32_t r = 0; r < kRows; ++r)
                    for (uint32_t i = 0; i < kHeight; ++i)
                        folded[r][first + i] = fold_vector(sums[i][r]);
            }
            for (uint32_t r = 0; r < kRows; ++r) {
                transpose4(folded[r]);
                float *to = p.out + r * p.out_stride + row_tile * 16 + g;
                const Vf4 low = folded[r][0] + folded[r][1];
                const Vf4 high = folded[r][2] + folded[r][3];
                store(to, p.add ? load<Vf4>(to) + low : low);
                store(to + 8, p.add ? load<Vf4>(to + 8) + high : high);
            }
        }
}

template <uint32_t kRows>
LK_INLINE void multiply_raw_masked(const RawProduct &p) {
    if (p.mask)
        multiply_raw_rows<kRows, true>(p);
    else
        multiply_raw_rows<kRows, false>(p);
}

inline void multiply_raw(const RawProduct &p, uint32_t n_rows) {
    by_rows<4>(n_rows, [&](auto rows, uint32_t r) {
        RawProduct block = p;
        block.spread += r * uint64_t{p.spread_stride};
        block.out += r * uint64_t{p.out_stride};
        multiply_raw_masked<decltype(rows)::value>(block);
    });
}

// ---- packed ----

// A chunk of strips whose lanes have at least 4 words is of one row g. Lanes of 2 words or of one
// share it: it is of 2 or 4 rows, [row][t][word].
template <uint32_t kWords>
struct Chunk {
    static constexpr uint32_t kRows = 4 / kWords;
    // A vector of sums for each row, as far as rows have vectors of their own.
    static constexpr uint32_t kSums = kRows < kChunkVectors ? kRows : kChunkVectors;
    static constexpr uint32_t kRowWords = kSums * kWidth / kRows;  // of a row, in those vectors

    static constexpr uint32_t sum_of(uint32_t vector) { return vector * kSums / kChunkVectors; }
};

// Rows whose sums fit in registers: 4, 2 or 1.
constexpr uint32_t rows_of_sums(uint32_t n_sums) {
    const uint32_t n = LK_SIMD_SUMS / n_sums;
    return n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

template <uint32_t kBits>
LK_INLINE Vu take_field(Vu words, uint32_t field) {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
    return (words >> (kBits * field)) & kMask;
}

// 16 factors to 16 bits; adding 1.5 * 2^23 leaves the rounded integer in the low bits.
LK_INLINE void round_factors(const float *values, float scale, uint16_t *out, uint32_t n) {
    for (uint32_t i = 0; i < n; i += kWidth) {
        const Vf shifted = load<Vf>(values + i) * scale + 12582912.0f;
        Vu bits;
        std::memcpy(&bits, &shifted, sizeof bits);
        store(out + i, __builtin_convertvector(bits, Vh));
    }
}

LK_INLINE float highest_magnitude(const float *values, uint32_t n) {
    Vf highest = {};
    for (uint32_t i = 0; i < n; i += kWidth) {
        const Vf v = load<Vf>(values + i);
        highest = maximum(v < 0.0f ? -v : v, highest);
    }
    return horizontal_max(highest);
}

// Logits of a run of strips of one width, as multiples of each row's scale, into out
// [row][kKvTileTokens].
struct PackedKeys {
    const uint8_t *strips;
    uint32_t n_strips;
    uint32_t page_tokens;
    // [row][factor_stride][strip_stride], for each vector of a strip [tile bits][k part][chunk
    // word]; tile bits only for groups of fewer tokens than a word has
    const uint32_t *factors;
    // The same of bit 1 when fields of 2 bits hold pairs, and `factors` is then of bit 0.
    const uint32_t *high_factors;
    uint32_t factor_stride;
    uint32_t strip_stride;
    uint32_t group;  // tokens with factors of their own, 0: all have the same
    int32_t *out;
    bool add;
};

// The sums of a chunk's rows, added up over what a row's vectors of 4 words have in common.
template <uint32_t kWords>
LK_INLINE void fold_rows(const Vi *sums, Vi4 *out) {
    using C = Chunk<kWords>;
    if (C::kRows == 1) {
        out[0] = fold_vector(sums[0]);
        return;
    }
    alignas(64) int32_t words[C::kSums * kWidth];
    for (uint32_t i = 0; i < C::kSums; ++i)
        store(words + i * kWidth, sums[i]);
    for (uint32_t row = 0; row < C::kRows; ++row) {
        out[row] = load<Vi4>(words + row * C::kRowWords);
        for (uint32_t i = 4; i < C::kRowWords; i += 4)
            out[row] += load<Vi4>(words + row * C::kRowWords + i);
    }
}

// Sums of products, `folded` [word of a row][g], to the logits of 16 tokens.
template <uint32_t kBits, uint32_t kWords>
LK_INLINE void add_logits(Vi4 *folded, uint32_t first_word, uint32_t sum, bool add, int32_t *out) {
    using F = Fields<kBits>;
    transpose4(folded);      // [word][g 0..3]
    transpose4(folded + 4);  // [word][g 4..7]
    for (uint32_t w = 0; w < (kBits == 8 ? 2u : kWords); ++w) {
        const uint32_t word = first_word + (kBits == 8 ? 2 * w : w);
        int32_t *to = out + tile_of<kBits>(word, sum % F::kTileBits) * 16 + sum / F::kTileBits * 8;
        for (uint32_t half = 0; half < 2; ++half, to += 4) {
            const Vi4 *from = folded + 4 * half;
            // At 8 bits the odd words hold the other 8 channels of the same tokens.
            const Vi4 value = kBits == 8    ? from[2 * w] + from[2 * w + 1]
                              : kWords == 4 ? from[w]
                              : kWords == 2 ? from[w] + from[w + 2]
                                            : (from[0] + from[1]) + (from[2] + from[3]);
            store(to, add ? load<Vi4>(to) + value : value);
        }
    }
}

// How many sums of a chunk's fields registers have at once.
template <uint32_t kBits, uint32_t kWords, uint32_t kRows>
constexpr uint32_t fields_at_once() {
    const uint32_t most = LK_SIMD_SUMS / (kRows * Chunk<kWords>::kSums);
    return most > Fields<kBits>::kSums ? Fields<kBits>::kSums : most ? most : 1;
}

// Sums of a chunk's fields from `first` on, as many as registers have at once.
template <uint32_t kBits, uint32_t kWords, uint32_t kRows, bool kShared, bool kByTile>
LK_INLINE void sum_key_fields(const PackedKeys &p, uint32_t v, uint32_t g, uint32_t first,
                              Vi4 (*folded)[Fields<kBits>::kSums][8]) {
    using F = Fields<kBits>;
    using C = Chunk<kWords>;
    constexpr uint32_t kFields = fields_at_once<kBits, kWords, kRows>();
    constexpr uint32_t kTileWords = kByTile ? 2 * kChunkWords : 0;
    const uint32_t vector_stride = p.group ? (kByTile ? F::kTileBits : 1) * 2 * kChunkWords : 0;
    // The fields of a part of the sums follow each other, so one shift by a variable suffices.
    const uint32_t shift = kFields < F::kSums ? kBits * F::field_of(first) : 0;
    const uint64_t first_at = v * vector_stride + first % F::kTileBits * kTileWords;
    Vi sums[kFields][kRows][C::kSums] = {};
    for (uint32_t s = 0; s < p.n_strips; ++s) {
        const uint8_t *chunk =
            p.strips + s * (2ull * p.page_tokens * kBits) + (v * 8 + g) * (64ull / C::kRows);
        const uint64_t at = s * uint64_t{p.strip_stride} + first_at;
        LK_UNROLL(4)
        for (uint32_t u = 0; u < kChunkVectors; ++u) {
            const Vu words = load<Vu>(chunk + u * kWidth * 4) >> shift;
            LK_UNROLL(2)
            for (uint32_t part = 0; part < (F::kKBit ? 2 : 1); ++part) {
                const uint64_t position = at + part * kChunkWords + u * kWidth;
                LK_UNROLL(8)
                for (uint32_t i = 0; i < kFields; ++i) {
                    const Vu codes = take_field<kBits>(words, F::field_of(i) | part * F::kKBit);
                    LK_UNROLL(4)
                    for (uint32_t r = 0; r < kRows; ++r) {
                        const uint64_t from = position + r * uint64_t{p.factor_stride} +
                                              i % F::kTileBits * kTileWords;
                        Vi &own = sums[i][r][C::sum_of(u)];
                        own = dot_pairs(own, kShared ? codes & 0x10001u : codes,
                                        load<Vi>(p.factors + from));
                        if (kShared)
                            own = dot_pairs(own, codes & 0x20002u, load<Vi>(p.high_factors + from));
                    }
                }
            }
        }
    }
    LK_UNROLL(8)
    for (uint32_t i = 0; i < kFields; ++i) {
        LK_UNROLL(4)
        for (uint32_t r = 0; r < kRows; ++r)
            fold_rows<kWords>(sums[i][r], folded[r][first + i] + g);
    }
}

template <uint32_t kBits, uint32_t kWords, uint32_t kRows, bool kShared, bool kByTile>
LK_INLINE void multiply_key_rows(const PackedKeys &p) {
    using F = Fields<kBits>;
    const uint32_t n_vectors = kWords < 4 ? 1 : p.page_tokens * kBits / 256;
    for (uint32_t v = 0; v < n_vectors; ++v) {
        Vi4 folded[kRows][F::kSums][8];
        for (uint32_t g = 0; g < 8; g += Chunk<kWords>::kRows)
            for (uint32_t first = 0; first < F::kSums;
                 first += fields_at_once<kBits, kWords, kRows>())
                sum_key_fields<kBits, kWords, kRows, kShared, kByTile>(p, v, g, first, folded);
        for (uint32_t r = 0; r < kRows; ++r)
            for (uint32_t sum = 0; sum < F::kSums; ++sum)
                add_logits<kBits, kWords>(folded[r][sum], 4 * v, sum, p.add,
                                          p.out + r * kKvTileTokens);
    }
}

template <uint32_t kBits, uint32_t kWords, bool kShared, bool kByTile>
inline void multiply_keys_of(const PackedKeys &p, uint32_t n_rows) {
    by_rows<4>(n_rows, [&](auto rows, uint32_t r) {
        PackedKeys block = p;
        block.factors += r * uint64_t{p.factor_stride};
        if (kShared)
            block.high_factors += r * uint64_t{p.factor_stride};
        block.out += r * kKvTileTokens;
        multiply_key_rows<kBits, kWords, decltype(rows)::value, kShared, kByTile>(block);
    });
}

template <uint32_t kBits, bool kShared>
inline void multiply_keys_at(const PackedKeys &p, uint32_t n_rows) {
    with_lane_words<kBits>(p.page_tokens, [&](auto words) {
        constexpr uint32_t kWords = decltype(words)::value;
        if constexpr (kBits <= 2)
            if (p.group && p.group * kBits < 64)
                return multiply_keys_of<kBits, kWords, kShared, true>(p, n_rows);
        multiply_keys_of<kBits, kWords, kShared, false>(p, n_rows);
    });
}

inline void multiply_packed_keys(const PackedKeys &p, uint32_t bits, uint32_t n_rows) {
    if (p.high_factors) {
        multiply_keys_at<2, true>(p, n_rows);
        return;
    }
    with_width(bits,
               [&](auto width) { multiply_keys_at<decltype(width)::value, false>(p, n_rows); });
}

// A strip's 16 factors, [t][k part] in pairs, as chunk words: [k part][row of the chunk][t][word].
// first: where those of each word begin, or null if all begin at 0.
template <uint32_t kBits, uint32_t kWords>
LK_INLINE void spread_factors(const uint16_t *factors, const uint32_t *first, uint32_t *words) {
    for (uint32_t part = 0; part < (kBits == 8 ? 1 : 2); ++part) {
        Vu4 by_word[kWords];  // [word][t]
        for (uint32_t w = 0; w < kWords; ++w) {
            const uint16_t *own = factors + (first ? first[w] : 0);
            const Vu4 low = load<Vu4>(own);
            const Vu4 high = load<Vu4>(own + 8);
            // At 8 bits odd words have the other k part.
            by_word[w] = part || (kBits == 8 && w % 2)
                             ? __builtin_shufflevector(low, high, 1, 3, 5, 7)
                             : __builtin_shufflevector(low, high, 0, 2, 4, 6);
        }
        store_lane_words<kWords>(by_word, words + part * kChunkWords);
    }
}

// Sums over all tokens of one strip's 16 channels, as multiples of each row's scale.
struct PackedValues {
    const uint8_t *strip;
    uint32_t page_tokens;
    const uint32_t *factors;  // [row][factor_stride]: [vector][position][chunk word]
    uint32_t factor_stride;
    int32_t (*out)[16];  // [row]
};

// The sums of 16 vectors, in order: neighbours are added into one vector, then neighbours of those.
LK_INLINE void sum_each(const Vi4 *v, int32_t *out) {
    for (uint32_t i = 0; i < 16; i += 4) {
        Vi4 four[4];
        std::memcpy(four, v + i, sizeof four);
        transpose4(four);
        store(out + i, (four[0] + four[1]) + (four[2] + four[3]));
    }
}
#if defined(__AVX512F__)
LK_INLINE void sum_each(const Vi *v, int32_t *out) {
    const auto *from = reinterpret_cast<const __m512i *>(v);
    __m512i quarters[4];  // sums of four vectors within each quarter
    for (uint32_t i = 0; i < 4; ++i) {
        const __m512i *four = from + 4 * i;
        const __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(four[0], four[1]),
                                             _mm512_unpackhi_epi32(four[0], four[1]));
        const __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(four[2], four[3]),
                                              _mm512_unpackhi_epi32(four[2], four[3]));
        quarters[i] =
            _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
    }
    __m512i parts[2];
    for (uint32_t i = 0; i < 2; ++i)
        parts[i] =
            _mm512_add_epi32(_mm512_shuffle_i32x4(quarters[2 * i], quarters[2 * i + 1], 0x44),
                             _mm512_shuffle_i32x4(quarters[2 * i], quarters[2 * i + 1], 0xEE));
    _mm512_storeu_si512(out, _mm512_add_epi32(_mm512_shuffle_i32x4(parts[0], parts[1], 0x88),
                                              _mm512_shuffle_i32x4(parts[0], parts[1], 0xDD)));
}
#elif defined(__AVX2__)
LK_INLINE void sum_each(const Vi *v, int32_t *out) {
    const auto *from = reinterpret_cast<const __m256i *>(v);
    __m256i parts[4];  // sums of four vectors within each half
    for (uint32_t i = 0; i < 4; ++i) {
        const __m256i *four = from + 4 * i;
        const __m256i low = _mm256_add_epi32(_mm256_unpacklo_epi32(four[0], four[1]),
                                             _mm256_unpackhi_epi32(four[0], four[1]));
        const __m256i high = _mm256_add_epi32(_mm256_unpacklo_epi32(four[2], four[3]),
                                              _mm256_unpackhi_epi32(four[2], four[3]));
        parts[i] =
            _mm256_add_epi32(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
    }
    for (uint32_t i = 0; i < 2; ++i)
        _mm256_storeu_si256(
            reinterpret_cast<__m256i *>(out) + i,
            _mm256_add_epi32(_mm256_permute2x128_si256(parts[2 * i], parts[2 * i + 1], 0x20),
                             _mm256_permute2x128_si256(parts[2 * i], parts[2 * i + 1], 0x31)));
}
#endif

template <uint32_t kBits, uint32_t kWords, uint32_t kRows>
LK_INLINE void multiply_value_rows(const PackedValues &p) {
    using F = Fields<kBits>;
    using C = Chunk<kWords>;
    const uint32_t n_vectors = kWords < 4 ? 1 : p.page_tokens * kBits / 256;
    // Rows of a chunk that share its vectors are added up first.
    std::conditional_t<C::kRows == 1, Vi, Vi4> channels[kRows][16];
    for (uint32_t g = 0; g < 8; g += C::kRows) {
        Vi sums[2][kRows][C::kSums] = {};
        for (uint32_t v = 0; v < n_vectors; ++v) {
            const uint8_t *chunk = p.strip + (v * 8 + g) * (64ull / C::kRows);
            const uint32_t *factors = reload(p.factors) + v * (F::kFactorFields * kChunkWords);
            LK_UNROLL(4)
            for (uint32_t u = 0; u < kChunkVectors; ++u) {
                const Vu words = load<Vu>(chunk + u * kWidth * 4);
                LK_UNROLL(8)
                for (uint32_t field = 0; field < F::kFactorFields; ++field) {
                    const Vu low = take_field<kBits>(words, field);
                    const Vu high = take_field<kBits>(words, field | F::kRowBit);
                    LK_UNROLL(4)
                    for (uint32_t r = 0; r < kRows; ++r) {
                        const Vi own = load<Vi>(factors + r * p.factor_stride +
                                                field * kChunkWords + u * kWidth);
                        Vi &low_sum = sums[0][r][C::sum_of(u)];
                        Vi &high_sum = sums[1][r][C::sum_of(u)];
                        low_sum = dot_pairs(low_sum, low, own);
                        high_sum = dot_pairs(high_sum, high, own);
                    }
                }
            }
        }
        LK_UNROLL(4)
        for (uint32_t r = 0; r < kRows; ++r)
            for (uint32_t half = 0; half < 2; ++half) {
                if constexpr (C::kRows == 1)
                    channels[r][8 * half + g] = sums[half][r][0];
                else
                    fold_rows<kWords>(sums[half][r], channels[r] + 8 * half + g);
            }
    }
    for (uint32_t r = 0; r < kRows; ++r)
        sum_each(channels[r], p.out[r]);
}

template <uint32_t kBits, uint32_t kWords>
inline void multiply_values_of(const PackedValues &p, uint32_t n_rows) {
    by_rows<rows_of_sums(2 * Chunk<kWords>::kSums)>(n_rows, [&](auto rows, uint32_t r) {
        PackedValues block = p;
        block.factors += r * uint64_t{p.factor_stride};
        block.out += r;
        multiply_value_rows<kBits, kWords, decltype(rows)::value>(block);
    });
}

template <uint32_t kBits>
inline void multiply_values_at(const PackedValues &p, uint32_t n_rows) {
    with_lane_words<kBits>(p.page_tokens, [&](auto words) {
        multiply_values_of<kBits, decltype(words)::value>(p, n_rows);
    });
}

inline void multiply_packed_values(const PackedValues &p, uint32_t bits, uint32_t n_rows) {
    with_width(bits, [&](auto width) { multiply_values_at<decltype(width)::value>(p, n_rows); });
}

// Pairs of factors [tile][t][k part] as chunk words: [vector][field without the row's bit][row of
// the chunk][t][word].
template <uint32_t kBits, uint32_t kWords>
inline void spread_chunk_factors(const uint16_t *factors, uint32_t n_vectors, uint32_t *words) {
    using F = Fields<kBits>;
    for (uint32_t v = 0; v < n_vectors; ++v)
        for (uint32_t field = 0; field < F::kFactorFields; ++field)
            for (uint32_t w = 0; w < kWords; ++w) {
                const uint32_t position = unfold(kWords * v + w, field, F::kSteps);
                const uint16_t *tile = factors + (position >> 2) * 16 + ((position >> 1) & 1u) * 2;
                uint32_t *to = words + (v * F::kFactorFields + field) * kChunkWords + w;
                for (uint32_t lane = 0; lane < kChunkWords / kWords; ++lane)
                    std::memcpy(to + lane * kWords, tile + 4 * (lane % 4), 4);
            }
}
template <uint32_t kBits>
inline void spread_value_factors(const uint16_t *factors, uint32_t page_tokens, uint32_t *words) {
    with_lane_words<kBits>(page_tokens, [&](auto constant) {
        constexpr uint32_t kWords = decltype(constant)::value;
        spread_chunk_factors<kBits, kWords>(factors, page_tokens * kBits / 64 / kWords, words);
    });
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
