// Attention of any number of query columns over blocks of any page format and over staged tokens.
// push.h says how the dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/load.glsl"
#include "shaders/prefill/store.glsl"
#include "shaders/prefill/weights.glsl"

bool has_beyond(LayerInfo layer, FloatBitsEight bits) {
    return any(greaterThan(largest_of(bits), uvec4(floatBitsToUint(layer.query_limit))));
}

// A query beyond the layer's limit counts as one that is not there.
void find_beyond(Mask mask) {
    const uint first = gl_LocalInvocationIndex % LK_STRIP_CHANNELS;
    const uint group = gl_LocalInvocationIndex / LK_STRIP_CHANNELS;
    const uint dtype = push.q.dtype;
    uvec4 beyond = uvec4(0u);
    for (uint channel = kLaneValues * first; channel < kHeadDim;
         channel += kLaneValues * LK_STRIP_CHANNELS)
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            if (!is_null(query_rows[i]) &&
                has_beyond(mask.layer, float_bits_of_eight(
                                           load_eight(query_rows[i], dtype, channel), dtype)))
                beyond[i] = 1u;
    if (group < kColumnGroups)
        tile_rows[first * kColumnGroups + group] = vec4(beyond);
    barrier();
    vec4 own = vec4(0.0);
    vec4 loaded = vec4(0.0);
    for (uint i = 0u; i < LK_STRIP_CHANNELS; ++i) {
        own += tile_rows[i * kColumnGroups + column_group()];
        loaded += tile_rows[i * kColumnGroups + min(group, kColumnGroups - 1u)];
    }
    is_beyond = greaterThan(own, vec4(0.0));
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        if (loaded[i] > 0.0)
            query_rows[i] = Address(0u);
    barrier();
}

// The scores of the keys' center, which was taken off the keys.
vec4 center_scores;

void find_center_scores(Mask mask) {
    center_scores = vec4(0.0);
    if (is_null(mask.layer.key_centers))
        return;
    const Address centers = address_at(mask.layer.key_centers, mask.kv_head, 4u * kHeadDim);
    const uint first = gl_LocalInvocationIndex % LK_STRIP_CHANNELS;
    const uint group = gl_LocalInvocationIndex / LK_STRIP_CHANNELS;
    vec4 products = vec4(0.0);
    for (uint channel = first; channel < kHeadDim; channel += LK_STRIP_CHANNELS)
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            if (!is_null(query_rows[i]))
                products[i] = fma(load_element(query_rows[i], push.q.dtype, channel),
                                  ConstFloats(centers).at[channel], products[i]);
    if (group < kColumnGroups)
        tile_rows[first * kColumnGroups + group] = products;
    barrier();
    for (uint i = 0u; i < LK_STRIP_CHANNELS; ++i)
        center_scores += tile_rows[i * kColumnGroups + column_group()];
    center_scores *= score_factor(mask.layer);
    barrier();
}

void clear_scores() {
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i)
        scores[i] = center_scores;
}

// Rows after the stage's tokens keep their first values, or get others that nothing reads. A branch
// for each row would make each load of a row wait alone.
void multiply_all_keys() {
    for (uint quad = 0u; quad < kTileQuads; ++quad) {
        const mat4 columns = load_columns(0u, quad);
        [[unroll]] for (uint i = 0u; i < kScoreRows; ++i) {
            const uint row = row_group() + i * kRowGroups;
            scores[i] = add_products(scores[i], tile_rows[row * kKeyStride + quad], columns);
        }
    }
}
void multiply_some_keys(uint n_tokens) {
    for (uint quad = 0u; quad < kTileQuads; ++quad) {
        const mat4 columns = load_columns(0u, quad);
        [[unroll]] for (uint i = 0u; i < kScoreRows; ++i)
            if (i * kRowGroups < n_tokens) {
                const uint row = row_group() + i * kRowGroups;
                scores[i] = add_products(scores[i], tile_rows[row * kKeyStride + quad], columns);
            }
    }
}

void multiply_values(uint first_quad) {
    const uint first_row = phase() * kValueDim + phase_group();
    for (uint quad = 0u; quad < kValueQuads; ++quad) {
        const mat4 columns = load_columns(phase(), first_quad + quad);
        [[unroll]] for (uint i = 0u; i < kOutputRows; ++i) {
            const uint row = first_row + i * kPhaseGroups;
            outputs[i] = add_products(outputs[i], tile_rows[row * kValueStride + quad], columns);
        }
    }
}

// The weights of kPhases tiles, from tile on.
void store_weights(uint tile) {
    const uint position = LK_K_ORDER(row_group() % LK_TILE_TOKENS);
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i) {
        const uint own_phase = (row_group() + i * kRowGroups) / LK_TILE_TOKENS - tile;
        if (own_phase < kPhases)
            shared_columns[(own_phase * LK_TILE_TOKENS + position) * kColumnGroups + column_group()] =
                scores[i];
    }
}

// Operands of the next step.
LaneWords loaded_rows;
StripQueries loaded_queries;

void load_step(Mask mask, Side side, Stage stage, Step step) {
    loaded_rows = load_rows(side, stage, step);
    if (!step.is_value)
        loaded_queries = load_queries(mask, step.strip);
}

void store_step(Mask mask, Side side, Stage stage, Step step) {
    store_rows(side, stage, step, loaded_rows);
    if (!step.is_value)
        store_queries(loaded_queries, score_factor(mask.layer));
    else if (step.first_quad == 0u)
        store_weights(step.tile);
}

void multiply_step(Stage stage, Step step) {
    if (step.is_value)
        multiply_values(step.first_quad);
    else if (stage.n_tokens > kStageTokens / 2u)
        multiply_all_keys();
    else
        multiply_some_keys(stage.n_tokens);
}

// A step's operands are loaded while the one before is multiplied.
void attend_stage(Mask mask, EntryView page, Stage stage) {
    Side side = find_side(mask, page, false);
    find_strips(mask, page);
    find_channels(side);
    clear_scores();
    barrier();
    Step step = find_step(0u);
    load_step(mask, side, stage, step);
    const uint n_steps = count_steps(stage);
    for (uint i = 1u; i <= n_steps; ++i) {
        store_step(mask, side, stage, step);
        barrier();
        const Step next = find_step(i);
        if (i == kStrips)
            side = find_side(mask, page, true);
        if (i < n_steps)
            load_step(mask, side, stage, next);
        multiply_step(stage, step);
        if (i == kStrips) {
            shape_scores(mask, stage);
            weigh();
        } else {
            barrier();
        }
        step = next;
    }
}

void attend_page(Mask mask, EntryView page) {
    for (uint first = 0u; first < page.n_tokens; first += kStageTokens) {
        // A page that is hidden as a whole may have no bytes any more.
        if (min(first + kStageTokens, page.n_tokens) > page.n_hidden)
            attend_stage(mask, page,
                         Stage(page.first_token + first, first / LK_TILE_TOKENS,
                               min(kStageTokens, page.n_tokens - first)));
    }
}

// The sums of all phases are added to those of the first.
void add_phases() {
    for (uint from = 1u; from < kPhases; ++from) {
        const uint at = phase_group() * kColumnGroups + column_group();
        const uint step = kPhaseGroups * kColumnGroups;
        if (phase() == from) {
            [[unroll]] for (uint i = 0u; i < kOutputRows; ++i)
                tile_rows[at + i * step] = outputs[i];
        }
        barrier();
        if (phase() == 0u) {
            [[unroll]] for (uint i = 0u; i < kOutputRows; ++i)
                outputs[i] += tile_rows[at + i * step];
        }
        barrier();
    }
}

void main() {
    // Most tokens are visible to the last columns: their workgroups start first.
    const uint tile = push.first_tile + gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x;
    Mask mask;
    if (!find_mask(tile, kColumns, mask))
        return;
    if (gl_LocalInvocationIndex == 0u)
        shared_raises = 0u;
    clear_outputs();
    find_positions(mask);
    find_query_rows(mask);
    find_beyond(mask);
    find_center_scores(mask);
    for (uint page = mask.page_begin; page < mask.page_end; ++page)
        attend_page(mask, view_page(mask, page));
    barrier();
    add_stats();
    add_phases();
    if (phase() != 0u)
        return;
    store_columns(mask, tile, reference);
}
