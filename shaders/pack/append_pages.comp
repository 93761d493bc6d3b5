// New tokens of a layer that fill whole blocks: to FP16 as append does, and packed. A workgroup
// takes a page's tokens from the host's tensor to rows in shared memory, whence it packs them.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "shaders/push.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;  // a multiple of LK_LANES
layout(push_constant) uniform PushBlock { AppendPush push; };

#define LK_NEW_TOKENS
#include "shaders/pack/new_tokens.glsl"
#include "shaders/pack/rank.glsl"
#include "shaders/pack/words.glsl"

const uint kBatch = 4u;  // rows whose loads a thread has under way
const uint kRowChunks = kMostHeadDim / kChunk;
const uint kRowsAtOnce = gl_WorkGroupSize.x / kRowChunks;

LayerInfo layer;
bool is_value;
uint head;
PushTensor tensor;  // of the keys or the values

// A structure of push constants is no plain value to glslc.
void find_tensor() {
    tensor.data = is_value ? push.v.data : push.k.data;
    tensor.dtype = is_value ? push.v.dtype : push.k.dtype;
    tensor.token_stride = is_value ? push.v.token_stride : push.k.token_stride;
    tensor.head_stride = is_value ? push.v.head_stride : push.k.head_stride;
}

// The block's page, to page_format and job.
void find_page(StepTable step, Address entries) {
    const Entry entry = load_entry(entries, layer.first_entry + head);
    page_format = load_format(step.formats, is_value ? entry.value_format : entry.key_format);
    job.payload = is_value ? entry.value_payload : entry.key_payload;
    job.metadata = is_value ? entry.value_metadata : entry.key_metadata;
}

// Do all chunks of eight elements of 16 bits begin at multiples of 16 bytes? Offsets of a page's
// tokens then have 32 bits.
bool has_vectors(Address first) {
    return tensor.dtype != LK_DTYPE_F32 && tensor.token_stride < 1u << 24 &&
           ((first.x | 2u * tensor.token_stride) & 15u) == 0u;
}

uint row_word(uint row, uint channel) { return row * kRowWords + channel / 2u; }

// A thread's chunks of rows first_row, first_row + kRowsAtOnce and so on below end, as they are:
// loads of several are under way at once.
void copy_rows(Address first, uint first_row, uint end, uint channel) {
    const uint row_bytes = 2u * tensor.token_stride;
    for (uint batch = first_row; batch < end; batch += kBatch * kRowsAtOnce) {
        uvec4 chunks[kBatch];
        [[unroll]] for (uint i = 0u; i < kBatch; ++i) {
            const uint row = min(batch + i * kRowsAtOnce, end - 1u);
            chunks[i] = ConstQuads(address_add(first, row * row_bytes)).at[0];
        }
        [[unroll]] for (uint i = 0u; i < kBatch; ++i)
            if (batch + i * kRowsAtOnce < end)
                [[unroll]] for (uint j = 0u; j < kChunk / 2u; ++j)
                    rows[row_word(batch + i * kRowsAtOnce, channel) + j] = chunks[i][j];
    }
}

// n tokens of the batch, as rows of FP16.
void take_rows(uint first_token, uint n) {
    const uint channel = gl_LocalInvocationIndex % kRowChunks * kChunk;
    const uint first_row = gl_LocalInvocationIndex / kRowChunks;
    const uint end = first_row < kRowsAtOnce ? n : 0u;
    const KeyChanges changes = key_changes(layer, is_value, head, channel);
    const Address first = address_add(tensor_row(tensor, first_token, head), 2u * channel);
    const bool is_copied = has_vectors(first);
    if (is_copied)
        copy_rows(first, first_row, end, channel);
    for (uint row = first_row; row < end; row += kRowsAtOnce) {
        const uint at = row_word(row, channel);
        RawEight raw;
        if (is_copied)
            raw.low = uvec4(rows[at], rows[at + 1u], rows[at + 2u], rows[at + 3u]);
        else
            raw = load_eight(tensor_row(tensor, first_token + row, head), tensor.dtype, channel);
        const Chunk chunk = take_chunk(raw, tensor.dtype, changes);
        keep_chunk(layer, chunk, is_value, first_token + row, head, channel);
        [[unroll]] for (uint i = 0u; i < kChunk / 2u; ++i)
            rows[at + i] = chunk.words[i];
    }
}

// Tokens of a 16-bit page, from one of its tiles on.
void store_rows(uint first_tile, uint n_tiles) {
    const uint lane = gl_LocalInvocationIndex % LK_LANES;
    const uint n_teams = gl_WorkGroupSize.x / LK_LANES;
    for (uint at = gl_LocalInvocationIndex / LK_LANES; at < n_strips() * n_tiles; at += n_teams) {
        const uint strip = at / n_tiles;
        const uint tile = at % n_tiles;
        Quads(job.payload).at[(strip * page_tiles() + first_tile + tile) * LK_LANES + lane] =
            load_tile(lane_offsets(strip, lane), strip, tile, lane);
    }
}

void main() {
    is_value = gl_WorkGroupID.z != 0u;
    head = gl_WorkGroupID.y;
    const StepTable step = load_step(push.step);
    layer = load_layer(step, push.layer);
    const uvec4 block = ConstQuads(push.list).at[push.first_group + gl_WorkGroupID.x];
    find_tensor();
    find_page(step, block.xy);
    begin_report();
    // A 16-bit page may be longer than a packed one.
    const uint n_tokens = page_format.page_tokens;
    for (uint first = 0u; first < n_tokens; first += LK_MAX_PAGE_TOKENS) {
        const uint n = min(n_tokens - first, LK_MAX_PAGE_TOKENS);
        take_rows(block.z + first, n);
        barrier();
        if (!page_format.is_raw)
            break;
        store_rows(first / LK_TILE_TOKENS, n / LK_TILE_TOKENS);
        barrier();
    }
    report(step);
    if (page_format.is_raw || page_format.ranking == 2u)
        return;
    order_channels();
    measure_groups();
    for (uint strip = gl_LocalInvocationIndex / LK_LANES; strip < n_strips();
         strip += gl_WorkGroupSize.x / LK_LANES)
        write_strip(strip, gl_LocalInvocationIndex % LK_LANES);
}
