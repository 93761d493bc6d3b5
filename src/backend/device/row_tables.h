// Device copies of the entries of rows. The budget counts them with the rows: they are no part of
// CacheDevice::fixed_bytes().
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_DEVICE_ROW_TABLES_H
#define LK_BACKEND_DEVICE_ROW_TABLES_H

#include "backend/backend.h"
#include "backend/device/memory.h"

namespace lk {
namespace device {

class RowTables {
  public:
    explicit RowTables(const Allocator &allocator)
        : blocks_(allocator), free_(allocator), stale_(allocator) {}
    ~RowTables();
    RowTables(const RowTables &) = delete;
    RowTables &operator=(const RowTables &) = delete;

    void open(uint32_t n_entries, TableMemory *memory);
    // Give the row a place, which is stale until the next send().
    lk_status add(Block *row);
    // Its place may be another row's at once: what is queued runs before what is sent later.
    void drop(Block *row);
    void mark_stale(Block *row);
    lk_status send();

  private:
    lk_status grow();

    TableMemory *memory_ = nullptr;
    uint64_t row_bytes_ = 0;
    uint64_t n_rows_ = 0;     // places
    Array<uint64_t> blocks_;  // addresses
    Array<uint64_t> free_;    // the next one last
    Array<Block *> stale_;
};

}  // namespace device
}  // namespace lk

#endif
