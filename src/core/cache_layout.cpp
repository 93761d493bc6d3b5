// SPDX-License-Identifier: Apache-2.0
#include "core/cache_layout.h"

#include <algorithm>

#include "core/cache.h"

namespace lk {

namespace {

lk_status check_head(const lk_context &context, lk_capability capability, const PageLayout &key,
                     const PageLayout &value) {
    for (uint32_t k = 0; k < kPlaneCount; ++k) {
        if (!key.strips[k])
            continue;
        for (uint32_t v = 0; v < kPlaneCount; ++v) {
            if (!value.strips[v])
                continue;
            capability.key_bits = kPlaneBits[k];
            capability.value_bits = kPlaneBits[v];
            LK_TRY(context.backend->supports(capability));
        }
    }
    return LK_OK;
}

// The formats of the layer's ladder and of chunk classes.
lk_status check_lower(const lk_cache &cache, const EntryInfo &entry,
                      const lk_capability &capability) {
    const Plan &plan = cache.plan.model;
    const uint32_t n_rungs = plan.layers[entry.layer].n_rungs;
    const auto check = [&](uint16_t key, uint16_t value) {
        return check_head(*cache.context, capability, cache.formats[key].layout,
                          cache.formats[value].layout);
    };
    lk_status status = LK_OK;
    for (uint32_t r = 0; !status && r < n_rungs; ++r)
        status = check(entry.key.rung_format[r], entry.value.rung_format[r]);
    for (uint32_t c = 0; plan.chunks.tokens && c < kChunkClasses; ++c)
        for (uint32_t r = 0; !status && r < (n_rungs ? n_rungs : 1u); ++r)
            status = check(entry.key.chunk_format[c][r], entry.value.chunk_format[c][r]);
    return status;
}

// Bytes of the slots of a block of chunks of the lowest class.
uint64_t lowest_chunks_block(const lk_cache &cache) {
    uint64_t bytes = 0;
    for (const EntryInfo &entry : cache.formats.entries) {
        const uint32_t n_rungs = cache.plan.model.layers[entry.layer].n_rungs;
        for (const PageInfo *page : {&entry.key, &entry.value}) {
            const uint16_t last = page->chunk_format[0][n_rungs ? n_rungs - 1 : 0];
            const PageLayout &layout = cache.formats[last].layout;
            bytes += slot_bytes(payload_bytes(layout)) + slot_bytes(metadata_bytes(layout));
        }
    }
    return bytes;
}

// Bytes of the slots of a block whose layers are at the last rungs of their ladders.
uint64_t narrowest_block(const lk_cache &cache) {
    uint64_t bytes = 0;
    for (const EntryInfo &entry : cache.formats.entries) {
        const uint32_t n_rungs = cache.plan.model.layers[entry.layer].n_rungs;
        for (const PageInfo *page : {&entry.key, &entry.value}) {
            const uint16_t last = n_rungs ? page->rung_format[n_rungs - 1] : page->packed_format;
            bytes += slot_bytes(payload_bytes(cache.formats[last].layout));
            bytes += page->packs() ? page->metadata_slot() : page->slots.recent_metadata;
        }
    }
    const bool has_chunks = cache.plan.model.chunks.tokens != 0;
    const uint64_t lowest = has_chunks ? lowest_chunks_block(cache) : bytes;
    return lowest < bytes ? lowest : bytes;
}

// The format that most packed pages will have, as far as the plan determines it.
uint16_t common_format(const lk_cache &cache, const PageInfo &page) {
    return cache.plan.model.chunks.tokens && !page.packs() ? page.chunk_format[0][0]
                                                           : page.packed_format;
}

bool same_order(const PageFormat &a, const PageFormat &b) {
    return a.permutation && b.permutation
               ? std::equal(a.permutation, a.permutation + permutation_bytes(a.layout.head_dim),
                            b.permutation)
               : a.permutation == b.permutation;
}

// Rungs keep the order of a head's channels. Chunk classes have their own.
uint16_t ordered_format(const lk_cache &cache, const EntryInfo &entry) {
    const PageInfo &page = entry.key;
    const uint32_t n_rungs = cache.plan.model.layers[entry.layer].n_rungs;
    uint16_t ordered = page.packed_format;
    bool differ = false;
    const auto add = [&](uint16_t page_format) {
        const PageFormat &next = cache.formats[page_format];
        if (next.layout.is_raw())
            return;
        if (cache.formats[ordered].layout.is_raw())
            ordered = page_format;
        differ = differ || !same_order(cache.formats[ordered], next);
    };
    for (uint32_t r = 0; r < n_rungs; ++r)
        add(page.rung_format[r]);
    if (cache.plan.model.chunks.tokens)
        for (const uint16_t(&formats)[kMaxRungs] : page.chunk_format)
            for (uint32_t r = 0; r < (n_rungs ? n_rungs : 1); ++r)
                add(formats[r]);
    return differ ? kNoFormat : ordered;
}

// Blocks that the budget holds at most: each takes its table and the slots of the smallest kind,
// which windows may leave without any.
uint64_t most_blocks(const lk_cache &cache) {
    uint64_t least = narrowest_block(cache);
    for (const LayerPlan &layer : cache.plan.model.layers)
        if (frees_hidden_pages(cache.plan.model, layer.geometry))
            least = 0;
    for (const Array<SlotCount> *counts :
         {&cache.block_slots.recent, &cache.block_slots.sink, &cache.block_slots.last_sink}) {
        const uint64_t bytes = total_bytes(*counts);
        least = bytes && bytes < least ? bytes : least;
    }
    const uint64_t left = cache.desc.max_budget_bytes - cache.ledger.table_bytes;
    const uint64_t n = left / (block_bytes(cache.plan.model) + least);
    return n < 1 ? 1 : n < UINT32_MAX ? n : UINT32_MAX;
}

// Blocks that a step lists at most, where sequences share them: 32 Mi tokens at 128 a page, unless
// the budget holds more.
uint64_t most_step_blocks(const lk_cache &cache, uint64_t n_blocks) {
    constexpr uint64_t kShared = uint64_t{1} << 18;
    const uint64_t all = n_blocks * cache.desc.max_sequences;
    return all < kShared ? all : n_blocks > kShared ? n_blocks : kShared;
}

}  // namespace

lk_status check_support(const lk_cache &cache) {
    lk_capability capability{};
    capability.size = sizeof capability;
    capability.page_tokens = cache.plan.model.page_tokens;
    capability.memory = cache.context->backend->traits().memory;
    capability.dtype = LK_F32;
    capability.queue = cache.context->backend->traits().queue;
    for (const LayerInfo &layer : cache.formats.layers) {
        capability.head_dim = layer.view.head_dim;
        capability.group_size = layer.view.n_query_heads / layer.view.n_kv_heads;
        for (uint32_t head = 0; head < layer.view.n_kv_heads; ++head) {
            const EntryInfo &entry = cache.formats.entries[layer.first_entry + head];
            LK_TRY(check_head(*cache.context, capability,
                              cache.formats[entry.key.packed_format].layout,
                              cache.formats[entry.value.packed_format].layout));
            LK_TRY(check_lower(cache, entry, capability));
        }
    }
    return LK_OK;
}

lk_status open_device(lk_cache *cache) {
    const size_t n_layers = cache->formats.layers.size();
    if (!cache->formats.layer_views.reserve(n_layers) ||
        !cache->formats.first_entries.reserve(n_layers) ||
        !cache->formats.entry_formats.reserve(cache->formats.entries.size()))
        return fail(LK_E_NOMEM, "no memory for the lists of a cache");
    for (const LayerInfo &layer : cache->formats.layers) {
        cache->formats.layer_views.push(layer.view);
        cache->formats.first_entries.push(layer.first_entry);
    }
    for (const EntryInfo &entry : cache->formats.entries)
        cache->formats.entry_formats.push(
            {entry.key.recent_format, common_format(*cache, entry.key), entry.value.recent_format,
             common_format(*cache, entry.value), ordered_format(*cache, entry)});
    CacheLayout layout{};
    layout.formats = cache->formats.table.data();
    layout.n_formats = static_cast<uint32_t>(cache->formats.table.size());
    layout.layers = cache->formats.layer_views.data();
    layout.first_entries = cache->formats.first_entries.data();
    layout.n_layers = static_cast<uint32_t>(n_layers);
    layout.n_entries = static_cast<uint32_t>(cache->formats.entries.size());
    layout.entry_formats = cache->formats.entry_formats.data();
    layout.layer_formats = cache->formats.layer_formats.data();
    layout.page_tokens = cache->plan.model.page_tokens;
    layout.sink_tokens = cache->plan.model.sink_tokens;
    layout.max_sequences = cache->desc.max_sequences;
    layout.max_step_tokens = cache->desc.max_step_tokens;
    layout.max_blocks = most_blocks(*cache);
    layout.max_step_blocks = most_step_blocks(*cache, layout.max_blocks);
    layout.n_ranked_channels = cache->formats.n_ranked_channels;
    const lk_status status = cache->context->backend->cache_open(layout, &cache->device);
    cache->stat_queue.use(cache->device);
    return status;
}

}  // namespace lk
