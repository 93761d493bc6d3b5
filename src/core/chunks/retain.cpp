// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/retain.h"

#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/chunks/order.h"

namespace lk {

namespace {

uint64_t raw_bytes(const lk_cache *cache, uint16_t page_format) {
    return payload_bytes(cache->formats[page_format].layout);
}

uint64_t original_block_bytes(const lk_cache *cache) {
    uint64_t bytes = 0;
    for (const EntryInfo &info : cache->formats.entries)
        bytes +=
            raw_bytes(cache, info.key.recent_format) + raw_bytes(cache, info.value.recent_format);
    return bytes;
}

// The copies between a block's pages and host memory.
lk_status list_copies(const lk_cache *cache, const CacheBlock &block, uint8_t *host,
                      Array<SlotCopy> *out) {
    out->clear();
    for (uint32_t e = 0; e < block.n_entries; ++e) {
        const PageEntry &entry = block.entries[e];
        const EntryInfo &info = cache->formats.entries[e];
        const uint64_t key = raw_bytes(cache, info.key.recent_format);
        const uint64_t value = raw_bytes(cache, info.value.recent_format);
        if (!out->push({entry.key_payload, host, key}) ||
            !out->push({entry.value_payload, host + key, value}))
            return fail(LK_E_NOMEM, "no memory for the copies of %u entries", block.n_entries);
        host += key + value;
    }
    return LK_OK;
}

uint64_t context_blocks(const lk_cache *cache, uint32_t n_chunks) {
    const Plan &plan = cache->plan.model;
    return ceil_div(uint64_t{n_chunks} * plan.chunks.tokens, plan.page_tokens);
}

lk_status download_blocks(lk_cache *cache, Sequence *sequence, Originals *originals) {
    Array<SlotCopy> copies(cache->context->allocator);
    const uint64_t sinks = sink_blocks(cache->plan.model);
    lk_status status = leave_recording(cache);
    for (uint64_t r = 0; !status && r < originals->offsets.size(); ++r) {
        if (originals->offsets[r] == kNoOriginal)
            continue;
        status = list_copies(cache, *sequence->block(sinks + r),
                             originals->bytes.data() + originals->offsets[r], &copies);
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
    const uint64_t n_blocks = context_blocks(cache, n_chunks);
    const uint64_t each = original_block_bytes(cache);
    auto *made = create<Originals>(allocator, allocator);
    if (!made || !made->offsets.resize(n_blocks)) {
        destroy(allocator, made);
        return fail(LK_E_NOMEM, "no memory for the originals of %llu blocks", ull{n_blocks});
    }
    uint64_t bytes = 0;
    for (uint64_t r = 0; r < n_blocks; ++r) {
        const CacheBlock &block = *sequence->block(sink_blocks(cache->plan.model) + r);
        // Where a window has taken pages, the others stay as they are.
        const bool is_kept = is_raw_block(cache->formats, block) && !has_absent_pages(block);
        made->offsets[r] = is_kept ? bytes : kNoOriginal;
        bytes += made->offsets[r] == kNoOriginal ? 0 : each;
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
        status = download_blocks(cache, sequence, made);
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
    for (uint32_t i = 0; i < shape.chunk_blocks; ++i)
        if (sequence.originals->offsets[shape.block_of_index(chunk) + i] == kNoOriginal)
            return false;
    return true;
}

lk_status load_original(lk_cache *cache, const Originals &originals, uint64_t block,
                        const CacheBlock &to) {
    Array<SlotCopy> copies(cache->context->allocator);
    auto *host = const_cast<uint8_t *>(originals.bytes.data()) + originals.offsets[block];
    LK_TRY(list_copies(cache, to, host, &copies));
    return cache->device->upload(copies.data(), static_cast<uint32_t>(copies.size()));
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

namespace {

lk_status retain(lk_cache *cache, lk_sequence id, uint64_t budget_bytes) {
    Sequence *sequence;
    LK_TRY(find_chunked(cache, id, &sequence));
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it first");
    const uint64_t held = sequence->originals ? sequence->originals->bytes.size() : 0;
    if (budget_bytes && budget_bytes < held)
        return fail(LK_E_BUDGET, "budget_bytes is %llu, sequence %llu has originals of %llu",
                    ull{budget_bytes}, ull{id}, ull{held});
    sequence->retain_bytes = budget_bytes;
    if (!budget_bytes)
        drop_originals(cache, sequence);
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_chunks_retain(lk_cache *cache, lk_sequence id, uint64_t budget_bytes) {
    return lk::use_cache(cache, [&] { return lk::retain(cache, id, budget_bytes); });
}
