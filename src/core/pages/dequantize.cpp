// SPDX-License-Identifier: Apache-2.0
#include "core/pages/dequantize.h"

#include "core/cache.h"
#include "core/memory/compact.h"

namespace lk {

namespace {

lk_status copy_page(lk_cache *cache, uint16_t from, uint64_t payload, uint64_t metadata,
                    uint16_t to, uint64_t target, uint32_t n_tokens) {
    cache->work.dequantizes.push(
        {&cache->formats[from], payload, metadata, &cache->formats[to], target, n_tokens});
    return cache->work.dequantizes.size() < kBatch ? LK_OK : flush_dequantizes(cache);
}

// 16-bit slots for the packed pages of an entry; 0 for pages that are at 16 bits already.
struct Dequantized {
    uint64_t key_payload;
    uint64_t value_payload;
    bool is_donated;  // they are the slots of the sequence's last block, which goes
};

bool is_packed(uint16_t page_format, const PageInfo &page) {
    return page_format != page.recent_format;
}

lk_status take_dequantized(lk_cache *cache, const EntryInfo &info, const PageEntry &entry,
                           Dequantized *out) {
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

// The 16-bit slots of the same entry in a block that the truncation drops anyhow.
bool take_donated(const EntryInfo &info, const PageEntry &entry, const PageEntry &donor,
                  Dequantized *out) {
    if (is_packed(donor.key_format, info.key) || is_packed(donor.value_format, info.value))
        return false;
    *out = {is_packed(entry.key_format, info.key) ? donor.key_payload : 0,
            is_packed(entry.value_format, info.value) ? donor.value_payload : 0, true};
    return true;
}

void queue_page(lk_cache *cache, const PageInfo &page, uint16_t page_format, uint64_t payload,
                uint64_t metadata, uint64_t target, uint32_t n_tokens) {
    if (!target)
        return;
    cache->work.dequantizes.push({&cache->formats[page_format], payload, metadata,
                                  &cache->formats[page.recent_format], target, n_tokens});
}

lk_status copy_block(lk_cache *cache, const CacheBlock &block, const Dequantized *fresh,
                     uint32_t n_tokens) {
    for (uint32_t e = 0; e < block.n_entries; ++e) {
        const EntryInfo &info = cache->formats.entries[e];
        const PageEntry &entry = block.entries[e];
        queue_page(cache, info.key, entry.key_format, entry.key_payload, entry.key_metadata,
                   fresh[e].key_payload, n_tokens);
        queue_page(cache, info.value, entry.value_format, entry.value_payload, entry.value_metadata,
                   fresh[e].value_payload, n_tokens);
        if (cache->work.dequantizes.size() + 2 <= kBatch)
            continue;
        LK_TRY(flush_dequantizes(cache));
    }
    return flush_dequantizes(cache);
}

void swap_page(lk_cache *cache, const PageInfo &page, uint64_t target, uint16_t *page_format,
               uint64_t *payload, uint64_t *metadata) {
    if (!target)
        return;
    cache->slots.give(*payload);
    if (!page.slots.recent_metadata) {
        cache->slots.give(*metadata);
        *metadata = 0;
    }
    cache->statistics.count_pages(cache->formats[*page_format], -1);
    cache->statistics.count_pages(cache->formats[page.recent_format], 1);
    *page_format = page.recent_format;
    *payload = target;
    ++cache->statistics.counts.pages_dequantized;
}

lk_status take_block(lk_cache *cache, const CacheBlock &block, const CacheBlock *donor,
                     Array<Dequantized> *fresh) {
    bool donates = false;  // from then on the donor's slots may not move
    for (uint32_t e = 0; e < block.n_entries; ++e) {
        const EntryInfo &info = cache->formats.entries[e];
        const PageEntry &entry = block.entries[e];
        Dequantized *out = &(*fresh)[e];
        lk_status status = take_dequantized(cache, info, entry, out);
        if (status == LK_E_BUDGET && !donates && compact(cache))
            status = take_dequantized(cache, info, entry, out);
        if (status == LK_E_BUDGET && donor && take_donated(info, entry, donor->entries[e], out)) {
            status = LK_OK;
            donates = true;
        }
        if (status)
            return status;
    }
    return LK_OK;
}

void leave_donor(const Dequantized &fresh, PageEntry *donor) {
    if (fresh.key_payload)
        donor->key_payload = 0;
    if (fresh.value_payload)
        donor->value_payload = 0;
}

}  // namespace

lk_status dequantize_block(lk_cache *cache, CacheBlock *block, CacheBlock *donor,
                           uint32_t n_tokens) {
    Array<Dequantized> fresh(cache->context->allocator);
    if (!fresh.resize(block->n_entries))
        return fail(LK_E_NOMEM, "no memory to dequantize a page of %u entries", block->n_entries);
    lk_status status = take_block(cache, *block, donor, &fresh);
    if (!status)
        status = copy_block(cache, *block, fresh.data(), n_tokens);
    if (status) {
        for (const Dequantized &slots : fresh)
            if (!slots.is_donated) {
                cache->slots.give(slots.key_payload);
                cache->slots.give(slots.value_payload);
            }
        return status;
    }
    for (uint32_t e = 0; e < block->n_entries; ++e) {
        const EntryInfo &info = cache->formats.entries[e];
        PageEntry &entry = block->entries[e];
        if (fresh[e].is_donated)
            leave_donor(fresh[e], &donor->entries[e]);
        swap_page(cache, info.key, fresh[e].key_payload, &entry.key_format, &entry.key_payload,
                  &entry.key_metadata);
        swap_page(cache, info.value, fresh[e].value_payload, &entry.value_format,
                  &entry.value_payload, &entry.value_metadata);
    }
    block->n_packed = 0;
    block->chunk_class = LK_CHUNK_NONE;
    count_block(cache, block);
    unlink_packed_copy(block);
    return cache->device->entries_changed(block);
}

lk_status copy_raw_pages(lk_cache *cache, const CacheBlock &from, const CacheBlock &to,
                         uint32_t n_tokens) {
    lk_status status = LK_OK;
    for (uint32_t e = 0; !status && e < to.n_entries; ++e) {
        const PageEntry &source = from.entries[e];
        const PageEntry &target = to.entries[e];
        const PageLayout &values = cache->formats[target.value_format].layout;
        if (cache->formats[target.key_format].layout.is_raw())
            status = copy_page(cache, source.key_format, source.key_payload, source.key_metadata,
                               target.key_format, target.key_payload, n_tokens);
        if (!status && values.is_raw() && !values.is_absent())
            status =
                copy_page(cache, source.value_format, source.value_payload, source.value_metadata,
                          target.value_format, target.value_payload, n_tokens);
    }
    return status ? status : flush_dequantizes(cache);
}

}  // namespace lk
