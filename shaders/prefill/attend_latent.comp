// Attention of any number of query columns of latent layers, whose values are channels of their keys.
// push.h says how the dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/latent_pages.glsl"
#include "shaders/prefill/latent_queries.glsl"
#include "shaders/prefill/weights.glsl"

// Invocations that follow each other have the shares of the same words and columns, so that they
// read neighbouring quads.
void multiply_keys() {
    const uint share = gl_LocalInvocationIndex % LK_LATENT_SHARES;
    const uint word = gl_LocalInvocationIndex / LK_LATENT_SHARES % kTokenWords;
    const uint pair = gl_LocalInvocationIndex / LK_LATENT_SHARES / kTokenWords;
    vec4 sums = vec4(0.0);  // of the lower token under both columns, of the higher
    for (uint quad = share; quad < kQuads; quad += LK_LATENT_SHARES) {
        const uvec2 first = shared_queries[2u * pair * kQuads + quad];
        const uvec2 second = shared_queries[(2u * pair + 1u) * kQuads + quad];
        const vec4 low = vec4(unpackHalf2x16(first.x), unpackHalf2x16(first.y));
        const vec4 high = vec4(unpackHalf2x16(second.x), unpackHalf2x16(second.y));
        const uvec4 words = shared_keys[word * kQuadStride + quad];
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            sums += unpackHalf2x16(words[i]).xxyy * vec2(low[i], high[i]).xyxy;
    }
    const uint row = (share * LK_TILE_TOKENS + word) * kColumnGroups + pair / 2u;
    const uint higher_row = row + kTokenWords * kColumnGroups;
    const uint column = pair % 2u * 2u;
    tile_rows[row][column] = sums.x;
    tile_rows[row][column + 1u] = sums.y;
    tile_rows[higher_row][column] = sums.z;
    tile_rows[higher_row][column + 1u] = sums.w;
}

void find_scores(Mask mask, Stage stage) {
    scores[0] = vec4(kHidden);
    if (!has_score())
        return;
    vec4 products = vec4(0.0);
    for (uint share = 0u; share < LK_LATENT_SHARES; ++share)
        products +=
            tile_rows[(share * LK_TILE_TOKENS + row_group()) * kColumnGroups + column_group()];
    scores[0] = products * column_factors;
    shape_scores(mask, stage);
}

void multiply_values() {
    const uint quad = min(row_group(), kQuads - 1u);
    for (uint word = 0u; word < kTokenWords; ++word) {
        const vec4 low = tile_rows[word * kColumnGroups + column_group()];
        const vec4 high = tile_rows[(word + kTokenWords) * kColumnGroups + column_group()];
        const uvec4 words = shared_keys[word * kQuadStride + quad];
        [[unroll]] for (uint i = 0u; i < kOutputRows; ++i) {
            const vec2 tokens = unpackHalf2x16(words[i]);
            outputs[i] += tokens.x * low + tokens.y * high;
        }
    }
}

uvec4 lane_channels(Side keys, uint first) {
    const Address permutation = permutation_of(keys);
    return uvec4(slot_channel(permutation, first), slot_channel(permutation, first + 1u),
                 slot_channel(permutation, first + 8u), slot_channel(permutation, first + 9u));
}

void place_page(Side keys) { place_strip(keys, gl_LocalInvocationIndex); }

void attend_stage(Mask mask, Side keys, Stage stage) {
    store_tile(keys, stage.first_tile, stage.n_tokens);
    barrier();
    multiply_keys();
    barrier();
    find_scores(mask, stage);
    weigh();
    if (has_score())
        tile_rows[gl_LocalInvocationIndex] = scores[0];
    barrier();
    multiply_values();
    barrier();
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
    take_queries(mask);
    attend_pages(mask);
    add_stats();
    store_columns(mask, tile, reference);
}
