// Device memory for tables, and copies to it. A device implements TableMemory; the code that all
// devices share is written on top of that.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_MEMORY_H
#define LK_BACKEND_GPU_MEMORY_H

#include <lowkey/base.h>

#include <cstdint>

namespace lk {
namespace gpu {

class TableMemory {
  public:
    // LK_E_NOMEM names `what` and the bytes, which are not 0.
    virtual lk_status allocate(uint64_t bytes, const char *what, uint64_t *address) = 0;
    // Once queued work has run.
    virtual void release(uint64_t address) = 0;
    // Copy to memory of allocate() in the order of the queue; `data` may change when it returns.
    virtual lk_status put(uint64_t address, const void *data, uint64_t bytes) = 0;

  protected:
    ~TableMemory() = default;
};

// A range of it.
class Table {
  public:
    Table() = default;
    ~Table();
    Table(const Table &) = delete;
    Table &operator=(const Table &) = delete;

    // 0 bytes are no memory and LK_OK.
    lk_status open(TableMemory *memory, uint64_t bytes, const char *what);
    uint64_t address() const { return address_; }
    uint64_t bytes() const { return bytes_; }

  private:
    TableMemory *memory_ = nullptr;
    uint64_t address_ = 0;
    uint64_t bytes_ = 0;
};

}  // namespace gpu
}  // namespace lk

#endif
