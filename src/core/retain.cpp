// SPDX-License-Identifier: Apache-2.0
#include "core/retain.h"

#include "core/cache.h"

namespace lk {

namespace {

uint64_t raw_bytes(const lk_cache *cache, uint16_t page_format) {
    return payload_bytes(cache->classes[page_format].layout);
}

uint64_t original_row_bytes(const lk_cache *cache) {
    uint64_t bytes = 0;
    for (const EntryInfo &info : cache->entries)
        bytes +=
            raw_bytes(cache, info.key.recent_class) + raw_bytes(cache, info.value.recent_class);
    return bytes;
}

// The copies between a row's halves and host memory.
lk_status list_copies(const lk_cache *cache, const Row &row, uint8_t *host, Array<SlotCopy> *out) {
    out->clear();
    for (uint32_t e = 0; e < row.n_entries; ++e) {
        const PageEntry &entry = row.entries[e];
        const EntryInfo &info = cache->entries[e];
        const uint64_t key = raw_bytes(cache, info.key.recent_class);
        const uint64_t value = raw_bytes(cache, info.value.recent_class);
        if (!out->push({entry.key_payload, host, key}) ||
            !out->push({entry.value_payload, host + key, value}))
            return fail(LK_E_NOMEM, "no memory for the copies of %u entries", row.n_entries);
        host += key + value;
    }
    return LK_OK;
}

uint64_t context_rows(const lk_cache *cache, uint32_t n_chunks) {
    const Plan &plan = cache->plan.model;
    return ceil_div(uint64_t{n_chunks} * plan.chunks.tokens, plan.page_tokens);
}

lk_status download_rows(lk_cache *cache, Sequence *sequence, Originals *originals) {
    Array<SlotCopy> copies(cache->context->allocator);
    const uint64_t sinks = sink_blocks(cache->plan.model);
    lk_status status = leave_recording(cache);
    for (uint64_t r = 0; !status && r < originals->places.size(); ++r) {
        if (originals->places[r] == kNoOriginal)
            continue;
        status = list_copies(cache, *sequence->row(sinks + r),
                             originals->bytes.data() + originals->places[r], &copies);
        if (!status)
            status = cache->device->download(copies.data(), static_cast<uint32_t>(copies.size()));
    }
    return status;
}

void release(lk_cache *cache, Originals *originals) {
    if (originals && !--originals->n_holders)
        destroy(cache->context->allocator, originals);
}

}  // namespace

lk_status keep_originals(lk_cache *cache, Sequence *sequence, uint32_t n_chunks, Originals **out) {
    *out = nullptr;
    if (!sequence->retain_bytes || sequence->chunks || !n_chunks)
        return LK_OK;
    const Allocator &allocator = cache->context->allocator;
    const uint64_t n_rows = context_rows(cache, n_chunks);
    const uint64_t each = original_row_bytes(cache);
    auto *made = create<Originals>(allocator, allocator);
    if (!made || !made->places.resize(n_rows)) {
        destroy(allocator, made);
        return fail(LK_E_NOMEM, "no memory for the originals of %llu rows", ull{n_rows});
    }
    uint64_t bytes = 0;
    for (uint64_t r = 0; r < n_rows; ++r) {
        const Row &row = *sequence->row(sink_blocks(cache->plan.model) + r);
        // Where a window has taken pages, the others stay as they are.
        const bool is_kept = is_raw_row(cache, row) && !lacks_pages(row);
        made->places[r] = is_kept ? bytes : kNoOriginal;
        bytes += made->places[r] == kNoOriginal ? 0 : each;
    }
    lk_status status = LK_OK;
    if (bytes > sequence->retain_bytes)
        status = fail(LK_E_BUDGET,
                      "originals of %u chunks need %llu bytes, %llu may be retained for sequence "
                      "%llu",
                      n_chunks, ull{bytes}, ull{sequence->retain_bytes}, ull{sequence->id});
    else if (!made->bytes.resize(bytes))
        status = fail(LK_E_NOMEM, "no memory for originals of %llu bytes", ull{bytes});
    if (!status)
        status = download_rows(cache, sequence, made);
    if (status)
        destroy(allocator, made);
    else
        *out = made;
    return status;
}

bool has_original(const lk_cache *cache, const Sequence &sequence, uint32_t chunk) {
    if (!sequence.originals || chunk >= sequence.n_retained)
        return false;
    const ChunkShape shape(cache->plan.model);
    for (uint32_t i = 0; i < shape.chunk_rows; ++i)
        if (sequence.originals->places[shape.row_of_place(chunk) + i] == kNoOriginal)
            return false;
    return true;
}

lk_status load_original(lk_cache *cache, const Originals &originals, uint64_t row, const Row &to) {
    Array<SlotCopy> copies(cache->context->allocator);
    auto *host = const_cast<uint8_t *>(originals.bytes.data()) + originals.places[row];
    const lk_status status = list_copies(cache, to, host, &copies);
    return status ? status
                  : cache->device->upload(copies.data(), static_cast<uint32_t>(copies.size()));
}

void share_originals(const Sequence &from, Sequence *to) {
    to->retain_bytes = from.retain_bytes;
    to->originals = from.originals;
    to->n_retained = from.n_retained;
    if (to->originals)
        ++to->originals->n_holders;
}

void cut_originals(lk_cache *cache, Sequence *sequence, uint32_t n_chunks) {
    if (sequence->n_retained > n_chunks)
        sequence->n_retained = n_chunks;
    if (!sequence->n_retained)
        drop_originals(cache, sequence);
}

void drop_originals(lk_cache *cache, Sequence *sequence) {
    release(cache, sequence->originals);
    sequence->originals = nullptr;
    sequence->n_retained = 0;
}

}  // namespace lk
