// Device memory for a step's sums of |Q|, which grows when a step has more of them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_QUERY_STATS_AREA_H
#define LK_BACKEND_GPU_QUERY_STATS_AREA_H

#include "backend/gpu/memory.h"

namespace lk {
namespace gpu {

class QueryStatsArea {
  public:
    // At least this many bytes; *has_moved when they are elsewhere than before. What was there is
    // not kept, but its memory is: recorded work may still use it. Each growth doubles the area, so
    // all of them together are as large as the last one. LK_E_NOMEM.
    lk_status grow(TableMemory *memory, uint64_t n_bytes, bool *has_moved);
    uint64_t address() const { return n_tables_ ? tables_[n_tables_ - 1].address() : 0; }
    uint64_t bytes() const;

  private:
    static constexpr uint32_t kMaxTables = 48;  // from a few bytes to all that are

    Table tables_[kMaxTables];
    uint32_t n_tables_ = 0;
};

}  // namespace gpu
}  // namespace lk

#endif
