// Packing: rows that have left the recent window, and rows that a long step writes packed.
//
// A row that others have too stays as it is for them. Its packed twin is made once and waits for
// them at the row; when the last sequence leaves the twin before they come, they pack the row
// themselves. Where sums of |Q| rank the channels, a twin is right for those alone whose sums are
// the same. They are for forks that hold the row in full, whose tokens up to there have been the
// same ones; but sums of tokens that were truncated may linger (scores.h), so digests are compared.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

namespace lk {

lk_status flush_packs(lk_cache *cache) {
    lk_status status = cache->sums.flush();
    if (!status && !cache->packs.empty())
        status =
            cache->device->pack(cache->packs.data(), static_cast<uint32_t>(cache->packs.size()));
    cache->packs.clear();
    return status;
}

namespace {

// Entries of one row whose packed slots are taken and whose packing is queued.
constexpr uint32_t kPending = 256;  // at most
struct Pending {
    Row *row;
    uint32_t n = 0;
    PageEntry fresh[kPending];
};

lk_status take_half(lk_cache *cache, const HalfNeed &need, uint16_t old_class, uint64_t *payload,
                    uint64_t *metadata) {
    if (need.page_format == old_class)
        return LK_OK;
    const uint64_t old_payload = *payload;
    lk_status status = cache->slots.take(need.payload, payload);
    if (status || *metadata)
        return status;
    status = cache->slots.take(need.metadata, metadata);
    if (status) {
        cache->slots.give(*payload);
        *payload = old_payload;
    }
    return status;
}

// Give back what a half of the fresh entry has and the old one has not.
void give_half(lk_cache *cache, uint64_t payload, uint64_t metadata, uint64_t old_payload,
               uint64_t old_metadata) {
    if (payload != old_payload)
        cache->slots.give(payload);
    if (metadata != old_metadata)
        cache->slots.give(metadata);
}

// The packed slots of an entry that is at 16 bits; on failure nothing is taken.
lk_status take_packed(lk_cache *cache, const EntryInfo &info, lk_chunk_class chunk_class,
                      const PageEntry &old, PageEntry *out) {
    *out = old;
    const HalfNeed key = packed_need(cache, info, false, chunk_class);
    const HalfNeed value = packed_need(cache, info, true, chunk_class);
    out->key_format = key.page_format;
    out->value_format = value.page_format;
    lk_status status = take_half(cache, key, old.key_format, &out->key_payload, &out->key_metadata);
    if (status)
        return status;
    status = take_half(cache, value, old.value_format, &out->value_payload, &out->value_metadata);
    if (status)
        give_half(cache, out->key_payload, out->key_metadata, old.key_payload, old.key_metadata);
    return status;
}

void queue_entry(lk_cache *cache, const PageEntry &old, const PageEntry &fresh, uint64_t sums) {
    const PageFormat *classes = cache->classes.data();
    if (fresh.key_format != old.key_format)
        cache->packs.push({&classes[fresh.key_format], fresh.key_payload, fresh.key_metadata,
                           &classes[old.key_format], old.key_payload, nullptr, sums});
    if (fresh.value_format != old.value_format)
        cache->packs.push({&classes[fresh.value_format], fresh.value_payload, fresh.value_metadata,
                           &classes[old.value_format], old.value_payload, nullptr, 0});
}

void swap_half(lk_cache *cache, uint16_t old_class, uint64_t old_payload, uint16_t fresh_class) {
    if (old_class == fresh_class)
        return;
    cache->slots.give(old_payload);
    count_halves(cache, old_class, -1);
    count_halves(cache, fresh_class, 1);
    ++cache->stats.pages_packed;
}

// Pack what is queued and free the 16-bit slots; the fresh ones when the device fails.
lk_status finish(lk_cache *cache, Pending *pending) {
    Row *row = pending->row;
    const lk_status status = flush_packs(cache);
    for (uint32_t i = 0; i < pending->n; ++i) {
        const PageEntry &fresh = pending->fresh[i];
        PageEntry &entry = row->entries[row->n_packed + i];
        if (status) {
            give_half(cache, fresh.key_payload, fresh.key_metadata, entry.key_payload,
                      entry.key_metadata);
            give_half(cache, fresh.value_payload, fresh.value_metadata, entry.value_payload,
                      entry.value_metadata);
            continue;
        }
        swap_half(cache, entry.key_format, entry.key_payload, fresh.key_format);
        swap_half(cache, entry.value_format, entry.value_payload, fresh.value_format);
        entry = fresh;
    }
    if (!status)
        row->n_packed += pending->n;
    pending->n = 0;
    return status;
}

// Where the sums that rank an entry's channels lie; 0 where nothing does.
uint64_t ranking_sums(const Sequence &sequence, const EntryInfo &info) {
    return info.ranks_by_queries ? sequence.scores->base() + info.score_offset * sizeof(uint64_t)
                                 : 0;
}

// Pack the entries that are at 16 bits. Many are packed at once, but never because the budget held
// their packed and their 16-bit slots side by side: when it does not, the ones before are finished
// first.
lk_status pack_entries(lk_cache *cache, Sequence *sequence, uint64_t index) {
    Pending pending;
    pending.row = sequence->row(index);
    while (pending.row->n_packed + pending.n < pending.row->n_entries) {
        const uint32_t e = pending.row->n_packed + pending.n;
        const EntryInfo &info = cache->entries[e];
        const PageEntry &old = pending.row->entries[e];
        PageEntry fresh;
        lk_status status = take_packed(cache, info, pending.row->chunk_class, old, &fresh);
        if (status == LK_E_BUDGET && !pending.n && compact(cache))
            continue;
        if (status && !pending.n)
            return status;
        if (!status) {
            if (info.ranks_by_queries)
                status = sequence->scores->fold(index, info.score_offset,
                                                cache->classes[fresh.key_format].layout.head_dim,
                                                &cache->sums);
            queue_entry(cache, old, fresh, ranking_sums(*sequence, info));
            pending.fresh[pending.n++] = fresh;
        }
        if (status || pending.n == kPending)
            status = finish(cache, &pending);
        if (status)
            return status;
    }
    return finish(cache, &pending);
}

// In place, for all that have the row.
lk_status pack_in_place(lk_cache *cache, Sequence *sequence, uint64_t index) {
    Row *row = sequence->row(index);
    const bool is_shared = row->n_holders > 1;
    const uint32_t n_packed = row->n_packed;
    const uint64_t before = is_shared ? content_bytes(cache, *row) : 0;
    const lk_status status = pack_entries(cache, sequence, index);
    if (is_shared)
        cache->stats.shared_bytes += content_bytes(cache, *row) - before;
    const lk_status changed =
        row->n_packed != n_packed ? cache->device->entries_changed(row) : LK_OK;
    return status ? status : changed;
}

bool any_packing(const lk_cache *cache) {
    for (const EntryInfo &info : cache->entries)
        if (n_packing(info))
            return true;
    return false;
}

lk_status fill_twin(lk_cache *cache, const Sequence &sequence, const Row &row, Row *twin) {
    for (uint32_t e = 0; e < row.n_entries; ++e) {
        const EntryInfo &info = cache->entries[e];
        queue_entry(cache, row.entries[e], twin->entries[e], ranking_sums(sequence, info));
        if (cache->packs.size() + 2 <= kBatch)
            continue;
        const lk_status status = flush_packs(cache);
        if (status)
            return status;
    }
    const lk_status status = flush_packs(cache);
    return status ? status : copy_raw_halves(cache, row, *twin, row.capacity_tokens);
}

lk_status make_twin(lk_cache *cache, const Sequence &sequence, uint64_t index, Row *row,
                    Row **out) {
    Row *twin = nullptr;
    lk_status status = create_row(cache, index, RowKind::kDirect, &twin);
    if (status == LK_E_BUDGET && compact(cache))
        status = create_row(cache, index, RowKind::kDirect, &twin);
    if (status)
        return status;
    twin->is_packed_on_append = 0;
    status = fill_twin(cache, sequence, *row, twin);
    if (status) {
        release_row(cache, twin);
        return status;
    }
    for (const EntryInfo &info : cache->entries)
        cache->stats.pages_packed += n_packing(info);
    part_twins(row);
    row->packed_twin = twin;
    twin->recent_twin = row;
    *out = twin;
    return LK_OK;
}

// Take the packed twin of a row that others have, making it first where there is none.
lk_status take_twin(lk_cache *cache, Sequence *sequence, uint64_t index) {
    Row *row = sequence->row(index);
    Scores *scores = sequence->scores;
    const uint64_t digest = scores ? scores->digest(index) : 0;
    Row *twin = row->packed_twin;
    const bool is_made = twin && twin->sums == digest;
    if (!is_made && row->n_holders == 1) {
        part_twins(row);
        return pack_in_place(cache, sequence, index);
    }
    lk_status status =
        scores ? scores->fold(index, 0, cache->n_ranked_channels, &cache->sums) : LK_OK;
    if (!status && !is_made)
        status = make_twin(cache, *sequence, index, row, &twin);
    if (status)
        return status;
    if (is_made)
        hold_row(cache, twin);
    twin->sums = digest;
    sequence->rows[index] = twin;
    release_row(cache, row);
    return cache->device->entries_changed(twin);
}

// A row whose packing was begun before it was shared is finished for all.
lk_status pack_row(lk_cache *cache, Sequence *sequence, uint64_t index) {
    const Row *row = sequence->row(index);
    lk_status status = own_scores(cache, sequence, nullptr);
    if (status)
        return status;
    const bool has_others = row->packed_twin || row->n_holders > 1;
    status = has_others && !row->n_packed && any_packing(cache)
                 ? take_twin(cache, sequence, index)
                 : pack_in_place(cache, sequence, index);
    if (status || !sequence->scores)
        return status;
    status = cache->sums.flush();
    if (!status)
        status = sequence->scores->drop_folded(index, &cache->sums);
    return status ? status : cache->sums.flush();
}

lk_status pack_direct_row(lk_cache *cache, uint32_t layer, const StepSequence &part,
                          const Row &row) {
    const LayerInfo &info = cache->layers[layer];
    const Staging staging = staging_of(cache, layer);
    const uint64_t token = part.first_new + (row.first_token - part.sequence->length);
    for (uint32_t head = 0; head < info.view.n_kv_heads; ++head) {
        const PageEntry &entry = row.entries[info.first_entry + head];
        const EntryInfo &rules = cache->entries[info.first_entry + head];
        const uint64_t at = (uint64_t{head} * staging.n_tokens + token) * info.view.head_dim;
        if (cache->packs.size() + 2 > kBatch) {
            const lk_status status = flush_packs(cache);
            if (status)
                return status;
        }
        if (!rules.ranks_by_queries)
            cache->packs.push({&cache->classes[entry.key_format], entry.key_payload,
                               entry.key_metadata, nullptr, 0, staging.keys + at, 0});
        cache->packs.push({&cache->classes[entry.value_format], entry.value_payload,
                           entry.value_metadata, nullptr, 0, staging.values + at, 0});
        cache->stats.pages_packed += n_packing(rules);
    }
    return LK_OK;
}

}  // namespace

lk_status pack_due_rows(lk_cache *cache, Sequence *sequence) {
    const SpareScope spare(&cache->ledger);
    const Plan &plan = cache->plan.model;
    const uint64_t first = first_to_pack(cache, *sequence);
    uint64_t row = sequence->first_open > first ? sequence->first_open : first;
    for (; row < sequence->rows.size() && is_due(plan, row, sequence->length); ++row) {
        const bool is_packed = sequence->row(row)->n_packed == sequence->row(row)->n_entries;
        const lk_status status = is_packed ? LK_OK : pack_row(cache, sequence, row);
        if (status)
            return status;
        sequence->first_open = row + 1;
    }
    return LK_OK;
}

lk_status pack_row_as(lk_cache *cache, Sequence *sequence, uint64_t index,
                      lk_chunk_class chunk_class) {
    Row *row = sequence->row(index);
    part_twins(row);
    if (is_raw_row(cache, *row))
        row->n_packed = 0;
    row->chunk_class = chunk_class;
    return pack_in_place(cache, sequence, index);
}

lk_status pack_direct_rows(lk_cache *cache, uint32_t layer) {
    for (const StepSequence &part : cache->step.sequences)
        for (size_t r = part.n_rows_before; r < part.sequence->rows.size(); ++r) {
            const Row &row = *part.sequence->row(r);
            if (!row.is_packed_on_append)
                continue;
            const lk_status status = pack_direct_row(cache, layer, part, row);
            if (status)
                return status;
        }
    return flush_packs(cache);
}

}  // namespace lk
