// Elements of a tensor of any dtype, one at a time. Only for files of the baseline instruction
// set: an inline function that a file with wider instructions also emits could be linked here.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_ELEMENT_H
#define LK_BACKEND_CPU_ELEMENT_H

#include "backend/backend.h"
#include "format/fp16.h"

namespace lk {
namespace cpu {

inline uint32_t dtype_bytes(lk_dtype dtype) { return dtype == LK_F32 ? 4 : 2; }

// First channel of (token, head).
inline uint8_t *tensor_row(const TensorView &tensor, uint64_t token, uint64_t head) {
    const int64_t element = static_cast<int64_t>(token) * tensor.token_stride +
                            static_cast<int64_t>(head) * tensor.head_stride;
    return static_cast<uint8_t *>(tensor.data) + element * dtype_bytes(tensor.dtype);
}

// [head_dim] of a KV head among [n_kv_heads][head_dim] of its layer, or null.
inline const float *head_numbers(const LayerView &layer, const float *numbers, uint32_t kv_head) {
    return numbers ? numbers + uint64_t{kv_head} * layer.head_dim : nullptr;
}

inline float load_element(const uint8_t *row, lk_dtype dtype, uint32_t channel) {
    if (dtype == LK_F32) {
        float f;
        std::memcpy(&f, row + 4ull * channel, sizeof f);
        return f;
    }
    uint16_t h;
    std::memcpy(&h, row + 2ull * channel, sizeof h);
    return dtype == LK_F16 ? half_to_float(h) : bits_to_float(static_cast<uint32_t>(h) << 16);
}

// The bits of a magnitude order numbers, and infinity and NaN lie above all of them.
inline uint32_t magnitude_bits(float f) { return float_to_bits(f) & 0x7FFFFFFFu; }

// Has a query an element above the limit of its layer, an infinity or a NaN?
inline bool is_beyond_limit(const LayerView &layer, const uint8_t *q, lk_dtype dtype) {
    uint32_t most = 0;
    for (uint32_t c = 0; c < layer.head_dim; ++c) {
        const uint32_t bits = magnitude_bits(load_element(q, dtype, c));
        most = bits > most ? bits : most;
    }
    return most > float_to_bits(layer.query_limit);
}

inline uint16_t float_to_bf16(float f) {
    const uint32_t bits = float_to_bits(f);
    if (!float_is_finite(f))
        return static_cast<uint16_t>((bits >> 16) | ((bits & 0x7FFFFFu) ? 0x40u : 0));
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Unlike a stored key, an output may be NaN.
inline uint16_t float_to_half_output(float f) {
    if (!float_is_finite(f)) {
        const uint32_t bits = float_to_bits(f);
        return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | 0x7C00u |
                                     ((bits & 0x7FFFFFu) ? 0x200u : 0));
    }
    bool saturated = false;
    return float_to_half(f, &saturated);
}

inline void store_element(uint8_t *row, lk_dtype dtype, uint32_t channel, float f) {
    if (dtype == LK_F32) {
        std::memcpy(row + 4ull * channel, &f, sizeof f);
        return;
    }
    const uint16_t h = dtype == LK_F16 ? float_to_half_output(f) : float_to_bf16(f);
    std::memcpy(row + 2ull * channel, &h, sizeof h);
}

}  // namespace cpu
}  // namespace lk

#endif
