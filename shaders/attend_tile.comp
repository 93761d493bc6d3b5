// Attention of any number of query columns over rows of pages of any class and over staged tokens.
// push.h says how the dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "tile_load.glsl"
#include "tile_part.glsl"
#include "tile_weights.glsl"

void clear_outputs() {
    reference = vec4(kHidden);
    sum = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < kOutputRows; ++i)
        outputs[i] = vec4(0.0);
}

// The scores of the keys' center, which was taken off the keys.
vec4 center_scores;

void find_center_scores(Sight sight) {
    center_scores = vec4(0.0);
    if (is_null(sight.layer.key_centers))
        return;
    const Address centers = address_at(sight.layer.key_centers, sight.kv_head, 4u * kHeadDim);
    const uint first = gl_LocalInvocationIndex % LK_STRIP_CHANNELS;
    const uint group = gl_LocalInvocationIndex / LK_STRIP_CHANNELS;
    vec4 products = vec4(0.0);
    for (uint channel = first; channel < kHeadDim; channel += LK_STRIP_CHANNELS)
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            if (!is_null(query_rows[i]))
                products[i] = fma(load_element(query_rows[i], push.queries.dtype, channel),
                                  ConstFloats(centers).at[channel], products[i]);
    if (group < kColumnGroups)
        shared_rows[first * kColumnGroups + group] = products;
    barrier();
    for (uint i = 0u; i < LK_STRIP_CHANNELS; ++i)
        center_scores += shared_rows[i * kColumnGroups + column_group()];
    center_scores *= score_factor(sight.layer);
    barrier();
}

void clear_scores() {
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i)
        scores[i] = center_scores;
}

// Rows behind the stage's tokens keep what they began with.
void multiply_keys(uint n_tokens) {
    for (uint quad = 0u; quad < kTileQuads; ++quad) {
        const mat4 columns = load_columns(0u, quad);
        [[unroll]] for (uint i = 0u; i < kScoreRows; ++i)
            if (i * kRowGroups < n_tokens) {
                const uint row = row_group() + i * kRowGroups;
                scores[i] = add_products(scores[i], shared_rows[row * kKeyStride + quad], columns);
            }
    }
}

void multiply_values(uint first_quad) {
    const uint first_row = phase() * kHeadDim + phase_group();
    for (uint quad = 0u; quad < kValueQuads; ++quad) {
        const mat4 columns = load_columns(phase(), first_quad + quad);
        [[unroll]] for (uint i = 0u; i < kOutputRows; ++i) {
            const uint row = first_row + i * kPhaseGroups;
            outputs[i] = add_products(outputs[i], shared_rows[row * kValueStride + quad], columns);
        }
    }
}

// The weights of kPhases tiles, from tile on.
void store_weights(uint tile) {
    const uint place = LK_K_ORDER(row_group() % LK_TILE_TOKENS);
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i) {
        const uint own_phase = (row_group() + i * kRowGroups) / LK_TILE_TOKENS - tile;
        if (own_phase < kPhases)
            shared_columns[(own_phase * LK_TILE_TOKENS + place) * kColumnGroups + column_group()] =
                scores[i];
    }
}

// Of the next step.
LaneWords loaded_rows;
StripQueries loaded_queries;

void load_step(Sight sight, Side side, Stage stage, Step step) {
    loaded_rows = load_rows(side, stage, step);
    if (!step.is_value)
        loaded_queries = load_queries(sight, step.strip);
}

void store_step(Sight sight, Side side, Stage stage, Step step) {
    store_rows(side, stage, step, loaded_rows);
    if (!step.is_value)
        store_queries(loaded_queries, score_factor(sight.layer));
    else if (step.first_quad == 0u)
        store_weights(step.tile);
}

void multiply_step(Stage stage, Step step) {
    if (step.is_value)
        multiply_values(step.first_quad);
    else
        multiply_keys(stage.n_tokens);
}

void shape_scores(Sight sight, Stage stage) {
    if (sight.layer.soft_cap > 0.0) {
        [[unroll]] for (uint i = 0u; i < kScoreRows; ++i)
            scores[i] = cap_scores(sight.layer, scores[i]);
    }
    if (!sees_all(sight, stage.first_token, stage.n_tokens))
        hide_scores(sight, stage.first_token, stage.n_tokens);
}

// A step's operands are loaded while the one before is multiplied.
void attend_stage(Sight sight, PageView page, Stage stage) {
    Side side = find_side(sight, page, false);
    find_strips(sight, page);
    find_channels(side);
    clear_scores();
    barrier();
    Step step = find_step(0u);
    load_step(sight, side, stage, step);
    const uint n_steps = count_steps(stage);
    for (uint i = 1u; i <= n_steps; ++i) {
        store_step(sight, side, stage, step);
        barrier();
        const Step next = find_step(i);
        if (i == kStrips)
            side = find_side(sight, page, true);
        if (i < n_steps)
            load_step(sight, side, stage, next);
        multiply_step(stage, step);
        if (i == kStrips) {
            shape_scores(sight, stage);
            weigh();
        } else {
            barrier();
        }
        step = next;
    }
}

void attend_page(Sight sight, PageView page) {
    for (uint first = 0u; first < page.n_tokens; first += kStageTokens) {
        // Of a page that is hidden as a whole there may be no bytes any more.
        if (min(first + kStageTokens, page.n_tokens) > page.n_hidden)
            attend_stage(sight, page,
                         Stage(page.first_token + first, first / LK_TILE_TOKENS,
                               min(kStageTokens, page.n_tokens - first)));
    }
}

// Over all rows, in their order.
void add_stats() {
    shared_rows[gl_LocalInvocationIndex] = sum;
    barrier();
    sum = vec4(0.0);
    for (uint i = 0u; i < kRowGroups; ++i)
        sum += shared_rows[i * kColumnGroups + column_group()];
    barrier();
}

// What the phases have becomes that of the first one.
void add_phases() {
    for (uint from = 1u; from < kPhases; ++from) {
        const uint at = phase_group() * kColumnGroups + column_group();
        const uint step = kPhaseGroups * kColumnGroups;
        if (phase() == from) {
            [[unroll]] for (uint i = 0u; i < kOutputRows; ++i)
                shared_rows[at + i * step] = outputs[i];
        }
        barrier();
        if (phase() == 0u) {
            [[unroll]] for (uint i = 0u; i < kOutputRows; ++i)
                outputs[i] += shared_rows[at + i * step];
        }
        barrier();
    }
}

// A column's channels go where `row` begins, times `factor`.
void store_outputs(uint column, Address row, uint dtype, float factor) {
    [[unroll]] for (uint i = 0u; i < kOutputRows; ++i) {
        const uint channel = phase_group() + i * kPhaseGroups;
        if (channel < kHeadDim)
            store_element(row, dtype, channel, outputs[i][column] * factor);
    }
}

void store_column(Sight sight, uint column, uint i, Total total) {
    const ColumnPlace place = place_column(sight, sight.first_column + column);
    const float shrink = add_sink(sight.layer, place.head, total);
    if (row_group() == 0u)
        store_lse(push.lse, push.lse_token_stride, push.lse_head_stride, place.token, place.head,
                  total);
    store_outputs(i, tensor_row(push.outputs, place.token, place.head), push.outputs.dtype,
                  shrink * inverse_sum(total));
}

void store_part(Sight sight, uint tile, uint column, uint i, Total total) {
    const TilePart part =
        find_part(gl_WorkGroupID.z / push.n_splits, sight.kv_head, sight.layer.n_kv_heads, tile,
                  gl_WorkGroupID.z % push.n_splits, kColumns, kHeadDim);
    if (row_group() == 0u) {
        store_element(part.references, LK_DTYPE_F32, column, total.reference);
        store_element(part.sums, LK_DTYPE_F32, column, total.sum);
    }
    store_outputs(i, address_at(part.outputs, column, 4u * kHeadDim), LK_DTYPE_F32, 1.0);
}

void main() {
    // The last columns see the most: their workgroups start first.
    const uint tile = push.first_tile + gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x;
    Sight sight;
    if (!find_sight(tile, kColumns, sight))
        return;
    if (gl_LocalInvocationIndex == 0u)
        shared_raises = 0u;
    clear_outputs();
    find_positions(sight);
    find_query_rows(sight);
    find_center_scores(sight);
    for (uint page = sight.page_begin; page < sight.page_end; ++page)
        attend_page(sight, view_page(sight, page));
    barrier();
    add_stats();
    add_phases();
    if (phase() != 0u)
        return;
    for (uint i = 0u; i < 4u; ++i) {
        const uint column = 4u * column_group() + i;
        const Total total = Total(reference[i], sum[i]);
        if (column >= sight.n_columns)
            break;
        if (push.n_splits > 1u)
            store_part(sight, tile, column, i, total);
        else
            store_column(sight, column, i, total);
    }
}
