// SPDX-License-Identifier: Apache-2.0
#include "core/pages/ladders.h"

#include "core/cache.h"

namespace lk {

namespace {

// Their codes lie alike and what is done to them is the same.
bool are_alike(const ShrinkStep &a, const ShrinkStep &b) {
    return a.bits == b.bits && a.n_strips == b.n_strips && a.page_tokens == b.page_tokens &&
           a.tail_bytes == b.tail_bytes;
}

ShrinkStep shrink_step(const Formats &formats, const PageFormat &wide, uint16_t to) {
    const PageLayout &layout = wide.layout;
    const uint32_t bits = format_bits(wide);
    ShrinkStep step{static_cast<uint16_t>(bits), to, 0, layout.page_tokens, 0, 0};
    if (!to)
        return step;
    step.n_strips = layout.strips[plane_of(bits)];
    step.tail_bytes =
        static_cast<uint32_t>(payload_bytes(formats[to].layout) -
                              uint64_t{step.n_strips} * strip_bytes(layout.page_tokens, bits / 2));
    return step;
}

// The layer whose step down costs least: of the widest rung, the first in the plan's order.
uint32_t cheapest_layer(const lk_cache *cache) {
    uint32_t best = kNoLayer;
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l) {
        const LayerPlan &plan = cache->plan.model.layers[l];
        const LayerInfo &info = cache->formats.layers[l];
        if (!plan.n_rungs || !info.owns_kv || info.rung + 1 == plan.n_rungs)
            continue;
        const uint32_t bits = rung_bits(cache, l);
        if (best == kNoLayer || bits > rung_bits(cache, best) ||
            (bits == rung_bits(cache, best) &&
             plan.shrink_order < cache->plan.model.layers[best].shrink_order))
            best = l;
    }
    return best;
}

void set_page_rung(lk_cache *cache, uint32_t rung, PageInfo *page) {
    page->packed_format = page->rung_format[rung];
    const PageLayout &layout = cache->formats[page->packed_format].layout;
    page->slots.packed_payload = layout.is_raw() ? 0 : slot_bytes(payload_bytes(layout));
    page->slots.packed_metadata = layout.is_raw() ? 0 : page->slots.recent_metadata;
}

}  // namespace

uint32_t rung_bits(const lk_cache *cache, uint32_t layer) {
    return cache->plan.model.layers[layer].rungs[cache->formats.layers[layer].rung];
}

void set_rung(lk_cache *cache, uint32_t layer, uint32_t rung) {
    LayerInfo &info = cache->formats.layers[layer];
    info.rung = rung;
    for (uint32_t h = 0; h < info.view.n_kv_heads; ++h) {
        set_page_rung(cache, rung, &cache->formats.entries[info.first_entry + h].key);
        set_page_rung(cache, rung, &cache->formats.entries[info.first_entry + h].value);
    }
    count_on_append(cache);
    unsettle(cache, layer);
}

void unsettle(lk_cache *cache, uint32_t layer) {
    LayerInfo &info = cache->formats.layers[layer];
    LadderSearch &search = info.search;
    search.is_unsettled = info.owns_kv && cache->plan.model.layers[layer].n_rungs != 0;
    search.has_more = false;
    search.next_sequence = 0;
    search.next_block = 0;
}

void fill_shrink_steps(Formats *formats) {
    for (size_t c = 0; c < formats->shrink_steps.size(); ++c)
        formats->shrink_steps[c] =
            shrink_step(*formats, formats->table[c], formats->shrink_steps[c].to);
    for (ShrinkStep &step : formats->shrink_steps) {
        const ShrinkStep *first = formats->shrink_steps.data();
        while (!are_alike(*first, step))
            ++first;
        step.alike = static_cast<uint16_t>(first - formats->shrink_steps.data());
    }
}

void unsettle_layers(lk_cache *cache) {
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l)
        unsettle(cache, l);
}

lk_status settle_layer(lk_cache *cache, uint32_t layer, uint32_t n_pages, uint32_t *n_done) {
    LadderSearch &search = cache->formats.layers[layer].search;
    Shrinker shrinker(cache, layer);
    lk_status status = LK_OK;
    for (size_t s = 0; !status && shrinker.n_found() < n_pages && s < cache->sequences.size();
         ++s) {
        Sequence *sequence = cache->sequences[s];
        if (sequence->id < search.next_sequence)
            continue;
        const uint64_t sinks = sink_blocks(cache->plan.model);
        if (sequence->id > search.next_sequence || search.next_block < sinks)
            search.next_block = sinks;
        search.next_sequence = sequence->id;
        for (; !status && shrinker.n_found() < n_pages &&
               search.next_block < sequence->block_table.size();
             ++search.next_block)
            status = shrinker.add(sequence->block(search.next_block));
        if (!status && search.next_block >= sequence->block_table.size()) {
            ++search.next_sequence;
            search.next_block = 0;
        }
    }
    const lk_status flushed = status ? status : shrinker.flush();
    *n_done += shrinker.n_done();
    if (flushed) {  // pages that were found and not shrunk are found again
        unsettle(cache, layer);
        return flushed;
    }
    search.has_more = search.has_more || shrinker.has_more();
    if (shrinker.n_found() < n_pages) {  // through all blocks: once more when some went two steps
        const bool has_more = search.has_more;
        unsettle(cache, layer);
        search.is_unsettled = has_more;
    }
    return LK_OK;
}

lk_status shrink_pages(lk_cache *cache, uint32_t n_pages, uint32_t *n_done) {
    *n_done = 0;
    while (*n_done < n_pages) {
        uint32_t layer = 0;
        while (layer < cache->formats.layers.size() &&
               !cache->formats.layers[layer].search.is_unsettled)
            ++layer;
        if (layer == cache->formats.layers.size()) {
            layer = cheapest_layer(cache);
            if (layer == kNoLayer)
                return LK_OK;
            set_rung(cache, layer, cache->formats.layers[layer].rung + 1);
        }
        LK_TRY(settle_layer(cache, layer, n_pages - *n_done, n_done));
    }
    return LK_OK;
}

}  // namespace lk
