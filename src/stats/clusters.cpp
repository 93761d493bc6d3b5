// Channels by range: 1-D K-means.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stats/clusters.h"
#include "stats/sums.h"

namespace lk {

namespace {

double median(const float *ascending, size_t n) {
    const double upper = ascending[n / 2];
    return n % 2 ? upper : (upper + double{ascending[n / 2 - 1]}) / 2;
}

// First index whose value is nearer to `above` than to `below`. Centroids ascend.
size_t split(const float *ascending, size_t n, double below, double above) {
    const double middle = (below + above) / 2;
    return static_cast<size_t>(
        std::upper_bound(ascending, ascending + n, middle,
                         [](double bound, float value) { return bound < double{value}; }) -
        ascending);
}

double mean_or(const float *ascending, size_t begin, size_t end, double otherwise) {
    if (begin == end)
        return otherwise;
    double sum = 0;
    for (size_t i = begin; i < end; ++i)
        sum += double{ascending[i]};
    return sum / static_cast<double>(end - begin);
}

// Heads whose channels are clustered together.
struct HeadRange {
    uint32_t begin, end;
};

HeadRange heads_of(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head, lk_scope scope) {
    if (scope == LK_SCOPE_LAYER)
        return {0, calibrator.geometry[layer].n_kv_heads};
    return {kv_head, kv_head + 1};
}

}  // namespace

Clusters cluster_ranges(const float *ascending, size_t n) {
    Clusters own = {{double{ascending[0]}, median(ascending, n), double{ascending[n - 1]}}, {0, n}};
    if (own.centroids[0] == own.centroids[2])
        return own;  // all are normal
    own.begin[1] = 0;
    // Assignments of sorted values are two bounds, and each change lowers the sum of squares, so
    // no pair of bounds comes twice and the loop ends.
    for (;;) {
        const size_t normal = split(ascending, n, own.centroids[0], own.centroids[1]);
        const size_t outlier = split(ascending, n, own.centroids[1], own.centroids[2]);
        if (normal == own.begin[0] && outlier == own.begin[1])
            return own;
        own.begin[0] = normal;
        own.begin[1] = outlier;
        own.centroids[0] = mean_or(ascending, 0, normal, own.centroids[0]);
        own.centroids[1] = mean_or(ascending, normal, outlier, own.centroids[1]);
        own.centroids[2] = mean_or(ascending, outlier, n, own.centroids[2]);
    }
}

lk_status classify_head(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head,
                        lk_scope scope, uint8_t *classes, Clusters *clusters) {
    const LayerSamples &own = *calibrator.layers[layer];
    const uint32_t head_dim = calibrator.geometry[layer].head_dim;
    const HeadRange heads = heads_of(calibrator, layer, kv_head, scope);
    Array<float> ranges(*calibrator.allocator);
    const size_t n = static_cast<size_t>(heads.end - heads.begin) * head_dim;
    if (!ranges.resize(n))
        return fail(LK_E_NOMEM, "no memory for the ranges of %zu channels", n);
    const ChannelSums *sums = own.keys.data() + static_cast<size_t>(heads.begin) * head_dim;
    for (size_t i = 0; i < n; ++i)
        ranges[i] = channel_range(sums[i]);
    std::sort(ranges.begin(), ranges.end());
    *clusters = cluster_ranges(ranges.data(), n);
    const size_t normal = clusters->begin[0];
    const size_t outlier = clusters->begin[1];
    const ChannelSums *head = own.keys.data() + static_cast<size_t>(kv_head) * head_dim;
    for (uint32_t c = 0; c < head_dim; ++c) {
        const float range = channel_range(head[c]);
        // Equal ranges are in one cluster, so the first of a cluster bounds it.
        classes[c] = outlier < n && range >= ranges[outlier] ? LK_CHANNEL_OUTLIER
                     : normal < n && range >= ranges[normal] ? LK_CHANNEL_NORMAL
                                                             : LK_CHANNEL_SUBNORMAL;
    }
    return LK_OK;
}

}  // namespace lk
