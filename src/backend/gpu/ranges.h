// Decode attention cut into ranges of about equal cost: workers take whole rounds of pages, and the
// end of one work tile may share a worker with the beginning of the next.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_RANGES_H
#define LK_BACKEND_GPU_RANGES_H

#include "base/memory.h"

namespace lk {
namespace gpu {

// A work tile to be cut. Costs are in bytes that a worker reads meanwhile.
struct RangeTile {
    uint32_t n_pages;
    double page_cost;
    double first_cost;  // of its 16-bit blocks, which the first range has
};

struct RangeRules {
    uint32_t n_workers;
    uint32_t n_readers;  // of a worker, which take a page each at a time
    double item_cost;    // of a range besides its pages
};

// Pages of a work tile that a worker takes in one item.
struct Range {
    uint32_t tile;
    uint32_t worker;
    uint32_t turn;  // of the worker's ranges
    uint32_t n_pages;
};

// The cost of n pages that n_readers take in rounds.
double rounds_cost(const RangeTile &tile, uint64_t n_pages, uint32_t n_readers);

class RangeCut {
  public:
    explicit RangeCut(const Allocator &allocator);

    // For at most so many tiles and workers. False without memory.
    bool open(uint32_t max_tiles, uint32_t max_workers);

    // Cut tiles for the least cost of the busiest worker, which is returned; infinite where no cut
    // gives every worker a range. Workers with more ranges have lower indexes.
    double cut(const RangeTile *tiles, uint32_t n_tiles, const RangeRules &rules);

    // Of the last cut, by tile.
    const Array<Range> &ranges() const { return ranges_; }

  private:
    bool walk(double limit, bool shares);
    double least_limit(bool shares, double *limit);
    bool order_workers();

    const RangeTile *tiles_ = nullptr;
    uint32_t n_tiles_ = 0;
    RangeRules rules_{};
    double longest_ = 0;  // of the last walk
    Array<Range> ranges_;
    Array<uint32_t> counts_;  // [workers] ranges
    Array<uint32_t> order_;   // [workers] index by number of ranges
};

}  // namespace gpu
}  // namespace lk

#endif
