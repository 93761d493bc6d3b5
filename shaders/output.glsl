// Sums of weights, learned sinks and LSEs.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_OUTPUT_GLSL
#define LK_SHADERS_OUTPUT_GLSL

#include "shaders/tensor.glsl"

const float kLog2E = 1.44269504;
const float kLn2 = 0.693147181;
const float kHidden = -3e38;  // score of a token that is not visible to a column

// Of floats whose bits alone count, since a device need not keep NaNs in arithmetic.
const uint kNanBits = 0x7FC00000u;
const uint kNoLseBits = 0xFF800000u;  // minus infinity: the LSE without keys

// Is an element of a query above its layer's limit, infinite or a NaN?
bool is_beyond_limit(LayerInfo layer, float q) {
    return (floatBitsToUint(q) & 0x7FFFFFFFu) > floatBitsToUint(layer.query_limit);
}

// Of a query that is beyond its layer's limit: its output and its LSE are NaN. Splits of it add up
// to a negative sum again.
const float kBeyond = -1.0;

// Weights of a column: their sum, relative to a reference (base 2); negative, see kBeyond.
struct Total {
    float reference;
    float sum;
};

// Take the head's learned sink in; returns what the output is to be multiplied by.
float add_sink(LayerInfo layer, uint head, inout Total total) {
    if (is_null(layer.sink_logits) || total.sum < 0.0)
        return 1.0;
    const float sink = ConstFloats(layer.sink_logits).at[head] * kLog2E;
    const float reference = max(total.reference, sink);
    const float shrink = exp2(total.reference - reference);
    total.sum = total.sum * shrink + exp2(sink - reference);
    total.reference = reference;
    return shrink;
}

// Minus infinity when there are no keys.
float find_lse(Total total) {
    return total.sum > 0.0 ? (total.reference + log2(total.sum)) * kLn2
                           : uintBitsToFloat(total.sum < 0.0 ? kNanBits : kNoLseBits);
}
float inverse_sum(Total total) { return total.sum > 0.0 ? 1.0 / total.sum : 0.0; }
// A channel of a column, which the total's factors have multiplied.
float output_of(Total total, float value) {
    return total.sum < 0.0 ? uintBitsToFloat(kNanBits) : value;
}

// Element (token, head) of LSEs, which have strides like a tensor's.
void store_lse(Address lse, uint token_stride, uint head_stride, uint token, uint head,
               Total total) {
    const PushTensor tensor = PushTensor(lse, LK_DTYPE_F32, token_stride, head_stride, 0u);
    if (!is_null(lse))
        store_element(tensor_row(tensor, token, head), LK_DTYPE_F32, 0u, find_lse(total));
}

#endif
