// The lists of a long step's new tokens, as kernels read them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_APPEND_TABLES_H
#define LK_BACKEND_CUDA_APPEND_TABLES_H

#include "backend/gpu/new_block_table.h"
#include "cuda/append_pages.h"

namespace lk {
namespace cuda {

class AppendTables {
  public:
    explicit AppendTables(const Allocator &allocator) : table_(allocator) {}

    // Caches without long steps have no tables.
    lk_status open(const CacheLayout &layout, gpu::TableMemory *memory);
    // LK_E_NOMEM.
    lk_status put(const gpu::NewBlocks &lists) { return table_.put(lists); }
    // Where they are, and the shape of pages. Without a block, launch_append() takes all tokens.
    void fill(AppendPages *pages) const;
    uint64_t bytes() const { return table_.bytes(); }

  private:
    gpu::NewBlockTable table_;
    uint32_t page_tokens_ = 0;
    uint32_t n_entries_ = 0;  // of the widest page
};

}  // namespace cuda
}  // namespace lk

#endif
