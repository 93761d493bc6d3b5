// Decode attention: products of queries and the keys of a piece. Tokens are rows, channels k.
//
// Ranges are multiplied into the queries, the codes are taken around their middle, and so are the
// keys: minimum + range / 2 of each token group, times the queries, is where the group's scores
// begin. Ranges are divided by a power of two above the largest of the page.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_KEYS_GLSL
#define LK_SHADERS_DECODE_KEYS_GLSL

#include "decode_pieces.glsl"

const uint kSums = 4u * kScores;  // of a lane: [tile][row][column]
const uint kFoldTasks = (4u * kStrips + LK_LANES - 1u) / LK_LANES;
// With several token groups, queries and ranges meet in FP16: each takes half of kLarge.
const int kGroupedExponent = kLargeExponent / 2;

float scores[kScores];  // of the lane: products, then weights

uint strip_bits(Piece piece, uint strip) {
    return strip < piece.end16 ? 16u : strip < piece.end8 ? 8u : strip < piece.end4 ? 4u : 2u;
}
// Vectors of 32 lanes before a strip of the keys.
uint vectors_before(Piece piece, uint strip) {
    const uint in16 = min(strip, piece.end16);
    const uint in8 = min(strip, piece.end8) - in16;
    const uint in4 = min(strip, piece.end4) - in16 - in8;
    return 7u * in16 + 3u * in8 + in4 + strip;
}
uvec4 load_vector(Address payload, uint vector) {
    return ConstQuads(payload).at[vector * LK_LANES + lane];
}

uvec2 load_key_numbers(Piece piece, uint offset, uint strip, uint group, uint t) {
    return load_numbers(address_add(piece.key_metadata, offset),
                        ((strip * piece.key_groups + group) * 4u + t) * 4u, piece.has_f8_keys);
}
vec4 key_ranges(Piece piece, uint strip, uint group, uint t) {
    return to_numbers(load_key_numbers(piece, 0u, strip, group, t), piece.has_f8_keys);
}

// Channels of the slots 2t, 2t + 1, 2t + 8, 2t + 9 of a strip.
uvec4 slot_channels(Piece piece, uint strip, uint t) {
    if (is_null(piece.permutation))
        return strip * LK_STRIP_CHANNELS + 2u * t + uvec4(0u, 1u, 8u, 9u);
    const uint low = ConstWords(piece.permutation).at[strip * 4u + t / 2u] >> (t & 1u) * 16u;
    const uint high = ConstWords(piece.permutation).at[strip * 4u + 2u + t / 2u] >> (t & 1u) * 16u;
    return uvec4(low, low >> 8, high, high >> 8) & 0xFFu;
}
vec4 queries_of(uvec4 channels, uint column) {
    const uvec4 at = channels * kColumns + column;
    return vec4(shared_queries[at.x], shared_queries[at.y], shared_queries[at.z], shared_queries[at.w]);
}

// What a lane folds into the queries: of strips task / 4, its four slots' numbers of a token group.
struct FoldTask {
    uvec2 ranges;
    uvec2 minima;
    uvec4 channels;
};
bool has_codes(Piece piece, uint task) {
    return task / 4u >= piece.end16 && task / 4u < kStrips;
}
void load_tasks(Piece piece, uint group, inout FoldTask tasks[kFoldTasks]) {
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = lane + i * LK_LANES;
        if (has_codes(piece, task)) {
            tasks[i].ranges = load_key_numbers(piece, 0u, task / 4u, group, task % 4u);
            tasks[i].minima = load_key_numbers(piece, piece.key_minima, task / 4u, group, task % 4u);
        }
    }
}

// The exponent that the page's ranges are divided by.
int range_exponent(Piece piece, FoldTask tasks[kFoldTasks]) {
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = lane + i * LK_LANES;
        if (has_codes(piece, task)) {
            most = max(most, largest_of(to_numbers(tasks[i].ranges, piece.has_f8_keys)));
            if (kGrouped != 0u)
                for (uint group = 1u; group < piece.key_groups; ++group)
                    most = max(most, largest_of(key_ranges(piece, task / 4u, group, task % 4u)));
        }
    }
    return exponent_above(team_max(most));
}

// Queries in the order of the page's slots, with what is multiplied into them.
void fold_queries(Piece piece, FoldTask tasks[kFoldTasks], int exponent) {
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = lane + i * LK_LANES;
        if (task / 4u < kStrips) {
            vec4 factors = vec4(kLarge);
            const uint bits = strip_bits(piece, task / 4u);
            if (bits < 16u && kGrouped != 0u)
                factors = vec4(code_range(bits) * power(kGroupedExponent));
            else if (bits < 16u)
                factors = to_numbers(tasks[i].ranges, piece.has_f8_keys) *
                          (code_range(bits) * power(kLargeExponent - exponent));
            [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
                const vec4 folded = queries_of(tasks[i].channels, column) * factors;
                store_folded_pair(task, column, 0u, folded.xy);
                store_folded_pair(task, column, 1u, folded.zw);
            }
        }
    }
}

// Scores begin at the products of the queries with the middles.
void begin_scores(Piece piece, inout FoldTask tasks[kFoldTasks]) {
    [[unroll]] for (uint i = 0u; i < kScores; ++i)
        scores[i] = 0.0;
    const uint n_groups = kIsFree ? piece.key_groups : shared_most_key_groups;
    for (uint group = 0u; group < n_groups; ++group) {
        if (group != 0u && group < piece.key_groups)
            load_tasks(piece, group, tasks);
        float products[kColumns];
        [[unroll]] for (uint column = 0u; column < kColumns; ++column)
            products[column] = 0.0;
        [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i)
            if (has_codes(piece, lane + i * LK_LANES)) {
                const vec4 middles = 0.5 * to_numbers(tasks[i].ranges, piece.has_f8_keys) +
                                     to_numbers(tasks[i].minima, piece.has_f8_keys);
                [[unroll]] for (uint column = 0u; column < kColumns; ++column)
                    products[column] += dot(queries_of(tasks[i].channels, column), middles);
            }
        [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
            vec4 four;
            [[unroll]] for (uint i = 0u; i < 4u; ++i)
                four[i] = products[4u * set + i % kQuadColumns];
            float product = quad_sum(four);
            [[unroll]] for (uint distance = 4u; distance < LK_LANES; distance *= 2u)
                product += exchange(product, distance);
            [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
                if (kGrouped == 0u || slot_tile(slot) * piece.key_groups / kPageTiles == group)
                    scores[slot * kColumnSets + set] = product;
        }
    }
}

void multiply_key_tile(inout Sum sums[kSums], uint tile, Tile codes, Pair folded[kFolded]) {
    [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
        const uint at = 2u * tile * kColumns + column;
        add_product(sums[at], codes.r0, folded[2u * column]);
        add_product(sums[at], codes.r2, folded[2u * column + 1u]);
        add_product(sums[at + kColumns], codes.r1, folded[2u * column]);
        add_product(sums[at + kColumns], codes.r3, folded[2u * column + 1u]);
    }
}

// The vectors of a piece's packed keys in their order, one of them ahead.
struct KeyVectors {
    uvec4 next;
    uint index;  // of it
    uint last;
};
KeyVectors begin_vectors(Piece piece) {
    KeyVectors vectors;
    vectors.last = vectors_before(piece, kStrips) - 1u;
    vectors.index = min(vectors_before(piece, piece.end16), vectors.last);
    if (piece.end16 < kStrips)
        vectors.next = load_vector(piece.key_payload, vectors.index);
    return vectors;
}
uvec4 take_vector(Piece piece, inout KeyVectors vectors) {
    const uvec4 words = vectors.next;
    vectors.index = min(vectors.index + 1u, vectors.last);
    vectors.next = load_vector(piece.key_payload, vectors.index);
    return words;
}

// Strips [from, to), all of the same width.
void multiply_key_strips(inout Sum sums[kSums], Piece piece, uint bits, uint from, uint to,
                         inout KeyVectors vectors, int exponent) {
    const uint n_tiles = 16u / bits;  // of a vector
    for (uint strip = from; strip < to; ++strip) {
        Pair plain[kFolded];
        Pair folded[kFolded];
        load_folded(strip * 4u + quad_lane(), plain);
        [[unroll]] for (uint i = 0u; i < kFolded; ++i)
            folded[i] = plain[i];
        [[unroll]] for (uint v = 0u; v < bits / 2u; ++v) {
            const uvec4 words = take_vector(piece, vectors);
            [[unroll]] for (uint i = 0u; i < n_tiles; ++i) {
                const uint tile = v * n_tiles + i;
                if (kGrouped != 0u && tile * piece.key_groups % kPageTiles == 0u) {
                    const uint group = tile * piece.key_groups / kPageTiles;
                    const vec4 ranges = key_ranges(piece, strip, group, quad_lane()) *
                                        power(kGroupedExponent - exponent);
                    const Pair low = to_pair(ranges.xy);
                    const Pair high = to_pair(ranges.zw);
                    [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
                        folded[2u * column] = plain[2u * column] * low;
                        folded[2u * column + 1u] = plain[2u * column + 1u] * high;
                    }
                }
                multiply_key_tile(sums, tile, code_tile(words, bits, i), folded);
            }
        }
    }
}

// Strips at 16 bits, in FP32: keys may be as large as FP16 goes.
void multiply_half_strips(inout float sums[kSums], Piece piece) {
    for (uint strip = 0u; strip < piece.end16; ++strip) {
        Pair folded[kFolded];
        load_folded(strip * 4u + quad_lane(), folded);
        uvec4 words[kPageTiles];
        [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
            words[tile] = tile < piece.n_tiles
                              ? load_vector(piece.key_payload, strip * piece.n_tiles + tile)
                              : uvec4(0u);
        [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
            [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                const vec2 low = unpackHalf2x16(words[tile][i]);
                const vec2 high = unpackHalf2x16(words[tile][i + 2u]);
                [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
                    const uint at = (2u * tile + i) * kColumns + column;
                    add_product(sums[at], low, vec2(folded[2u * column]));
                    add_product(sums[at], high, vec2(folded[2u * column + 1u]));
                }
            }
    }
}

// Packed strips [from, to).
void multiply_code_strips(inout float totals[kSums], Piece piece, uint from, uint to,
                          inout KeyVectors vectors, int exponent) {
    Sum sums[kSums];
    [[unroll]] for (uint i = 0u; i < kSums; ++i)
        sums[i] = kZeroSum;
    multiply_key_strips(sums, piece, 8u, from, min(to, piece.end8), vectors, exponent);
    multiply_key_strips(sums, piece, 4u, max(from, piece.end8), min(to, piece.end4), vectors,
                        exponent);
    multiply_key_strips(sums, piece, 2u, max(from, piece.end4), to, vectors, exponent);
    [[unroll]] for (uint i = 0u; i < kSums; ++i)
        totals[i] = total_of(sums[i]);
}

// Products of the queries and the piece's keys become the lane's scores. Loads come first.
void multiply_keys(Piece piece) {
    FoldTask tasks[kFoldTasks];
    load_tasks(piece, 0u, tasks);
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i)
        tasks[i].channels = slot_channels(piece, min((lane + i * LK_LANES) / 4u, kStrips - 1u),
                                          lane % 4u);
    KeyVectors vectors = begin_vectors(piece);
    const int exponent = range_exponent(piece, tasks);
    fold_queries(piece, tasks, exponent);
    team_sync();
    begin_scores(piece, tasks);
    const uint n_blocks = kIsFree ? key_blocks(piece.end16) : shared_most_blocks;
    uint from = 0u;
    for (uint block = 0u; block < n_blocks; ++block) {
        float totals[kSums];
        [[unroll]] for (uint i = 0u; i < kSums; ++i)
            totals[i] = 0.0;
        float unit = power(-kLargeExponent);
        if (from < piece.end16) {
            multiply_half_strips(totals, piece);
            from = piece.end16;
        } else if (from < kStrips) {
            const uint to = min(from + kBlockStrips, kStrips);
            multiply_code_strips(totals, piece, from, to, vectors, exponent);
            unit = power(exponent - kLargeExponent);
            from = to;
        }
        [[unroll]] for (uint i = 0u; i < kScores; ++i)
            scores[i] = fma(quad_sum(vec4(totals[4u * i], totals[4u * i + 1u], totals[4u * i + 2u],
                                          totals[4u * i + 3u])),
                            unit, scores[i]);
    }
    team_sync();
}

#endif
