// Decode attention: products of codes by a tensor core. Matrices are made of a lane's registers in
// the order that matrix_probe.comp asks the device for.
//
// Sums are in FP32, so numbers at 16 bits take the same way as codes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_GLSL
#define LK_SHADERS_DECODE_MATRIX_GLSL

#include "matrix.glsl"

Matrix matrix_of(Pair r0, Pair r1, Pair r2, Pair r3) {
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
Matrix code_matrix(uvec4 words, uint bits, uint tile) {
    const Tile codes = code_tile(words, bits, tile);
    return matrix_of(codes.r0, codes.r1, codes.r2, codes.r3);
}
Matrix half_matrix(uvec4 words) {
    return matrix_of(unpackFloat2x16(words.x), unpackFloat2x16(words.y), unpackFloat2x16(words.z),
                     unpackFloat2x16(words.w));
}

// What a tile is multiplied with: columns 2t and 2t + 1 of k g, and of k g + 8.
struct ColumnPairs {
    Pair low;
    Pair high;
};
// `block` is the strip of keys or the tile of values. k g is in the quad of pairs g / 2.
// Columns that are not there repeat others: nobody reads their sums.
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

SumMatrix key_sums[kPageTiles];

void multiply_key_strips(Piece piece, uint bits, uint from, uint to, inout KeyVectors vectors,
                         int exponent) {
    const uint n_tiles = 16u / bits;  // of a vector
    for (uint strip = from; strip < to; ++strip) {
        const ColumnPairs plain = load_columns(strip);
        ColumnMatrix folded = column_matrix(plain);
        [[unroll]] for (uint v = 0u; v < bits / 2u; ++v) {
            const uvec4 words = take_vector(piece, vectors);
            [[unroll]] for (uint i = 0u; i < n_tiles; ++i) {
                const uint tile = v * n_tiles + i;
                if (kGrouped != 0u && tile * piece.key_groups % kPageTiles == 0u) {
                    const uint group = tile * piece.key_groups / kPageTiles;
                    folded = column_matrix(fold_group(piece, plain, strip, group, exponent));
                }
                key_sums[tile] =
                    coopMatMulAddNV(code_matrix(words, bits, i), folded, key_sums[tile]);
            }
        }
    }
}

void multiply_half_strips(Piece piece) {
    for (uint strip = 0u; strip < piece.end16; ++strip) {
        const ColumnMatrix columns = column_matrix(load_columns(strip));
        uvec4 words[kPageTiles];
        [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
            words[tile] = tile < piece.n_tiles
                              ? load_vector(piece.key_payload, strip * piece.n_tiles + tile)
                              : uvec4(0u);
        [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
            key_sums[tile] = coopMatMulAddNV(half_matrix(words[tile]), columns, key_sums[tile]);
    }
}

// The sums so far join the scores.
void add_key_sums(float unit) {
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile) {
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            scores[4u * tile + i] = fma(key_sums[tile][i], unit, scores[4u * tile + i]);
        key_sums[tile] = zero_sums();
    }
}

// Products of all strips join the scores.
void add_key_products(Piece piece, inout KeyVectors vectors, int exponent) {
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        key_sums[tile] = zero_sums();
    if (piece.end16 != 0u) {
        multiply_half_strips(piece);
        add_key_sums(power(-kLargeExponent));
    }
    multiply_key_strips(piece, 8u, piece.end16, piece.end8, vectors, exponent);
    multiply_key_strips(piece, 4u, piece.end8, piece.end4, vectors, exponent);
    multiply_key_strips(piece, 2u, piece.end4, kStrips, vectors, exponent);
    add_key_sums(power(exponent - kLargeExponent));
}

ColumnMatrix value_columns[kPageTiles];
SumMatrix value_sums[2];

// The folded weights, of all tiles.
void begin_products() {
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        value_columns[tile] = column_matrix(load_columns(tile));
}

void multiply_code_values(Piece piece, uint bits, uint strip) {
    const uint n_tiles = 16u / bits;  // of a vector
    const uint n_vectors = bits / 2u;
    [[unroll]] for (uint v = 0u; v < n_vectors; ++v) {
        const uvec4 words[2] = value_vectors;
        take_value_vectors(piece, bits, strip, v);
        [[unroll]] for (uint i = 0u; i < n_tiles; ++i) {
            const uint tile = v * n_tiles + i;
            [[unroll]] for (uint s = 0u; s < 2u; ++s)
                value_sums[s] = coopMatMulAddNV(code_matrix(words[s], bits, i),
                                                value_columns[tile], value_sums[s]);
        }
    }
}
void multiply_half_values(Piece piece, uint strip, uint n_tokens) {
    uvec4 words[2u * kPageTiles];
    [[unroll]] for (uint i = 0u; i < 2u * kPageTiles; ++i)
        words[i] = load_half_values(piece, strip + i % 2u, i / 2u, n_tokens);
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile) {
        [[unroll]] for (uint s = 0u; s < 2u; ++s)
            value_sums[s] = coopMatMulAddNV(half_matrix(words[2u * tile + s]),
                                            value_columns[tile], value_sums[s]);
    }
}

// The lane's sums of a pair of strips of the values.
void multiply_value_pair(Piece piece, uint strip, bool is_there, uint n_tokens,
                         out float sums[kOutputs]) {
    [[unroll]] for (uint s = 0u; s < 2u; ++s)
        value_sums[s] = zero_sums();
    if (piece.value_bits == 2u)
        multiply_code_values(piece, 2u, strip);
    else if (piece.value_bits == 4u)
        multiply_code_values(piece, 4u, strip);
    else if (piece.value_bits == 8u)
        multiply_code_values(piece, 8u, strip);
    else
        multiply_half_values(piece, strip, n_tokens);
    [[unroll]] for (uint i = 0u; i < kOutputs; ++i)
        sums[i] = value_sums[i / 4u][i % 4u];
}

#endif
