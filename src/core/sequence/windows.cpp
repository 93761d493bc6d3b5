// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/windows.h"

#include "core/cache.h"
#include "core/pages/page_slots.h"

namespace lk {

namespace {

// Of all heads: in a snapshot single heads may be absent.
bool has_layer(const lk_cache *cache, const CacheBlock &block, uint32_t layer) {
    const LayerInfo &info = cache->formats.layers[layer];
    uint32_t is_absent = 0;
    for (uint32_t head = 0; head < info.view.n_kv_heads; ++head)
        is_absent |= block.entries[info.first_entry + head].is_absent;
    return !is_absent;
}

// Where the blocks end that the layer has no use for with this length.
uint64_t hidden_end(const lk_cache *cache, uint32_t layer, uint64_t length) {
    const Plan &plan = cache->plan.model;
    return hidden_blocks(plan, plan.layers[layer].geometry, length);
}

void free_layer(lk_cache *cache, CacheBlock *block, uint32_t layer) {
    const LayerInfo &info = cache->formats.layers[layer];
    for (uint32_t head = 0; head < info.view.n_kv_heads; ++head) {
        PageEntry *entry = &block->entries[info.first_entry + head];
        give_entry(cache, *entry);
        entry->key_payload = entry->key_metadata = 0;
        entry->value_payload = entry->value_metadata = 0;
        entry->is_absent = 1;
    }
}

// Another holder, of the block or of its source, may be shorter and need the pages.
bool has_others(const CacheBlock &block) { return block.n_holders > 1 || block.packed_from; }

// True when no layer has an entry left that it will give back.
bool free_hidden_entries(lk_cache *cache, uint64_t index, uint64_t length, CacheBlock *block) {
    bool is_done = true;
    bool has_changed = false;
    uncount_block(cache, block);
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l) {
        if (!frees_hidden_pages(cache->plan.model, cache->plan.model.layers[l].geometry) ||
            !has_layer(cache, *block, l))
            continue;
        const bool is_hidden = index < hidden_end(cache, l, length);
        is_done = is_done && is_hidden;
        if (!is_hidden)
            continue;
        free_layer(cache, block, l);
        has_changed = true;
    }
    count_block(cache, block);
    if (has_changed)
        (void)cache->device->entries_changed(block);
    return is_done;
}

}  // namespace

void free_hidden_pages(lk_cache *cache, Sequence *sequence) {
    if (cache->desc.flags & LK_CACHE_KEEP_WINDOWED)
        return;
    const Plan &plan = cache->plan.model;
    uint64_t end = 0;
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l) {
        const uint64_t hidden = hidden_end(cache, l, sequence->length);
        end = hidden > end ? hidden : end;
    }
    const uint64_t sinks = sink_blocks(plan);
    uint64_t *next = &sequence->first_windowed;
    if (*next < sinks)
        *next = sinks;
    for (uint64_t r = *next; r < end && r < sequence->block_table.size(); ++r) {
        CacheBlock *block = sequence->block(r);
        const bool is_done = block->n_packed == block->n_entries && !has_others(*block) &&
                             free_hidden_entries(cache, r, sequence->length, block);
        if (is_done && r == *next)
            ++*next;
    }
}

lk_status check_pages(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens) {
    const Plan &plan = cache->plan.model;
    const uint64_t end = block_count(plan, n_tokens);
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l) {
        if (!frees_hidden_pages(plan, plan.layers[l].geometry))
            continue;
        for (uint64_t r = hidden_end(cache, l, n_tokens); r < end; ++r)
            if (!has_layer(cache, *sequence.block(r), l))
                return fail(LK_E_UNSUPPORTED,
                            "sequence %llu has %llu tokens and layer %u a window of %u: tokens "
                            "%llu to %llu are gone, which %llu tokens would see",
                            ull{sequence.id}, ull{sequence.length}, l,
                            cache->formats.layers[l].view.window_tokens,
                            ull{block_first_token(plan, r)}, ull{block_first_token(plan, r + 1)},
                            ull{n_tokens});
    }
    return LK_OK;
}

}  // namespace lk
