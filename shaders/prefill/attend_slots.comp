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

SumMatrix output_sums[2u * kMostStrips];  // [strip][matrix]

// Of a stage's keys and values, an invocation loads every kThreads-th vector.
const uint kLoads = (2u * kSideQuads + kThreads - 1u) / kThreads;
const uint kMostLoads = LK_SLOT_LOADS;
uvec4 loaded[kMostLoads];

struct Slots {
    Address keys;
    Address values;
};
void load_stage(Slots slots, uint stage) {
    [[unroll]] for (uint i = 0u; i < kMostLoads; ++i) {
        const uint at = i * kThreads + gl_LocalInvocationIndex;
        if (i < kLoads && at < 2u * kSideQuads) {
            Address side = slots.keys;
            if (at >= kSideQuads)
                side = slots.values;
            loaded[i] = ConstQuads(side).at[stage * kSideQuads + at % kSideQuads];
        }
    }
}
void store_stage(uint first) {
    [[unroll]] for (uint i = 0u; i < kMostLoads; ++i) {
        const uint at = i * kThreads + gl_LocalInvocationIndex;
        if (i < kLoads && at < 2u * kSideQuads)
            shared_tiles[first + at] = loaded[i];
    }
}
Matrix load_tile(uint first, uint tile, uint strip) {
    return matrix_of(shared_tiles[first + (tile * kStrips + strip) * LK_LANES + lane]);
}

void multiply_keys(uint first) {
    SumMatrix products[2u * kStageTiles];
    [[unroll]] for (uint i = 0u; i < 2u * kStageTiles; ++i)
        products[i] = zero_sums();
    [[unroll]] for (uint strip = 0u; strip < kMostStrips; ++strip)
        if (strip < kStrips)
            [[unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile) {
                const Matrix keys = load_tile(first, tile, strip);
                [[unroll]] for (uint i = 0u; i < 2u; ++i)
                    products[2u * tile + i] =
                        multiply_add(keys, queries[2u * strip + i], products[2u * tile + i]);
            }
    [[unroll]] for (uint i = 0u; i < kScoreRows; ++i)
        scores[i] = pair_row(products[i / 2u * 2u], products[i / 2u * 2u + 1u], i % 2u) *
                        score_factors +
                    center_scores;
}

void multiply_values(uint first) {
    [[unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile) {
        const vec4 low = scores[2u * tile];
        const vec4 high = scores[2u * tile + 1u];
        ColumnMatrix weights[2];
        weights[0] = column_matrix(uvec2(packHalf2x16(low.xy), packHalf2x16(high.xy)));
        weights[1] = column_matrix(uvec2(packHalf2x16(low.zw), packHalf2x16(high.zw)));
        [[unroll]] for (uint strip = 0u; strip < kMostStrips; ++strip)
            if (strip < kStrips) {
                const Matrix values = load_tile(first, tile, strip);
                [[unroll]] for (uint i = 0u; i < 2u; ++i)
                    output_sums[2u * strip + i] =
                        multiply_add(values, weights[i], output_sums[2u * strip + i]);
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

bool find_mask(uint tile, out Mask mask) {
    mask = find_work_tile(push.sequence, push.first_head + gl_WorkGroupID.y);
    mask.sequence.has_tree = false;
    mask.layer.window_tokens = 0u;
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

// A stage is multiplied while the next one is loaded.
void attend_stages(Mask mask, uint begin, uint end) {
    const SequenceInfo sequence = mask.sequence;
    const Slots slots = Slots(slots_of(sequence, kHeadDim, gl_WorkGroupID.y, 0u),
                              slots_of(sequence, kHeadDim, gl_WorkGroupID.y, 1u));
    uint first = 0u;
    load_stage(slots, begin);
    store_stage(first);
    barrier();
    for (uint stage = begin; stage < end; ++stage) {
        load_stage(slots, min(stage + 1u, end - 1u));
        multiply_keys(first);
        shape_scores(mask, Stage(stage * kStageTokens, 0u, kStageTokens));
        weigh();
        multiply_values(first + kSideQuads);
        first = 2u * kSideQuads - first;
        store_stage(first);
        barrier();
    }
}

void main() {
    find_lane();
    // Most tokens are visible to the last columns: their workgroups start first.
    const uint tile = push.n_tiles - 1u - gl_WorkGroupID.x;
    Mask mask;
    if (!find_mask(tile, mask))
        return;
    reference = vec4(kHidden);
    sum = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < 2u * kMostStrips; ++i)
        output_sums[i] = zero_sums();
    find_positions(mask);
    load_queries(mask);
    const uint n_stages = mask.last_position / kStageTokens + 1u;
    const uint begin = share(n_stages, gl_WorkGroupID.z, push.n_splits);
    const uint end = share(n_stages, gl_WorkGroupID.z + 1u, push.n_splits);
    if (begin < end)
        attend_stages(mask, begin, end);
    sum = column_total(sum);
    [[unroll]] for (uint i = 0u; i < kOutputRows; ++i)
        outputs[i] = pair_row(output_sums[i / 2u * 2u], output_sums[i / 2u * 2u + 1u], i % 2u);
    store_columns(mask, tile, reference - kWeightExponent);
}
