// Tensors of samples in host memory.
//
// SPDX-License-Identifier: Apache-2.0
#include "stats/samples.h"
#include "base/host_tensor.h"
#include "format/fp16.h"

namespace lk {

namespace {

constexpr uint16_t kHalfInfinity = 0x7C00;

uint16_t half_of(float value) {
    bool saturated = false;
    return float_is_finite(value) ? float_to_half(value, &saturated) : kHalfInfinity;
}

uint16_t half_of_upper(uint16_t upper) {
    return half_of(bits_to_float(static_cast<uint32_t>(upper) << 16));
}

}  // namespace

const void *Samples::vector(uint32_t token, uint32_t head) const {
    return host_row(tensor, token, head);
}

lk_status import_samples(const lk_tensor *from, const char *name, uint32_t n_tokens,
                         uint32_t n_heads, uint32_t head_dim, Samples *out) {
    if (!n_tokens)
        return fail(LK_E_ARGUMENT, "n_tokens is 0");
    *out = {};
    out->n_tokens = n_tokens;
    out->n_heads = n_heads;
    out->head_dim = head_dim;
    return import_host_tensor(from, name, n_tokens, n_heads, head_dim, &out->tensor);
}

void read_vector(const Samples &samples, uint32_t token, uint32_t head, uint16_t *halfs) {
    const void *row = samples.vector(token, head);
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
            read_vector(samples, t, h, row);
            for (uint32_t c = 0; c < samples.head_dim; ++c)
                if (!half_is_finite(row[c]))
                    return fail(LK_E_DATA,
                                "%s of layer %u, head %u, channel %u, token %u is not finite", what,
                                layer, h, c, t);
        }
    return LK_OK;
}

}  // namespace lk
