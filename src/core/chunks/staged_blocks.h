// 16-bit blocks in which tokens wait to be packed into a block of another layout.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_STAGED_BLOCKS_H
#define LK_CORE_CHUNKS_STAGED_BLOCKS_H

#include "core/sequence/block_table.h"

namespace lk {

// Tokens are moved into a staged block, and packs of it are queued. A device whose work is queued
// gets several blocks, so that one launch moves the tokens of all of them and the next one packs
// them.
class StagedBlocks {
  public:
    explicit StagedBlocks(lk_cache *cache);
    ~StagedBlocks();
    StagedBlocks(const StagedBlocks &) = delete;
    StagedBlocks &operator=(const StagedBlocks &) = delete;

    // Make one block, and more for n_packed blocks that pass through as far as the budget holds
    // them. BlockSlots::needs and table_bytes count all that the caller makes until these blocks
    // go, and one of these. Changes BlockSlots::needs. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
    lk_status open(uint64_t index, uint64_t n_packed, uint64_t table_bytes);
    // A block in which nothing waits. LK_E_DEVICE.
    lk_status take(CacheBlock **out);
    // Hand over the queued moves, then the queued packs, which read what was moved. LK_E_DEVICE.
    lk_status flush();
    // Forget what is queued.
    void drop();

  private:
    uint64_t most_blocks(uint64_t n_packed) const;

    lk_cache &cache_;
    Array<CacheBlock *> blocks_;
    size_t n_taken_ = 0;
};

}  // namespace lk

#endif
