// New tokens of a layer: to FP16, keys centered, scaled and rotated, into their 16-bit blocks and the
// staging area. A workgroup takes the keys or the values of some neighbouring tokens of a head, a
// thread eight channels.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/push.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;
layout(push_constant) uniform PushBlock { AppendPush push; };

#include "shaders/pack/keys.glsl"

// The last of n ascending words, `step` words apart, that is not above the limit; the first is not.
// The token is mostly near the end.
uint find_last(Address words, uint step, uint n, uint limit) {
    uint end = n;
    uint first = n - 1u;
    for (uint back = 1u; first > 0u && ConstWords(words).at[first * step] > limit; back *= 2u) {
        end = first;
        first -= min(first, back);
    }
    while (end - first > 1u) {
        const uint midpoint = (first + end) / 2u;
        if (ConstWords(words).at[midpoint * step] > limit)
            end = midpoint;
        else
            first = midpoint;
    }
    return first;
}

SequenceInfo find_sequence(StepTable step, uint token) {
    const Address first_new = address_add(step.sequences, 28u);  // SequenceInfo.first_new
    return load_sequence(step, find_last(first_new, 12u, push.n_sequences, token));
}

BlockInfo find_row(StepTable step, SequenceInfo sequence, uint position) {
    const Address rows = address_at(step.blocks, sequence.first_block, 16u);
    const Address first_token = address_add(rows, 8u);  // BlockInfo.first_token
    return load_block(step,
                    sequence.first_block + find_last(first_token, 4u, sequence.n_blocks, position));
}

// The page that stores a token and the next ones of the batch.
struct Position {
    uint end;         // of these tokens
    uint shift;       // from a token of the batch to one of the page
    Address payload;  // 0: they are staged alone
    uint page_tokens;
};
Position find_position(StepTable step, LayerInfo layer, bool is_value, uint token, uint head) {
    const SequenceInfo sequence = find_sequence(step, token);
    const uint in_sequence = token - sequence.first_new;
    const uint position = sequence.n_history + in_sequence;
    const BlockInfo row = find_row(step, sequence, position);
    const uint in_row = position - row.first_token;
    Position target;
    target.end = token + min(sequence.n_new - in_sequence, row.capacity_tokens - in_row);
    target.shift = in_row - token;
    target.payload = Address(0u);
    target.page_tokens = 0u;
    if (row.is_packed_on_append)
        return target;
    const Entry entry = load_entry(row.entries, layer.first_entry + head);
    const FormatInfo c = load_format(step.formats, is_value ? entry.value_format : entry.key_format);
    if (c.is_raw)
        target.payload = is_value ? entry.value_payload : entry.key_payload;
    target.page_tokens = c.page_tokens;
    return target;
}

void store_in_page(Position target, Chunk chunk, bool is_value, uint token, uint channel) {
    for (uint i = 0u; i < kChunk / 2u; ++i) {
        const uint pair = chunk.words[i];
        const uint low = raw_offset(is_value, target.page_tokens, token, channel + 2u * i);
        if (!is_value) {  // two channels share a word of a key tile
            Words(target.payload).at[low / 2u] = pair;
            continue;
        }
        const uint high = raw_offset(is_value, target.page_tokens, token, channel + 2u * i + 1u);
        F16Values(target.payload).at[low] = uint16_t(pair & 0xFFFFu);
        F16Values(target.payload).at[high] = uint16_t(pair >> 16);
    }
}

// The workgroup's tokens of the batch.
uvec2 token_range() {
    const uint index = push.first_group + gl_WorkGroupID.x;
    if (is_null(push.list)) {
        const uint first = index * push.token_step;
        return uvec2(first, min(first + push.token_step, push.n_tokens));
    }
    const uvec2 run = ConstPairs(push.list).at[index];
    return uvec2(run.x, run.x + run.y);
}

RawEight load_new(bool is_value, uint dtype, uint token, uint head, uint channel) {
    const Address row =
        is_value ? tensor_row(push.v, token, head) : tensor_row(push.k, token, head);
    return load_eight(row, dtype, channel);
}

void main() {
    const bool is_value = gl_WorkGroupID.z != 0u;
    const uint head = gl_WorkGroupID.y;
    const StepTable step = load_step(push.step);
    const LayerInfo layer = load_layer(step, push.layer);
    const uint n_chunks = (is_value ? layer.value_dim : layer.head_dim) / kChunk;
    const uint n_at_once = gl_WorkGroupSize.x / n_chunks;
    const uint in_step = gl_LocalInvocationIndex / n_chunks;
    const uint channel = gl_LocalInvocationIndex % n_chunks * kChunk;
    const uint dtype = is_value ? push.v.dtype : push.k.dtype;
    const uvec2 range = token_range();
    begin_report();
    const KeyChanges changes = key_changes(layer, is_value, head, channel);
    Position target;
    target.end = 0u;
    for (uint first = range.x; first < range.y; first += n_at_once) {
        const uint token = first + in_step;
        const bool exists = in_step < n_at_once && token < range.y;
        RawEight raw = RawEight(uvec4(0u), uvec4(0u));
        if (exists)
            raw = load_new(is_value, dtype, token, head, channel);
        Chunk chunk;
        if (exists || changes.rotation != 0u)
            chunk = take_chunk(raw, dtype, changes);
        if (!exists)
            continue;
        keep_chunk(layer, chunk, is_value, token, head, channel);
        if (token >= target.end)
            target = find_position(step, layer, is_value, token, head);
        if (!is_null(target.payload))
            store_in_page(target, chunk, is_value, token + target.shift, channel);
    }
    report(step);
}
