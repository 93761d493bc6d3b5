// New tokens of a layer on their way to FP16, with the faults and the counts that are reported. An
// includer has AppendPush as push constants.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_NEW_TOKENS_GLSL
#define LK_SHADERS_PACK_NEW_TOKENS_GLSL

#include "shaders/floats.glsl"
#include "shaders/layout.glsl"
#include "shaders/rounding.glsl"
#include "shaders/tensor.glsl"

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

void begin_report() {
    if (gl_LocalInvocationIndex == 0u) {
        n_saturated = 0u;
        first_fault = LK_NO_FAULT;
    }
    barrier();
}

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

Chunk take_f16_eight(uvec4 words) {
    const uvec4 found = not_finite(words);
    return Chunk(words & ~((found >> 15) * 0xFFFFu), 0u, found != uvec4(0u));
}

Chunk take_eight(RawEight raw, uint dtype) {
    if (dtype == LK_DTYPE_F16)
        return take_f16_eight(raw.low);
    Chunk chunk = Chunk(uvec4(0u), 0u, false);
    for (uint i = 0u; i < kChunk / 2u; ++i) {
        const uint low = take_float(float_bits_of(raw, dtype, 2u * i), chunk);
        chunk.words[i] = low | take_float(float_bits_of(raw, dtype, 2u * i + 1u), chunk) << 16;
    }
    return chunk;
}

void store_staged(LayerInfo layer, Chunk chunk, bool is_value, uint token, uint head,
                  uint channel) {
    const Address area = is_value ? push.staged_v : push.staged_k;
    const uint n_channels = is_value ? layer.value_dim : layer.head_dim;
    const Address row = address_at(area, head * push.n_tokens + token, 2u * n_channels);
    Quads(row).at[channel / kChunk] = chunk.words;
}

// The key of a fault is ordered by token, then head, keys before values.
uint fault_key(LayerInfo layer, bool is_value, uint token, uint head) {
    return (token * layer.n_kv_heads + head) * 2u + (is_value ? 1u : 0u);
}

// Notes what a chunk of a token has to report, and stages it.
void keep_chunk(LayerInfo layer, Chunk chunk, bool is_value, uint token, uint head, uint channel) {
    if (chunk.has_fault)
        atomicMin(first_fault, fault_key(layer, is_value, token, head));
    if (chunk.n_saturated != 0u)
        atomicAdd(n_saturated, chunk.n_saturated);
    if (!is_null(push.staged_k))
        store_staged(layer, chunk, is_value, token, head, channel);
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

#endif
