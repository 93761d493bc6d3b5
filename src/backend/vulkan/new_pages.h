// The lists of a long step's new tokens, as append and append_pages read them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_NEW_PAGES_H
#define LK_BACKEND_VULKAN_NEW_PAGES_H

#include "backend/gpu/memory.h"
#include "backend/gpu/new_blocks.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

class NewPages {
  public:
    explicit NewPages(const Allocator &allocator) : blocks_(allocator) {}

    // Caches without long steps have no lists.
    lk_status open(const CacheLayout &layout, gpu::TableMemory *memory);
    // LK_E_NOMEM.
    lk_status put(const gpu::NewBlocks &lists);

    uint32_t n_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
    uint32_t n_runs() const { return n_runs_; }
    Address blocks() const { return table_.address(); }
    Address runs() const { return table_.address() + runs_offset_; }
    uint64_t bytes() const { return table_.bytes(); }

  private:
    gpu::TableMemory *memory_ = nullptr;
    gpu::Table table_;  // NewBlock, gpu::TokenRun
    uint64_t runs_offset_ = 0;
    Array<NewBlock> blocks_;
    uint32_t n_runs_ = 0;
};

}  // namespace vulkan
}  // namespace lk

#endif
