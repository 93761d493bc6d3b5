// Budgets and rungs that the host sets.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/cache.h"
#include "core/memory/compact.h"
#include "core/memory/table_space.h"
#include "core/pages/ladders.h"

namespace lk {

namespace {

lk_status check_quiet(lk_cache *cache, const char *what) {
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it before %s", what);
    if (cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: wait with %s", what);
    return LK_OK;
}

// The rung of a layer's ladder, kMaxRungs without it.
uint32_t find_rung(const LayerPlan &layer, uint32_t bits) {
    for (uint32_t r = 0; r < layer.n_rungs; ++r)
        if (layer.rungs[r] == bits)
            return r;
    return kMaxRungs;
}

lk_status check_rung(const lk_cache *cache, uint32_t layer, uint32_t bits) {
    if (layer >= cache->formats.layers.size())
        return fail(LK_E_NOT_FOUND, "layer is %u, the cache has %zu layers", layer,
                    cache->formats.layers.size());
    if (!cache->formats.layers[layer].owns_kv)
        return fail(LK_E_ARGUMENT, "layer %u reads the pages of layer %u: shrink that layer", layer,
                    cache->formats.layers[layer].kv_layer);
    const LayerPlan &plan = cache->plan.model.layers[layer];
    const uint32_t rung = find_rung(plan, bits);
    if (bits == 16 || rung == kMaxRungs)
        return fail(LK_E_ARGUMENT, "bits is %u, no rung below 16 of layer %u's ladder", bits,
                    layer);
    if (rung < cache->formats.layers[layer].rung)
        return fail(LK_E_ARGUMENT, "bits is %u, layer %u is at %u already", bits, layer,
                    plan.rungs[cache->formats.layers[layer].rung]);
    return LK_OK;
}

// Of a layer that shrinks whole: the device works on a batch while the host finds the next one.
constexpr uint32_t kLayerPages = 8192;

lk_status shrink_layer(lk_cache *cache, uint32_t layer, uint32_t rung) {
    if (rung > cache->formats.layers[layer].rung)
        set_rung(cache, layer, rung);
    lk_status status = LK_OK;
    uint32_t n_done = 0;
    while (!status && cache->formats.layers[layer].search.is_unsettled)
        status = settle_layer(cache, layer, kLayerPages, &n_done);
    return status;
}

lk_status shrink_cache(lk_cache *cache, uint32_t layer, uint32_t bits) {
    if (layer == LK_ALL && (!is_rung(bits) || bits == 16))
        return fail(LK_E_ARGUMENT, "bits is %u, not 8, 4 or 2", bits);
    lk_status status = layer == LK_ALL ? LK_OK : check_rung(cache, layer, bits);
    if (!status)
        status = check_quiet(cache, "pages are shrunk");
    if (!status)
        status = leave_recording(cache);
    for (uint32_t l = 0; !status && l < cache->formats.layers.size(); ++l) {
        const uint32_t rung = find_rung(cache->plan.model.layers[l], bits);
        if ((layer == LK_ALL ? cache->formats.layers[l].owns_kv : layer == l) &&
            rung != kMaxRungs && rung >= cache->formats.layers[l].rung)
            status = shrink_layer(cache, l, rung);
    }
    cache->slots.trim();
    return status;
}

// The payload slot of a page at the last rung of its ladder.
uint64_t narrowest_slot(lk_cache *cache, const CacheBlock &block, uint32_t entry,
                        const PageInfo &page, uint16_t page_format, uint64_t payload) {
    const LayerPlan &plan = cache->plan.model.layers[cache->formats.entries[entry].layer];
    if (cache->formats[page_format].layout.is_absent())
        return 0;
    if (!plan.n_rungs)
        return cache->slots.bytes_at(payload);
    const uint32_t last = plan.rungs[plan.n_rungs - 1];
    uint32_t bits = format_bits(cache->formats[page_format]);
    if (bits == 16 && entry >= block.n_packed)
        return cache->slots.bytes_at(payload);
    if (bits == 16)
        page_format = page.rung_format[plan.n_rungs - 1];
    for (; bits > last && bits < 16; bits = format_bits(cache->formats[page_format]))
        page_format = cache->formats.shrink_steps[page_format].to;
    return slot_bytes(payload_bytes(cache->formats[page_format].layout));
}

void count_narrowest(lk_cache *cache, const CacheBlock &block) {
    for (uint32_t e = 0; e < block.n_entries; ++e) {
        const PageEntry &entry = block.entries[e];
        const EntryInfo &info = cache->formats.entries[e];
        if (entry.is_absent)
            continue;
        const uint64_t slots[] = {
            narrowest_slot(cache, block, e, info.key, entry.key_format, entry.key_payload),
            narrowest_slot(cache, block, e, info.value, entry.value_format, entry.value_payload),
            entry.key_metadata ? cache->slots.bytes_at(entry.key_metadata) : 0,
            entry.value_metadata ? cache->slots.bytes_at(entry.value_metadata) : 0};
        for (const uint64_t bytes : slots)
            if (bytes)
                ++cache->block_slots.needs[cache->slots.size_index(bytes)];
    }
}

// What the cache would hold with all pages at their layers' last rungs.
uint64_t narrowest_bytes(lk_cache *cache) {
    cache->block_slots.clear_needs();
    cache->sequences.for_each_block([cache](CacheBlock *block) { count_narrowest(cache, *block); });
    const uint64_t extents = cache->slots.extents_if(cache->block_slots.needs.data());
    return cache->ledger.table_bytes + cache->ledger.spare_bytes + extents * LK_EXTENT_BYTES;
}

uint64_t compacted_bytes(lk_cache *cache) {
    cache->block_slots.clear_needs();
    return cache->ledger.table_bytes + cache->ledger.spare_bytes +
           cache->slots.extents_of_all(cache->block_slots.needs.data()) * LK_EXTENT_BYTES;
}

lk_status shrink_below(lk_cache *cache, uint64_t budget_bytes) {
    const Ledger &ledger = cache->ledger;
    while (ledger.used_bytes() + ledger.spare_bytes > budget_bytes) {
        if (compacted_bytes(cache) <= budget_bytes && compact(cache))
            continue;
        uint32_t n_done = 0;
        const lk_status status = shrink_pages(cache, kShrinkBatch, &n_done);
        if (status && !n_done)
            return status;
        if (!n_done)
            return fail(LK_E_BUDGET, "pages do not come below a budget of %llu bytes",
                        ull{budget_bytes});
    }
    return LK_OK;
}

// Slabs that are in use in part go where pages shrink until others can take what is in them.
lk_status give_down_to(lk_cache *cache, uint64_t budget_bytes) {
    const uint64_t limit = cache->ledger.limit_bytes;
    for (;;) {
        const uint64_t missing =
            budget_bytes < limit ? give_slabs_back(cache, limit - budget_bytes) : 0;
        if (!missing)
            return LK_OK;
        uint32_t n_done = 0;
        const lk_status status = shrink_pages(cache, kShrinkBatch, &n_done);
        if (status && !n_done)
            return status;
        if (!n_done)
            return fail(LK_E_BUDGET,
                        "budget_bytes is %llu, slabs that are in use in part need %llu more",
                        ull{budget_bytes}, ull{missing});
        (void)compact(cache);
    }
}

lk_status set_budget(lk_cache *cache, uint64_t budget_bytes) {
    if (budget_bytes > cache->desc.max_budget_bytes)
        return fail(LK_E_ARGUMENT, "budget_bytes is %llu, at most max_budget_bytes, %llu",
                    ull{budget_bytes}, ull{cache->desc.max_budget_bytes});
    LK_TRY(check_quiet(cache, "the budget changes"));
    // Few narrow pages can take more extents than the wide ones that they are now.
    const uint64_t now = cache->ledger.used_bytes() + cache->ledger.spare_bytes;
    const uint64_t least = std::min(now, narrowest_bytes(cache));
    if (budget_bytes < least)
        return fail(LK_E_BUDGET,
                    "budget_bytes is %llu, pages at the last rungs of their ladders need %llu",
                    ull{budget_bytes}, ull{least});
    LK_TRY(leave_recording(cache));
    LK_TRY(shrink_below(cache, budget_bytes));
    LK_TRY(give_down_to(cache, budget_bytes));
    cache->ledger.limit_bytes = budget_bytes;
    cache->slots.trim();
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_cache_shrink(lk_cache *cache, uint32_t layer, uint32_t bits) {
    return lk::on_cache(cache, [&] { return lk::shrink_cache(cache, layer, bits); });
}

extern "C" lk_status lk_cache_set_budget(lk_cache *cache, uint64_t budget_bytes) {
    return lk::on_cache(cache, [&] { return lk::set_budget(cache, budget_bytes); });
}

extern "C" lk_status lk_cache_get_budget(const lk_cache *cache, uint64_t *budget_bytes) {
    return lk::read_cache(cache, [&] {
        if (!budget_bytes)
            return lk::fail(LK_E_ARGUMENT, "budget_bytes is NULL");
        *budget_bytes = cache->statistics.read().budget_bytes;
        return lk_status{LK_OK};
    });
}
