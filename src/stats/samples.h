// Tensors of a host as samples: checked shapes, FP16 vectors, the first fault.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_SAMPLES_H
#define LK_STATS_SAMPLES_H

#include "format/format_const.h"
#include "stats/calibrator.h"

namespace lk {

// A tensor in host memory of shape [n_tokens][n_heads][head_dim].
struct Samples {
    lk_tensor tensor;
    uint32_t n_tokens;
    uint32_t n_heads;
    uint32_t head_dim;

    // First of the head_dim elements of a token and head.
    const void *vector(uint32_t token, uint32_t head) const;
};
// LK_E_ARGUMENT; name is the argument's name in the error sentence.
lk_status import_samples(const lk_tensor *from, const char *name, uint32_t n_tokens,
                         uint32_t n_heads, uint32_t head_dim, Samples *out);
// The head_dim values of a token and head as FP16: nearest, saturating. A value that is not finite
// becomes an infinity.
void read_vector(const Samples &samples, uint32_t token, uint32_t head, uint16_t *values);
// LK_E_DATA with the first element that is not finite; LK_OK when all are finite.
lk_status find_fault(const Samples &samples, const char *what, uint32_t layer);

}  // namespace lk

#endif
