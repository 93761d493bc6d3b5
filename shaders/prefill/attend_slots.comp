// Attention of many query columns by a tensor core, over keys and values in slots. push.h says how the
// dispatch is cut into workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_vote : require

#include "shaders/prefill/slots.glsl"
#include "shaders/prefill/slot_queries.glsl"
#include "shaders/prefill/slot_weights.glsl"

// Of a stage's keys or values, an invocation loads every kThreads-th vector. Values are loaded when
// the keys are stored: half as many vectors wait in registers.
const uint kMostLoads = LK_SLOT_LOADS;
uvec4 loaded[kMostLoads];

void load_side(Address side, uint stage) {
    [[unroll]] for (uint i = 0u; i < kMostLoads; ++i) {
        const uint at = i * kThreads + gl_LocalInvocationIndex;
        if (at < kSideQuads)
            loaded[i] = ConstQuads(side).at[stage * kSideQuads + at];
    }
}
void store_side(uint first) {
    [[unroll]] for (uint i = 0u; i < kMostLoads; ++i) {
        const uint at = i * kThreads + gl_LocalInvocationIndex;
        if (at < kSideQuads)
            shared_tiles[first + at] = loaded[i];
    }
}
uvec4 load_tile(uint first, uint tile, uint strip) {
    return shared_tiles[first + (tile * kStrips + strip) * LK_LANES + lane];
}

void multiply_key_tile(uint first, uint tile, uint strip) {
    const uvec4 keys = load_tile(first, tile, strip);
    scores[2u * tile] = multiply_add(queries[strip], column_matrix(keys.xz), scores[2u * tile]);
    scores[2u * tile + 1u] =
        multiply_add(queries[strip], column_matrix(keys.yw), scores[2u * tile + 1u]);
}
void multiply_keys(uint first) {
    [[unroll]] for (uint i = 0u; i < kStageEights; ++i)
        scores[i] = zero_sums();
    [[unroll]] for (uint strip = 0u; strip < kMostStrips; ++strip)
        [[unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile)
            if (strip < kStrips)
                multiply_key_tile(first, tile, strip);
}

// The words of both columns.
uvec2 weight_pair(SumMatrix eight) {
    return uvec2(packHalf2x16(vec2(eight[0], eight[1])), packHalf2x16(vec2(eight[2], eight[3])));
}

void multiply_value_tile(uint first, uint tile, uint strip, Matrix weights) {
    const uvec4 values = load_tile(first, tile, strip);
    outputs[2u * strip] = multiply_add(weights, column_matrix(values.xz), outputs[2u * strip]);
    outputs[2u * strip + 1u] =
        multiply_add(weights, column_matrix(values.yw), outputs[2u * strip + 1u]);
}
void multiply_values(uint first) {
    [[unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile) {
        const Matrix weights = matrix_of(
            uvec4(weight_pair(scores[2u * tile]), weight_pair(scores[2u * tile + 1u])));
        [[unroll]] for (uint strip = 0u; strip < kMostStrips; ++strip)
            if (strip < kStrips)
                multiply_value_tile(first, tile, strip, weights);
    }
}

bool find_mask(uint tile, out Mask mask) {
    mask = find_work_tile(push.sequence, push.first_head + gl_WorkGroupID.y);
    mask.first_column = tile * kColumns;
    const uint n_all = mask.sequence.n_new * mask.group_size;
    if (mask.first_column >= n_all)
        return false;
    mask.n_columns = min(kColumns, n_all - mask.first_column);
    mask.first_position = mask.sequence.n_history + mask.first_column / mask.group_size;
    mask.last_position =
        find_reach(mask, (mask.first_column + mask.n_columns - 1u) / mask.group_size);
    return true;
}

// A stage is multiplied while the next one is loaded. All columns see whole the stages before
// `edge`.
void attend_stages(Mask mask, uint begin, uint edge, uint end) {
    const Address keys = slots_of(mask.sequence, kHeadDim, gl_WorkGroupID.y, 0u);
    const Address values = slots_of(mask.sequence, kHeadDim, gl_WorkGroupID.y, 1u);
    uint first = 0u;
    load_side(keys, begin);
    store_side(first);
    load_side(values, begin);
    store_side(first + kSideQuads);
    barrier();
    for (uint stage = begin; stage < end; ++stage) {
        const uint next = min(stage + 1u, end - 1u);
        const uint other = 2u * kSideQuads - first;
        load_side(keys, next);
        multiply_keys(first);
        store_side(other);
        load_side(values, next);
        if (mask.layer.soft_cap > 0.0)
            cap_stage(mask.layer);
        if (stage < edge)
            weigh(false, 0u);
        else
            weigh(true, stage * kStageTokens);
        multiply_values(first + kSideQuads);
        store_side(other + kSideQuads);
        first = other;
        barrier();
    }
}

// The lane's pair of an eight of channels, of its column i. Constant indices, so that outputs stay in
// registers.
vec2 output_pair(uint i, uint eight) {
    vec2 pair = vec2(0.0);
    [[unroll]] for (uint at = 0u; at < 2u * kMostStrips; ++at)
        if (at == eight)
            pair = i == 0u ? vec2(outputs[at][0], outputs[at][1]) : vec2(outputs[at][2], outputs[at][3]);
    return pair;
}

void store_columns(Mask mask, uint tile) {
    const vec2 sums = quad_total(sum);
    [[dont_unroll]] for (uint i = 0u; i < 2u; ++i) {
        const uint column = lane_column(i);
        if (column >= mask.n_columns)
            continue;
        const bool is_first = i == 0u;
        Total total = Total(is_first ? reference.x : reference.y, is_first ? sums.x : sums.y);
        total.reference -= kWeightExponent;
        if (is_first ? is_beyond.x : is_beyond.y)
            total.sum = kBeyond;
        const Destination to = store_total(mask, tile, column, total);
        [[dont_unroll]] for (uint eight = 0u; eight < 2u * kStrips; ++eight) {
            const vec2 pair = output_pair(i, eight);
            [[unroll]] for (uint e = 0u; e < 2u; ++e)
                store_element(to.row, to.dtype, 8u * eight + lane_pair() + e,
                              output_of(to.total, pair[e] * to.factor));
        }
    }
}

void main() {
    find_lane();
    // Most tokens are visible to the last columns: their workgroups start first.
    const uint tile = push.n_tiles - 1u - gl_WorkGroupID.x;
    Mask mask;
    if (!find_mask(tile, mask))
        return;
    reference = vec2(kHidden);
    sum = vec2(0.0);
    [[unroll]] for (uint i = 0u; i < 2u * kMostStrips; ++i)
        outputs[i] = zero_sums();
    find_reaches(mask);
    load_queries(mask);
    const uint n_stages = mask.last_position / kStageTokens + 1u;
    const uint begin = share(n_stages, gl_WorkGroupID.z, push.n_splits);
    const uint end = share(n_stages, gl_WorkGroupID.z + 1u, push.n_splits);
    if (begin < end)
        attend_stages(mask, begin, (mask.first_position + 1u) / kStageTokens, end);
    store_columns(mask, tile);
}
