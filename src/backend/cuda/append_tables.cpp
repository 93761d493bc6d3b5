// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/append_tables.h"

#include <algorithm>

#include "base/status.h"

namespace lk {
namespace cuda {

static_assert(sizeof(TokenRun) == sizeof(gpu::TokenRun) &&
                  offsetof(TokenRun, n) == offsetof(gpu::TokenRun, n) &&
                  kRunTokens == gpu::NewBlocks::kRunTokens,
              "runs are copied as bytes");

lk_status AppendTables::open(const CacheLayout &layout, gpu::TableMemory *memory) {
    memory_ = memory;
    page_tokens_ = std::min(layout.page_tokens, LK_MAX_PAGE_TOKENS);
    for (uint32_t i = 0; i < layout.n_formats; ++i)
        if (!layout.formats[i].layout.is_raw())
            n_entries_ = std::max(n_entries_, n_parameters(layout.formats[i].layout));
    if (layout.max_step_tokens <= kDraftTokens)
        return LK_OK;
    runs_offset_ = gpu::NewBlocks::most_blocks(layout) * sizeof(NewBlock);
    return table_.open(memory, runs_offset_ + gpu::NewBlocks::most_runs(layout) * sizeof(TokenRun),
                       "new blocks of a step");
}

lk_status AppendTables::put(const gpu::NewBlocks &lists) {
    blocks_.clear();
    n_runs_ = static_cast<uint32_t>(lists.runs().size());
    for (const gpu::NewBlock &block : lists.blocks())
        if (!blocks_.push({block.block->device_entries, block.first_token, 0}))
            return fail(LK_E_NOMEM, "no memory for a list of %zu blocks", lists.blocks().size());
    if (blocks_.empty())
        return LK_OK;
    LK_TRY(memory_->put(table_.address(), blocks_.data(), blocks_.size() * sizeof(NewBlock)));
    return n_runs_ ? memory_->put(table_.address() + runs_offset_, lists.runs().data(),
                                  n_runs_ * sizeof(TokenRun))
                   : LK_OK;
}

void AppendTables::fill(AppendPages *pages) const {
    pages->blocks = reinterpret_cast<const NewBlock *>(table_.address());
    pages->runs = reinterpret_cast<const TokenRun *>(table_.address() + runs_offset_);
    pages->n_blocks = static_cast<uint32_t>(blocks_.size());
    pages->n_runs = n_runs_;
    pages->page_tokens = page_tokens_;
    pages->n_entries = n_entries_;
}

}  // namespace cuda
}  // namespace lk
