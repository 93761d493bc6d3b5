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
            (value && !out->push({entry.value_payload, host + key, value})))
            return fail(LK_E_NOMEM, "no memory for the copies of %u entries", block.n_entries);
        host += key + value;
    }
    return LK_OK;
}

uint64_t context_blocks(const lk_cache *cache, uint32_t n_chunks) {
    const Plan &plan = cache->plan.model;
    return ceil_div(uint64_t{n_chunks} * plan.chunks.tokens, plan.page_tokens);
}

// The blocks [first, end) that have an offset.
lk_status download_blocks(lk_cache *cache, Sequence *sequence, Originals *originals, uint64_t first,
                          uint64_t end) {
    Array<SlotCopy> copies(cache->context->allocator);
    const uint64_t sinks = sink_blocks(cache->plan.model);
    lk_status status = leave_recording(cache);
    for (uint64_t r = first; !status && r < end; ++r) {
        if (originals->offsets[r] == kNoOriginal)
            continue;
        status = list_copies(cache, *sequence->block(sinks + r),
                             originals->bytes.data() + originals->offsets[r], &copies);
        if (!status)
            status = cache->device->download(copies.data(), static_cast<uint32_t>(copies.size()));
    }
    return status;
}

// Where a window has taken pages, the others stay as they are.
bool has_values(const lk_cache *cache, const Sequence &sequence, uint64_t index) {
    const CacheBlock &block = *sequence.block(sink_blocks(cache->plan.model) + index);
    return is_raw_block(cache->formats, block) && !has_absent_pages(block);
}

// Originals of a context of n_chunks chunks, with space for n_kept blocks and without offsets.
lk_status make_originals(lk_cache *cache, const Sequence &sequence, uint32_t n_chunks,
                         uint64_t n_kept, Originals **out) {
    const Allocator &allocator = cache->context->allocator;
    const uint64_t n_blocks = context_blocks(cache, n_chunks);
    uint64_t bytes = 0;
    if (!checked_mul(n_kept, original_block_bytes(cache), &bytes) || bytes > sequence.retain_bytes)
        return fail(LK_E_BUDGET,
                    "originals of %u chunks need %llu bytes, %llu may be retained for sequence "
                    "%llu",
                    n_chunks, ull{bytes}, ull{sequence.retain_bytes}, ull{sequence.id});
    auto *made = create<Originals>(allocator, allocator);
    if (!made || !made->offsets.resize(n_blocks) || !made->bytes.resize(bytes)) {
        destroy(allocator, made);
        return fail(LK_E_NOMEM, "no memory for originals of %llu bytes", ull{bytes});
    }
    for (uint64_t &offset : made->offsets)
        offset = kNoOriginal;
    *out = made;
    return LK_OK;
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
    const uint64_t n_blocks = context_blocks(cache, n_chunks);
    uint64_t n_kept = 0;
    for (uint64_t r = 0; r < n_blocks; ++r)
        n_kept += has_values(cache, *sequence, r);
    Originals *made = nullptr;
    LK_TRY(make_originals(cache, *sequence, n_chunks, n_kept, &made));
    uint64_t bytes = 0;
    for (uint64_t r = 0; r < n_blocks; ++r)
        if (has_values(cache, *sequence, r)) {
            made->offsets[r] = bytes;
            bytes += original_block_bytes(cache);
        }
    const lk_status status = download_blocks(cache, sequence, made, 0, n_blocks);
    if (status)
        destroy(cache->context->allocator, made);
    else
        *out = made;
    return status;
}

lk_status open_originals(lk_cache *cache, const Sequence &sequence, uint32_t n_chunks,
                         Originals **out) {
    *out = nullptr;
    return sequence.retain_bytes && n_chunks
               ? make_originals(cache, sequence, n_chunks, context_blocks(cache, n_chunks), out)
               : LK_OK;
}

bool may_retain(const lk_cache *cache, const Sequence &sequence, uint32_t n_before,
                uint32_t n_chunks) {
    return sequence.originals && sequence.originals->n_holders == 1 &&
           sequence.n_retained == n_before &&
           !ChunkShape(cache->plan.model).token_of_index(n_before) &&
           context_blocks(cache, n_chunks) <= sequence.originals->offsets.size();
}

lk_status add_originals(lk_cache *cache, Sequence *sequence, uint32_t n_before, uint32_t n_chunks) {
    Originals *originals = sequence->originals;
    const uint64_t first = context_blocks(cache, n_before);
    const uint64_t end = context_blocks(cache, n_chunks);
    for (uint64_t r = first; r < end; ++r)
        originals->offsets[r] =
            has_values(cache, *sequence, r) ? r * original_block_bytes(cache) : kNoOriginal;
    return download_blocks(cache, sequence, originals, first, end);
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
