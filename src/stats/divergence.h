// How far predictions are from exact ones.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_DIVERGENCE_H
#define LK_STATS_DIVERGENCE_H

#include "base/host_tensor.h"

namespace lk {

// Tensors of [n_rows][1][n_vocabulary].
struct Logits {
    lk_tensor exact;
    lk_tensor other;
    uint32_t n_rows;
    uint32_t n_vocabulary;
};

// KL(exact, other) in bits, summed over rows. LK_E_DATA.
lk_status divergence(const Logits &logits, double *bits);

}  // namespace lk

#endif
