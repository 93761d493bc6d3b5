// Attention of any number of query columns of latent layers by a tensor core. push.h says how the
// dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_vote : require

#include "shaders/prefill/latent_pages.glsl"
#include "shaders/prefill/latent_queries.glsl"
#include "shaders/prefill/latent_matrix_vectors.glsl"
#include "shaders/prefill/matrix_lanes.glsl"

ColumnMatrix queries[2u * kMostTeamKeys];      // [strip][matrix]
SumMatrix output_sums[2u * kMostTeamOutputs];  // likewise

uint key_strip(uint i) { return team_share() + kShares * i; }

// Of the queries in shared memory, a team's strips. One that is not there has zeros.
void load_fragments() {
    barrier();
    [[unroll]] for (uint i = 0u; i < 2u * kMostTeamKeys; ++i) {
        const uint strip = key_strip(i / 2u);
        uvec2 words = uvec2(0u);
        if (strip < kStrips) {
            const uint at = (8u * (i % 2u) + row()) * kQuads + 4u * strip + quad_lane() / 2u;
            const uint word = quad_lane() % 2u;
            words = uvec2(shared_pairs[at][word], shared_pairs[at + 2u][word]);
        }
        queries[i] = column_matrix(words);
    }
    barrier();
}

void clear_outputs() {
    reference = vec4(kHidden);
    sum = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < 2u * kMostTeamOutputs; ++i)
        output_sums[i] = zero_sums();
}

void multiply_keys() {
    SumMatrix first = zero_sums();
    SumMatrix second = zero_sums();
    const uint place = team_tile() * kTilePairs;
    [[unroll]] for (uint i = 0u; i < kMostTeamKeys; ++i)
        if (i * kShares < kStrips) {
            const uint strip = min(key_strip(i), kStrips - 1u);
            const uvec4 pairs = uvec4(shared_pairs[place + pair_index(strip, lane, 0u)],
                                      shared_pairs[place + pair_index(strip, lane, 1u)]);
            const Matrix keys = matrix_of(pair_tokens(pairs));
            first = multiply_add(keys, queries[2u * i], first);
            second = multiply_add(keys, queries[2u * i + 1u], second);
        }
    const uint token = team_share() * kStageTokens + team_tile() * LK_TILE_TOKENS;
    [[unroll]] for (uint i = 0u; i < 2u; ++i)
        tile_rows[(token + score_row(i)) * 4u + quad_lane()] = pair_row(first, second, i);
}

void find_scores(Mask mask, Stage stage) {
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i) {
        vec4 products = vec4(0.0);
        [[unroll]] for (uint from = 0u; from < kShares; ++from)
            products += tile_rows[(from * kStageTokens + score_row(i)) * 4u + quad_lane()];
        scores[i] = products * column_factors;
    }
    shape_scores(mask, stage);
}

void raise_references(vec4 highest) {
    const vec4 raised = max(reference, column_max(highest));
    const vec4 shrink = exp2(reference - raised);
    reference = raised;
    sum *= shrink;
    if (is_first_row())
        shared_shrinks[quad_lane()] = shrink;
}

// Scores become weights in shared memory. Where lanes exchange through it, all teams go there.
void weigh() {
    const vec4 highest = find_highest();
    const bool raises =
        !kIsFree || subgroupAny(any(greaterThan(highest, reference + kHeadroom)));
    if (raises)
        raise_references(highest);
    weigh_scores(reference - kWeightExponent);
    if (team != 0u)
        return;
    shared_raises = uint(raises);
    [[unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile)
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            shared_weights[tile * kTileWeights + row() * 8u + 64u * (i / 2u) + 2u * quad_lane() +
                           i % 2u] =
                packHalf2x16(vec2(scores[2u * tile][i], scores[2u * tile + 1u][i]));
}

void shrink_outputs() {
    const vec4 shrink = shared_shrinks[quad_lane()];
    [[unroll]] for (uint i = 0u; i < 2u * kMostTeamOutputs; ++i)
        [[unroll]] for (uint element = 0u; element < 4u; ++element)
            output_sums[i][element] *= shrink[2u * (i % 2u) + element % 2u];
}

void multiply_values() {
    if (shared_raises != 0u)
        shrink_outputs();
    [[unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile) {
        const uint at = tile * kTileWeights + quad_lane() * 8u + row();
        const ColumnMatrix first =
            column_matrix(uvec2(shared_weights[at], shared_weights[at + 32u]));
        const ColumnMatrix second =
            column_matrix(uvec2(shared_weights[at + 64u], shared_weights[at + 96u]));
        [[unroll]] for (uint i = 0u; i < kMostTeamOutputs; ++i)
            if (i * LK_LATENT_TEAMS * LK_STRIP_CHANNELS < kValueDim) {
                const uint strip = min(team_strip(i), kStrips - 1u);
                const uint lane_of_tile = 4u * quad_lane() + (row() & 3u);
                const uint pair = tile * kTilePairs + pair_index(strip, lane_of_tile, row() >> 2);
                const Matrix values =
                    matrix_of(uvec4(shared_pairs[pair], shared_pairs[pair + 32u]));
                output_sums[2u * i] = multiply_add(values, first, output_sums[2u * i]);
                output_sums[2u * i + 1u] = multiply_add(values, second, output_sums[2u * i + 1u]);
            }
    }
}

void place_page(Side keys) {
    place_strip(keys, gl_LocalInvocationIndex);
    if (!is_null(permutation_of(keys)))
        find_channels(permutation_of(keys));
    page_has_vectors = has_vectors(keys);
    parameters_entry = ~0u;
}

// A tile without tokens has zeros.
void store_stage(Side keys, Stage stage) {
    if (page_has_vectors) {
        store_stage_vectors(keys, stage);
        return;
    }
    [[dont_unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile) {
        const uint n_tokens = tile_tokens(stage, tile);
        tile_place = tile * kTilePairs;
        store_tile(keys, stage.first_tile + (n_tokens > 0u ? tile : 0u), n_tokens);
    }
}

void attend_stage(Mask mask, Side keys, Stage stage) {
    store_stage(keys, stage);
    barrier();
    multiply_keys();
    barrier();
    if (!kIsFree || team == 0u) {
        find_scores(mask, stage);
        weigh();
    }
    barrier();
    multiply_values();
    barrier();
}

// All teams have the first one's references and sums, and their outputs as rows.
void finish_columns() {
    sum = column_total(sum);
    barrier();
    if (is_first_row()) {
        tile_rows[quad_lane()] = sum;
        tile_rows[4u + quad_lane()] = reference;
    }
    barrier();
    sum = tile_rows[quad_lane()];
    reference = tile_rows[4u + quad_lane()];
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
    take_queries(mask);
    load_fragments();
    attend_pages(mask);
    finish_columns();
    store_columns(mask, tile, reference - kWeightExponent);
}
