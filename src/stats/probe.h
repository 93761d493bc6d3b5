// Retrieval scores: attention on a sentence that repeats.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_PROBE_H
#define LK_STATS_PROBE_H

#include "stats/samples.h"

namespace lk {

// The layer exists, the samples have its shape, the probe is checked. On failure nothing is
// changed.
lk_status add_probe(Calibrator *calibrator, uint32_t layer, const lk_probe &probe,
                    const Samples &queries, const Samples &keys);

}  // namespace lk

#endif
