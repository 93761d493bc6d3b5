// Elements of the host's tensors: FP16, BF16 or FP32, any strides, addresses of 64 bits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_TENSOR_GLSL
#define LK_SHADERS_TENSOR_GLSL

#extension GL_EXT_shader_16bit_storage : require

#include "shaders/floats.glsl"
#include "shaders/tables.glsl"

layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer ConstF16 {
    uint16_t at[];
};
layout(buffer_reference, std430, buffer_reference_align = 2) writeonly buffer F16Values {
    uint16_t at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer Pairs { uvec2 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Quads {
    uvec4 at[];
};

// log2 of an element's bytes.
uint element_shift(uint dtype) { return dtype == LK_DTYPE_F32 ? 2u : 1u; }

// The first channel of (token, head).
Address tensor_row(PushTensor tensor, uint token, uint head) {
    const uvec2 token_elements = address_at(uvec2(0u), token, tensor.token_stride);
    const uvec2 elements = address_at(token_elements, head, tensor.head_stride);
    const uint shift = element_shift(tensor.dtype);
    const uint high_bytes = elements.y << shift | elements.x >> 32u - shift;
    const Address address = address_add(tensor.data, elements.x << shift);
    return Address(address.x, address.y + high_bytes);
}

uint load_element_bits(Address row, uint dtype, uint channel) {
    if (dtype == LK_DTYPE_F32)
        return ConstWords(row).at[channel];
    return uint(ConstF16(row).at[channel]);
}
float element_of(uint dtype, uint bits) {
    return dtype == LK_DTYPE_F32   ? uintBitsToFloat(bits)
           : dtype == LK_DTYPE_F16 ? half_input_to_float(bits)
                                   : bf16_to_float(bits);
}
float load_element(Address row, uint dtype, uint channel) {
    return element_of(dtype, load_element_bits(row, dtype, channel));
}

uint output_bits(uint dtype, float value) {
    return dtype == LK_DTYPE_F16 ? float_to_half_output(value) : float_to_bf16(value);
}
void store_element(Address row, uint dtype, uint channel, float value) {
    if (dtype == LK_DTYPE_F32)
        Words(row).at[channel] = floatBitsToUint(value);
    else
        F16Values(row).at[channel] = uint16_t(output_bits(dtype, value));
}

// Eight neighbours as they lie in memory; those of 16 bits are two to a word of `low`.
struct RawEight {
    uvec4 low;
    uvec4 high;  // FP32 alone
};
RawEight load_eight(Address row, uint dtype, uint channel) {
    const Address at = address_add(row, channel << element_shift(dtype));
    const bool is_aligned = (at.x & 15u) == 0u;
    RawEight raw;
    if (dtype == LK_DTYPE_F32) {
        if (is_aligned) {
            raw.low = ConstQuads(at).at[0];
            raw.high = ConstQuads(at).at[1];
            return raw;
        }
        for (uint i = 0u; i < 4u; ++i) {
            raw.low[i] = ConstWords(at).at[i];
            raw.high[i] = ConstWords(at).at[i + 4u];
        }
        return raw;
    }
    if (is_aligned) {
        raw.low = ConstQuads(at).at[0];
        return raw;
    }
    for (uint i = 0u; i < 4u; ++i)
        raw.low[i] = uint(ConstF16(at).at[2u * i]) | uint(ConstF16(at).at[2u * i + 1u]) << 16;
    return raw;
}

// Element i of a raw eight, as FP32 bits; infinities and NaNs stay such.
uint float_bits_of(RawEight raw, uint dtype, uint i) {
    if (dtype == LK_DTYPE_F32)
        return i < 4u ? raw.low[i] : raw.high[i - 4u];
    const uint element = raw.low[i / 2u] >> 16u * (i & 1u) & 0xFFFFu;
    if (dtype == LK_DTYPE_F16)
        return floatBitsToUint(half_input_to_float(element));
    return element << 16;
}

// The same of all elements.
struct FloatBitsEight {
    uvec4 low;
    uvec4 high;
};
uvec4 float_bits_of_four(uint dtype, uvec2 words) {
    const uvec4 h = uvec4(words.x & 0xFFFFu, words.x >> 16, words.y & 0xFFFFu, words.y >> 16);
    if (dtype != LK_DTYPE_F16)
        return h << 16;
    const uvec4 special = (h & 0x8000u) << 16 | 0x7F800000u | (h & 0x3FFu) << 13;
    return mix(floatBitsToUint(f16_to_floats(h)), special, equal(h & 0x7C00u, uvec4(0x7C00u)));
}
// The larger magnitudes of elements i and i + 4; those of infinities and NaNs are the largest.
uvec4 largest_of(FloatBitsEight bits) {
    return max(bits.low & 0x7FFFFFFFu, bits.high & 0x7FFFFFFFu);
}
FloatBitsEight float_bits_of_eight(RawEight raw, uint dtype) {
    if (dtype == LK_DTYPE_F32)
        return FloatBitsEight(raw.low, raw.high);
    return FloatBitsEight(float_bits_of_four(dtype, raw.low.xy), float_bits_of_four(dtype, raw.low.zw));
}

#endif
