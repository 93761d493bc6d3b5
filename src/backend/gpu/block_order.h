// Blocks of a step's sequences in the order of their formats, so that the pages of one form that a
// work item reads lie side by side: chunks with classes (Cocktail) have them in any order.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_BLOCK_ORDER_H
#define LK_BACKEND_GPU_BLOCK_ORDER_H

#include "backend/backend.h"

namespace lk {
namespace gpu {

class SplitRules;

class BlockOrder {
  public:
    explicit BlockOrder(const Allocator &allocator)
        : sequences_(allocator), first_blocks_(allocator), blocks_(allocator), done_(allocator) {}

    // Sizes for the life of a cache. False without memory.
    bool open(const CacheLayout &layout, const SplitRules &rules);
    // May sequences have another order? Then tables need places for as many blocks again.
    bool is_used() const { return is_used_; }
    // May work items of a layer read blocks in another order? With a window they may not: its first
    // visible block is found by position.
    static bool suits(const CacheLayout &layout, const SplitRules &rules, uint32_t layer);

    // The order of a step's sequences. blocks_changed: blocks came, went or have other formats.
    // False without memory.
    bool fill(const Batch &batch, bool blocks_changed);
    // Has the last fill() found another order than the one before?
    bool is_new() const { return is_new_; }

    // The batch's, with `blocks` in order.
    const BatchSequence *sequences() const { return sequences_.data(); }
    // Of each sequence in the table of a step, where blocks() follow all blocks of the batch.
    const uint32_t *first_blocks() const { return first_blocks_.data(); }
    const Array<const Block *> &blocks() const { return blocks_; }

  private:
    bool is_same(const Batch &batch) const;
    bool is_raw(const Block &block) const;
    uint32_t formats_of(const Block &block) const;
    bool find(const Batch &batch);
    bool add(const BatchSequence &sequence);
    bool add_formats(const Block *const *blocks, uint32_t begin, uint32_t end);

    CacheLayout layout_{};
    bool is_used_ = false;
    bool is_new_ = false;
    uint32_t entry_ = 0;              // the formats of which give the order
    uint32_t n_own_ = 0;              // blocks of the batch
    Array<BatchSequence> sequences_;  // of the last step
    Array<uint32_t> first_blocks_;    // likewise
    Array<const Block *> blocks_;     // of the ordered sequences
    Array<uint32_t> done_;            // formats of a sequence that are in order
};

}  // namespace gpu
}  // namespace lk

#endif
