// Decode attention: products of codes by a tensor core. Matrices are made of a lane's registers in
// the order that matrix_probe.comp asks the device for.
//
// Sums are in FP32, so numbers at 16 bits take the same way as codes. With one group in a page, a
// code is not brought to a number first: a masked word has codes in the low bits of its halves,
// which are FP16 numbers below the normal ones, exactly code x 2^(bit - 24). Codes of k 8 to 15 lie
// 4 bits higher (not at 8 bits), so what they are multiplied with is divided by 2^4; those of odd
// tiles are taken 2 bits higher, and their scores, or weights, divided by 2^2. The middle of the
// codes, times what they are multiplied with as it was rounded, is taken off where that is made.
//
// Matrices are multiplied outside of all conditions (decode_shape.glsl says why): what depends on
// the widths of a page makes registers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_GLSL
#define LK_SHADERS_DECODE_MATRIX_GLSL

#include "matrix.glsl"

Matrix matrix_of(uvec4 registers) {
    const Pair r0 = unpackFloat2x16(registers.x);
    const Pair r1 = unpackFloat2x16(registers.y);
    const Pair r2 = unpackFloat2x16(registers.z);
    const Pair r3 = unpackFloat2x16(registers.w);
    Matrix a;
    a[0] = r0.x;
    a[1] = r0.y;
    a[2] = r2.x;
    a[3] = r2.y;
    a[4] = r1.x;
    a[5] = r1.y;
    a[6] = r3.x;
    a[7] = r3.y;
    return a;
}

// What a tile is multiplied with: columns 2t and 2t + 1 of k g, and of k g + 8.
struct ColumnPairs {
    Pair low;
    Pair high;
};
// `block` is the strip of keys or the tile of values. k g is in the quad of pairs g / 2. Columns that
// are not there repeat others: nobody reads their sums.
ColumnPairs load_columns(uint block) {
    const uint place = folded_place(block * 4u + row() / 2u) + quad_lane() % kFoldedQuads;
    const uvec4 words = shared_folded[place] >> 16u * (row() & 1u);
    const uvec2 next = kColumns > 1u ? words.zw : words.xy;
    return ColumnPairs(unpackFloat2x16(bitfieldInsert(words.x, next.x, 16, 16)),
                       unpackFloat2x16(bitfieldInsert(words.y, next.y, 16, 16)));
}
// Times the ranges of a token group of the keys.
ColumnPairs fold_group(Piece piece, ColumnPairs plain, uint strip, uint group, int exponent) {
    const vec4 ranges = key_ranges(piece, strip, group, row() / 2u) *
                        power(kGroupedExponent - exponent);
    const uint k = row() & 1u;
    return ColumnPairs(plain.low * to_pair(vec2(ranges[k])),
                       plain.high * to_pair(vec2(ranges[2u + k])));
}
ColumnMatrix column_matrix(ColumnPairs pairs) {
    ColumnMatrix b;
    b[0] = pairs.low.x;
    b[1] = pairs.low.y;
    b[2] = pairs.high.x;
    b[3] = pairs.high.y;
    return b;
}

// R0 to R3 of a tile. Of 8 bits, next is the word behind `word`.
uvec4 code_registers(uint word, uint next, uint bits, uint tile) {
    const uint shift = 2u * (tile & 1u);
    const uint mask = ((1u << bits) - 1u) * 0x10001u << shift;
    const uint low = bits == 2u ? word : word << shift;
    const uint high = bits == 2u ? word >> 8 : word >> 8u - shift;
    return bits == 8u ? uvec4(low, high, next << shift, next >> 8u - shift) & mask
                      : uvec4(uvec2(low, high) & mask, uvec2(low, high) & mask << 4);
}
// The same as numbers around the middle, where folding takes place in FP16.
uvec4 centered_registers(uvec4 words, uint bits, uint tile) {
    const Tile codes = code_tile(words, bits, tile);
    return uvec4(packFloat2x16(codes.r0), packFloat2x16(codes.r1), packFloat2x16(codes.r2),
                 packFloat2x16(codes.r3));
}
// Of the tiles that vector v of a strip has.
void take_vector(uvec4 words, uint bits, uint v, inout uvec4 tiles[kPageTiles]) {
    const uint n = 16u / bits;
    [[unroll]] for (uint i = 0u; i < n; ++i) {
        const uint word = bits == 2u ? i / 2u : bits == 4u ? i : 2u * i;
        tiles[v * n + i] =
            kGrouped != 0u ? centered_registers(words, bits, i)
                           : code_registers(words[word], words[word | 1u], bits, v * n + i);
    }
}

// Registers of a strip's tiles. Its first vector is vector `first` of the payload; two of them came
// ahead.
void take_codes(Address payload, uint first, uint bits, StripVectors ahead,
                inout uvec4 tiles[kPageTiles]) {
    if (bits == 2u) {
        take_vector(ahead.first, 2u, 0u, tiles);
    } else if (bits == 4u) {
        take_vector(ahead.first, 4u, 0u, tiles);
        take_vector(ahead.second, 4u, 1u, tiles);
    } else {
        const uvec4 third = load_vector(payload, first + 2u);
        const uvec4 fourth = load_vector(payload, first + 3u);
        take_vector(ahead.first, 8u, 0u, tiles);
        take_vector(ahead.second, 8u, 1u, tiles);
        take_vector(third, 8u, 2u, tiles);
        take_vector(fourth, 8u, 3u, tiles);
    }
}

SumMatrix key_sums[kPageTiles];

// Sums of strips at 16 bits go on in the unit of those of codes.
void change_unit(int exponent) {
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            key_sums[tile][i] *= power(-exponent - code_exponent(tile));
}

void add_key_strip(Piece piece, uint strip, inout KeyVectors vectors, int exponent) {
    const uint bits = strip_bits(piece, strip);
    uvec4 tiles[kPageTiles];
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        tiles[tile] = uvec4(0u);
    if (strip < piece.end16) {
        [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
            if (tile < piece.n_tiles)
                tiles[tile] = load_vector(piece.key_payload, strip * piece.n_tiles + tile);
    } else {
        take_codes(piece.key_payload, vectors_before(piece, strip), bits, vectors.even, tiles);
    }
    vectors = KeyVectors(vectors.odd, load_key_strip(piece, strip + 2u));
    if (strip == piece.end16 && strip != 0u)
        change_unit(exponent);
    const ColumnPairs plain = load_columns(strip);
    ColumnPairs folded = plain;
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile) {
        if (kGrouped != 0u && bits < 16u && tile * piece.key_groups % kPageTiles == 0u)
            folded = fold_group(piece, plain, strip, tile * piece.key_groups / kPageTiles,
                                exponent);
        key_sums[tile] =
            coopMatMulAddNV(matrix_of(tiles[tile]), column_matrix(folded), key_sums[tile]);
    }
}

// Products of all strips join the scores.
void add_key_products(Piece piece, inout KeyVectors vectors, int exponent) {
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        key_sums[tile] = zero_sums();
    [[dont_unroll]] for (uint strip = 0u; strip < push.n_strips; ++strip)
        add_key_strip(piece, strip, vectors, exponent);
    const bool has_codes = piece.end16 < kStrips;
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile) {
        const float unit =
            power((has_codes ? exponent + code_exponent(tile) : 0) - kLargeExponent);
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            scores[4u * tile + i] = fma(key_sums[tile][i], unit, scores[4u * tile + i]);
    }
}

ColumnMatrix value_columns[kPageTiles];

// The folded weights, of all tiles.
void begin_products() {
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        value_columns[tile] = column_matrix(load_columns(tile));
}

// The sums of a strip of the values.
SumMatrix multiply_value_strip(Piece piece, uint strip, StripVectors ahead, uint n_tokens) {
    uvec4 tiles[kPageTiles];
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        tiles[tile] = uvec4(0u);
    if (piece.value_bits < 16u)
        take_codes(piece.value_payload, min(strip, kStrips - 1u) * (piece.value_bits / 2u),
                   piece.value_bits, ahead, tiles);
    else
        [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
            tiles[tile] = load_half_values(piece, strip, tile, n_tokens);
    SumMatrix even = zero_sums();
    SumMatrix odd = zero_sums();
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; tile += 2u) {
        even = coopMatMulAddNV(matrix_of(tiles[tile]), value_columns[tile], even);
        odd = coopMatMulAddNV(matrix_of(tiles[tile + 1u]), value_columns[tile + 1u], odd);
    }
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        even[i] += odd[i];
    return even;
}

// The lane's sums of a pair of strips of the values.
void multiply_value_pair(Piece piece, uint strip, bool is_there, uint n_tokens,
                         out float sums[kOutputs]) {
    const StripVectors even = value_vectors.even;
    const StripVectors odd = value_vectors.odd;
    begin_value_vectors(piece, strip + 2u);
    const SumMatrix even_sums = multiply_value_strip(piece, strip, even, n_tokens);
    const SumMatrix odd_sums = multiply_value_strip(piece, strip + 1u, odd, n_tokens);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        sums[i] = even_sums[i];
        sums[4u + i] = odd_sums[i];
    }
}

#endif
