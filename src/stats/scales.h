// Key scales: maxima of RoPE pairs, and the search for the exponent.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_SCALES_H
#define LK_STATS_SCALES_H

#include <lowkey/pmkvq.h>

#include "stats/rope.h"
#include "stats/samples.h"

namespace lk {

// The largest |K| of each pair of a head, [head_dim]. The layer has keys.
void find_pair_maxima(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head,
                      const RopePairs &pairs, float *maxima);
// Scales of [head_dim] maxima.
void key_scales(const float *maxima, uint32_t head_dim, double exponent, float *scales);
// The rule's pairs have passed check_pairs() for the layer; its channels are not 0.
lk_status add_scale_search(Calibrator *calibrator, uint32_t layer, const ScaleRule &rule,
                           uint32_t query_step, const Samples &queries, const Samples &keys,
                           const Samples &values);
// The index of the exponent of least error. The layer has had a search.
uint32_t best_exponent(const LayerSamples &samples);

}  // namespace lk

#endif
