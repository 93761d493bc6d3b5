// Sums over samples: minima, maxima and means of channels, and costs of a host.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_SUMS_H
#define LK_STATS_SUMS_H

#include "stats/samples.h"

namespace lk {

// The layer exists, samples have its shape. On failure nothing is changed.
lk_status add_keys(Calibrator *calibrator, uint32_t layer, const Samples &keys);
lk_status add_queries(Calibrator *calibrator, uint32_t layer, const Samples &queries);

// n costs into an array of LayerSamples. LK_E_NOMEM.
lk_status set_costs(Calibrator *calibrator, uint32_t layer, Array<double> LayerSamples::*costs,
                    const double *from, size_t n);

// Of a channel that has samples.
float channel_range(const ChannelSums &sums);
float channel_low(const ChannelSums &sums);
float channel_high(const ChannelSums &sums);
float channel_mean(const ChannelSums &sums, uint64_t n);

}  // namespace lk

#endif
