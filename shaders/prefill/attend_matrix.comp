// Attention of many query columns by a tensor core, over blocks of any page format and over staged
// tokens: keys and values are dequantized to FP16 once for all columns of a workgroup. push.h says
// how the dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_vote : require

#include "shaders/prefill/matrix_shape.glsl"
#include "shaders/prefill/matrix_lanes.glsl"
#include "shaders/prefill/matrix_tiles.glsl"
#include "shaders/prefill/matrix_queries.glsl"

SumMatrix output_sums[2u * kMostStrips];  // [strip][matrix]
SumMatrix key_sums[2u * kStageTiles];     // [tile][matrix]

Matrix load_tile(uint tile, uint strip) {
    return matrix_of(shared_tiles[(tile * kStrips + strip) * LK_LANES + lane]);
}
uvec2 load_query_words(uint slot) {
    return shared_queries[query_index(shared_channels[slot], 4u * team + quad_lane())];
}

void clear_outputs() {
    reference = vec4(kHidden);
    sum = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < 2u * kMostStrips; ++i)
        output_sums[i] = zero_sums();
}

void multiply_keys() {
    [[unroll]] for (uint i = 0u; i < 2u * kStageTiles; ++i)
        key_sums[i] = zero_sums();
    [[unroll]] for (uint strip = 0u; strip < kMostStrips; ++strip)
        if (strip < kStrips) {
            const uvec2 low = load_query_words(strip * LK_STRIP_CHANNELS + row());
            const uvec2 high = load_query_words(strip * LK_STRIP_CHANNELS + row() + 8u);
            const ColumnMatrix first = column_matrix(uvec2(low.x, high.x));
            const ColumnMatrix second = column_matrix(uvec2(low.y, high.y));
            [[unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile) {
                const Matrix keys = load_tile(tile, strip);
                key_sums[2u * tile] = multiply_add(keys, first, key_sums[2u * tile]);
                key_sums[2u * tile + 1u] = multiply_add(keys, second, key_sums[2u * tile + 1u]);
            }
        }
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i)
        scores[i] = pair_row(key_sums[i / 2u * 2u], key_sums[i / 2u * 2u + 1u], i % 2u) *
                        score_factors +
                    center_scores;
}

void multiply_values() {
    [[unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile) {
        const vec4 low = scores[2u * tile];
        const vec4 high = scores[2u * tile + 1u];
        const ColumnMatrix first = column_matrix(uvec2(packHalf2x16(low.xy), packHalf2x16(high.xy)));
        const ColumnMatrix second = column_matrix(uvec2(packHalf2x16(low.zw), packHalf2x16(high.zw)));
        [[unroll]] for (uint strip = 0u; strip < kMostStrips; ++strip)
            if (strip < kStrips) {
                const Matrix values = load_tile(tile, strip);
                output_sums[2u * strip] = multiply_add(values, first, output_sums[2u * strip]);
                output_sums[2u * strip + 1u] =
                    multiply_add(values, second, output_sums[2u * strip + 1u]);
            }
    }
}

void raise_references(vec4 highest) {
    const vec4 raised = max(reference, column_max(highest));
    const vec4 shrink = exp2(reference - raised);
    reference = raised;
    sum *= shrink;
    [[unroll]] for (uint i = 0u; i < 2u * kMostStrips; ++i)
        [[unroll]] for (uint element = 0u; element < 4u; ++element)
            output_sums[i][element] *= shrink[2u * (i % 2u) + element % 2u];
}

// Where lanes exchange through shared memory, all teams go there.
void weigh() {
    const vec4 highest = find_highest();
    if (!kIsFree || subgroupAny(any(greaterThan(highest, reference + kHeadroom))))
        raise_references(highest);
    weigh_scores(reference - kWeightExponent);
}

// A step multiplies the keys or the values of a stage, and loads those of the next one.
void attend_page(Mask mask, EntryView page) {
    // A page that is hidden as a whole may have no bytes any more.
    if (page.n_tokens <= page.n_hidden)
        return;
    const Side keys = find_side(mask, page, false);
    const Side values = find_side(mask, page, true);
    find_strips(mask, page);
    find_channels(keys);
    barrier();
    const uint first = page.n_hidden / kStageTokens * kStageTokens;
    const uint n_steps = 2u * ((page.n_tokens - first + kStageTokens - 1u) / kStageTokens);
    Side side = keys;
    Stage stage = stage_of(page, first);
    for (uint i = 0u; i <= n_steps; ++i) {
        const bool is_value = (i & 1u) == 0u;
        const Stage own = stage;
        if (i > 0u) {
            store_tiles(side, stage);
            barrier();
        }
        side = values;
        if (is_value)
            side = keys;
        stage = stage_of(page, first + i / 2u * kStageTokens);
        if (i < n_steps)
            load_tiles(side, stage);
        if (i == 0u)
            continue;
        if (is_value) {
            multiply_values();
        } else {
            multiply_keys();
            shape_scores(mask, own);
            weigh();
        }
        barrier();
    }
}

// The sums of the lanes of a column, and its outputs as rows.
void finish_columns() {
    sum = column_total(sum);
    [[unroll]] for (uint i = 0u; i < kOutputRows; ++i)
        outputs[i] = pair_row(output_sums[i / 2u * 2u], output_sums[i / 2u * 2u + 1u], i % 2u);
}

void main() {
    find_lane();
    // Most tokens are visible to the last columns: their workgroups start first.
    const uint tile = push.first_tile + gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x;
    Mask mask;
    if (!find_mask(tile, kColumns, mask))
        return;
    clear_outputs();
    find_positions(mask);
    load_queries(mask);
    for (uint page = mask.page_begin; page < mask.page_end; ++page)
        attend_page(mask, view_page(mask, page));
    finish_columns();
    store_columns(mask, tile, reference - kWeightExponent);
}
