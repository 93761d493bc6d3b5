// Classes of chunks from their scores.
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey/chunks.h>

#include <algorithm>
#include <cmath>

#include "base/float_mode.h"
#include "base/memory.h"
#include "base/status.h"
#include "format/fp16.h"

namespace lk {

namespace {

using ull = unsigned long long;

// How many chunks of each class.
struct Counts {
    uint64_t low;
    uint64_t middle;
    uint64_t high;
};

lk_status check_scores(const float *scores, uint32_t n_chunks, const lk_chunk_class *classes) {
    if (n_chunks && (!scores || !classes))
        return fail(LK_E_ARGUMENT, "%s is NULL", scores ? "classes" : "scores");
    for (uint32_t i = 0; i < n_chunks; ++i)
        if (!float_is_finite(scores[i]))
            return fail(LK_E_DATA, "the score of chunk %u is not finite", i);
    return LK_OK;
}

lk_chunk_quota default_quota() {
    lk_chunk_quota quota = {};
    quota.size = sizeof quota;
    quota.block_chunks = 4;
    quota.low_share = 0.6;
    quota.high_share = 0.1;
    return quota;
}

lk_status check_quota(const lk_chunk_quota &quota) {
    if (!quota.block_chunks)
        return fail(LK_E_ARGUMENT, "quota.block_chunks is 0");
    if (!(quota.low_share >= 0 && quota.high_share >= 0 && quota.low_share + quota.high_share <= 1))
        return fail(LK_E_ARGUMENT,
                    "quota.low_share is %g and quota.high_share %g, must be at least 0 and at most "
                    "1 together",
                    quota.low_share, quota.high_share);
    const bool ascends = quota.low_bytes && quota.low_bytes < quota.middle_bytes &&
                         quota.middle_bytes < quota.high_bytes;
    if (quota.budget_bytes && !ascends)
        return fail(LK_E_ARGUMENT,
                    "quota.low_bytes, middle_bytes and high_bytes are %llu, %llu and %llu, must "
                    "ascend from 1 on",
                    ull{quota.low_bytes}, ull{quota.middle_bytes}, ull{quota.high_bytes});
    return LK_OK;
}

// Whole rows nearest to a share of the chunks, of two equally near ones the smaller number.
uint64_t nearest_rows(double share, uint64_t n_chunks, uint32_t block_chunks) {
    const double rows = share * static_cast<double>(n_chunks) / block_chunks;
    const auto nearest = static_cast<uint64_t>(std::max(0.0, std::ceil(rows - 0.5)));
    return std::min(nearest, n_chunks / block_chunks);
}

Counts count_by_shares(const lk_chunk_quota &quota, uint64_t n_chunks) {
    const uint64_t low = nearest_rows(quota.low_share, n_chunks, quota.block_chunks);
    const uint64_t below = nearest_rows(1 - quota.high_share, n_chunks, quota.block_chunks);
    const uint64_t middle = std::max(low, below) - low;
    const uint64_t high = n_chunks - (low + middle) * quota.block_chunks;
    return {low * quota.block_chunks, middle * quota.block_chunks, high};
}

// What the counts take; UINT64_MAX beyond 64 bits.
uint64_t bytes_of(const lk_chunk_quota &quota, const Counts &counts) {
    uint64_t low;
    uint64_t middle;
    uint64_t high;
    uint64_t sum;
    const bool fits = checked_mul(counts.low, quota.low_bytes, &low) &&
                      checked_mul(counts.middle, quota.middle_bytes, &middle) &&
                      checked_mul(counts.high, quota.high_bytes, &high) &&
                      checked_add(low, middle, &sum) && checked_add(sum, high, &sum);
    return fits ? sum : UINT64_MAX;
}

// As many of n rows as `left` pays for, each block_chunks chunks at step_bytes more.
uint64_t raise(uint64_t n, uint64_t block_chunks, uint64_t step_bytes, uint64_t *left) {
    const uint64_t rows = std::min(n, *left / step_bytes / block_chunks);
    *left -= rows * block_chunks * step_bytes;
    return rows;
}

lk_status count_by_budget(const lk_chunk_quota &quota, uint64_t n_chunks, Counts *counts) {
    const uint64_t row = quota.block_chunks;
    const uint64_t n_rows = n_chunks / row;
    const uint64_t rest = n_chunks % row;  // in the last row, which is high
    const uint64_t needed = bytes_of(quota, {n_rows * row, 0, rest});
    if (needed == UINT64_MAX)
        return fail(LK_E_ARGUMENT, "the bytes of %llu chunks leave 64 bits", ull{n_chunks});
    if (needed > quota.budget_bytes)
        return fail(LK_E_BUDGET,
                    "quota.budget_bytes is %llu, the lowest classes of %llu chunks take %llu",
                    ull{quota.budget_bytes}, ull{n_chunks}, ull{needed});
    uint64_t left = quota.budget_bytes - needed;
    uint64_t wanted = nearest_rows(quota.high_share, n_chunks, quota.block_chunks);
    if (!wanted && quota.high_share > 0)
        wanted = std::min<uint64_t>(n_rows, 1);
    uint64_t high = raise(wanted, row, quota.high_bytes - quota.low_bytes, &left);
    uint64_t middle = raise(n_rows - high, row, quota.middle_bytes - quota.low_bytes, &left);
    if (high + middle == n_rows) {
        const uint64_t more = raise(middle, row, quota.high_bytes - quota.middle_bytes, &left);
        middle -= more;
        high += more;
    }
    *counts = {(n_rows - high - middle) * row, middle * row, high * row + rest};
    return LK_OK;
}

// Classes by rank. LK_E_NOMEM.
lk_status rank(const float *scores, uint32_t n_chunks, const Counts &counts,
               lk_chunk_class *classes) {
    Array<uint32_t> order;
    if (!order.resize(n_chunks))
        return fail(LK_E_NOMEM, "no memory to rank %u chunks", n_chunks);
    for (uint32_t i = 0; i < n_chunks; ++i)
        order[i] = i;
    std::sort(order.begin(), order.end(), [scores](uint32_t a, uint32_t b) {
        return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
    for (uint32_t i = 0; i < n_chunks; ++i)
        classes[order[i]] = i < counts.high                   ? LK_CHUNK_HIGH
                            : i < counts.high + counts.middle ? LK_CHUNK_MIDDLE
                                                              : LK_CHUNK_LOW;
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" {

lk_status lk_chunk_quota_init(lk_chunk_quota *quota, size_t struct_bytes) {
    return lk::init_with(quota, struct_bytes, sizeof *quota, lk::default_quota(), "quota");
}

lk_status lk_chunks_by_thresholds(const float *scores, uint32_t n_chunks, double alpha, double beta,
                                  lk_chunk_class *classes, double *low, double *high) {
    const lk::FloatMode mode;
    if (!(alpha >= 0 && beta >= 0 && alpha + beta < 1))
        return lk::fail(LK_E_ARGUMENT,
                        "alpha is %g and beta %g, must be at least 0 and below 1 together", alpha,
                        beta);
    LK_TRY(lk::check_scores(scores, n_chunks, classes));
    double least = n_chunks ? scores[0] : 0;
    double most = least;
    for (uint32_t i = 0; i < n_chunks; ++i) {
        least = std::min(least, double{scores[i]});
        most = std::max(most, double{scores[i]});
    }
    const double low_threshold = least + (most - least) * alpha;
    const double high_threshold = most - (most - least) * beta;
    for (uint32_t i = 0; i < n_chunks; ++i)
        classes[i] = double{scores[i]} < low_threshold    ? LK_CHUNK_LOW
                     : double{scores[i]} > high_threshold ? LK_CHUNK_HIGH
                                                          : LK_CHUNK_MIDDLE;
    if (low)
        *low = low_threshold;
    if (high)
        *high = high_threshold;
    return LK_OK;
}

lk_status lk_chunks_by_quota(const float *scores, uint32_t n_chunks, const lk_chunk_quota *quota,
                             lk_chunk_class *classes, uint64_t *n_bytes) {
    const lk::FloatMode mode;
    lk_chunk_quota own = lk::default_quota();
    LK_TRY(lk::import_struct(&own, sizeof own, sizeof own, quota, "quota"));
    LK_TRY(lk::check_quota(own));
    LK_TRY(lk::check_scores(scores, n_chunks, classes));
    lk::Counts counts = lk::count_by_shares(own, n_chunks);
    if (own.budget_bytes)
        LK_TRY(lk::count_by_budget(own, n_chunks, &counts));
    const uint64_t bytes = lk::bytes_of(own, counts);
    if (bytes == UINT64_MAX)
        return lk::fail(LK_E_ARGUMENT, "the bytes of %u chunks leave 64 bits", n_chunks);
    LK_TRY(lk::rank(scores, n_chunks, counts, classes));
    if (n_bytes)
        *n_bytes = bytes;
    return LK_OK;
}

}  // extern "C"
