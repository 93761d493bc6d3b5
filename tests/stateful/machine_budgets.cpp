// Budgets of layers: a step's begin chooses rungs and shrinks some pages; here it shrinks all of
// them, which the model can follow.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/pages/ladders.h"
#include "machine.h"

namespace stateful {

namespace {

// A snapshot may have been saved at a lower rung, and its pages stay there.
bool is_below_rung(const lk_cache *cache, const lk::CacheBlock &block, uint32_t index) {
    const lk::EntryInfo &info = cache->formats.entries[index];
    const lk::PageEntry &entry = block.entries[index];
    return block.first_token >= cache->plan.model.sink_tokens && index < block.n_packed &&
           (entry.key_format != info.key.packed_format ||
            entry.value_format != info.value.packed_format);
}

uint64_t layer_bytes(lk_cache *cache, uint32_t layer, bool *has_lower) {
    const lk::LayerInfo &info = cache->formats.layers[layer];
    uint64_t bytes = 0;
    cache->sequences.for_each_block([&](lk::CacheBlock *block) {
        for (uint32_t head = 0; head < info.view.n_kv_heads; ++head) {
            const uint32_t index = info.first_entry + head;
            *has_lower = *has_lower || is_below_rung(cache, *block, index);
            const lk::PageEntry &entry = block->entries[index];
            for (const uint64_t slot :
                 {entry.key_payload, entry.key_metadata, entry.value_payload, entry.value_metadata})
                bytes += slot ? cache->slots.bytes_at(slot) : 0;
        }
    });
    return bytes;
}

lk_status settle(lk_cache *cache, uint32_t layer) {
    uint32_t n_done = 0;
    while (cache->formats.layers[layer].search.is_unsettled)
        LK_TRY(lk::settle_layer(cache, layer, 1000, &n_done));
    return LK_OK;
}

}  // namespace

bool Machine::has_unsettled_budget() const {
    for (const lk::LayerBudget &budget : cache_->layer_budgets.layers)
        if (cache_->formats.layers[budget.layer].search.is_unsettled)
            return true;
    return false;
}

bool Machine::follow_budgets() {
    bool right = true;
    for (const lk::LayerBudget &budget : cache_->layer_budgets.layers) {
        const uint32_t layer = budget.layer;
        const uint32_t rung = lk::rung_bits(cache_, layer);
        const lk::LayerPlan &plan = cache_->plan.model.layers[layer];
        right = right && expect(rung <= model_->rung(layer), "a layer goes up") &&
                expect_status(settle(cache_, layer), "settle");
        model_->set_rung(layer, rung);
        for (const std::unique_ptr<Live> &live : live_)
            model_->shrink(&live->tokens, layer);
        bool has_lower = false;
        const uint64_t bytes = layer_bytes(cache_, layer, &has_lower);
        const uint64_t counted =
            lk::tally_bytes(budget.block_bytes.at[cache_->formats.layers[layer].rung],
                            lk::layer_blocks(cache_->layer_budgets, budget, {}));
        right = right &&
                expect(bytes <= budget.budget_bytes || rung == plan.rungs[plan.n_rungs - 1],
                       "a layer is beyond its budget above its last rung") &&
                expect(has_lower ? bytes <= counted : bytes == counted,
                       "a layer's blocks are counted otherwise");
    }
    return right;
}

}  // namespace stateful
