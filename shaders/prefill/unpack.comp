// Keys and values of a sequence to the slots, which attention of many columns reads: a workgroup takes
// a block of a KV head, or a run of its staged tokens. push.h has the dispatch.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/dequantize.glsl"
#include "shaders/tensor.glsl"
#include "shaders/prefill/slots.glsl"

layout(local_size_x_id = LK_SPEC_THREADS) in;
layout(constant_id = LK_SPEC_HEAD_DIM) const uint kHeadDim = 128u;

const uint kStrips = kHeadDim / LK_STRIP_CHANNELS;

shared StripPosition shared_strips[kStrips];

bool is_value() { return gl_WorkGroupID.z != 0u; }

void store_number(Address slots, uint token, uint channel, uint bits) {
    F16Values(slots).at[slot_offset(kHeadDim, is_value(), token, channel)] = uint16_t(bits);
}

// Attention reads whole stages, and a weight of 0 does not take a NaN away.
void clear_after(Address slots, uint n_tokens) {
    const uint n = (LK_SLOT_TOKENS(n_tokens) - n_tokens) * kHeadDim;
    for (uint i = gl_LocalInvocationIndex; i < n; i += gl_WorkGroupSize.x)
        store_number(slots, n_tokens + i / kHeadDim, i % kHeadDim, 0u);
}

void store_pair(Address slots, uint token, uint channel, uint pair) {
    Words(slots).at[slot_offset(kHeadDim, is_value(), token, channel) / 2u] = pair;
}

// Tokens of the staging area, by pairs that share a word: of channels of keys, of tokens of values.
void copy_staged(Address slots, Address staged, uint first_token, uint n_tokens) {
    for (uint i = gl_LocalInvocationIndex; i < n_tokens * kHeadDim / 2u; i += gl_WorkGroupSize.x) {
        const uint channel = 2u * i % kHeadDim;
        const uint token = 2u * i / kHeadDim;
        const uint pair = ConstWords(staged).at[i];
        if (!is_value()) {
            store_pair(slots, first_token + token, channel, pair);
            continue;
        }
        store_number(slots, first_token + token, channel, pair & 0xFFFFu);
        store_number(slots, first_token + token, channel + 1u, pair >> 16);
    }
}

// The registers of a lane of a tile, which are those of a 16-bit page.
uvec4 tile_registers(FormatInfo format, Address payload, Address metadata, uint strip, uint tile,
                     uint lane) {
    const StripPosition position = shared_strips[strip];
    const LaneWords words = load_lane(format, position, payload, metadata, tile, lane);
    if (position.bits == 16u)
        return words.codes;
    const LaneValues values = values_of(format, position, payload, tile, lane, words);
    return uvec4(packHalf2x16(values.low.xy), packHalf2x16(values.high.xy),
                 packHalf2x16(values.low.zw), packHalf2x16(values.high.zw));
}

// Two numbers of a register: neighbours of a strip's channels, or of a tile's tokens. They share a
// word of the slots where their order and their place are those of the page.
void store_register(Address slots, Address permutation, uint token, uint end, uint slot, uint pair) {
    const bool is_second_there = token + 1u < end;
    if (token >= end)
        return;
    if (is_value()) {
        if (is_second_there && (token & 1u) == 0u) {
            store_pair(slots, token, slot, pair);
            return;
        }
        store_number(slots, token, slot, pair & 0xFFFFu);
        if (is_second_there)
            store_number(slots, token + 1u, slot, pair >> 16);
        return;
    }
    if (is_null(permutation)) {
        store_pair(slots, token, slot, pair);
        return;
    }
    store_number(slots, token, load_channel(permutation, kHeadDim, slot), pair & 0xFFFFu);
    store_number(slots, token, load_channel(permutation, kHeadDim, slot + 1u), pair >> 16);
}

void unpack_block(Mask mask, BlockInfo block, Address slots, uint n_tokens) {
    const Entry entry = load_entry(block.entries, mask.layer.first_entry + mask.kv_head);
    const FormatInfo format =
        load_format(mask.step.formats, is_value() ? entry.value_format : entry.key_format);
    const Address payload = is_value() ? entry.value_payload : entry.key_payload;
    const Address metadata = is_value() ? entry.value_metadata : entry.key_metadata;
    const Address permutation =
        format.permutes ? address_add(metadata, format.permutation_offset) : format.permutation;
    for (uint strip = gl_LocalInvocationIndex; strip < kStrips; strip += gl_WorkGroupSize.x)
        shared_strips[strip] = find_strip(format, strip);
    barrier();
    // A whole tile whose channels keep their order has the same registers in the slots.
    const bool is_in_order = is_value() || is_null(permutation);
    const uint n_tiles = (n_tokens + LK_TILE_TOKENS - 1u) / LK_TILE_TOKENS;
    for (uint i = gl_LocalInvocationIndex; i < n_tiles * kStrips * LK_LANES;
         i += gl_WorkGroupSize.x) {
        const uint lane = i % LK_LANES;
        const uint strip = i / LK_LANES % kStrips;
        const uint tile = i / LK_LANES / kStrips;
        const uvec4 registers = tile_registers(format, payload, metadata, strip, tile, lane);
        const uint first_token = block.first_token + tile * LK_TILE_TOKENS;
        if (is_in_order && first_token % LK_TILE_TOKENS == 0u &&
            (tile + 1u) * LK_TILE_TOKENS <= n_tokens) {
            const uint first = first_token / LK_TILE_TOKENS * kStrips + strip;
            Quads(slots).at[first * LK_LANES + lane] = registers;
            continue;
        }
        const uint row = LK_TILE_ROW(lane, 0u);
        const uint k = LK_TILE_K(lane, 0u);
        for (uint r = 0u; r < 4u; ++r) {
            const uint own_row = row + 8u * (r & 1u);
            const uint own_k = k + 8u * (r / 2u);
            const uint token = tile * LK_TILE_TOKENS + (is_value() ? own_k : own_row);
            store_register(slots, permutation, block.first_token + token,
                           block.first_token + n_tokens,
                           strip * LK_STRIP_CHANNELS + (is_value() ? own_row : own_k), registers[r]);
        }
    }
}

void main() {
    const Mask mask = find_work_tile(push.sequence, push.first_head + gl_WorkGroupID.y);
    const SequenceInfo sequence = mask.sequence;
    const Address slots = slots_of(sequence, kHeadDim, gl_WorkGroupID.y, gl_WorkGroupID.z);
    if (gl_WorkGroupID.x == 0u)
        clear_after(slots, count_tokens(sequence));
    if (gl_WorkGroupID.x < sequence.n_attended) {
        const BlockInfo block = load_block(mask.step, sequence.first_block + gl_WorkGroupID.x);
        const uint end = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0u);
        if (block.first_token < end)
            unpack_block(mask, block, slots, min(block.capacity_tokens, end - block.first_token));
        return;
    }
    const uint first = (gl_WorkGroupID.x - sequence.n_attended) * LK_STAGED_PAGE_TOKENS;
    if (sequence.new_in_blocks || first >= sequence.n_new)
        return;
    const uint row = mask.kv_head * push.n_tokens + sequence.first_new + first;
    copy_staged(slots, address_at(is_value() ? push.staged_v : push.staged_k, row, 2u * kHeadDim),
                sequence.n_history + first, min(LK_STAGED_PAGE_TOKENS, sequence.n_new - first));
}
