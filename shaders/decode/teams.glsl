// Decode attention: what the teams of a workgroup have gathered becomes an output, or a part of one.
// An includer has shared_output(team, channel, column), and of each lane's columns tops[] and
// sums_of_weights[].
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_TEAMS_GLSL
#define LK_SHADERS_DECODE_TEAMS_GLSL

// What the teams have gathered, together.
shared float shared_tops[kTeams * kColumns];  // [team][column], then weights
shared float shared_sums[kTeams * kColumns];
shared Total shared_totals[kColumns];

void merge_teams() {
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        const float sum = column_sum(sums_of_weights[set]);
        const uint column = column_of(quad_lane(), set);
        if (row() == 0u && is_column(column)) {
            shared_tops[team * kColumns + column] = tops[set];
            shared_sums[team * kColumns + column] = sum;
        }
    }
    barrier();
    const uint column = gl_LocalInvocationIndex;
    if (column < kColumns) {
        Total total = Total(kNothing, 0.0);
        for (uint i = 0u; i < kTeams; ++i)
            total.reference = max(total.reference, shared_tops[i * kColumns + column]);
        for (uint i = 0u; i < kTeams; ++i) {
            const float weight = exp2(shared_tops[i * kColumns + column] - total.reference);
            shared_tops[i * kColumns + column] = weight;
            total.sum += shared_sums[i * kColumns + column] * weight;
        }
        shared_totals[column] = total;
    }
    barrier();
}

float merged_output(uint column, uint channel) {
    float sum = 0.0;
    for (uint i = 0u; i < kTeams; ++i)
        sum += shared_output(i, channel, column) *
               shared_tops[i * kColumns + column];
    return sum;
}

void store_outputs(Unit unit) {
    for (uint column = 0u; column < unit.n_columns; ++column) {
        Total total = shared_totals[column];
        const ColumnPlace place = place_column(unit, column);
        const float factor = add_sink(unit.layer, place.head, total) * inverse_sum(total);
        if (gl_LocalInvocationIndex == 0u)
            store_lse(push.lse, push.lse_token_stride, push.lse_head_stride, place.token,
                      place.head, total);
        const Address to = tensor_row(push.outputs, place.token, place.head);
        for (uint channel = gl_LocalInvocationIndex; channel < kHeadDim; channel += kThreads)
            store_element(to, push.outputs.dtype, channel, merged_output(column, channel) * factor);
    }
}

void store_part(Unit unit) {
    const Parts parts = find_parts(unit, kHeadDim);
    const uint first = unit.item.part * unit.n_columns;
    for (uint column = 0u; column < unit.n_columns; ++column)
        for (uint channel = gl_LocalInvocationIndex; channel < kHeadDim; channel += kThreads)
            Words(parts.outputs).at[(first + column) * kHeadDim + channel] =
                floatBitsToUint(merged_output(column, channel));
    const uint column = gl_LocalInvocationIndex;
    if (column < unit.n_columns) {
        Words(parts.tops).at[first + column] = floatBitsToUint(shared_totals[column].reference);
        Words(parts.sums).at[first + column] = floatBitsToUint(shared_totals[column].sum);
    }
}

#endif
