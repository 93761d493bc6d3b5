// Decode attention: weights, and their products with the values of a piece. Channels are rows,
// tokens k.
//
// The ranges of a channel group are multiplied into the weights, after a division by a power of two
// above the largest of them. Weights times minimum + range / 2 are the same for all channels of a
// group, and join its products once.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_VALUES_GLSL
#define LK_SHADERS_DECODE_VALUES_GLSL

#include "shaders/decode/keys.glsl"

const float kNothing = -1e30;  // a top before any score; above kHidden

// What a team has gathered, relative to exp2(-top).
shared float shared_outputs[kTeams * kHeadDim * kColumns];  // [team][channel][column]
float shared_output(uint of_team, uint channel, uint column) {
    return shared_outputs[(of_team * kHeadDim + channel) * kColumns + column];
}
float tops[kColumnSets];  // of the lane's columns
float sums_of_weights[kColumnSets];  // over the lane's tokens

const uint kOutputPairs = (kStrips + 1u) / 2u;  // of strips
// Output number i of the lane, of the pair of strips that begins with `strip`.
uint output_place(uint strip, uint i) {
    const uint channel = strip * LK_STRIP_CHANNELS + output_number(i) * 8u + row();
    return (team * kHeadDim + channel) * kColumns + output_column(i);
}
bool is_output(uint strip, uint i, uint end) {
    return strip + output_number(i) / 2u < end && is_column(output_column(i));
}

void clear_outputs() {
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        tops[set] = kNothing;
        sums_of_weights[set] = 0.0;
    }
    [[dont_unroll]] for (uint strip = 0u; strip < push.n_strips; strip += 2u)
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
        [[dont_unroll]] for (uint strip = 0u; strip < push.n_strips; strip += 2u)
            [[unroll]] for (uint i = 0u; i < kOutputs; ++i)
                if (is_output(strip, i, kStrips))
                    shared_outputs[output_place(strip, i)] *= factors[i % kColumnSets];
}

// Twice the exponent of tanh, in powers of two, is x times this factor.
float cap_score(LayerInfo layer, float x) {
    const float power_of_tanh = exp2(clamp(x * (2.0 / layer.soft_cap), -60.0, 60.0));
    return layer.soft_cap * kLog2E * (1.0 - 2.0 / (power_of_tanh + 1.0));
}

// The lane's slots whose tokens a column does not see, a bit each.
uint hidden_slots(Unit unit, Piece piece, Column column) {
    uint hidden = 0u;
    [[dont_unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
        if (slot_tile(slot) >= piece.n_tiles ||
            !sees(unit, column, piece.first_token + slot_token(slot)))
            hidden |= 1u << slot;
    return hidden;
}

// Products become scores in powers of two, then weights.
void weigh(Unit unit, Piece piece) {
    const bool is_masked =
        piece.n_tiles < kPageTiles ||
        hides(unit, piece.first_token, piece.first_token + piece.n_tiles * LK_TILE_TOKENS);
    uint hidden[kColumnSets];
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        const Column column = shared_columns[column_of(quad_lane(), set) % kColumns];
        hidden[set] = 0u;
        if (is_masked)
            hidden[set] = hidden_slots(unit, piece, column);
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
            scores[slot * kColumnSets + set] =
                fma(scores[slot * kColumnSets + set], column.factor, column.shift);
    }
    if (unit.layer.soft_cap > 0.0) {
        [[unroll]] for (uint i = 0u; i < kScores; ++i)
            scores[i] = cap_score(unit.layer, scores[i]);
    }
    [[unroll]] for (uint i = 0u; i < kScores; ++i)
        if ((hidden[i % kColumnSets] >> i / kColumnSets & 1u) != 0u)
            scores[i] = kHidden;
    raise_tops();
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot) {
            const uint at = slot * kColumnSets + set;
            scores[at] = exp2(scores[at] - tops[set]);
            sums_of_weights[set] += scores[at];
        }
}

// Ranges and minima of the tokens of a channel group. In K order those of rows g and g + 8 of a
// tile are among four neighbours.
const uint kLaneTiles = kQuadColumns > 1u ? kPageTiles : kPageTiles / 2u;
const uint kTileSlots = kSlots / kLaneTiles;
uvec2 value_ranges[kLaneTiles];
uvec2 value_minima[kLaneTiles];

void load_value_numbers(Piece piece, uint group) {
    // Without a value of their own they would be kept from piece to piece.
    [[unroll]] for (uint i = 0u; i < kLaneTiles; ++i)
        value_ranges[i] = value_minima[i] = uvec2(0u);
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
    const uint number = slot_of_lane() + (is_odd ? kSlotStep : 0u);
    const uint place = number / 2u * 4u + row() / 2u;
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        [[unroll]] for (uint slot = 0u; slot < kSlots; slot += 2u) {
            const float even_slot = scores[slot * kColumnSets + set] * factors[slot];
            const float odd_slot = scores[(slot + 1u) * kColumnSets + set] * factors[slot + 1u];
            const float other = exchange(is_odd ? even_slot : odd_slot, 4u);
            const vec2 pair = is_odd ? vec2(other, odd_slot) : vec2(even_slot, other);
            const uint column = column_of(quad_lane(), set);
            if (is_column(column))
                store_folded_pair(place + slot * kSlotStep * 2u, column, number & 1u, pair);
        }
}

// Factors of the lane's slots, the ranges of a channel group. Returns the largest; middles: the
// weights times minimum + range / 2.
float take_ranges(Piece piece, out float factors[kSlots], inout float middles[kColumnSets]) {
    float most = 0.0;
    [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot) {
        const uint tile = slot / kTileSlots;
        factors[slot] =
            number_of(value_ranges[tile], slot_row(slot), row() & 1u, piece.has_f8_values);
        most = max(most, factors[slot]);
        const float minimum =
            number_of(value_minima[tile], slot_row(slot), row() & 1u, piece.has_f8_values);
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
    float unit = power(exponent - kLargeExponent);
    [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
        factors[slot] *= power(kLargeExponent - exponent);
    if (has_ranges)
        unit *= code_range(piece.value_bits);
    store_weights(factors);
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        middles[set] = column_sum(middles[set]);
    return unit;
}

// A pair of strips: from `strip` on, those before `end`.
void multiply_value_strips(Piece piece, uint strip, uint end, float unit,
                           float middles[kColumnSets], uint n_tokens) {
    float sums[kOutputs];
    multiply_value_pair(piece, strip, strip < end && piece.n_tiles != 0u, n_tokens, sums);
    [[unroll]] for (uint i = 0u; i < kOutputs; ++i)
        if (is_output(strip, i, end))
            shared_outputs[output_place(strip, i)] += fma(sums[i], unit, middles[i % kColumnSets]);
}

// What multiply_values() needs first, to be on its way before.
void begin_values(Piece piece) {
    load_value_numbers(piece, 0u);
    begin_value_vectors(piece, 0u);
}

// A class has one channel group, or its groups are folded one after the other, anew for each pair
// of strips: those of two groups make no pair.
void multiply_values(Unit unit, Piece piece) {
    const uint n_tokens = unit.n_history + unit.n_new;
    const uint group_steps = (piece.value_group_strips + 1u) / 2u;
    float middles[kColumnSets];
    float factor = 0.0;
    if (kGrouped == 0u) {
        factor = fold_weights(piece, 0u, middles);
        team_sync();
    }
    [[dont_unroll]] for (uint step = 0u; step < push.n_value_steps; ++step) {
        uint strip = 2u * step;
        uint end = kStrips;
        if (kGrouped != 0u) {
            const uint group = step / group_steps;
            const uint from = min(group * piece.value_group_strips, kStrips);
            strip = from + 2u * (step % group_steps);
            end = min(from + piece.value_group_strips, kStrips);
            if (step != 0u && strip < end) {
                load_value_numbers(piece, group);
                begin_value_vectors(piece, strip);
            }
            factor = fold_weights(piece, group, middles);
            team_sync();
            }
        multiply_value_strips(piece, strip, end, factor, middles, n_tokens);
        if (kGrouped != 0u)
            team_sync();
    }
    team_sync();
}

#endif
