// Budgets of layers: blocks of the cache by state, and the rungs that budgets leave.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_LAYER_BUDGETS_H
#define LK_CORE_MEMORY_LAYER_BUDGETS_H

#include "base/memory.h"
#include "plan/layer_budget.h"

namespace lk {

struct CacheBlock;

// A layer with a budget.
struct LayerBudget {
    uint32_t layer;
    bool frees_hidden;  // its window frees pages
    uint64_t budget_bytes;
    LayerBlockBytes block_bytes;
    BlockTally absent;  // blocks without pages of the layer
};

// Blocks are counted in caches with such layers alone.
struct LayerBudgets {
    explicit LayerBudgets(const Allocator &allocator) : layers(allocator) {}

    bool empty() const { return layers.empty(); }

    Array<LayerBudget> layers;
    BlockTally tally{};  // distinct blocks of all sequences
};

// From the plan; LK_E_NOMEM.
lk_status make_layer_budgets(lk_cache *cache);
// Count a block by its state, or once more after the state has changed; forget a block, also before
// its pages become absent.
void count_block(lk_cache *cache, CacheBlock *block);
void uncount_block(lk_cache *cache, CacheBlock *block);
// Blocks in which a layer has pages, with blocks that are about to come.
BlockTally layer_blocks(const LayerBudgets &budgets, const LayerBudget &layer,
                        const BlockTally &coming);
// A step adds blocks: take every layer to the rung that its budget leaves, and settle a bounded
// number of pages. What fails here is reported when there is need.
void keep_layer_budgets(lk_cache *cache, const BlockTally &coming);

}  // namespace lk

#endif
