// The lists of a long step's new tokens, as kernels read them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_APPEND_TABLES_H
#define LK_BACKEND_CUDA_APPEND_TABLES_H

#include "backend/gpu/memory.h"
#include "backend/gpu/new_blocks.h"
#include "cuda/append_pages.h"

namespace lk {
namespace cuda {

class AppendTables {
  public:
    explicit AppendTables(const Allocator &allocator) : blocks_(allocator) {}

    // Caches without long steps have no tables.
    lk_status open(const CacheLayout &layout, gpu::TableMemory *memory);
    // LK_E_NOMEM.
    lk_status put(const gpu::NewBlocks &lists);
    // Where they are, and the shape of pages. Without a block, launch_append() takes all tokens.
    void fill(AppendPages *pages) const;
    uint64_t bytes() const { return table_.bytes(); }

  private:
    gpu::TableMemory *memory_ = nullptr;
    gpu::Table table_;  // blocks, runs
    uint64_t runs_offset_ = 0;
    uint32_t page_tokens_ = 0;
    uint32_t n_entries_ = 0;  // of the widest page
    Array<NewBlock> blocks_;
    uint32_t n_runs_ = 0;
};

}  // namespace cuda
}  // namespace lk

#endif
