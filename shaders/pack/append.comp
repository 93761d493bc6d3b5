// New tokens of a layer: to FP16, keys centered and scaled, into their 16-bit blocks and the
// staging area. A workgroup takes the keys or the values of some neighbouring tokens of a head, a
// thread eight channels.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/layout.glsl"
#include "shaders/rounding.glsl"
#include "shaders/tensor.glsl"

layout(local_size_x_id = LK_SPEC_THREADS) in;
layout(push_constant) uniform PushBlock { AppendPush push; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Counters { uint at[]; };

const uint kChunk = 8u;  // channels of a thread

// What the workgroup found.
shared uint n_saturated;
shared uint first_fault;  // LK_NO_FAULT, or the lowest fault_key()

// FP16 numbers of a chunk, two to a word, with the counts and faults to report.
struct Chunk {
    uvec4 words;
    uint n_saturated;
    bool has_fault;
};

// The highest bit of each FP16 number that is infinite or NaN.
uvec4 not_finite(uvec4 pairs) { return (pairs & 0x7C007C00u) + 0x04000400u & 0x80008000u; }

uint take_float(uint float_bits, inout Chunk chunk) {
    if (!float_is_finite(float_bits)) {
        chunk.has_fault = true;
        return 0u;
    }
    bool saturated;
    const uint bits = float_to_half(float_bits, saturated);
    chunk.n_saturated += saturated ? 1u : 0u;
    return bits;
}

Chunk take_eight(RawEight raw, uint dtype) {
    Chunk chunk = Chunk(raw.low, 0u, false);
    if (dtype == LK_DTYPE_F16) {
        const uvec4 found = not_finite(raw.low);
        chunk.has_fault = found != uvec4(0u);
        chunk.words &= ~((found >> 15) * 0xFFFFu);
        return chunk;
    }
    for (uint i = 0u; i < kChunk / 2u; ++i) {
        const uint low = take_float(float_bits_of(raw, dtype, 2u * i), chunk);
        chunk.words[i] = low | take_float(float_bits_of(raw, dtype, 2u * i + 1u), chunk) << 16;
    }
    return chunk;
}

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

// Keys less the centers of these channels, times the inverses of their scales; 0 = none. Keys that
// saturate by any inverse are cut first, so that no product is infinite.
Chunk take_keys(RawEight raw, uint dtype, Address centers, Address inverses) {
    const float kMost = 2147483648.0;
    Chunk chunk = Chunk(uvec4(0u), 0u, false);
    for (uint i = 0u; i < kChunk; ++i) {
        uint bits = float_bits_of(raw, dtype, i);
        if (float_is_finite(bits) && !is_null(centers)) {
            precise const float difference = uintBitsToFloat(bits) - ConstFloats(centers).at[i];
            bits = floatBitsToUint(difference);
        }
        if (float_is_finite(bits) && !is_null(inverses)) {
            precise const float divided =
                clamp(uintBitsToFloat(bits), -kMost, kMost) * ConstFloats(inverses).at[i];
            bits = floatBitsToUint(divided);
        }
        chunk.words[i / 2u] |= take_float(bits, chunk) << 16u * (i & 1u);
    }
    return chunk;
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

void store_staged(LayerInfo layer, Chunk chunk, bool is_value, uint token, uint head,
                  uint channel) {
    const Address area = is_value ? push.staged_v : push.staged_k;
    const Address row = address_at(area, head * push.n_tokens + token, 2u * layer.head_dim);
    Quads(row).at[channel / kChunk] = chunk.words;
}

// The key of a fault is ordered by token, then head, keys before values.
uint fault_key(LayerInfo layer, bool is_value, uint token, uint head) {
    return (token * layer.n_kv_heads + head) * 2u + (is_value ? 1u : 0u);
}

// Memory barriers stay out of loops and branches: some drivers let invocations wait there.
void report(StepTable step) {
    barrier();
    const bool is_first = gl_LocalInvocationIndex == 0u;
    const bool has_fault = is_first && first_fault != LK_NO_FAULT;
    const uint slot = load_header(step).serial % LK_FAULT_STEPS * step.n_layers + push.layer;
    if (has_fault)
        atomicMin(Counters(step.report).at[4u + slot], first_fault);
    memoryBarrierBuffer();
    if (has_fault)
        atomicMax(Counters(step.report).at[2], 1u);
    if (!is_first || n_saturated == 0u)
        return;
    const uint before = atomicAdd(Counters(step.report).at[0], n_saturated);
    if (before + n_saturated < before)
        atomicAdd(Counters(step.report).at[1], 1u);
}

void main() {
    const bool is_value = gl_WorkGroupID.z != 0u;
    const uint head = gl_WorkGroupID.y;
    const StepTable step = load_step(push.step);
    const LayerInfo layer = load_layer(step, push.layer);
    const uint n_chunks = layer.head_dim / kChunk;
    const uint n_at_once = gl_WorkGroupSize.x / n_chunks;
    const uint in_step = gl_LocalInvocationIndex / n_chunks;
    const uint channel = gl_LocalInvocationIndex % n_chunks * kChunk;
    const uint first = push.first_token + gl_WorkGroupID.x * push.token_step;
    const uint end = in_step < n_at_once ? min(first + push.token_step, push.n_tokens) : 0u;
    if (gl_LocalInvocationIndex == 0u) {
        n_saturated = 0u;
        first_fault = LK_NO_FAULT;
    }
    barrier();
    Address centers = Address(0u);
    Address inverses = Address(0u);
    if (!is_value && !is_null(layer.key_centers))
        centers = address_at(layer.key_centers, head * layer.head_dim + channel, 4u);
    if (!is_value && !is_null(layer.key_inverses))
        inverses = address_at(layer.key_inverses, head * layer.head_dim + channel, 4u);
    const bool changes = !is_null(centers) || !is_null(inverses);
    Position target;
    target.end = 0u;
    for (uint token = first + in_step; token < end; token += n_at_once) {
        const uint dtype = is_value ? push.v.dtype : push.k.dtype;
        const Address row =
            is_value ? tensor_row(push.v, token, head) : tensor_row(push.k, token, head);
        const RawEight raw = load_eight(row, dtype, channel);
        const Chunk chunk =
            changes ? take_keys(raw, dtype, centers, inverses) : take_eight(raw, dtype);
        if (chunk.has_fault)
            atomicMin(first_fault, fault_key(layer, is_value, token, head));
        if (chunk.n_saturated != 0u)
            atomicAdd(n_saturated, chunk.n_saturated);
        if (!is_null(push.staged_k))
            store_staged(layer, chunk, is_value, token, head, channel);
        if (token >= target.end)
            target = find_position(step, layer, is_value, token, head);
        if (!is_null(target.payload))
            store_in_page(target, chunk, is_value, token + target.shift, channel);
    }
    report(step);
}
