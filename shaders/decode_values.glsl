// Decode attention: weights, and their products with the values of a piece. Channels are rows, tokens
// k.
//
// The ranges of a channel group are multiplied into the weights, after a division by a power of two
// above the largest of them. Weights times minimum + range / 2 are the same for all channels of a
// group, and join its products once.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_VALUES_GLSL
#define LK_SHADERS_DECODE_VALUES_GLSL

#include "decode_keys.glsl"

const float kNothing = -1e30;  // a top before any score; above kHidden

// What a team has gathered, relative to exp2(-top).
shared float shared_outputs[kTeams * kHeadDim * kColumns];  // [team][channel][column]
float tops[kColumnSets];  // of the lane's columns
float sums_of_weights[kColumnSets];  // over the lane's tokens

const uint kOutputPairs = (kStrips + 1u) / 2u;  // of strips
const uint kOutputs = kColumns;  // of a lane and pair of strips: a quarter of [strip][row][column]

// Output number i of the lane, of the pair of strips that begins with `strip`.
uint output_number(uint i) { return (4u * i + quad_lane()) / kColumns; }
uint output_place(uint strip, uint i) {
    const uint channel = strip * LK_STRIP_CHANNELS + output_number(i) * 8u + row();
    return (team * kHeadDim + channel) * kColumns + (4u * i + quad_lane()) % kColumns;
}
bool is_output(uint strip, uint i, uint end) { return strip + output_number(i) / 2u < end; }

void clear_outputs() {
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        tops[set] = kNothing;
        sums_of_weights[set] = 0.0;
    }
    for (uint strip = 0u; strip < kStrips; strip += 2u)
        [[unroll]] for (uint i = 0u; i < kOutputs; ++i)
            if (is_output(strip, i, kStrips))
                shared_outputs[output_place(strip, i)] = 0.0;
}

// Raise the lane's tops to the highest scores of the piece.
void raise_tops() {
    float factors[kColumnSets];
    bool changes = false;
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        float most = tops[set];
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
            most = max(most, scores[slot * kColumnSets + set]);
        most = column_max(most);
        factors[set] = exp2(tops[set] - most);
        changes = changes || most > tops[set];
        tops[set] = most;
        sums_of_weights[set] *= factors[set];
    }
    if (changes)
        for (uint strip = 0u; strip < kStrips; strip += 2u)
            [[unroll]] for (uint i = 0u; i < kOutputs; ++i)
                if (is_output(strip, i, kStrips))
                    shared_outputs[output_place(strip, i)] *= factors[i % kColumnSets];
}

// Twice the exponent of tanh, in powers of two, is x times this factor.
float cap_score(LayerInfo layer, float x) {
    const float power_of_tanh = exp2(clamp(x * (2.0 / layer.soft_cap), -60.0, 60.0));
    return layer.soft_cap * kLog2E * (1.0 - 2.0 / (power_of_tanh + 1.0));
}

// Products become scores in powers of two, then weights.
void weigh(Unit unit, Piece piece) {
    const bool is_masked =
        piece.n_tiles < kPageTiles ||
        hides(unit, piece.first_token, piece.first_token + piece.n_tiles * LK_TILE_TOKENS);
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        const Column column = shared_columns[column_of(set)];
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot) {
            const uint at = slot * kColumnSets + set;
            scores[at] *= column.factor;
            if (unit.layer.soft_cap > 0.0)
                scores[at] = cap_score(unit.layer, scores[at]);
            if (is_masked && (slot_tile(slot) >= piece.n_tiles ||
                              !sees(unit, column, piece.first_token + slot_token(slot))))
                scores[at] = kHidden;
        }
    }
    raise_tops();
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot) {
            const uint at = slot * kColumnSets + set;
            scores[at] = exp2(scores[at] - tops[set]);
            sums_of_weights[set] += scores[at];
        }
}

// Ranges and minima of the tokens of a channel group. In K order those of rows g and g + 8 of a tile
// are among four neighbours.
const uint kLaneTiles = kQuadColumns > 1u ? kPageTiles : kPageTiles / 2u;
const uint kTileSlots = kSlots / kLaneTiles;
uvec2 value_ranges[kLaneTiles];
uvec2 value_minima[kLaneTiles];

void load_value_numbers(Piece piece, uint group) {
    if (piece.value_bits == 16u || group >= piece.value_groups)
        return;
    const Address minima = address_add(piece.value_metadata, piece.value_minima);
    [[unroll]] for (uint i = 0u; i < kLaneTiles; ++i) {
        const uint at = group * LK_MAX_PAGE_TOKENS + slot_tile(i * kTileSlots) * LK_TILE_TOKENS +
                        row() / 2u * 4u;
        value_ranges[i] = load_numbers(piece.value_metadata, at, piece.has_f8_values);
        value_minima[i] = load_numbers(minima, at, piece.has_f8_values);
    }
}

// The lane's weights, times factors of its slots, to where values are multiplied. A lane pairs its
// own token with that of the next or the last row: even rows do so in even slots, odd rows in odd
// ones.
void store_weights(float factors[kSlots]) {
    const bool is_odd = (row() & 1u) != 0u;
    const uint number = quad_lane() / kQuadColumns + (is_odd ? kSlotStep : 0u);
    const uint place = number / 2u * 4u + row() / 2u;
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        [[unroll]] for (uint slot = 0u; slot < kSlots; slot += 2u) {
            const float even_slot = scores[slot * kColumnSets + set] * factors[slot];
            const float odd_slot = scores[(slot + 1u) * kColumnSets + set] * factors[slot + 1u];
            const float other = exchange(is_odd ? even_slot : odd_slot, 4u);
            const vec2 pair = is_odd ? vec2(other, odd_slot) : vec2(even_slot, other);
            store_folded_pair(place + slot * kSlotStep * 2u, column_of(set), number & 1u, pair);
        }
}

// Factors of the lane's slots, the ranges of a channel group. Returns the largest; middles: the
// weights times minimum + range / 2.
float take_ranges(Piece piece, out float factors[kSlots], inout float middles[kColumnSets]) {
    float most = 0.0;
    [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot) {
        const uint tile = slot / kTileSlots;
        const uint i = (row() & 1u) + 2u * slot_row(slot);
        factors[slot] = number_of(value_ranges[tile], i, piece.has_f8_values);
        most = max(most, factors[slot]);
        const float minimum = number_of(value_minima[tile], i, piece.has_f8_values);
        const float middle = fma(factors[slot], 0.5, minimum);
        [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
            middles[set] = fma(scores[slot * kColumnSets + set], middle, middles[set]);
    }
    return most;
}

// Fold the ranges of a channel group into the weights. Returns what its products are multiplied by;
// middles: what joins them.
float fold_weights(Piece piece, uint group, out float middles[kColumnSets]) {
    const bool has_ranges = piece.value_bits < 16u && group < piece.value_groups;
    float factors[kSlots];
    float most = 0.5;
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        middles[set] = 0.0;
    if (has_ranges) {
        most = take_ranges(piece, factors, middles);
    } else {
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
            factors[slot] = 1.0;
    }
    const int exponent = exponent_above(column_max(most));
    [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
        factors[slot] *= power(kLargeExponent - exponent);
    store_weights(factors);
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        middles[set] = column_sum(middles[set]);
    return power(exponent - kLargeExponent) * (has_ranges ? code_range(piece.value_bits) : 1.0);
}

const uint kPairSums = 4u * kColumns;  // of a lane and pair of strips: [strip][row][column]

void multiply_value_tile(inout Sum sums[kPairSums], uint first, Tile codes, Pair folded[kFolded]) {
    [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
        const uint at = first + column;
        add_product(sums[at], codes.r0, folded[2u * column]);
        add_product(sums[at], codes.r2, folded[2u * column + 1u]);
        add_product(sums[at + kColumns], codes.r1, folded[2u * column]);
        add_product(sums[at + kColumns], codes.r3, folded[2u * column + 1u]);
    }
}

// The first vectors of a pair of strips, ahead of their use.
uvec4 value_vectors[2];

void begin_value_vectors(Piece piece, uint strip) {
    const uint n_vectors = piece.value_bits / 2u;
    if (piece.value_bits < 16u)
        [[unroll]] for (uint s = 0u; s < 2u; ++s)
            value_vectors[s] =
                load_vector(piece.value_payload, min(strip + s, kStrips - 1u) * n_vectors);
}

// A pair of strips.
void multiply_code_values(inout float totals[kPairSums], Piece piece, uint bits, uint strip) {
    const uint n_tiles = 16u / bits;  // of a vector
    const uint n_vectors = bits / 2u;
    Sum sums[kPairSums];
    [[unroll]] for (uint i = 0u; i < kPairSums; ++i)
        sums[i] = kZeroSum;
    [[unroll]] for (uint v = 0u; v < n_vectors; ++v) {
        const uvec4 words[2] = value_vectors;
        const uint following = v + 1u < n_vectors ? strip * n_vectors + v + 1u
                                                  : (strip + 2u) * n_vectors;
        [[unroll]] for (uint s = 0u; s < 2u; ++s)
            value_vectors[s] = load_vector(
                piece.value_payload, min(following + s * n_vectors, kStrips * n_vectors - 1u));
        [[unroll]] for (uint i = 0u; i < n_tiles; ++i) {
            Pair folded[kFolded];
            load_folded((v * n_tiles + i) * 4u + quad_lane(), folded);
            [[unroll]] for (uint s = 0u; s < 2u; ++s)
                multiply_value_tile(sums, s * 2u * kColumns, code_tile(words[s], bits, i), folded);
        }
    }
    [[unroll]] for (uint i = 0u; i < kPairSums; ++i)
        totals[i] = total_of(sums[i]);
}

// Halves of tokens that are not there need not be numbers: make them 0.
uint keep_tokens(uint word, uint token, uint n_tokens) {
    return token + 1u < n_tokens ? word : token < n_tokens ? word & 0xFFFFu : 0u;
}
uvec4 load_half_values(Piece piece, uint strip, uint tile, uint n_tokens) {
    uvec4 words = load_vector(piece.value_payload, min(strip, kStrips - 1u) * piece.n_tiles + tile);
    const uint token = piece.first_token + tile * LK_TILE_TOKENS + 2u * quad_lane();
    if (piece.first_token + piece.n_tiles * LK_TILE_TOKENS > n_tokens)
        words = uvec4(keep_tokens(words.x, token, n_tokens), keep_tokens(words.y, token, n_tokens),
                      keep_tokens(words.z, token + 8u, n_tokens),
                      keep_tokens(words.w, token + 8u, n_tokens));
    return words;
}

// The same at 16 bits, in FP32: values may be as large as FP16 goes.
void multiply_half_values(inout float totals[kPairSums], Piece piece, uint strip, uint n_tokens) {
    uvec4 words[2][kPageTiles];
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        [[unroll]] for (uint s = 0u; s < 2u; ++s) {
            words[s][tile] = uvec4(0u);
            if (tile < piece.n_tiles)
                words[s][tile] = load_half_values(piece, strip + s, tile, n_tokens);
        }
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile) {
        Pair folded[kFolded];
        load_folded(tile * 4u + quad_lane(), folded);
        [[unroll]] for (uint s = 0u; s < 2u; ++s)
            [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                const vec2 low = unpackHalf2x16(words[s][tile][i]);
                const vec2 high = unpackHalf2x16(words[s][tile][i + 2u]);
                [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
                    const uint at = (2u * s + i) * kColumns + column;
                    add_product(totals[at], low, vec2(folded[2u * column]));
                    add_product(totals[at], high, vec2(folded[2u * column + 1u]));
                }
            }
    }
}

// Strips [from, to), a channel group.
void multiply_value_strips(Piece piece, uint from, uint to, float unit, float middles[kColumnSets],
                           uint n_tokens) {
    const uint end = kIsFree ? to : from + 2u * kOutputPairs;
    for (uint strip = from; strip < end; strip += 2u) {
        float totals[kPairSums];
        [[unroll]] for (uint i = 0u; i < kPairSums; ++i)
            totals[i] = 0.0;
        if (strip < to) {
            if (piece.value_bits == 2u)
                multiply_code_values(totals, piece, 2u, strip);
            else if (piece.value_bits == 4u)
                multiply_code_values(totals, piece, 4u, strip);
            else if (piece.value_bits == 8u)
                multiply_code_values(totals, piece, 8u, strip);
            else
                multiply_half_values(totals, piece, strip, n_tokens);
        }
        [[unroll]] for (uint i = 0u; i < kOutputs; ++i) {
            const float sum = quad_sum(vec4(totals[4u * i], totals[4u * i + 1u],
                                            totals[4u * i + 2u], totals[4u * i + 3u]));
            if (is_output(strip, i, to))
                shared_outputs[output_place(strip, i)] += fma(sum, unit, middles[i % kColumnSets]);
        }
    }
}

// What multiply_values() needs first, to be on its way before.
void begin_values(Piece piece) {
    load_value_numbers(piece, 0u);
    begin_value_vectors(piece, 0u);
}

void multiply_values(Unit unit, Piece piece) {
    const uint n_groups = kIsFree ? piece.value_groups : shared_most_value_groups;
    for (uint group = 0u; group < n_groups; ++group) {
        const bool is_own = group < piece.value_groups;
        const uint from = min(group * piece.value_group_strips, kStrips);
        const uint to = is_own ? min(from + piece.value_group_strips, kStrips) : from;
        if (group != 0u && is_own) {
            load_value_numbers(piece, group);
            begin_value_vectors(piece, from);
        }
        float middles[kColumnSets];
        const float factor = fold_weights(piece, group, middles);
        team_sync();
        multiply_value_strips(piece, from, to, factor, middles, unit.n_history + unit.n_new);
        team_sync();
    }
}

#endif
