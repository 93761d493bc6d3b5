// New tokens of a layer that fill whole blocks: a workgroup packs a page's tokens from their rows in
// the host's tensor, which it checks and stages, or from rows that are staged already.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "shaders/push.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;  // LK_APPEND_PAGES_THREADS
layout(push_constant) uniform PushBlock { AppendPush push; };

#include "shaders/pack/new_tokens.glsl"
#include "shaders/pack/slices.glsl"

const uint kBatch = 8u;  // rows whose loads a thread has under way
const uint kRowChunks = kMostHeadDim / kChunk;
const uint kRowsAtOnce = gl_WorkGroupSize.x / kRowChunks;

LayerInfo layer;
bool is_value;
uint head;

// The rows of the page's tokens, from the first one on, to job and row_values.
void find_rows(uint first_token) {
    PushTensor tensor;  // a structure of push constants is no plain value to glslc
    tensor.data = is_value ? push.v.data : push.k.data;
    tensor.dtype = LK_DTYPE_F16;
    tensor.token_stride = is_value ? push.v.token_stride : push.k.token_stride;
    tensor.head_stride = is_value ? push.v.head_stride : push.k.head_stride;
    job.source = tensor_row(tensor, first_token, head);
    row_values = tensor.token_stride;
}

// The block's page, to page_format and job.
void find_page(StepTable step, Address entries) {
    const Entry entry = load_entry(entries, layer.first_entry + head);
    page_format = load_format(step.formats, is_value ? entry.value_format : entry.key_format);
    job.payload = is_value ? entry.value_payload : entry.key_payload;
    job.metadata = is_value ? entry.value_metadata : entry.key_metadata;
}

// Loads of several chunks are under way at once.
void stage_rows(uint first_token, uint n_tokens) {
    const uint channel = gl_LocalInvocationIndex % kRowChunks * kChunk;
    const uint first_row = gl_LocalInvocationIndex / kRowChunks;
    const uint end = first_row < kRowsAtOnce ? n_tokens : 0u;
    for (uint batch = first_row; batch < end; batch += kBatch * kRowsAtOnce) {
        uvec4 chunks[kBatch];
        [[unroll]] for (uint i = 0u; i < kBatch; ++i) {
            const uint row = min(batch + i * kRowsAtOnce, end - 1u);
            chunks[i] =
                ConstQuads(address_add(job.source, 2u * (row * row_values + channel))).at[0];
        }
        [[unroll]] for (uint i = 0u; i < kBatch; ++i) {
            const uint row = batch + i * kRowsAtOnce;
            if (row < end)
                keep_chunk(layer, take_f16_eight(chunks[i]), is_value, first_token + row, head,
                           channel);
        }
    }
}

// A page of 16 bits.
void store_tiles() {
    const uint lane = gl_LocalInvocationIndex % LK_LANES;
    const uint n_teams = gl_WorkGroupSize.x / LK_LANES;
    const uint n = n_strips() * page_tiles();
    for (uint first = gl_LocalInvocationIndex / LK_LANES; first < n; first += 4u * n_teams) {
        uvec4 tiles[4];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            const uint at = min(first + i * n_teams, n - 1u);
            const uint strip = at % n_strips();
            tiles[i] = load_tile(lane_offsets(strip, lane), strip, at / n_strips(), lane);
        }
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            const uint at = first + i * n_teams;
            const uint tile = at % n_strips() * page_tiles() + at / n_strips();
            if (at < n)
                Quads(job.payload).at[tile * LK_LANES + lane] = tiles[i];
        }
    }
}

void main() {
    is_value = gl_WorkGroupID.z != 0u;
    head = gl_WorkGroupID.y;
    const StepTable step = load_step(push.step);
    layer = load_layer(step, push.layer);
    const uvec4 block = ConstQuads(push.list).at[push.first_group + gl_WorkGroupID.x];
    find_rows(block.z);
    find_page(step, block.xy);
    begin_report();
    if (!is_null(push.staged_k))
        stage_rows(block.z, page_format.page_tokens);
    report(step);
    has_infinities = first_fault != LK_NO_FAULT;
    if (page_format.ranking == 2u)
        return;
    order_channels();
    if (page_format.is_raw) {
        store_tiles();
        return;
    }
    find_strips();
    pack_slices();
}
