// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/append_tables.h"

#include <algorithm>

namespace lk {
namespace cuda {

static_assert(sizeof(TokenRun) == sizeof(gpu::TokenRun) &&
                  offsetof(TokenRun, n) == offsetof(gpu::TokenRun, n) &&
                  kRunTokens == gpu::NewBlocks::kRunTokens,
              "runs are copied as bytes");
static_assert(sizeof(NewBlock) == sizeof(gpu::NewBlockTable::Row) &&
                  offsetof(NewBlock, first_token) == offsetof(gpu::NewBlockTable::Row, first_token),
              "so are blocks");

lk_status AppendTables::open(const CacheLayout &layout, gpu::TableMemory *memory) {
    page_tokens_ = std::min(layout.page_tokens, LK_MAX_PAGE_TOKENS);
    for (uint32_t i = 0; i < layout.n_formats; ++i)
        if (!layout.formats[i].layout.is_raw())
            n_entries_ = std::max(n_entries_, n_parameters(layout.formats[i].layout));
    return table_.open(layout, memory);
}

void AppendTables::fill(AppendPages *pages) const {
    pages->blocks = reinterpret_cast<const NewBlock *>(table_.blocks());
    pages->runs = reinterpret_cast<const TokenRun *>(table_.runs());
    pages->n_blocks = table_.n_blocks();
    pages->n_runs = table_.n_runs();
    pages->page_tokens = page_tokens_;
    pages->n_entries = n_entries_;
}

}  // namespace cuda
}  // namespace lk
