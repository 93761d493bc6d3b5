// Where a long step's new tokens go: blocks that are packed on append, and others.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_NEW_BLOCKS_H
#define LK_BACKEND_GPU_NEW_BLOCKS_H

#include "backend/backend.h"

namespace lk {
namespace gpu {

// A block that is packed on append, and its first token in the batch.
struct NewBlock {
    const Block *block;
    uint32_t first_token;
};
// Neighbouring tokens of the batch in other blocks.
struct TokenRun {
    uint32_t first;
    uint32_t n;
};

class NewBlocks {
  public:
    explicit NewBlocks(const Allocator &allocator)
        : blocks_(allocator), runs_(allocator), items_(allocator) {}

    // The step's lists: both are empty without a block that is packed on append. LK_E_NOMEM.
    lk_status fill(const Batch &batch);
    const Array<NewBlock> &blocks() const { return blocks_; }
    const Array<TokenRun> &runs() const { return runs_; }

    // The pages of the blocks, to be packed from a layer's staging area; not the keys that are
    // ranked by queries. LK_E_NOMEM.
    lk_status list_pages(const CacheLayout &layout, const AppendArgs &args,
                         const Array<PackItem> **out);

    // Entries of the lists, at most.
    static uint64_t most_blocks(const CacheLayout &layout);
    static uint64_t most_runs(const CacheLayout &layout);
    static constexpr uint32_t kRunTokens = 4;  // of a run, at most

  private:
    lk_status add(const BatchSequence &sequence);
    bool add_run(uint32_t first, uint32_t n);

    Array<NewBlock> blocks_;
    Array<TokenRun> runs_;
    Array<PackItem> items_;
};

}  // namespace gpu
}  // namespace lk

#endif
