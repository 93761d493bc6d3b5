// Lists of pages to pack, to dequantize, to shrink or to move tokens in, and of sums to add, as
// kernels read them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_JOBS_H
#define LK_BACKEND_GPU_JOBS_H

#include "backend/backend.h"
#include "backend/gpu/memory.h"
#include "format/tables.h"

namespace lk {
namespace gpu {

PackJob job_of(const CacheLayout &layout, const PackItem &item);
DequantizeJob job_of(const CacheLayout &layout, const DequantizeItem &item);
MoveJob job_of(const CacheLayout &layout, const MoveItem &item);

// Device memory for the jobs of a launch.
class JobList {
  public:
    static constexpr uint32_t kMaxJobs = 4096;  // a large GPU runs over 500 workgroups at once

    lk_status open(TableMemory *memory);
    uint64_t address() const { return table_.address(); }
    uint64_t bytes() const { return table_.bytes(); }

    // Calls launch(items, n), which returns a status, for up to kMaxJobs items at a time with their
    // jobs in the list.
    template <class Item, class Launch>
    lk_status run(const CacheLayout &layout, const Item *items, uint32_t n_items,
                  const Launch &launch) {
        lk_status status = LK_OK;
        for (uint32_t first = 0; !status && first < n_items; first += kMaxJobs) {
            const uint32_t n = n_items - first < kMaxJobs ? n_items - first : kMaxJobs;
            status = put(layout, items + first, n);
            if (!status)
                status = launch(items + first, n);
        }
        return status;
    }

  private:
    static constexpr uint32_t kCopiedJobs = 64;  // for the upload at once

    template <class Item>
    lk_status put(const CacheLayout &layout, const Item *items, uint32_t n) {
        using Job = decltype(job_of(layout, *items));
        Job jobs[kCopiedJobs];
        lk_status status = LK_OK;
        for (uint32_t first = 0; !status && first < n; first += kCopiedJobs) {
            const uint32_t n_copied = n - first < kCopiedJobs ? n - first : kCopiedJobs;
            for (uint32_t i = 0; i < n_copied; ++i)
                jobs[i] = job_of(layout, items[first + i]);
            status =
                memory_->put(table_.address() + first * sizeof(Job), jobs, n_copied * sizeof(Job));
        }
        return status;
    }
    // Kernels read these as they are.
    lk_status put(const CacheLayout &layout, const ShrinkItem *items, uint32_t n);
    lk_status put(const CacheLayout &layout, const StatItem *items, uint32_t n);

    TableMemory *memory_ = nullptr;
    Table table_;
};

// The largest head dim, and the most tokens and pairs of a range and a minimum of a page that items
// pack.
struct PackExtent {
    uint32_t head_dim;
    uint32_t page_tokens;
    uint32_t n_parameters;
};
PackExtent extent_of(const PackItem *items, uint32_t n_items);
uint32_t most_pages(const ShrinkItem *items, uint32_t n_items);
uint32_t most_channels(const StatItem *items, uint32_t n_items);

}  // namespace gpu
}  // namespace lk

#endif
