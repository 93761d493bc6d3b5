// Attention of many columns: operands of products in shared memory.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_TILE_LOAD_GLSL
#define LK_SHADERS_TILE_LOAD_GLSL

#include "tensor.glsl"
#include "tile_pages.glsl"
#include "tile_shape.glsl"
#include "values.glsl"

shared StripPlace shared_strips[2][LK_MAX_HEAD_DIM / LK_STRIP_CHANNELS];  // of keys and of values

// Queries of an invocation: those of one k and four columns.
Address query_rows[4];

void find_query_rows(Sight sight) {
    for (uint i = 0u; i < 4u; ++i) {
        const uint column = gl_LocalInvocationIndex / LK_STRIP_CHANNELS * 4u + i;
        const ColumnPlace place = place_column(sight, sight.first_column + column);
        query_rows[i] = Address(0u);
        if (column < sight.n_columns)
            query_rows[i] = tensor_row(push.queries, place.token, place.head);
    }
}

// The channel that a slot of keys holds.
uint slot_channel(ClassInfo c, Address metadata, uint slot) {
    const Address permutation =
        c.permutes ? address_add(metadata, c.permutation_offset) : c.permutation;
    return is_null(permutation) ? slot
                                : byte_of(ConstWords(permutation).at[slot / 4u], slot % 4u);
}

// Element k of 16 that lies at a place of K order.
uint k_at(uint place) { return LK_TILE_K(place / 4u, place & 2u) + (place & 1u); }

// The queries of a strip of keys, times what makes scores of products.
void load_queries(bool is_staged, ClassInfo c, Address metadata, uint strip, float factor) {
    const uint place = gl_LocalInvocationIndex % LK_STRIP_CHANNELS;
    const uint group = gl_LocalInvocationIndex / LK_STRIP_CHANNELS;
    if (group >= kColumnGroups)
        return;
    const uint slot = strip * LK_STRIP_CHANNELS + k_at(place);
    const uint channel = is_staged ? slot : slot_channel(c, metadata, slot);
    vec4 queries = vec4(0.0);
    for (uint i = 0u; i < 4u; ++i)
        if (!is_null(query_rows[i]))
            queries[i] = load_element(query_rows[i], push.queries.dtype, channel);
    shared_columns[place * kColumnGroups + group] = factor * queries;
}

// Staged tokens have no tiles: a lane takes tokens and channels as it would have them in one, but
// of values two neighbouring channels.
uint load_staged_word(Address rows, uint token, uint channel) {
    return ConstWords(rows).at[(token * kHeadDim + channel) / 2u];
}
LaneValues load_staged_keys(Address rows, uint strip, uint tile, uint lane) {
    const uint token = LK_TILE_TOKENS * tile + LK_TILE_ROW(lane, 0u);
    const uint channel = LK_STRIP_CHANNELS * strip + LK_TILE_K(lane, 0u);
    uvec4 words;
    for (uint i = 0u; i < 4u; ++i)
        words[i] = load_staged_word(rows, token + 8u * (i & 1u), channel + 8u * (i >> 1));
    return LaneValues(halves_to_floats(low_row(words)), halves_to_floats(high_row(words)));
}
LaneValues load_staged_values(Address rows, uint strip, uint tile, uint lane) {
    const uint channel = LK_STRIP_CHANNELS * strip + 2u * LK_TILE_ROW(lane, 0u);
    uvec4 words;
    for (uint i = 0u; i < 4u; ++i)
        words[i] = load_staged_word(
            rows, LK_TILE_TOKENS * tile + LK_TILE_K(lane, i & 2u) + (i & 1u), channel);
    return LaneValues(halves_to_floats(words & 0xFFFFu), halves_to_floats(words >> 16));
}

// The places of a page's strips. They are there behind the next barrier.
void find_strips(Sight sight, PageView page) {
    const uint side = gl_LocalInvocationIndex / LK_STRIP_CHANNELS;
    const uint strip = gl_LocalInvocationIndex % LK_STRIP_CHANNELS;
    const uint half_class = side == 0u ? page.keys.half_class : page.values.half_class;
    if (side < 2u && strip < kHeadDim / LK_STRIP_CHANNELS && !page.is_staged)
        shared_strips[side][strip] =
            find_strip(load_class(sight.step.classes, half_class), strip);
}

// A strip of the stage's keys; first_tile counts in the page.
void load_keys(PageView page, ClassInfo c, uint strip, uint first_tile, uint n_tiles) {
    const StripPlace place = shared_strips[0][strip];
    for (uint i = gl_LocalInvocationIndex; i < n_tiles * LK_LANES; i += kThreads) {
        const uint lane = i % LK_LANES;
        const uint tile = i / LK_LANES;
        LaneValues values;
        if (page.is_staged)
            values = load_staged_keys(page.keys.payload, strip, first_tile + tile, lane);
        else
            values = load_values(c, place, page.keys.payload, page.keys.metadata,
                                 first_tile + tile, lane);
        const uint row = LK_TILE_TOKENS * tile + LK_TILE_ROW(lane, 0u);
        const uint at = row * kKeyStride + lane % kTileQuads;
        shared_rows[at] = values.low;
        shared_rows[at + 8u * kKeyStride] = values.high;
    }
}

// Tokens that are not there may hold NaNs, which a weight of 0 would not take away.
void clear_rest(uint tile, uint lane, uint n_tokens, inout LaneValues values) {
    const uint first = LK_TILE_TOKENS * tile + LK_TILE_K(lane, 0u);
    const bvec4 exists =
        lessThan(uvec4(first, first + 1u, first + 8u, first + 9u), uvec4(n_tokens));
    values.low = mix(vec4(0.0), values.low, exists);
    values.high = mix(vec4(0.0), values.high, exists);
}

// Some k of kPhases tiles of the stage's values, from tile on: the quads from first_quad on.
void load_tile_values(PageView page, ClassInfo c, uint first_tile, uint tile, uint first_quad,
                      uint n_tokens) {
    const uint n_lanes = 8u * kValueQuads;
    const uint n_strips = kHeadDim / LK_STRIP_CHANNELS;
    for (uint i = gl_LocalInvocationIndex; i < kPhases * n_strips * n_lanes; i += kThreads) {
        const uint row = i % n_lanes / kValueQuads;
        const uint quad = i % kValueQuads;
        const uint lane = row * kTileQuads + first_quad + quad;
        const uint strip = i / n_lanes % n_strips;
        const uint own_phase = i / n_lanes / n_strips;
        const uint own_tile = tile + own_phase;
        LaneValues values = LaneValues(vec4(0.0), vec4(0.0));
        if (own_tile * LK_TILE_TOKENS < n_tokens) {
            if (page.is_staged)
                values =
                    load_staged_values(page.values.payload, strip, first_tile + own_tile, lane);
            else
                values = load_values(c, shared_strips[1][strip], page.values.payload,
                                     page.values.metadata, first_tile + own_tile, lane);
            if ((own_tile + 1u) * LK_TILE_TOKENS > n_tokens)
                clear_rest(own_tile, lane, n_tokens, values);
        }
        const uint channel = LK_STRIP_CHANNELS * strip + (page.is_staged ? 2u * row : row);
        const uint at = (own_phase * kHeadDim + channel) * kValueStride + quad;
        shared_rows[at] = values.low;
        shared_rows[at + (page.is_staged ? 1u : 8u) * kValueStride] = values.high;
    }
}

#endif
