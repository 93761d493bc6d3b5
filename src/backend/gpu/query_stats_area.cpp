// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/query_stats_area.h"

#include <cassert>

namespace lk {
namespace gpu {

uint64_t QueryStatsArea::bytes() const {
    uint64_t sum = 0;
    for (const Table &table : tables_)
        sum += table.bytes();
    return sum;
}

lk_status QueryStatsArea::grow(TableMemory *memory, uint64_t n_bytes, bool *has_moved) {
    const uint64_t held = n_tables_ ? tables_[n_tables_ - 1].bytes() : 0;
    *has_moved = n_bytes > held;
    if (!*has_moved)
        return LK_OK;
    assert(n_tables_ < kMaxTables);
    const lk_status status = tables_[n_tables_].open(
        memory, n_bytes > 2 * held ? n_bytes : 2 * held, "sums of a step's queries");
    if (!status)
        ++n_tables_;
    return status;
}

}  // namespace gpu
}  // namespace lk
