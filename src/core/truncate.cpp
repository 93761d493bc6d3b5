// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/watch.h"

namespace lk {

namespace {

// 16-bit slots for the packed halves of an entry; 0 for halves that are at 16 bits already.
struct Reopened {
    uint64_t key_payload;
    uint64_t value_payload;
    bool is_donated;  // they are the slots of the sequence's last row, which goes
};

bool is_packed(uint16_t page_format, const HalfInfo &half) {
    return page_format != half.recent_class;
}

lk_status take_reopened(lk_cache *cache, const EntryInfo &info, const PageEntry &entry,
                        Reopened *out) {
    *out = {};
    lk_status status = LK_OK;
    if (is_packed(entry.key_format, info.key))
        status = cache->slots.take(info.key.slots.recent_payload, &out->key_payload);
    if (!status && is_packed(entry.value_format, info.value))
        status = cache->slots.take(info.value.slots.recent_payload, &out->value_payload);
    if (status) {
        cache->slots.give(out->key_payload);
        *out = {};
    }
    return status;
}

// The 16-bit slots of the same entry in a row that the truncation drops anyhow.
bool take_donated(const EntryInfo &info, const PageEntry &entry, const PageEntry &donor,
                  Reopened *out) {
    if (is_packed(donor.key_format, info.key) || is_packed(donor.value_format, info.value))
        return false;
    *out = {is_packed(entry.key_format, info.key) ? donor.key_payload : 0,
            is_packed(entry.value_format, info.value) ? donor.value_payload : 0, true};
    return true;
}

void queue_half(lk_cache *cache, const HalfInfo &half, uint16_t page_format, uint64_t payload,
                uint64_t metadata, uint64_t target, uint32_t n_tokens) {
    if (!target)
        return;
    cache->reopens.push({&cache->classes[page_format], payload, metadata,
                         &cache->classes[half.recent_class], target, n_tokens});
}

lk_status copy_row(lk_cache *cache, const Row &row, const Reopened *fresh, uint32_t n_tokens) {
    for (uint32_t e = 0; e < row.n_entries; ++e) {
        const EntryInfo &info = cache->entries[e];
        const PageEntry &entry = row.entries[e];
        queue_half(cache, info.key, entry.key_format, entry.key_payload, entry.key_metadata,
                   fresh[e].key_payload, n_tokens);
        queue_half(cache, info.value, entry.value_format, entry.value_payload, entry.value_metadata,
                   fresh[e].value_payload, n_tokens);
        if (cache->reopens.size() + 2 <= kBatch)
            continue;
        const lk_status status = flush_reopens(cache);
        if (status)
            return status;
    }
    return flush_reopens(cache);
}

void swap_half(lk_cache *cache, const HalfInfo &half, uint64_t target, uint16_t *page_format,
               uint64_t *payload, uint64_t *metadata) {
    if (!target)
        return;
    cache->slots.give(*payload);
    if (!half.slots.recent_metadata) {
        cache->slots.give(*metadata);
        *metadata = 0;
    }
    count_halves(cache, *page_format, -1);
    count_halves(cache, half.recent_class, 1);
    *page_format = half.recent_class;
    *payload = target;
    ++cache->stats.pages_dequantized;
}

lk_status take_row(lk_cache *cache, const Row &row, const Row *donor, Array<Reopened> *fresh) {
    bool donates = false;  // from then on the donor's slots may not move
    for (uint32_t e = 0; e < row.n_entries; ++e) {
        const EntryInfo &info = cache->entries[e];
        const PageEntry &entry = row.entries[e];
        Reopened *out = &(*fresh)[e];
        lk_status status = take_reopened(cache, info, entry, out);
        if (status == LK_E_BUDGET && !donates && compact(cache))
            status = take_reopened(cache, info, entry, out);
        if (status == LK_E_BUDGET && donor && take_donated(info, entry, donor->entries[e], out)) {
            status = LK_OK;
            donates = true;
        }
        if (status)
            return status;
    }
    return LK_OK;
}

void leave_donor(const Reopened &fresh, PageEntry *donor) {
    if (fresh.key_payload)
        donor->key_payload = 0;
    if (fresh.value_payload)
        donor->value_payload = 0;
}

// Bring a row's packed halves back to 16 bits; on failure nothing is changed. The donor is a
// 16-bit row that is dropped next, null without.
lk_status reopen_row(lk_cache *cache, Row *row, Row *donor, uint32_t n_tokens) {
    Array<Reopened> fresh(cache->context->allocator);
    if (!fresh.resize(row->n_entries))
        return fail(LK_E_NOMEM, "no memory to reopen a page of %u entries", row->n_entries);
    lk_status status = take_row(cache, *row, donor, &fresh);
    if (!status)
        status = copy_row(cache, *row, fresh.data(), n_tokens);
    if (status) {
        for (const Reopened &slots : fresh)
            if (!slots.is_donated) {
                cache->slots.give(slots.key_payload);
                cache->slots.give(slots.value_payload);
            }
        return status;
    }
    for (uint32_t e = 0; e < row->n_entries; ++e) {
        const EntryInfo &info = cache->entries[e];
        PageEntry &entry = row->entries[e];
        if (fresh[e].is_donated)
            leave_donor(fresh[e], &donor->entries[e]);
        swap_half(cache, info.key, fresh[e].key_payload, &entry.key_format, &entry.key_payload,
                  &entry.key_metadata);
        swap_half(cache, info.value, fresh[e].value_payload, &entry.value_format,
                  &entry.value_payload, &entry.value_metadata);
    }
    row->n_packed = 0;
    row->chunk_class = LK_CHUNK_NONE;
    part_twins(row);
    return cache->device->entries_changed(row);
}

// The row that keeps some of its tokens and loses others takes new tokens next, so it must be at
// 16 bits. Rows before it stay packed, within the recent window too. One with other holders stays
// as it is: new tokens will go into a copy.
lk_status open_cut_row(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    const Plan &plan = cache->plan.model;
    if (!n_tokens)
        return LK_OK;
    const uint64_t index = block_of_token(plan, n_tokens - 1);
    Row *row = sequence->row(index);
    const uint64_t kept = n_tokens - row->first_token;
    if (is_sink_block(plan, index) || kept == row->capacity_tokens || !row->n_packed ||
        row->n_holders > 1)
        return LK_OK;
    lk_status status = leave_recording(cache);
    if (status)
        return status;
    Row *last = sequence->row(sequence->rows.size() - 1);
    Row *donor = last != row && last->n_holders == 1 ? last : nullptr;
    status = reopen_row(cache, row, donor, static_cast<uint32_t>(kept));
    if (!status && sequence->first_open > index)
        sequence->first_open = index;
    return status;
}

lk_status truncate(lk_cache *cache, lk_sequence id, uint64_t n_tokens) {
    Sequence *sequence = find_sequence(cache, id);
    if (!sequence)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (cache->step.is_open)
        return fail(LK_E_BUSY,
                    "a step is open: commit or discard it before sequence %llu is truncated",
                    ull{id});
    if (cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: truncate sequence %llu after",
                    ull{id});
    if (n_tokens > sequence->length)
        return fail(LK_E_ARGUMENT, "n_tokens is %llu, sequence %llu has %llu", ull{n_tokens},
                    ull{id}, ull{sequence->length});
    return cut_sequence(cache, sequence, n_tokens);
}

}  // namespace

lk_status cut_sequence(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    lk_status status = check_pages(cache, *sequence, n_tokens);
    if (!status)
        status = cuts_chunks(cache, *sequence, n_tokens) ? cut_chunks(cache, sequence, n_tokens)
                                                         : open_cut_row(cache, sequence, n_tokens);
    if (status)
        return status;
    const uint64_t n_rows = block_count(cache->plan.model, n_tokens);
    drop_rows(cache, sequence, n_rows);
    if (sequence->first_open > n_rows)
        sequence->first_open = n_rows;
    if (sequence->first_windowed > n_rows)
        sequence->first_windowed = n_rows;
    status = cut_scores(cache, sequence, n_rows);
    cut_watch(cache, sequence, n_tokens);
    trim_chunks(cache, sequence, n_tokens);
    cache->stats.n_tokens -= sequence->length - n_tokens;
    sequence->length = n_tokens;
    return status;
}

}  // namespace lk

extern "C" lk_status lk_sequence_truncate(lk_cache *cache, lk_sequence id, uint64_t n_tokens) {
    return lk::on_cache(cache, [&] { return lk::truncate(cache, id, n_tokens); });
}
