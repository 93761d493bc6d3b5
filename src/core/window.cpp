// Sliding windows: a layer gives back its pages that none of its later queries sees, and a length
// that would see them again is refused.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

namespace lk {

namespace {

// Of all heads: a snapshot may lack them one by one.
bool has_layer(const lk_cache *cache, const Row &row, uint32_t layer) {
    const LayerInfo &info = cache->layers[layer];
    uint32_t is_absent = 0;
    for (uint32_t head = 0; head < info.view.n_kv_heads; ++head)
        is_absent |= row.entries[info.first_entry + head].is_absent;
    return !is_absent;
}

// Where the rows end that the layer has no use for with this length.
uint64_t hidden_end(const lk_cache *cache, uint32_t layer, uint64_t length) {
    const Plan &plan = cache->plan.model;
    return hidden_rows(plan, plan.layers[layer].geometry, length);
}

void free_layer(lk_cache *cache, Row *row, uint32_t layer) {
    const LayerInfo &info = cache->layers[layer];
    for (uint32_t head = 0; head < info.view.n_kv_heads; ++head) {
        PageEntry *entry = &row->entries[info.first_entry + head];
        give_entry(cache, *entry);
        entry->key_payload = entry->key_metadata = 0;
        entry->value_payload = entry->value_metadata = 0;
        entry->is_absent = 1;
    }
}

// Who has the row, or the one that it was packed from, may be behind.
bool has_others(const Row &row) { return row.n_holders > 1 || row.recent_twin; }

// True when no layer has an entry left that it will give back.
bool free_hidden_entries(lk_cache *cache, uint64_t index, uint64_t length, Row *row) {
    bool is_done = true;
    bool has_changed = false;
    for (uint32_t l = 0; l < cache->layers.size(); ++l) {
        if (!frees_hidden_pages(cache->plan.model, cache->plan.model.layers[l].geometry) ||
            !has_layer(cache, *row, l))
            continue;
        const bool is_hidden = index < hidden_end(cache, l, length);
        is_done = is_done && is_hidden;
        if (!is_hidden)
            continue;
        free_layer(cache, row, l);
        has_changed = true;
    }
    if (has_changed)
        (void)cache->device->entries_changed(row);
    return is_done;
}

}  // namespace

bool lacks_pages(const Row &row) {
    for (uint32_t e = 0; e < row.n_entries; ++e)
        if (row.entries[e].is_absent)
            return true;
    return false;
}

bool may_remake(const Row &row) { return row.n_holders == 1 && !lacks_pages(row); }

void free_hidden_pages(lk_cache *cache, Sequence *sequence) {
    const Plan &plan = cache->plan.model;
    uint64_t end = 0;
    for (uint32_t l = 0; l < cache->layers.size(); ++l) {
        const uint64_t hidden = hidden_end(cache, l, sequence->length);
        end = hidden > end ? hidden : end;
    }
    const uint64_t sinks = sink_blocks(plan);
    uint64_t *next = &sequence->first_windowed;
    if (*next < sinks)
        *next = sinks;
    for (uint64_t r = *next; r < end && r < sequence->rows.size(); ++r) {
        Row *row = sequence->row(r);
        const bool is_done = row->n_packed == row->n_entries && !has_others(*row) &&
                             free_hidden_entries(cache, r, sequence->length, row);
        if (is_done && r == *next)
            ++*next;
    }
}

lk_status check_pages(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens) {
    const Plan &plan = cache->plan.model;
    const uint64_t end = block_count(plan, n_tokens);
    for (uint32_t l = 0; l < cache->layers.size(); ++l) {
        if (!frees_hidden_pages(plan, plan.layers[l].geometry))
            continue;
        for (uint64_t r = hidden_end(cache, l, n_tokens); r < end; ++r)
            if (!has_layer(cache, *static_cast<const Row *>(sequence.rows[r]), l))
                return fail(LK_E_UNSUPPORTED,
                            "sequence %llu has %llu tokens and layer %u a window of %u: tokens "
                            "%llu to %llu are gone, which %llu tokens would see",
                            ull{sequence.id}, ull{sequence.length}, l,
                            cache->layers[l].view.window_tokens, ull{block_first_token(plan, r)},
                            ull{block_first_token(plan, r + 1)}, ull{n_tokens});
    }
    return LK_OK;
}

}  // namespace lk
