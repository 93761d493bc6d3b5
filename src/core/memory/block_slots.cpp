// SPDX-License-Identifier: Apache-2.0
#include "core/memory/block_slots.h"

#include "core/cache.h"
#include "plan/footprint.h"

namespace lk {

namespace {

bool count_slot(lk_cache *cache, Array<SlotCount> *counts, uint64_t bytes) {
    if (!bytes)
        return true;
    for (SlotCount &count : *counts)
        if (count.slot_bytes == bytes) {
            ++count.n;
            return true;
        }
    return cache->slots.add_size(bytes) && counts->push({bytes, 1});
}

bool count_page_slots(lk_cache *cache, const PageInfo &page, uint16_t last_sink) {
    const PageSlots &slots = page.slots;
    bool fits = count_slot(cache, &cache->block_slots.recent, slots.recent_payload) &&
                count_slot(cache, &cache->block_slots.recent, slots.recent_metadata) &&
                count_slot(cache, &cache->block_slots.sink, slots.recent_payload);
    if (cache->plan.model.sink_tokens % cache->plan.model.page_tokens)
        fits = fits && count_slot(cache, &cache->block_slots.last_sink,
                                  slot_bytes(payload_bytes(cache->formats[last_sink].layout)));
    return fits;
}

bool count_on_append_slots(lk_cache *cache, const PageInfo &page) {
    const PageSlots &slots = page.slots;
    return count_slot(cache, &cache->block_slots.on_append,
                      page.packs() ? slots.packed_payload : slots.recent_payload) &&
           count_slot(cache, &cache->block_slots.on_append,
                      page.packs() ? page.metadata_slot() : slots.recent_metadata);
}

bool add_families(lk_cache *cache) {
    SlotFamily families[kMaxFamilies];
    const uint32_t n = slot_families(cache->plan.model, families);
    for (uint32_t f = 0; f < n; ++f)
        if (!cache->slots.add_family(families[f].top, families[f].least))
            return false;
    for (const uint16_t c : cache->formats.lower_formats)
        if (!cache->slots.add_size(slot_bytes(payload_bytes(cache->formats[c].layout))))
            return false;
    if (cache->plan.model.chunks.tokens)
        for (const uint16_t c : cache->formats.lower_formats)
            if (!cache->slots.add_size(slot_bytes(metadata_bytes(cache->formats[c].layout))))
                return false;
    return true;
}

}  // namespace

uint64_t total_bytes(const Array<SlotCount> &counts) {
    uint64_t bytes = 0;
    for (const SlotCount &count : counts)
        bytes += count.n * count.slot_bytes;
    return bytes;
}

uint64_t slots_of_size(const Array<SlotCount> &counts, uint64_t slot_bytes) {
    for (const SlotCount &count : counts)
        if (count.slot_bytes == slot_bytes)
            return count.n;
    return 0;
}

lk_status count_block_slots(lk_cache *cache) {
    bool fits = add_families(cache);
    for (const EntryInfo &entry : cache->formats.entries) {
        const LayerInfo &layer = cache->formats.layers[entry.layer];
        fits = fits && count_page_slots(cache, entry.key, layer.last_sink_key) &&
               count_page_slots(cache, entry.value, layer.last_sink_value) &&
               count_on_append_slots(cache, entry.key) && count_on_append_slots(cache, entry.value);
    }
    fits = fits && cache->block_slots.needs.resize(cache->slots.n_sizes()) &&
           cache->block_slots.on_append.reserve(cache->slots.n_sizes());
    return fits ? LK_OK : fail(LK_E_NOMEM, "no memory for the table of slot sizes");
}

// All its sizes are known, and the list has the capacity.
void count_on_append(lk_cache *cache) {
    cache->block_slots.on_append.clear();
    for (const EntryInfo &entry : cache->formats.entries)
        for (const PageInfo *page : {&entry.key, &entry.value})
            (void)count_on_append_slots(cache, *page);
}

}  // namespace lk
