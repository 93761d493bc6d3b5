// Outputs of attention over disjoint sets of keys become one, by their LSEs: a workgroup takes a
// row. push.h has the dispatch.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/output.glsl"

layout(local_size_x_id = LK_SPEC_THREADS) in;
layout(push_constant) uniform PushBlock { MergePush push; };

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer PushTensorAt {
    PushTensor tensor;
};

// Indices in the table: the splits, their LSEs, the output and its LSE.
PushTensor load_tensor(uint index) {
    return PushTensorAt(address_at(push.tensors, index, 24u)).tensor;
}

// The LSE of a split without keys is minus infinity. Whatever else is not finite makes the row NaN.
float load_lse(uint split, uint token, uint head, inout bool is_beyond) {
    const PushTensor lses = load_tensor(push.n_splits + split);
    const uint bits = load_element_bits(tensor_row(lses, token, head), lses.dtype, 0u);
    const bool is_number = float_is_finite(bits);
    is_beyond = is_beyond || (!is_number && bits != kNoLseBits);
    return is_number ? uintBitsToFloat(bits) * kLog2E : kHidden;
}

void main() {
    const uint row = push.first_row + gl_WorkGroupID.x;
    const uint token = row / push.n_heads;
    const uint head = row % push.n_heads;
    float weights[LK_MERGE_SPLITS];
    Total total = Total(kHidden, 0.0);
    bool is_beyond = false;
    for (uint i = 0u; i < push.n_splits; ++i) {
        weights[i] = load_lse(i, token, head, is_beyond);
        total.reference = max(total.reference, weights[i]);
    }
    for (uint i = 0u; i < push.n_splits; ++i) {
        weights[i] = weights[i] == kHidden ? 0.0 : exp2(weights[i] - total.reference);
        total.sum += weights[i];
    }
    const float share = inverse_sum(total);
    if (is_beyond)
        total.sum = kBeyond;
    const PushTensor outputs = load_tensor(2u * push.n_splits);
    const Address to = tensor_row(outputs, token, head);
    for (uint c = gl_LocalInvocationIndex; c < push.head_dim; c += gl_WorkGroupSize.x) {
        float value = 0.0;
        for (uint i = 0u; i < push.n_splits; ++i) {
            const PushTensor split = load_tensor(i);
            if (weights[i] != 0.0)
                value += weights[i] * load_element(tensor_row(split, token, head), split.dtype, c);
        }
        store_element(to, outputs.dtype, c, output_of(total, value * share));
    }
    const PushTensor lse = load_tensor(2u * push.n_splits + 1u);
    if (gl_LocalInvocationIndex == 0u)
        store_lse(lse.data, lse.token_stride, lse.head_stride, token, head, total);
}
