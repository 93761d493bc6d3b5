// Budgets and ladders by the host's hand.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

#include <algorithm>

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
    if (layer >= cache->layers.size())
        return fail(LK_E_NOT_FOUND, "layer is %u, the cache has %zu layers", layer,
                    cache->layers.size());
    const LayerPlan &plan = cache->plan.model.layers[layer];
    const uint32_t rung = find_rung(plan, bits);
    if (bits == 16 || rung == kMaxRungs)
        return fail(LK_E_ARGUMENT, "bits is %u, no rung below 16 of layer %u's ladder", bits,
                    layer);
    if (rung < cache->layers[layer].rung)
        return fail(LK_E_ARGUMENT, "bits is %u, layer %u is at %u already", bits, layer,
                    plan.rungs[cache->layers[layer].rung]);
    return LK_OK;
}

// Of a layer that shrinks whole: the device works on them while the host gathers the next ones.
constexpr uint32_t kLayerHalves = 8192;

lk_status shrink_layer(lk_cache *cache, uint32_t layer, uint32_t rung) {
    if (rung > cache->layers[layer].rung)
        set_rung(cache, layer, rung);
    lk_status status = LK_OK;
    uint32_t n_done = 0;
    while (!status && cache->layers[layer].is_unsettled)
        status = settle_layer(cache, layer, kLayerHalves, &n_done);
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
    for (uint32_t l = 0; !status && l < cache->layers.size(); ++l) {
        const uint32_t rung = find_rung(cache->plan.model.layers[l], bits);
        if ((layer == LK_ALL || layer == l) && rung != kMaxRungs && rung >= cache->layers[l].rung)
            status = shrink_layer(cache, l, rung);
    }
    cache->slots.trim();
    return status;
}

// The payload slot of a half at the last rung of its ladder.
uint64_t narrowest_slot(lk_cache *cache, const Row &row, uint32_t entry, const HalfInfo &half,
                        uint16_t page_format, uint64_t payload) {
    const LayerPlan &plan = cache->plan.model.layers[cache->entries[entry].layer];
    if (!plan.n_rungs)
        return cache->slots.bytes_at(payload);
    const uint32_t last = plan.rungs[plan.n_rungs - 1];
    uint32_t bits = class_bits(cache->classes[page_format]);
    if (bits == 16 && entry >= row.n_packed)
        return cache->slots.bytes_at(payload);
    if (bits == 16)
        page_format = half.rung_format[plan.n_rungs - 1];
    for (; bits > last && bits < 16; bits = class_bits(cache->classes[page_format]))
        page_format = cache->shrink_steps[page_format].to;
    return slot_bytes(payload_bytes(cache->classes[page_format].layout));
}

void count_narrowest(lk_cache *cache, const Row &row) {
    for (uint32_t e = 0; e < row.n_entries; ++e) {
        const PageEntry &page = row.entries[e];
        const EntryInfo &info = cache->entries[e];
        if (page.is_absent)
            continue;
        const uint64_t slots[] = {
            narrowest_slot(cache, row, e, info.key, page.key_format, page.key_payload),
            narrowest_slot(cache, row, e, info.value, page.value_format, page.value_payload),
            page.key_metadata ? cache->slots.bytes_at(page.key_metadata) : 0,
            page.value_metadata ? cache->slots.bytes_at(page.value_metadata) : 0};
        for (const uint64_t bytes : slots)
            if (bytes)
                ++cache->slot_needs[cache->slots.size_index(bytes)];
    }
}

// What the cache would hold with all pages at their layers' last rungs.
uint64_t narrowest_bytes(lk_cache *cache) {
    for (uint64_t &n : cache->slot_needs)
        n = 0;
    ++cache->next_walk;
    for (Sequence *sequence : cache->sequences)
        for (uint64_t r = 0; r < sequence->rows.size(); ++r) {
            Row *row = sequence->row(r);
            if (row->walk == cache->next_walk)
                continue;
            row->walk = cache->next_walk;
            count_narrowest(cache, *row);
        }
    const uint64_t extents = cache->slots.extents_if(cache->slot_needs.data());
    return cache->ledger.table_bytes + cache->ledger.spare_bytes + extents * LK_EXTENT_BYTES;
}

uint64_t compacted_bytes(lk_cache *cache) {
    for (uint64_t &n : cache->slot_needs)
        n = 0;
    return cache->ledger.table_bytes + cache->ledger.spare_bytes +
           cache->slots.extents_of_all(cache->slot_needs.data()) * LK_EXTENT_BYTES;
}

lk_status shrink_below(lk_cache *cache, uint64_t budget_bytes) {
    const Ledger &ledger = cache->ledger;
    while (ledger.used_bytes() + ledger.spare_bytes > budget_bytes) {
        if (compacted_bytes(cache) <= budget_bytes && compact(cache))
            continue;
        uint32_t n_done = 0;
        const lk_status status = shrink_halves(cache, kShrinkBatch, &n_done);
        if (status && !n_done)
            return status;
        if (!n_done)
            return fail(LK_E_BUDGET, "pages do not come below a budget of %llu bytes",
                        ull{budget_bytes});
    }
    return LK_OK;
}

lk_status set_budget(lk_cache *cache, uint64_t budget_bytes) {
    if (budget_bytes > cache->desc.max_budget_bytes)
        return fail(LK_E_ARGUMENT, "budget_bytes is %llu, at most max_budget_bytes, %llu",
                    ull{budget_bytes}, ull{cache->desc.max_budget_bytes});
    lk_status status = check_quiet(cache, "the budget changes");
    if (status)
        return status;
    // Few narrow pages can take more extents than the wide ones that they are now.
    const uint64_t now = cache->ledger.used_bytes() + cache->ledger.spare_bytes;
    const uint64_t least = std::min(now, narrowest_bytes(cache));
    if (budget_bytes < least)
        return fail(LK_E_BUDGET,
                    "budget_bytes is %llu, pages at the last rungs of their ladders need %llu",
                    ull{budget_bytes}, ull{least});
    status = leave_recording(cache);
    if (!status)
        status = shrink_below(cache, budget_bytes);
    if (status)
        return status;
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
    if (!cache || !budget_bytes)
        return lk::fail(LK_E_ARGUMENT, "%s is NULL", cache ? "budget_bytes" : "cache");
    const std::lock_guard<std::mutex> lock(cache->published_mutex);
    *budget_bytes = cache->published.budget_bytes;
    return LK_OK;
}
