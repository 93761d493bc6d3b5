// SPDX-License-Identifier: Apache-2.0
#include "core/pages/pack.h"

#include "core/cache.h"
#include "core/chunks/defer.h"
#include "core/memory/compact.h"
#include "core/pages/packed_copy.h"
#include "core/pages/page_slots.h"
#include "core/sequence/shared_query_stats.h"

namespace lk {

uint64_t ranking_stats(const Sequence &sequence, const EntryInfo &info) {
    return info.ranks_by_queries
               ? sequence.query_stats->base() + info.stat_offset * sizeof(uint64_t)
               : 0;
}

void queue_entry(lk_cache *cache, const PageEntry &old, const PageEntry &fresh, uint64_t stats) {
    const PageFormat *classes = cache->formats.table.data();
    if (fresh.key_format != old.key_format)
        cache->work.packs.push({&classes[fresh.key_format], fresh.key_payload, fresh.key_metadata,
                                &classes[old.key_format], old.key_payload, stats});
    if (fresh.value_format != old.value_format)
        cache->work.packs.push({&classes[fresh.value_format], fresh.value_payload,
                                fresh.value_metadata, &classes[old.value_format], old.value_payload,
                                0});
}

namespace {

// Entries of one block whose packed slots are taken and whose packing is queued.
constexpr uint32_t kPending = 256;  // at most
struct Pending {
    CacheBlock *block;
    uint32_t n = 0;
    PageEntry fresh[kPending];
};

lk_status take_page(lk_cache *cache, const PageNeed &need, uint16_t old_format, uint64_t *payload,
                    uint64_t *metadata) {
    if (need.page_format == old_format)
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

// Give back the slots that a page of the fresh entry has and the old one has not.
void give_page(lk_cache *cache, uint64_t payload, uint64_t metadata, uint64_t old_payload,
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
    const PageNeed key = packed_need(cache->formats, info, false, chunk_class);
    const PageNeed value = packed_need(cache->formats, info, true, chunk_class);
    out->key_format = key.page_format;
    out->value_format = value.page_format;
    lk_status status = take_page(cache, key, old.key_format, &out->key_payload, &out->key_metadata);
    if (status)
        return status;
    status = take_page(cache, value, old.value_format, &out->value_payload, &out->value_metadata);
    if (status)
        give_page(cache, out->key_payload, out->key_metadata, old.key_payload, old.key_metadata);
    return status;
}

void swap_page(lk_cache *cache, uint16_t old_format, uint64_t old_payload, uint16_t fresh_format) {
    if (old_format == fresh_format)
        return;
    cache->slots.give(old_payload);
    cache->statistics.count_pages(cache->formats[old_format], -1);
    cache->statistics.count_pages(cache->formats[fresh_format], 1);
    ++cache->statistics.counts.pages_packed;
}

// Pack what is queued and free the 16-bit slots; the fresh ones when the device fails.
lk_status finish(lk_cache *cache, Pending *pending) {
    CacheBlock *block = pending->block;
    const lk_status status = flush_packs(cache);
    for (uint32_t i = 0; i < pending->n; ++i) {
        const PageEntry &fresh = pending->fresh[i];
        PageEntry &entry = block->entries[block->n_packed + i];
        if (status) {
            give_page(cache, fresh.key_payload, fresh.key_metadata, entry.key_payload,
                      entry.key_metadata);
            give_page(cache, fresh.value_payload, fresh.value_metadata, entry.value_payload,
                      entry.value_metadata);
            continue;
        }
        swap_page(cache, entry.key_format, entry.key_payload, fresh.key_format);
        swap_page(cache, entry.value_format, entry.value_payload, fresh.value_format);
        entry = fresh;
    }
    if (!status)
        block->n_packed += pending->n;
    pending->n = 0;
    return status;
}

// Pack the entries that are at 16 bits. Many are packed at once, but never because the budget held
// their packed and their 16-bit slots side by side: when it does not, the ones before are finished
// first.
lk_status pack_entries(lk_cache *cache, Sequence *sequence, uint64_t index) {
    Pending pending;
    pending.block = sequence->block(index);
    while (pending.block->n_packed + pending.n < pending.block->n_entries) {
        const uint32_t e = pending.block->n_packed + pending.n;
        const EntryInfo &info = cache->formats.entries[e];
        const PageEntry &old = pending.block->entries[e];
        PageEntry fresh;
        lk_status status = take_packed(cache, info, pending.block->chunk_class, old, &fresh);
        if (status == LK_E_BUDGET && !pending.n && compact(cache))
            continue;
        if (status && !pending.n)
            return status;
        if (!status) {
            if (info.ranks_by_queries)
                status = sequence->query_stats->fold(
                    index, info.stat_offset, cache->formats[fresh.key_format].layout.head_dim,
                    &cache->stat_queue);
            queue_entry(cache, old, fresh, ranking_stats(*sequence, info));
            pending.fresh[pending.n++] = fresh;
        }
        if (status || pending.n == kPending)
            status = finish(cache, &pending);
        if (status)
            return status;
    }
    return finish(cache, &pending);
}

// In place, for all that have the block.
lk_status pack_in_place(lk_cache *cache, Sequence *sequence, uint64_t index) {
    CacheBlock *block = sequence->block(index);
    const bool is_shared = block->n_holders > 1;
    const uint32_t n_packed = block->n_packed;
    const uint64_t before = is_shared ? content_bytes(cache->formats, *block) : 0;
    const lk_status status = pack_entries(cache, sequence, index);
    count_block(cache, block);
    if (is_shared)
        cache->statistics.counts.shared_bytes += content_bytes(cache->formats, *block) - before;
    const lk_status changed =
        block->n_packed != n_packed ? cache->device->entries_changed(block) : LK_OK;
    return status ? status : changed;
}

bool any_packing(const lk_cache *cache) {
    for (const EntryInfo &info : cache->formats.entries)
        if (n_packing(info))
            return true;
    return false;
}

// A block whose packing was begun before it was shared is finished for all.
lk_status pack_block(lk_cache *cache, Sequence *sequence, uint64_t index) {
    const CacheBlock *block = sequence->block(index);
    lk_status status = own_query_stats(cache, sequence, nullptr);
    if (status)
        return status;
    const bool has_others = block->packed_copy || block->n_holders > 1;
    bool is_done = false;
    if (has_others && !block->n_packed && any_packing(cache))
        status = take_packed_copy(cache, sequence, index, &is_done);
    if (!status && !is_done)
        status = pack_in_place(cache, sequence, index);
    if (status || !sequence->query_stats)
        return status;
    status = cache->stat_queue.flush();
    if (!status)
        status = sequence->query_stats->drop_folded(index, &cache->stat_queue);
    return status ? status : cache->stat_queue.flush();
}

}  // namespace

lk_status pack_due_blocks(lk_cache *cache, Sequence *sequence) {
    const SpareScope spare(&cache->ledger);
    const Plan &plan = cache->plan.model;
    const uint64_t first = first_to_pack(cache, *sequence);
    uint64_t block = sequence->first_open > first ? sequence->first_open : first;
    for (; block < sequence->block_table.size() && is_due(plan, block, sequence->length); ++block) {
        const bool is_packed =
            sequence->block(block)->n_packed == sequence->block(block)->n_entries;
        const lk_status status = is_packed ? LK_OK : pack_block(cache, sequence, block);
        if (status)
            return status;
        sequence->first_open = block + 1;
    }
    return LK_OK;
}

lk_status pack_block_as(lk_cache *cache, Sequence *sequence, uint64_t index,
                        lk_chunk_class chunk_class) {
    CacheBlock *block = sequence->block(index);
    unlink_packed_copy(block);
    if (is_raw_block(cache->formats, *block))
        block->n_packed = 0;
    block->chunk_class = chunk_class;
    return pack_in_place(cache, sequence, index);
}

void count_packed_on_append(lk_cache *cache, uint32_t layer) {
    const LayerInfo &info = cache->formats.layers[layer];
    uint64_t n_pages = 0;  // of a block
    for (uint32_t head = 0; head < info.view.n_kv_heads; ++head)
        n_pages += n_packing(cache->formats.entries[info.first_entry + head]);
    for (const StepSequence &member : cache->step.sequences)
        for (size_t r = member.n_blocks_before; r < member.sequence->block_table.size(); ++r)
            if (member.sequence->block(r)->is_packed_on_append)
                cache->statistics.counts.pages_packed += n_pages;
}

}  // namespace lk
