// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/jobs.h"

#include <algorithm>

namespace lk {
namespace gpu {

namespace {

uint32_t index_of(const CacheLayout &layout, const PageFormat *format) {
    return static_cast<uint32_t>(format - layout.formats);
}

}  // namespace

PackJob job_of(const CacheLayout &layout, const PackItem &item) {
    PackJob job{};
    job.payload = item.payload;
    job.metadata = item.metadata;
    job.source = item.source;
    job.query_stats = item.query_stats;
    job.target_format = index_of(layout, item.target);
    job.source_format = item.source_format ? index_of(layout, item.source_format) : kStaged;
    return job;
}

DequantizeJob job_of(const CacheLayout &layout, const DequantizeItem &item) {
    DequantizeJob job{};
    job.payload = item.source_payload;
    job.metadata = item.source_metadata;
    job.target = item.target_payload;
    job.source_format = index_of(layout, item.source);
    job.target_format = index_of(layout, item.target);
    job.n_tokens = item.n_tokens;
    return job;
}

MoveJob job_of(const CacheLayout &layout, const MoveItem &item) {
    return {item.source,
            item.target,
            index_of(layout, item.source_format),
            index_of(layout, item.target_format),
            item.first_source,
            item.first_target,
            item.mask};
}

static_assert(sizeof(ShrinkJob) == sizeof(ShrinkItem) &&
                  offsetof(ShrinkJob, source) == offsetof(ShrinkItem, source) &&
                  offsetof(ShrinkJob, target) == offsetof(ShrinkItem, target) &&
                  offsetof(ShrinkJob, stride_bytes) == offsetof(ShrinkItem, stride_bytes) &&
                  offsetof(ShrinkJob, tail_bytes) == offsetof(ShrinkItem, tail_bytes) &&
                  offsetof(ShrinkJob, n_pages) == offsetof(ShrinkItem, n_pages) &&
                  offsetof(ShrinkJob, n_strips) == offsetof(ShrinkItem, n_strips) &&
                  offsetof(ShrinkJob, bits) == offsetof(ShrinkItem, bits) &&
                  offsetof(ShrinkJob, page_tokens) == offsetof(ShrinkItem, page_tokens),
              "items are copied as bytes");

lk_status JobList::put(const CacheLayout &, const ShrinkItem *items, uint32_t n) {
    return memory_->put(table_.address(), items, n * sizeof *items);
}

lk_status JobList::put(const CacheLayout &, const StatItem *items, uint32_t n) {
    return memory_->put(table_.address(), items, n * sizeof *items);
}

lk_status JobList::open(TableMemory *memory) {
    memory_ = memory;
    return table_.open(memory,
                       kMaxJobs * std::max({sizeof(PackJob), sizeof(DequantizeJob), sizeof(MoveJob),
                                            sizeof(ShrinkJob), sizeof(StatItem)}),
                       "lists of pages to pack");
}

PackExtent extent_of(const PackItem *items, uint32_t n_items) {
    PackExtent extent{};
    for (uint32_t i = 0; i < n_items; ++i) {
        const PageLayout &layout = items[i].target->layout;
        extent.head_dim = std::max<uint32_t>(extent.head_dim, layout.head_dim);
        extent.page_tokens = std::max<uint32_t>(extent.page_tokens, layout.page_tokens);
        if (!layout.is_raw())
            extent.n_parameters = std::max(extent.n_parameters, n_parameters(layout));
    }
    return extent;
}

uint32_t most_pages(const ShrinkItem *items, uint32_t n_items) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_items; ++i)
        most = std::max<uint32_t>(most, items[i].n_pages);
    return most;
}

uint32_t most_channels(const StatItem *items, uint32_t n_items) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_items; ++i)
        most = std::max(most, items[i].n_channels);
    return most;
}

}  // namespace gpu
}  // namespace lk
