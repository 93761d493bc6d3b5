// Decode attention: the accumulators of a workgroup become an output, or one split of it.
// An includer has shared_output(page, channel, column), the accumulator of the teams that share a
// page, and of each lane's columns row_maxes[] and row_sums[].
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_TEAMS_GLSL
#define LK_SHADERS_DECODE_TEAMS_GLSL

#extension GL_EXT_control_flow_attributes : require

// The teams' accumulators, merged.
shared float shared_row_maxes[kPages * kColumns];  // [page][column], then weights
shared float shared_sums[kPages * kColumns];
shared Total shared_totals[kColumns];

void merge_teams() {
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        const float sum = column_sum(row_sums[set]);
        const uint column = column_of(quad_lane(), set);
        if (row() == 0u && team_of_page() == 0u && is_column(column)) {
            shared_row_maxes[page_of_team() * kColumns + column] = row_maxes[set];
            shared_sums[page_of_team() * kColumns + column] = sum;
        }
    }
    barrier();
    const uint column = gl_LocalInvocationIndex;
    if (column < kColumns) {
        Total total = Total(kNothing, 0.0);
        for (uint i = 0u; i < kPages; ++i)
            total.reference = max(total.reference, shared_row_maxes[i * kColumns + column]);
        for (uint i = 0u; i < kPages; ++i) {
            const float weight = exp2(shared_row_maxes[i * kColumns + column] - total.reference);
            shared_row_maxes[i * kColumns + column] = weight;
            total.sum += shared_sums[i * kColumns + column] * weight;
        }
        if (shared_columns[column].is_beyond)
            total.sum = kBeyond;
        shared_totals[column] = total;
    }
    barrier();
}

float merged_output(uint column, uint channel) {
    float sum = 0.0;
    for (uint i = 0u; i < kPages; ++i)
        sum += shared_output(i, channel, column) *
               shared_row_maxes[i * kColumns + column];
    return sum;
}

void store_outputs(WorkTile work_tile) {
    for (uint column = 0u; column < work_tile.n_columns; ++column) {
        Total total = shared_totals[column];
        const QueryColumn query = query_column(work_tile, column);
        const float factor = add_sink(work_tile.layer, query.head, total) * inverse_sum(total);
        if (gl_LocalInvocationIndex == 0u)
            store_lse(push.lse, push.lse_token_stride, push.lse_head_stride, query.token,
                      query.head, total);
        const Address to = tensor_row(push.outputs, query.token, query.head);
        for (uint channel = gl_LocalInvocationIndex; channel < kValueDim; channel += kThreads)
            store_element(to, push.outputs.dtype, channel,
                          output_of(total, merged_output(column, channel) * factor));
    }
}

void store_split(WorkTile work_tile) {
    const Splits splits = find_splits(work_tile, kValueDim);
    const uint first = work_tile.item.split * work_tile.n_columns;
    for (uint column = 0u; column < work_tile.n_columns; ++column)
        for (uint channel = gl_LocalInvocationIndex; channel < kValueDim; channel += kThreads)
            Words(splits.outputs).at[(first + column) * kValueDim + channel] =
                floatBitsToUint(merged_output(column, channel));
    const uint column = gl_LocalInvocationIndex;
    if (column < work_tile.n_columns) {
        Words(splits.row_maxes).at[first + column] = floatBitsToUint(shared_totals[column].reference);
        Words(splits.sums).at[first + column] = floatBitsToUint(shared_totals[column].sum);
    }
}

#endif
