// Scratch of the decode path, and factors of 16 bits into which ranges are folded.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_DECODE_STATE_TMPL_H
#define LK_BACKEND_CPU_DECODE_STATE_TMPL_H

#include "backend/cpu/mask_tmpl.h"
#include "backend/cpu/native_tmpl.h"

namespace lk {
namespace cpu {
namespace {

constexpr uint32_t kKeyVectors = 4;   // of a strip of keys, at most
constexpr uint32_t kTokenGroups = 8;  // of a page, at most

// The order of the channels that the queries are in now. Pages with a permutation of the plan share
// its address, and every other permutation has one of its own.
struct QueryOrder {
    const uint8_t *channels;
    bool has_spread;
};

struct DecodeState {
    float *logits;          // [kDecodeRows][kKvTileTokens], then weights
    float *matrix;          // an unpacked page
    float *query;           // [kDecodeRows][head_dim], in the order of a page's stored channels
    float *query_spread;    // [kDecodeRows][2 head_dim], for 16-bit keys
    float *page_spread;     // the same under a page's permutation
    float *query_ordered;   // [kDecodeRows][head_dim], strips in the order of the parameters
    float *page_ordered;    // the same under a page's permutation
    float *weight_spread;   // [kDecodeRows][2 kKvTileTokens], for 16-bit values
    float *weight_ordered;  // [kDecodeRows][kKvTileTokens], for packed values
    float *ranges;          // [head_dim or kKvTileTokens]
    float *minima;
    float *folded;
    float *doubled;           // [head_dim]
    uint32_t *key_factors;    // [kDecodeRows][strips][kKeyVectors][32]
    uint32_t *high_factors;   // the same, of bit 1 of shared channels or bit 2 of 3-bit codes
    uint16_t *group_factors;  // [kDecodeRows][kTokenGroups][head_dim]
    uint16_t *group_doubled;  // the same of bit 1 of shared channels
    uint32_t *value_factors;  // [kDecodeRows][kKvTileTokens], of which 1 bit takes all
    uint32_t *high_weights;   // the same, of bit 2 of 3-bit codes
    int32_t *sums;            // [kDecodeRows][kKvTileTokens]
    int32_t *high_sums;       // the same, of bit 2 of 3-bit codes
    float *result;            // [kDecodeRows][value_dim], of a page
    Fetch *fetch;
    QueryOrder *page_order;  // of page_ordered and page_spread
};

inline DecodeState cut_decode_scratch(const WorkTile &work) {
    DecodeState s;
    const uint32_t queries = kDecodeRows * work.head_dim;
    const uint32_t weights = kDecodeRows * kKvTileTokens;
    s.logits = work.scratch;
    s.matrix = s.logits + weights;
    s.query = s.matrix + (kKvTileTokens + 16) * largest_dim(work);
    s.query_spread = s.query + queries;
    s.page_spread = s.query_spread + 2 * queries;
    s.query_ordered = s.page_spread + 2 * queries;
    s.page_ordered = s.query_ordered + queries;
    s.result = s.page_ordered + queries;
    s.weight_spread = s.result + kDecodeRows * work.value_dim;
    s.weight_ordered = s.weight_spread + 2 * weights;
    s.ranges = s.weight_ordered + weights;
    s.minima = s.ranges + LK_MAX_HEAD_DIM;
    s.folded = s.minima + LK_MAX_HEAD_DIM;
    s.doubled = s.folded + LK_MAX_HEAD_DIM;
    s.key_factors = reinterpret_cast<uint32_t *>(s.doubled + LK_MAX_HEAD_DIM);
    s.high_factors = s.key_factors + 2 * kKeyVectors * queries;
    s.value_factors = s.high_factors + 2 * kKeyVectors * queries;
    s.high_weights = s.value_factors + weights;
    s.sums = reinterpret_cast<int32_t *>(s.high_weights + weights);
    s.high_sums = s.sums + weights;
    s.group_factors = reinterpret_cast<uint16_t *>(s.high_sums + weights);
    s.group_doubled = s.group_factors + kTokenGroups * queries;
    return s;
}

struct Folded {
    float base;   // sum of factor * minimum
    float scale;  // the value of one of the integers
};

// values * ranges, n of them, to s.folded; `highest` gets the highest magnitude. Returns the sum of
// values * minima.
LK_INLINE float multiply_ranges(const float *values, const DecodeState &s, uint32_t n,
                                float *highest) {
    Vf base = {};
    Vf most = {};
    for (uint32_t i = 0; i < n; i += kWidth) {
        const Vf v = load<Vf>(values + i);
        const Vf folded = v * load<Vf>(s.ranges + i);
        base += v * load<Vf>(s.minima + i);
        most = maximum(folded < 0.0f ? -folded : folded, most);
        store(s.folded + i, folded);
    }
    *highest = horizontal_max(most);
    return horizontal_sum(base);
}

// values * ranges, n of them, to factors of 16 bits.
LK_INLINE Folded fold_ranges(const float *values, const DecodeState &s, uint32_t n, uint16_t *out) {
    float highest;
    const float base = multiply_ranges(values, s, n, &highest);
    const bool any = highest > 1e-30f;
    round_factors(s.folded, any ? largest_factor(n) / highest : 0.0f, out, n);
    return {base, any ? highest / largest_factor(n) : 0.0f};
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
