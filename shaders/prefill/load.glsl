// Attention of many columns: operands of products, loaded to registers while the ones before are
// multiplied, and put into shared memory as FP32.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_LOAD_GLSL
#define LK_SHADERS_PREFILL_LOAD_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/prefill/shape.glsl"
#include "shaders/prefill/channels.glsl"

// The operands between two barriers: a strip of a stage's keys, or k of kPhases tiles of its
// values, from first_quad on.
struct Step {
    bool is_value;
    uint strip;
    uint tile;
    uint first_quad;
};
const uint kTileSteps = kTileQuads / kValueQuads;

Step find_step(uint i) {
    if (i < kStrips)
        return Step(false, i, 0u, 0u);
    const uint value = i - kStrips;
    return Step(true, 0u, value / kTileSteps * kPhases, value % kTileSteps * kValueQuads);
}
uint count_steps(Stage stage) {
    const uint n_tiles = (stage.n_tokens + LK_TILE_TOKENS - 1u) / LK_TILE_TOKENS;
    return kStrips + (n_tiles + kPhases - 1u) / kPhases * kTileSteps;
}

// An invocation loads one lane of a tile. Where its two rows lie in shared memory.
struct LanePosition {
    bool exists;
    uint strip;
    uint tile;  // of the stage
    uint lane;
    uint low;
    uint high;
};
LanePosition key_lane_position(Step step) {
    const uint lane = gl_LocalInvocationIndex % LK_LANES;
    const uint tile = gl_LocalInvocationIndex / LK_LANES;
    const uint row = tile * LK_TILE_TOKENS + LK_TILE_ROW(lane, 0u);
    const uint low = row * kKeyStride + lane % kTileQuads;
    return LanePosition(true, step.strip, tile, lane, low, low + 8u * kKeyStride);
}
// Staged tokens have no tiles: a lane takes two neighbouring channels of their values.
LanePosition value_lane_position(Step step, bool is_staged) {
    const uint i = gl_LocalInvocationIndex;
    const uint n_lanes = 8u * kValueQuads;
    const uint row = i % n_lanes / kValueQuads;
    const uint quad = i % kValueQuads;
    const uint strip = i / n_lanes % kValueStrips;
    const uint phase = i / n_lanes / kValueStrips;
    const uint channel = LK_STRIP_CHANNELS * strip + (is_staged ? 2u * row : row);
    const uint low = (phase * kValueDim + channel) * kValueStride + quad;
    return LanePosition(phase < kPhases, strip, step.tile + phase,
                     row * kTileQuads + step.first_quad + quad, low,
                     low + (is_staged ? 1u : 8u) * kValueStride);
}
LanePosition lane_position(Side side, Step step) {
    if (step.is_value)
        return value_lane_position(step, side.is_staged);
    return key_lane_position(step);
}

TileLane tile_lane(Stage stage, LanePosition position) {
    return TileLane(stage.first_tile + position.tile, position.strip, position.lane);
}

LaneWords load_rows(Side side, Stage stage, Step step) {
    const LanePosition position = lane_position(side, step);
    if (!position.exists || position.tile * LK_TILE_TOKENS >= stage.n_tokens)
        return LaneWords(uvec4(0u), uvec4(0u));
    return load_side(side, tile_lane(stage, position));
}

// Memory after the last token may hold NaNs, which a weight of 0 would not take away.
void clear_rest(uint n_tokens, LanePosition position, inout LaneValues values) {
    const uint first = LK_TILE_TOKENS * position.tile + LK_TILE_K(position.lane, 0u);
    const bvec4 exists =
        lessThan(uvec4(first, first + 1u, first + 8u, first + 9u), uvec4(n_tokens));
    values.low = mix(vec4(0.0), values.low, exists);
    values.high = mix(vec4(0.0), values.high, exists);
}

LaneValues staged_values(Side side, uvec4 words) {
    return side.is_value ? values_of_f16(words & 0xFFFFu, words >> 16)
                         : values_of_f16(low_row(words), high_row(words));
}

void store_rows(Side side, Stage stage, Step step, LaneWords words) {
    const LanePosition position = lane_position(side, step);
    if (!position.exists)
        return;
    LaneValues values = LaneValues(vec4(0.0), vec4(0.0));
    if (position.tile * LK_TILE_TOKENS < stage.n_tokens) {
        if (side.is_staged)
            values = staged_values(side, words.codes);
        else
            values = dequantize_side(side, tile_lane(stage, position), words);
        if (side.is_value && (position.tile + 1u) * LK_TILE_TOKENS > stage.n_tokens)
            clear_rest(stage.n_tokens, position, values);
    }
    tile_rows[position.low] = values.low;
    tile_rows[position.high] = values.high;
}

// Queries of an invocation: those of one k and four columns.
Address query_rows[4];

void find_query_rows(Mask mask) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        const uint column = gl_LocalInvocationIndex / LK_STRIP_CHANNELS * 4u + i;
        const QueryColumn query = query_column(mask, mask.first_column + column);
        query_rows[i] = Address(0u);
        if (column < mask.n_columns)
            query_rows[i] = tensor_row(push.q, query.token, query.head);
    }
}

// Element k of 16 at a position of K order.
uint k_at(uint position) { return LK_TILE_K(position / 4u, position & 2u) + (position & 1u); }

// The queries of a strip of keys, as they lie in memory, and the key scales.
struct StripQueries {
    uvec4 bits;
    float scale;
};
StripQueries load_queries(Mask mask, uint strip) {
    const uint k = k_at(gl_LocalInvocationIndex % LK_STRIP_CHANNELS);
    const uint channel = shared_channels[strip * LK_STRIP_CHANNELS + k];
    StripQueries loaded = StripQueries(uvec4(0u), 1.0);
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        if (!is_null(query_rows[i]))
            loaded.bits[i] = load_element_bits(query_rows[i], push.q.dtype, channel);
    if (!is_null(mask.layer.key_scales))
        loaded.scale =
            ConstFloats(mask.layer.key_scales).at[mask.kv_head * kHeadDim + channel];
    return loaded;
}

// The queries are multiplied by the factor from products to scores.
void store_queries(StripQueries loaded, float factor) {
    const uint position = gl_LocalInvocationIndex % LK_STRIP_CHANNELS;
    const uint group = gl_LocalInvocationIndex / LK_STRIP_CHANNELS;
    vec4 queries;
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        queries[i] = element_of(push.q.dtype, loaded.bits[i]);
    if (group < kColumnGroups)
        shared_columns[position * kColumnGroups + group] = factor * loaded.scale * queries;
}

#endif
