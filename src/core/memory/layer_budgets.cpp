// SPDX-License-Identifier: Apache-2.0
#include "core/memory/layer_budgets.h"

#include "core/cache.h"
#include "core/pages/ladders.h"

namespace lk {

namespace {

// Blocks of a layer that a step settles, and how many more for each block that it adds. One for
// each keeps the layer within its budget while it settles; two bring it to an end.
constexpr uint64_t kSettledBlocks = 4;
constexpr uint64_t kSettledForNew = 2;

BlockState state_of(const lk_cache *cache, const CacheBlock &block) {
    const Plan &plan = cache->plan.model;
    if (block.first_token < plan.sink_tokens)
        return block.first_token + block.capacity_tokens < plan.sink_tokens ? kSinkBlock
                                                                            : kLastSinkBlock;
    return block.n_packed == block.n_entries ? kPackedBlock : kRecentBlock;
}

// In a snapshot single heads may be absent: what is left of the layer counts as if all were there.
bool lacks_layer(const lk_cache *cache, const CacheBlock &block, uint32_t layer) {
    const LayerInfo &info = cache->formats.layers[layer];
    for (uint32_t head = 0; head < info.view.n_kv_heads; ++head)
        if (!block.entries[info.first_entry + head].is_absent)
            return false;
    return true;
}

// One more, or one fewer: n is 1 or its negative, modulo 2^64.
void add_block_to_tallies(lk_cache *cache, const CacheBlock &block, uint64_t n) {
    LayerBudgets &budgets = cache->layer_budgets;
    const uint32_t state = block.counted_state - 1;
    budgets.tally.n[state] += n;
    for (LayerBudget &budget : budgets.layers)
        if (budget.frees_hidden && lacks_layer(cache, block, budget.layer))
            budget.absent.n[state] += n;
}

void settle(lk_cache *cache, uint32_t layer, uint64_t n_new) {
    const LayerInfo &info = cache->formats.layers[layer];
    if (!info.search.is_unsettled)
        return;
    const uint64_t n_pages = 2 * info.view.n_kv_heads * (kSettledBlocks + kSettledForNew * n_new);
    uint32_t n_done = 0;
    (void)settle_layer(cache, layer,
                       static_cast<uint32_t>(n_pages < UINT32_MAX ? n_pages : UINT32_MAX), &n_done);
}

}  // namespace

lk_status make_layer_budgets(lk_cache *cache) {
    const Plan &plan = cache->plan.model;
    for (uint32_t l = 0; l < plan.layers.size(); ++l) {
        const LayerPlan &own = plan.layers[l];
        if (!own.budget_bytes || !plan.owns_kv(l))
            continue;
        const bool frees_hidden =
            frees_hidden_pages(plan, own.geometry) && !(cache->desc.flags & LK_CACHE_KEEP_WINDOWED);
        if (!cache->layer_budgets.layers.push(
                {l, frees_hidden, own.budget_bytes, layer_block_bytes(plan, l), {}}))
            return fail(LK_E_NOMEM, "no memory for the budgets of %zu layers", plan.layers.size());
    }
    return LK_OK;
}

void uncount_block(lk_cache *cache, CacheBlock *block) {
    if (!block->counted_state)
        return;
    add_block_to_tallies(cache, *block, UINT64_MAX);
    block->counted_state = 0;
}

void count_block(lk_cache *cache, CacheBlock *block) {
    if (cache->layer_budgets.empty())
        return;
    uncount_block(cache, block);
    block->counted_state = state_of(cache, *block) + 1;
    add_block_to_tallies(cache, *block, 1);
}

BlockTally layer_blocks(const LayerBudgets &budgets, const LayerBudget &layer,
                        const BlockTally &coming) {
    BlockTally blocks;
    for (uint32_t s = 0; s < kBlockStates; ++s)
        blocks.n[s] = budgets.tally.n[s] + coming.n[s] - layer.absent.n[s];
    return blocks;
}

void keep_layer_budgets(lk_cache *cache, const BlockTally &coming) {
    const LayerBudgets &budgets = cache->layer_budgets;
    if (budgets.empty() || cache->device->is_capturing())
        return;
    uint64_t n_new = 0;
    for (const uint64_t n : coming.n)
        n_new += n;
    for (const LayerBudget &budget : budgets.layers) {
        const LayerInfo &info = cache->formats.layers[budget.layer];
        const uint32_t n_rungs = cache->plan.model.layers[budget.layer].n_rungs;
        const uint32_t rung =
            rung_within(budget.budget_bytes, budget.block_bytes,
                        layer_blocks(budgets, budget, coming), info.rung, n_rungs);
        if (rung != info.rung)
            set_rung(cache, budget.layer, rung);
        settle(cache, budget.layer, n_new);
    }
}

}  // namespace lk
