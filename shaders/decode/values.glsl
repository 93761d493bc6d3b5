// Decode attention: weights, and their products with the values of a KV tile. Channels are rows,
// tokens k.
//
// The ranges of a channel group are multiplied into the weights, after a division by a power of two
// above the largest of them: once for a page of one group, else as a pair of strips takes the weights.
// Weights times minimum + range / 2 are the same for all channels of a group, and join its products
// once.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_VALUES_GLSL
#define LK_SHADERS_DECODE_VALUES_GLSL

#extension GL_EXT_control_flow_attributes : require

#ifdef LK_SUBGROUPS
#extension GL_KHR_shader_subgroup_vote : require
#endif

#include "shaders/decode/keys.glsl"

const float kNothing = -1e30;  // row_max before any score; above kHidden

// The accumulator of the teams of a page, relative to exp2(-row_max).
shared float shared_outputs[kPages * kValueDim * kColumns];  // [page][channel][column]
float shared_output(uint page, uint channel, uint column) {
    return shared_outputs[(page * kValueDim + channel) * kColumns + column];
}
float row_maxes[kColumnSets];  // of the lane's columns
float row_sums[kColumnSets];  // over the lane's tokens

// Output number i of the lane, of the pair of strips that begins with `strip`.
uint output_index(uint strip, uint i) {
    const uint channel = strip * LK_STRIP_CHANNELS + sum_index(i) * 8u + row();
    return (page_of_team() * kValueDim + channel) * kColumns + output_column(i);
}
bool is_output(uint strip, uint i, uint end) {
    return strip + sum_index(i) / 2u < end && is_column(output_column(i));
}

void clear_outputs() {
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        row_maxes[set] = kNothing;
        row_sums[set] = 0.0;
    }
    [[dont_unroll]] for (uint strip = 2u * team_of_page(); strip < push.n_value_strips;
                         strip += 2u * kPageTeams)
        [[unroll]] for (uint i = 0u; i < kOutputs; ++i)
            if (is_output(strip, i, kValueStrips))
                shared_outputs[output_index(strip, i)] = 0.0;
}

// Raise the lane's row_max to the highest scores of the KV tile.
void raise_row_maxes() {
    float factors[kColumnSets];
    bool changes = false;
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        float most = row_maxes[set];
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
            most = max(most, scores[slot * kColumnSets + set]);
        most = column_max(most);
        factors[set] = exp2(row_maxes[set] - most);
        changes = changes || most > row_maxes[set];
        row_maxes[set] = most;
        row_sums[set] *= factors[set];
    }
    if (changes)
        [[dont_unroll]] for (uint strip = 2u * team_of_page(); strip < push.n_value_strips;
                             strip += 2u * kPageTeams)
            [[unroll]] for (uint i = 0u; i < kOutputs; ++i)
                if (is_output(strip, i, kValueStrips))
                    shared_outputs[output_index(strip, i)] *= factors[i % kColumnSets];
}

// Twice the exponent of tanh, in powers of two, is x times this factor.
float cap_score(LayerInfo layer, float x) {
    const float power_of_tanh = exp2(clamp(x * (2.0 / layer.soft_cap), -60.0, 60.0));
    return layer.soft_cap * kLog2E * (1.0 - 2.0 / (power_of_tanh + 1.0));
}

// A bit for each of the lane's slots: is its token hidden from a column?
uint hidden_slots(WorkTile work_tile, KvTile kv_tile, Column column) {
    uint hidden = 0u;
    [[dont_unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
        if (slot_tile(slot) >= kv_tile.n_tiles ||
            !is_visible(work_tile, column, kv_tile.first_token + slot_token(slot)))
            hidden |= 1u << slot;
    return hidden;
}

// Products become scores in powers of two, then weights.
void weigh(WorkTile work_tile, KvTile kv_tile) {
    const bool is_masked =
        kv_tile.n_tiles < kPageTiles ||
        hides(work_tile, kv_tile.first_token, kv_tile.first_token + kv_tile.n_tiles * LK_TILE_TOKENS);
    uint hidden[kColumnSets];
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        const Column column = shared_columns[column_of(quad_lane(), set) % kColumns];
        hidden[set] = 0u;
        if (is_masked)
            hidden[set] = hidden_slots(work_tile, kv_tile, column);
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
            scores[slot * kColumnSets + set] =
                fma(scores[slot * kColumnSets + set], column.factor, column.shift);
    }
    if (work_tile.layer.soft_cap > 0.0) {
        [[unroll]] for (uint i = 0u; i < kScores; ++i)
            scores[i] = cap_score(work_tile.layer, scores[i]);
    }
    [[unroll]] for (uint i = 0u; i < kScores; ++i)
        if ((hidden[i % kColumnSets] >> i / kColumnSets & 1u) != 0u)
            scores[i] = kHidden;
    raise_row_maxes();
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot) {
            const uint at = slot * kColumnSets + set;
            scores[at] = exp2(scores[at] - row_maxes[set]);
            row_sums[set] += scores[at];
        }
}

// The lane's ranges and minima of a channel group: of the tokens 2t, 2t + 1, 2t + 8 and 2t + 9 of tile
// lane / 4, where t is lane % 4. They lie in this order.
uvec2 value_ranges;
uvec2 value_minima;

void load_value_parameters(KvTile kv_tile, uint group) {
    // Without a value of their own they would be kept from KV tile to KV tile.
    value_ranges = value_minima = uvec2(0u);
    if (kv_tile.value_bits == 16u || group >= kv_tile.value_groups)
        return;
    const uint at = group * LK_MAX_PAGE_TOKENS + 4u * lane;
    const Address minima = address_add(kv_tile.value_metadata, kv_tile.value_minima);
    value_ranges = load_parameters(kv_tile.value_metadata, at, kv_tile.has_f8_values);
    value_minima = load_parameters(minima, at, kv_tile.has_f8_values);
}

// Those of all tokens of a group: range and minimum in FP16, [tile][row], of rows g and g + 8.
uint value_parameters_index(uint tile, uint at_row) {
    return value_parameters_begin() + 8u * tile + at_row;
}

// Lays out the lane's parameters for all lanes. Returns the largest range.
float store_value_parameters(KvTile kv_tile) {
    const vec4 ranges = to_parameters(value_ranges, kv_tile.has_f8_values);
    const vec4 minima = to_parameters(value_minima, kv_tile.has_f8_values);
    const uint at = value_parameters_index(lane / 4u, 2u * (lane % 4u));
    shared_parameters[at] = uvec2(packHalf2x16(vec2(ranges.x, minima.x)),
                                        packHalf2x16(vec2(ranges.z, minima.z)));
    shared_parameters[at + 1u] = uvec2(packHalf2x16(vec2(ranges.y, minima.y)),
                                             packHalf2x16(vec2(ranges.w, minima.w)));
    return largest_of(ranges);
}

// The lane's weights, times factors of its slots, to where values are multiplied. A lane pairs its
// own token with that of the next or the last row: even rows do so in even slots, odd rows in odd
// ones.
void store_weights(float factors[kSlots]) {
    const bool is_odd = (row() & 1u) != 0u;
    const uint index = slot_of_lane() + (is_odd ? kSlotStep : 0u);
    const uint position = weight_row(index / 2u * 4u + row() / 2u);
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        [[unroll]] for (uint slot = 0u; slot < kSlots; slot += 2u) {
            const float even_slot = scores[slot * kColumnSets + set] * factors[slot];
            const float odd_slot = scores[(slot + 1u) * kColumnSets + set] * factors[slot + 1u];
            const float other = exchange(is_odd ? even_slot : odd_slot, 4u);
            const vec2 pair = is_odd ? vec2(other, odd_slot) : vec2(even_slot, other);
            const uint column = column_of(quad_lane(), set);
            if (is_column(column))
                store_folded_pair(position + slot * kSlotStep * 2u, column, index & 1u, pair);
        }
}

// Factors of the lane's slots, the ranges of a channel group; midpoints: the weights times minimum +
// range / 2.
void take_ranges(out float factors[kSlots], inout float midpoints[kColumnSets]) {
    [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot) {
        const uint at = value_parameters_index(slot_tile(slot), row());
        const vec2 parameters = unpackHalf2x16(shared_parameters[at][slot_row(slot)]);
        factors[slot] = parameters.x;
        const float midpoint = fma(parameters.x, 0.5, parameters.y);
        [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
            midpoints[set] = fma(scores[slot * kColumnSets + set], midpoint, midpoints[set]);
    }
}

// Fold the ranges of the only channel group into the weights. Returns the factor of its products;
// midpoints: the summand that joins them.
float fold_weights(KvTile kv_tile, out float midpoints[kColumnSets]) {
    const bool has_ranges = kv_tile.value_bits < 16u;
    const float most = store_value_parameters(kv_tile);
    const float most_of_team = team_max(most);
    const int exponent = exponent_above(has_ranges ? most_of_team : 0.5);
    team_sync();
    float factors[kSlots];
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        midpoints[set] = 0.0;
    if (has_ranges) {
        take_ranges(factors, midpoints);
    } else {
        [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
            factors[slot] = 1.0;
    }
    float step_scale = power(exponent - kLargeExponent);
    [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
        factors[slot] *= power(kLargeExponent - exponent);
    if (has_ranges)
        step_scale *= code_range(kv_tile.value_bits);
    store_weights(factors);
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        midpoints[set] = column_sum(midpoints[set]);
    return step_scale;
}

// The weights for all groups.
void store_plain_weights() {
    float factors[kSlots];
    [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
        factors[slot] = kLarge;
    store_weights(factors);
}

// As fold_weights(), of one of several groups: lays out its ranges, in turn in two places, so that
// lanes may still read those of the pair of strips before.
float take_group(KvTile kv_tile, uint turn, uint group, out float midpoints[kColumnSets]) {
    const bool has_ranges = kv_tile.value_bits < 16u && group < kv_tile.value_groups;
    const vec4 ranges = to_parameters(value_ranges, kv_tile.has_f8_values);
    const vec4 minima = to_parameters(value_minima, kv_tile.has_f8_values);
    const float most_of_team = team_max(largest_of(ranges));
    const int exponent = exponent_above(has_ranges ? most_of_team : 0.5);
    const vec4 scaled = ranges * power(-exponent);
    value_ranges_row = value_parameters_begin() + turn % 2u * LK_LANES;
    shared_parameters[value_ranges_row + lane] =
        uvec2(packHalf2x16(scaled.xy), packHalf2x16(scaled.zw));
    Pair weights[kFolded];
    load_folded(weight_row(lane), weights);
    const vec4 centers = has_ranges ? 0.5 * ranges + minima : vec4(0.0);
    float products[kColumns];
    [[unroll]] for (uint column = 0u; column < kColumns; ++column)
        products[column] = dot(vec4(vec2(weights[2u * column]), vec2(weights[2u * column + 1u])),
                               centers);
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        midpoints[set] = total_of_lanes(products, set) * power(-kLargeExponent);
    return power(exponent - kLargeExponent) * (has_ranges ? code_range(kv_tile.value_bits) : 1.0);
}

// A pair of strips: from `strip` on, those before `end`.
void multiply_value_strips(KvTile kv_tile, uint strip, uint end, float step_scale,
                           float midpoints[kColumnSets], uint n_tokens) {
    float sums[kOutputs];
    multiply_value_pair(kv_tile, strip, strip < end && kv_tile.n_tiles != 0u, n_tokens, sums);
    [[unroll]] for (uint i = 0u; i < kOutputs; ++i)
        if (is_output(strip, i, end))
            shared_outputs[output_index(strip, i)] += fma(sums[i], step_scale, midpoints[i % kColumnSets]);
}

// A pair of strips: from `strip` on, those before `end`, which is in a channel group.
struct ValueStep {
    uint group;
    uint strip;
    uint end;
};
// The team's pair `index`. Of those of two groups none is a pair.
ValueStep value_step(KvTile kv_tile, uint index) {
    const uint step = team_of_page() * team_value_steps() + index;
    if (kGrouped == 0u)
        return ValueStep(0u, 2u * step, kValueStrips);
    const uint group_steps = (kv_tile.value_group_strips + 1u) / 2u;
    const uint group = step / group_steps;
    const uint from = min(group * kv_tile.value_group_strips, kValueStrips);
    return ValueStep(group, from + 2u * (step % group_steps),
                     min(from + kv_tile.value_group_strips, kValueStrips));
}

// The first loads of multiply_values(), started ahead.
void begin_values(KvTile kv_tile) {
    const ValueStep first = value_step(kv_tile, 0u);
    load_value_parameters(kv_tile, first.group);
    begin_value_vectors(kv_tile, first.strip);
}

// Is x true in the team? Where a team is no subgroup, all teams go the same way.
bool team_needs(bool x) {
#ifdef LK_SUBGROUPS
    return kSubgroup != LK_LANES || subgroupAny(x);
#else
    return true;
#endif
}

// A page format has one channel group, or the first pair of strips of a group takes its ranges.
void multiply_values(WorkTile work_tile, KvTile kv_tile) {
    const uint n_tokens = work_tile.n_history + work_tile.n_new;
    float midpoints[kColumnSets];
    float factor = 0.0;
    if (kPageTeams > 1u)
        barrier();  // other teams have made outputs smaller
    if (kGrouped == 0u)
        factor = fold_weights(kv_tile, midpoints);
    else
        store_plain_weights();
    team_sync();
    const uint n_steps = team_value_steps();
    uint n_taken = 0u;
    uint taken = ~0u;  // the group
    [[dont_unroll]] for (uint i = 0u; i < n_steps; ++i) {
        const ValueStep now = value_step(kv_tile, i);
        if (kGrouped != 0u) {
            // After an odd number of strips the vectors that were loaded ahead are others.
            if (i != 0u && now.strip < now.end && kv_tile.value_group_strips % 2u != 0u)
                begin_value_vectors(kv_tile, now.strip);
            if (team_needs(now.group != taken && now.strip < now.end)) {
                factor = take_group(kv_tile, n_taken++, now.group, midpoints);
                taken = now.group;
                team_sync();
            }
            if (i + 1u < n_steps)
                load_value_parameters(kv_tile, value_step(kv_tile, i + 1u).group);
        }
        multiply_value_strips(kv_tile, now.strip, now.end, factor, midpoints, n_tokens);
    }
    page_sync();
}

#endif
