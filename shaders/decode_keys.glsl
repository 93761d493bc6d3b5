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

vec4 key_numbers(Piece piece, uint offset, uint strip, uint group, uint t) {
    return load_numbers(address_add(piece.key_metadata, offset),
                        ((strip * piece.key_groups + group) * 4u + t) * 4u, piece.has_f8_keys);
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

// The exponent that the page's ranges are divided by.
int range_exponent(Piece piece) {
    float most = 0.0;
    for (uint group = 0u; group < piece.key_groups; ++group)
        [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
            const uint at = lane + i * LK_LANES;
            if (at / 4u >= piece.end16 && at / 4u < kStrips)
                most = max(most, largest_of(key_numbers(piece, 0u, at / 4u, group, at % 4u)));
        }
    return exponent_above(team_max(most));
}

// Queries in the order of the page's slots, with what is multiplied into them.
void fold_queries(Piece piece, int exponent) {
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint at = lane + i * LK_LANES;
        const uint strip = at / 4u;
        if (strip < kStrips) {
            vec4 factors = vec4(kLarge);
            const uint bits = strip_bits(piece, strip);
            if (bits < 16u && kGrouped != 0u)
                factors = vec4(code_range(bits) * power(kGroupedExponent));
            else if (bits < 16u)
                factors = key_numbers(piece, 0u, strip, 0u, at % 4u) *
                          (code_range(bits) * power(kLargeExponent - exponent));
            const uvec4 channels = slot_channels(piece, strip, at % 4u);
            [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
                const vec4 folded = queries_of(channels, column) * factors;
                store_folded_pair(at, column, 0u, folded.xy);
                store_folded_pair(at, column, 1u, folded.zw);
            }
        }
    }
}

// Scores begin at the products of the queries with the middles.
void begin_scores(Piece piece) {
    [[unroll]] for (uint i = 0u; i < kScores; ++i)
        scores[i] = 0.0;
    const uint n_groups = kIsFree ? piece.key_groups : shared_most_key_groups;
    for (uint group = 0u; group < n_groups; ++group) {
        float products[kColumns];
        [[unroll]] for (uint column = 0u; column < kColumns; ++column)
            products[column] = 0.0;
        [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
            const uint strip = (lane + i * LK_LANES) / 4u;
            if (group < piece.key_groups && strip >= piece.end16 && strip < kStrips) {
                const uint t = lane % 4u;
                const vec4 middles =
                    0.5 * key_numbers(piece, 0u, strip, group, t) +
                    key_numbers(piece, piece.key_minima, strip, group, t);
                const uvec4 channels = slot_channels(piece, strip, t);
                [[unroll]] for (uint column = 0u; column < kColumns; ++column)
                    products[column] += dot(queries_of(channels, column), middles);
            }
        }
        [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
            vec4 four;
            [[unroll]] for (uint i = 0u; i < 4u; ++i)
                four[i] = products[4u * set + i % kQuadColumns];
            float product = quad_sum(four);
            [[unroll]] for (uint distance = 4u; distance < LK_LANES; distance *= 2u)
                product += exchange(product, distance);
            [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
                if (slot_tile(slot) * piece.key_groups / kPageTiles == group)
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

// Strips [from, to), all of the same width. next is the vector that comes first, then the one behind
// the last.
void multiply_key_strips(inout Sum sums[kSums], Piece piece, uint bits, uint from, uint to,
                         uint last_vector, inout uint vector, inout uvec4 next, int exponent) {
    const uint n_tiles = 16u / bits;  // of a vector
    for (uint strip = from; strip < to; ++strip) {
        Pair plain[kFolded];
        Pair folded[kFolded];
        load_folded(strip * 4u + quad_lane(), plain);
        [[unroll]] for (uint i = 0u; i < kFolded; ++i)
            folded[i] = plain[i];
        [[unroll]] for (uint v = 0u; v < bits / 2u; ++v) {
            const uvec4 words = next;
            vector = min(vector + 1u, last_vector);
            next = load_vector(piece.key_payload, vector);
            [[unroll]] for (uint i = 0u; i < n_tiles; ++i) {
                const uint tile = v * n_tiles + i;
                if (kGrouped != 0u && tile * piece.key_groups % kPageTiles == 0u) {
                    const uint group = tile * piece.key_groups / kPageTiles;
                    const vec4 ranges = key_numbers(piece, 0u, strip, group, quad_lane()) *
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
void multiply_code_strips(inout float totals[kSums], Piece piece, uint from, uint to, int exponent) {
    Sum sums[kSums];
    [[unroll]] for (uint i = 0u; i < kSums; ++i)
        sums[i] = zero_sum();
    const uint last = vectors_before(piece, kStrips) - 1u;
    uint vector = vectors_before(piece, from);
    uvec4 next = load_vector(piece.key_payload, vector);
    multiply_key_strips(sums, piece, 8u, from, min(to, piece.end8), last, vector, next, exponent);
    multiply_key_strips(sums, piece, 4u, max(from, piece.end8), min(to, piece.end4), last, vector,
                        next, exponent);
    multiply_key_strips(sums, piece, 2u, max(from, piece.end4), to, last, vector, next, exponent);
    [[unroll]] for (uint i = 0u; i < kSums; ++i)
        totals[i] = total_of(sums[i]);
}

// Products of the queries and the piece's keys become the lane's scores.
void multiply_keys(Piece piece) {
    const int exponent = range_exponent(piece);
    fold_queries(piece, exponent);
    team_sync();
    begin_scores(piece);
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
            multiply_code_strips(totals, piece, from, to, exponent);
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
