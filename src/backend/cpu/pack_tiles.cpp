// Words and FP16 values alone, by vectors of 16 bytes, which every instruction set has.
//
// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/pack_tiles.h"

#define LK_SIMD_WIDTH 4
#include "backend/cpu/lanes_tmpl.h"

namespace lk {
namespace cpu {

namespace {

typedef int16_t V8 __attribute__((vector_size(16)));

// The order of the patterns as integers is that of the values; the function is its own inverse.
LK_INLINE V8 order_of(V8 values) { return values ^ ((values >> 15) & 0x7FFF); }
LK_INLINE V8 lower(V8 a, V8 b) { return a < b ? a : b; }
LK_INLINE V8 higher(V8 a, V8 b) { return a > b ? a : b; }
LK_INLINE uint16_t without_sign_of_zero(uint16_t half) { return half == 0x8000 ? 0 : half; }

LK_INLINE void transpose8(V8 *v) {
    V8 w[8];
    for (uint32_t i = 0; i < 4; ++i) {
        w[2 * i] = __builtin_shufflevector(v[i], v[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        w[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (uint32_t i = 0; i < 4; ++i) {
        v[2 * i] = __builtin_shufflevector(w[i], w[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        v[2 * i + 1] = __builtin_shufflevector(w[i], w[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (uint32_t i = 0; i < 4; ++i) {
        w[2 * i] = __builtin_shufflevector(v[i], v[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        w[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    std::memcpy(v, w, sizeof w);
}

// Index of the 8 codes of a field of 4 lanes, of which each word has two.
LK_INLINE uint32_t first_code(uint32_t position, uint32_t g) {
    const uint32_t row = (position >> 2) * 16 + g + 8 * (position & 1u);
    return row * 16 + 8 * ((position >> 1) & 1u);
}

template <uint32_t kBits, uint32_t kWords>
void write_lane_words(const uint16_t *codes, uint32_t page_tokens, uint32_t shift, uint8_t *strip) {
    using F = Fields<kBits>;
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
    const uint32_t n = 8 * (kWords < 4 ? 1 : page_tokens * kBits / 256);
    for (uint32_t i = 0; i < n; ++i) {
        Vu4 words[kWords] = {};
        for (uint32_t w = 0; w < kWords; ++w)
            for (uint32_t field = 0; field < F::kCount; ++field) {
                const uint32_t position = unfold(i / 8 * kWords + w, field, F::kSteps);
                words[w] |= ((load<Vu4>(codes + first_code(position, i % 8)) >> shift) & kMask)
                            << (kBits * field);
            }
        uint32_t lanes[4 * 4];
        store_lane_words<kWords>(words, lanes);
        std::memcpy(strip + i * (16ull * kWords), lanes, 16ull * kWords);
    }
}

template <uint32_t kBits, uint32_t kWords>
void read_lane_words(const uint8_t *strip, uint32_t page_tokens, uint32_t shift, uint16_t *codes) {
    using F = Fields<kBits>;
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
    const uint32_t n = 8 * (kWords < 4 ? 1 : page_tokens * kBits / 256);
    for (uint32_t i = 0; i < n; ++i) {
        Vu4 words[kWords];
        load_lane_words<kWords>(strip + i * (16ull * kWords), words);
        for (uint32_t w = 0; w < kWords; ++w)
            for (uint32_t field = 0; field < F::kCount; ++field) {
                const uint32_t position = unfold(i / 8 * kWords + w, field, F::kSteps);
                uint16_t *to = codes + first_code(position, i % 8);
                const Vu4 bits = ((words[w] >> (kBits * field)) & kMask) << shift;
                store(to, shift ? bits | load<Vu4>(to) : bits);
            }
    }
}

// Call `call` with the width and the words of a lane as constants.
template <class Call>
LK_INLINE void with_plane(uint32_t page_tokens, uint32_t bits, Call call) {
    with_width(bits, [&](auto width) {
        with_lane_words<decltype(width)::value>(page_tokens,
                                                [&](auto words) { call(width, words); });
    });
}

}  // namespace

void transpose_rows(const HalfRows &rows, uint32_t n_rows, uint32_t n_columns,
                    const uint16_t *places, uint16_t *out) {
    for (uint32_t row = 0; row < n_rows; row += 8)
        for (uint32_t column = 0; column < n_columns; column += 8) {
            V8 block[8];
            for (uint32_t i = 0; i < 8; ++i)
                block[i] = load<V8>(rows.values + (row + i) * rows.stride + column);
            transpose8(block);
            for (uint32_t i = 0; i < 8; ++i) {
                const uint32_t place = places ? places[column + i] : column + i;
                store(out + uint64_t{place} * n_rows + row, block[i]);
            }
        }
}

void find_column_extremes(const HalfRows &rows, uint32_t n_rows, uint32_t n_columns, uint16_t *low,
                          uint16_t *high) {
    for (uint32_t column = 0; column < n_columns; column += 8) {
        const uint16_t *values = rows.values + column;
        V8 lowest = order_of(load<V8>(values));
        V8 highest = lowest;
        for (uint32_t row = 1; row < n_rows; ++row) {
            const V8 own = order_of(load<V8>(values + row * rows.stride));
            lowest = lower(lowest, own);
            highest = higher(highest, own);
        }
        store(low + column, order_of(lowest));
        store(high + column, order_of(highest));
    }
    for (uint32_t i = 0; i < n_columns; ++i) {
        low[i] = without_sign_of_zero(low[i]);
        high[i] = without_sign_of_zero(high[i]);
    }
}

void find_row_extremes(const HalfRows &rows, uint32_t n_rows, uint32_t n_columns, uint16_t *low,
                       uint16_t *high) {
    for (uint32_t row = 0; row < n_rows; ++row) {
        const uint16_t *values = rows.values + row * rows.stride;
        V8 lowest = order_of(load<V8>(values));
        V8 highest = lowest;
        for (uint32_t column = 8; column < n_columns; column += 8) {
            const V8 own = order_of(load<V8>(values + column));
            lowest = lower(lowest, own);
            highest = higher(highest, own);
        }
        int16_t least = lowest[0];
        int16_t most = highest[0];
        for (uint32_t i = 1; i < 8; ++i) {
            least = lowest[i] < least ? lowest[i] : least;
            most = highest[i] > most ? highest[i] : most;
        }
        low[row] = without_sign_of_zero(static_cast<uint16_t>(least < 0 ? least ^ 0x7FFF : least));
        high[row] = without_sign_of_zero(static_cast<uint16_t>(most < 0 ? most ^ 0x7FFF : most));
    }
}

void write_raw_tile(const HalfRows &rows, uint16_t *tile) {
    for (uint32_t g = 0; g < 8; ++g) {
        Vu4 words[4];  // [register][t]
        for (uint32_t r = 0; r < 4; ++r)
            words[r] = load<Vu4>(rows.values + (g + 8 * (r & 1u)) * rows.stride + 8 * (r / 2));
        transpose4(words);
        for (uint32_t t = 0; t < 4; ++t)
            store(tile + (g * 4 + t) * 8, words[t]);
    }
}

void read_raw_tile(const uint16_t *tile, uint16_t *values, uint64_t stride) {
    for (uint32_t g = 0; g < 8; ++g) {
        Vu4 words[4];  // [register][t]
        load_lane_words<4>(reinterpret_cast<const uint8_t *>(tile + g * 32), words);
        for (uint32_t r = 0; r < 4; ++r)
            store(values + (g + 8 * (r & 1u)) * stride + 8 * (r / 2), words[r]);
    }
}

void write_plane(const uint16_t *codes, uint32_t page_tokens, uint32_t bits, uint32_t shift,
                 uint8_t *strip) {
    with_plane(page_tokens, bits, [&](auto width, auto words) {
        write_lane_words<decltype(width)::value, decltype(words)::value>(codes, page_tokens, shift,
                                                                         strip);
    });
}

void read_plane(const uint8_t *strip, uint32_t page_tokens, uint32_t bits, uint32_t shift,
                uint16_t *codes) {
    with_plane(page_tokens, bits, [&](auto width, auto words) {
        read_lane_words<decltype(width)::value, decltype(words)::value>(strip, page_tokens, shift,
                                                                        codes);
    });
}

}  // namespace cpu
}  // namespace lk
