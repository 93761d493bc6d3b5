// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/new_block_table.h"

#include "base/status.h"

namespace lk {
namespace gpu {

lk_status NewBlockTable::open(const CacheLayout &layout, TableMemory *memory) {
    memory_ = memory;
    if (layout.max_step_tokens <= kDraftTokens)
        return LK_OK;
    runs_offset_ = NewBlocks::most_blocks(layout) * sizeof(Row);
    return table_.open(memory, runs_offset_ + NewBlocks::most_runs(layout) * sizeof(TokenRun),
                       "new blocks of a step");
}

lk_status NewBlockTable::put(const NewBlocks &lists) {
    rows_.clear();
    n_runs_ = static_cast<uint32_t>(lists.runs().size());
    for (const NewBlock &block : lists.blocks())
        if (!rows_.push({block.block->device_entries, block.first_token, 0}))
            return fail(LK_E_NOMEM, "no memory for a list of %zu blocks", lists.blocks().size());
    if (rows_.empty())
        return LK_OK;
    LK_TRY(memory_->put(blocks(), rows_.data(), rows_.size() * sizeof(Row)));
    return n_runs_ ? memory_->put(runs(), lists.runs().data(), n_runs_ * sizeof(TokenRun)) : LK_OK;
}

}  // namespace gpu
}  // namespace lk
