// Lists of pages on their way to the device, which wants many at once.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_PAGES_WORK_QUEUES_H
#define LK_CORE_PAGES_WORK_QUEUES_H

#include "backend/backend.h"
#include "base/memory.h"

#include <lowkey/cache.h>

namespace lk {

constexpr uint32_t kBatch = 4096;    // items handed to the device at once; GPUs want many
constexpr uint32_t kStatBatch = 64;  // runs of query statistics handed to the device at once

struct WorkQueues {
    explicit WorkQueues(const Allocator &allocator)
        : packs(allocator), dequantizes(allocator), moves(allocator), stat_runs(allocator) {}

    // False without memory.
    bool reserve(bool has_query_stats) {
        return packs.reserve(kBatch) && dequantizes.reserve(kBatch) && moves.reserve(kBatch) &&
               (!has_query_stats || stat_runs.reserve(kStatBatch));
    }

    Array<PackItem> packs;  // up to kBatch
    Array<DequantizeItem> dequantizes;
    Array<MoveItem> moves;
    Array<QueryStatRun> stat_runs;  // up to kStatBatch
};

// Hand over what is queued. Packing needs the query statistics that are queued. LK_E_DEVICE.
lk_status flush_packs(lk_cache *cache);
lk_status flush_dequantizes(lk_cache *cache);
lk_status flush_moves(lk_cache *cache);

}  // namespace lk

#endif
