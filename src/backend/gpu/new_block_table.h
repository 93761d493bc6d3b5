// The lists of a long step's new tokens in device memory, as kernels read them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_NEW_BLOCK_TABLE_H
#define LK_BACKEND_GPU_NEW_BLOCK_TABLE_H

#include "backend/gpu/memory.h"
#include "backend/gpu/new_blocks.h"

namespace lk {
namespace gpu {

class NewBlockTable {
  public:
    // NewBlock on the device: the block's entries, and its first token in the batch.
    struct Row {
        uint64_t entries;
        uint32_t first_token;
        uint32_t reserved;
    };

    explicit NewBlockTable(const Allocator &allocator) : rows_(allocator) {}

    // Caches without long steps have no lists.
    lk_status open(const CacheLayout &layout, TableMemory *memory);
    // LK_E_NOMEM.
    lk_status put(const NewBlocks &lists);

    uint32_t n_blocks() const { return static_cast<uint32_t>(rows_.size()); }
    uint32_t n_runs() const { return n_runs_; }
    uint64_t blocks() const { return table_.address(); }
    uint64_t runs() const { return table_.address() + runs_offset_; }
    uint64_t bytes() const { return table_.bytes(); }

  private:
    TableMemory *memory_ = nullptr;
    Table table_;  // Row, TokenRun
    uint64_t runs_offset_ = 0;
    Array<Row> rows_;
    uint32_t n_runs_ = 0;
};

}  // namespace gpu
}  // namespace lk

#endif
