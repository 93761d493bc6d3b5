// Tensors of samples in host memory.
//
// SPDX-License-Identifier: Apache-2.0
#include "calibrate/calibrator.h"
#include "format/fp16.h"

namespace lk {

namespace {

constexpr uint16_t kHalfInfinity = 0x7C00;

uint64_t element_bytes(lk_dtype dtype) { return dtype == LK_F32 ? 4 : 2; }

lk_status check_place(const lk_tensor &tensor, const char *name) {
    if (tensor.dtype < LK_F16 || tensor.dtype > LK_F32)
        return fail(LK_E_ARGUMENT, "%s.dtype is %u, which names no element type", name,
                    tensor.dtype);
    if (tensor.memory != LK_MEMORY_HOST)
        return fail(LK_E_ARGUMENT, "%s.memory is %u, a calibrator takes host memory, %u", name,
                    tensor.memory, static_cast<uint32_t>(LK_MEMORY_HOST));
    if (tensor.flags || tensor.buffer || tensor.offset_bytes)
        return fail(LK_E_ARGUMENT, "%s has flags, a buffer or an offset, which host memory has not",
                    name);
    if (!tensor.data)
        return fail(LK_E_ARGUMENT, "%s.data is NULL", name);
    if (reinterpret_cast<uintptr_t>(tensor.data) % element_bytes(tensor.dtype))
        return fail(LK_E_ARGUMENT, "%s.data is not aligned to its elements", name);
    return LK_OK;
}

lk_status check_strides(const Samples &s, const char *name) {
    const int64_t token_stride = s.tensor.token_stride;
    const int64_t head_stride = s.tensor.head_stride;
    uint64_t tokens;
    uint64_t heads;
    uint64_t elements;
    uint64_t bytes;
    uint64_t end;
    if (token_stride >= 0 && head_stride >= 0 &&
        checked_mul(s.n_tokens - 1, static_cast<uint64_t>(token_stride), &tokens) &&
        checked_mul(s.n_heads - 1, static_cast<uint64_t>(head_stride), &heads) &&
        checked_add(tokens, heads, &elements) && checked_add(elements, s.head_dim, &elements) &&
        checked_mul(elements, element_bytes(s.tensor.dtype), &bytes) && bytes <= INT64_MAX &&
        checked_add(reinterpret_cast<uintptr_t>(s.tensor.data), bytes, &end))
        return LK_OK;
    return fail(LK_E_ARGUMENT,
                "%s with token_stride %lld and head_stride %lld leaves the address space", name,
                static_cast<long long>(token_stride), static_cast<long long>(head_stride));
}

uint16_t half_of(float value) {
    bool saturated = false;
    return float_is_finite(value) ? float_to_half(value, &saturated) : kHalfInfinity;
}

uint16_t half_of_upper(uint16_t upper) {
    return half_of(bits_to_float(static_cast<uint32_t>(upper) << 16));
}

}  // namespace

const void *Samples::row(uint32_t token, uint32_t head) const {
    const auto at = token * static_cast<uint64_t>(tensor.token_stride) +
                    head * static_cast<uint64_t>(tensor.head_stride);
    return static_cast<const uint8_t *>(tensor.data) + at * element_bytes(tensor.dtype);
}

lk_status import_samples(const lk_tensor *from, const char *name, uint32_t n_tokens,
                         uint32_t n_heads, uint32_t head_dim, Samples *out) {
    if (!n_tokens)
        return fail(LK_E_ARGUMENT, "n_tokens is 0");
    *out = {};
    lk_status status =
        import_struct(&out->tensor, sizeof out->tensor, sizeof out->tensor, from, name);
    out->n_tokens = n_tokens;
    out->n_heads = n_heads;
    out->head_dim = head_dim;
    if (status == LK_OK)
        status = check_place(out->tensor, name);
    return status == LK_OK ? check_strides(*out, name) : status;
}

void read_row(const Samples &samples, uint32_t token, uint32_t head, uint16_t *halfs) {
    const void *row = samples.row(token, head);
    const uint32_t n = samples.head_dim;
    if (samples.tensor.dtype == LK_F16) {
        std::memcpy(halfs, row, n * sizeof *halfs);
    } else if (samples.tensor.dtype == LK_BF16) {
        const auto *from = static_cast<const uint16_t *>(row);
        for (uint32_t c = 0; c < n; ++c)
            halfs[c] = half_of_upper(from[c]);
    } else {
        const auto *from = static_cast<const float *>(row);
        for (uint32_t c = 0; c < n; ++c)
            halfs[c] = half_of(from[c]);
    }
}

lk_status find_fault(const Samples &samples, const char *what, uint32_t layer) {
    uint16_t row[LK_MAX_HEAD_DIM];
    for (uint32_t t = 0; t < samples.n_tokens; ++t)
        for (uint32_t h = 0; h < samples.n_heads; ++h) {
            read_row(samples, t, h, row);
            for (uint32_t c = 0; c < samples.head_dim; ++c)
                if (!half_is_finite(row[c]))
                    return fail(LK_E_DATA,
                                "%s of layer %u, head %u, channel %u, token %u is not finite", what,
                                layer, h, c, t);
        }
    return LK_OK;
}

}  // namespace lk
