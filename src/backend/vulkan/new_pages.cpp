// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/new_pages.h"

#include "base/status.h"

namespace lk {
namespace vulkan {

static_assert(sizeof(gpu::TokenRun) == 8 && offsetof(gpu::TokenRun, n) == 4,
              "shaders read runs as pairs of words");

lk_status NewPages::open(const CacheLayout &layout, gpu::TableMemory *memory) {
    memory_ = memory;
    if (layout.max_step_tokens <= kDraftTokens)
        return LK_OK;
    runs_offset_ = gpu::NewBlocks::most_blocks(layout) * sizeof(NewBlock);
    return table_.open(memory,
                       runs_offset_ + gpu::NewBlocks::most_runs(layout) * sizeof(gpu::TokenRun),
                       "new blocks of a step");
}

lk_status NewPages::put(const gpu::NewBlocks &lists) {
    blocks_.clear();
    n_runs_ = static_cast<uint32_t>(lists.runs().size());
    for (const gpu::NewBlock &block : lists.blocks())
        if (!blocks_.push({block.block->device_entries, block.first_token, 0}))
            return fail(LK_E_NOMEM, "no memory for a list of %zu blocks", lists.blocks().size());
    if (blocks_.empty())
        return LK_OK;
    LK_TRY(memory_->put(blocks(), blocks_.data(), blocks_.size() * sizeof(NewBlock)));
    return n_runs_ ? memory_->put(runs(), lists.runs().data(), n_runs_ * sizeof(gpu::TokenRun))
                   : LK_OK;
}

}  // namespace vulkan
}  // namespace lk
