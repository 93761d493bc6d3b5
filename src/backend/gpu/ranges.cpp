// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/ranges.h"

#include <algorithm>
#include <cmath>

namespace lk {
namespace gpu {

namespace {

constexpr uint32_t kHalvings = 24;  // of the interval in which the limit is searched

}  // namespace

double rounds_cost(const RangeTile &tile, uint64_t n_pages, uint32_t n_readers) {
    return static_cast<double>(ceil_div(n_pages, n_readers) * n_readers) * tile.page_cost;
}

RangeCut::RangeCut(const Allocator &allocator)
    : ranges_(allocator), counts_(allocator), order_(allocator) {}

bool RangeCut::open(uint32_t max_tiles, uint32_t max_workers) {
    return ranges_.reserve(uint64_t{max_tiles} + max_workers) && counts_.resize(max_workers) &&
           order_.resize(max_workers);
}

// Ranges as long as the limit allows. shares: a worker may take ranges of several tiles. False when
// the workers do not suffice.
bool RangeCut::walk(double limit, bool shares) {
    ranges_.clear();
    longest_ = 0;
    uint32_t worker = 0;
    uint32_t turn = 0;
    double used = 0;
    for (uint32_t i = 0; i < n_tiles_; ++i) {
        const RangeTile &tile = tiles_[i];
        const double round = rounds_cost(tile, rules_.n_readers, rules_.n_readers);
        uint32_t left = tile.n_pages;
        double first = tile.first_cost;
        do {
            const double space = limit - used - rules_.item_cost - first;
            const double rounds = left ? std::floor(space / round) : 0;
            if (turn && (!shares || space < 0 || (left && rounds < 1))) {
                ++worker;
                turn = 0;
                used = 0;
                continue;
            }
            if (worker == rules_.n_workers)
                return false;
            const uint64_t fitting =
                rounds < 1 ? rules_.n_readers
                           : static_cast<uint64_t>(std::min(rounds, 1e9)) * rules_.n_readers;
            const auto n = static_cast<uint32_t>(std::min<uint64_t>(left, fitting));
            (void)ranges_.push({i, worker, turn++, n});
            used += rules_.item_cost + first + rounds_cost(tile, n, rules_.n_readers);
            longest_ = std::max(longest_, used);
            left -= n;
            first = 0;
        } while (left || first > 0 || (ranges_.empty() || ranges_.back().tile != i));
    }
    return true;
}

// The cost of the busiest worker under the least limit that suffices.
double RangeCut::least_limit(bool shares, double *limit) {
    double total = 0;
    for (uint32_t i = 0; i < n_tiles_; ++i)
        total += rules_.item_cost + tiles_[i].first_cost +
                 rounds_cost(tiles_[i], tiles_[i].n_pages, rules_.n_readers);
    double low = 0;
    double high = total;
    double least = HUGE_VAL;
    for (uint32_t i = 0; i < kHalvings; ++i) {
        const double middle = (low + high) / 2;
        const bool fits = walk(middle, shares);
        if (fits && longest_ < least) {
            least = longest_;
            *limit = middle;
        }
        (fits ? high : low) = middle;
    }
    return least;
}

// Number the workers by their ranges, most first, so that the ranges of a turn belong to the first
// workers. False when workers are left over while others have several ranges.
bool RangeCut::order_workers() {
    uint32_t most = 0;
    uint32_t n_busy = 0;
    std::fill(counts_.data(), counts_.data() + rules_.n_workers, 0u);
    for (const Range &range : ranges_) {
        most = std::max(most, ++counts_[range.worker]);
        n_busy = std::max(n_busy, range.worker + 1);
    }
    uint32_t next = 0;
    for (uint32_t n = most; n; --n)
        for (uint32_t worker = 0; worker < n_busy; ++worker)
            if (counts_[worker] == n)
                order_[worker] = next++;
    for (Range &range : ranges_)
        range.worker = order_[range.worker];
    return most == 1 || n_busy == rules_.n_workers;
}

double RangeCut::cut(const RangeTile *tiles, uint32_t n_tiles, const RangeRules &rules) {
    tiles_ = tiles;
    n_tiles_ = n_tiles;
    rules_ = rules;
    double limits[2] = {0, 0};
    const double apart = least_limit(false, &limits[0]);
    const double shared = least_limit(true, &limits[1]);
    for (const bool shares : {shared < apart, !(shared < apart)})
        if (std::min(apart, shared) < HUGE_VAL && walk(limits[shares], shares) && order_workers())
            return longest_;
    return HUGE_VAL;
}

}  // namespace gpu
}  // namespace lk
