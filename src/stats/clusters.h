// Channel classes: K-means of the ranges of key channels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_CLUSTERS_H
#define LK_STATS_CLUSTERS_H

#include "stats/calibrator.h"

namespace lk {

// 1-D K-means of ascending values, n > 0: centroids, and the first index of the second and of
// the third cluster.
struct Clusters {
    double centroids[3];
    size_t begin[2];
};
Clusters cluster_ranges(const float *ascending, size_t n);

// Classes LK_CHANNEL_* of the channels of a head, [head_dim], by the ranges of its scope. The
// layer has keys. LK_E_NOMEM.
lk_status classify_head(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head,
                        lk_scope scope, uint8_t *classes, Clusters *clusters);

}  // namespace lk

#endif
