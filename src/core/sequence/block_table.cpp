// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/block_table.h"

#include "core/cache.h"
#include "core/chunks/defer.h"
#include "core/memory/table_space.h"
#include "core/pages/page_slots.h"

namespace lk {

BlockKind block_kind(const lk_cache *cache, const Sequence &sequence, uint64_t block,
                     uint64_t n_new) {
    const Plan &plan = cache->plan.model;
    if (is_sink_block(plan, block))
        return BlockKind::kSink;
    return block >= first_to_pack(cache, sequence) &&
                   packs_on_append(plan, block, sequence.length, n_new)
               ? BlockKind::kPackedOnAppend
               : BlockKind::kRecent;
}

lk_chunk_class chunk_class_of(BlockKind kind) {
    return kind == BlockKind::kLow      ? LK_CHUNK_LOW
           : kind == BlockKind::kMiddle ? LK_CHUNK_MIDDLE
           : kind == BlockKind::kHigh   ? LK_CHUNK_HIGH
                                        : LK_CHUNK_NONE;
}

lk_status make_block(lk_cache *cache, uint64_t index, CacheBlock **out) {
    const Plan &plan = cache->plan.model;
    const uint64_t bytes = block_bytes(plan);
    LK_TRY(make_table_space(cache, bytes, "a page table"));
    const Allocator &allocator = cache->context->allocator;
    void *memory = allocator.alloc(allocator.user, bytes, 64);
    if (!memory)
        return fail(LK_E_NOMEM, "no memory for a page table of %llu bytes", ull{bytes});
    std::memset(memory, 0, bytes);
    CacheBlock *block = new (memory) CacheBlock{};
    block->first_token = block_first_token(plan, index);
    block->capacity_tokens = block_capacity(plan, index);
    block->n_entries = static_cast<uint32_t>(cache->formats.entries.size());
    block->n_holders = 1;
    block->entries = reinterpret_cast<PageEntry *>(static_cast<char *>(memory) + kBlockBytes);
    const lk_status status = cache->device->block_create(block);
    if (status) {
        allocator.free(allocator.user, memory, bytes, 64);
        return status;
    }
    cache->ledger.table_bytes += bytes;
    *out = block;
    return LK_OK;
}

void free_block(lk_cache *cache, CacheBlock *block, uint32_t n_entries) {
    uncount_block(cache, block);
    for (uint32_t e = 0; e < n_entries; ++e)
        give_entry(cache, block->entries[e]);
    cache->device->block_destroy(block);
    const uint64_t bytes = block_bytes(cache->plan.model);
    const Allocator &allocator = cache->context->allocator;
    allocator.free(allocator.user, block, bytes, 64);
    cache->ledger.table_bytes -= bytes;
}

lk_status create_block(lk_cache *cache, uint64_t index, BlockKind kind, CacheBlock **out) {
    CacheBlock *block = nullptr;
    lk_status status = make_block(cache, index, &block);
    if (status)
        return status;
    const bool is_last_sink = block->capacity_tokens < cache->plan.model.page_tokens;
    for (uint32_t e = 0; e < block->n_entries; ++e) {
        status = take_entry(cache, e, kind, is_last_sink, &block->entries[e]);
        if (status) {
            free_block(cache, block, e);
            return status;
        }
    }
    status = cache->device->entries_changed(block);
    if (status) {
        free_block(cache, block, block->n_entries);
        return status;
    }
    block->is_packed_on_append = kind == BlockKind::kPackedOnAppend;
    block->chunk_class = chunk_class_of(kind);
    block->n_packed = block->is_packed_on_append || block->chunk_class ? block->n_entries : 0;
    count_block(cache, block);
    *out = block;
    return LK_OK;
}

lk_status reserve_table(lk_cache *cache, Sequence *sequence, uint64_t n_blocks) {
    const uint64_t before = sequence->block_table.capacity();
    if (n_blocks <= before)
        return LK_OK;
    LK_TRY(make_table_space(cache, n_blocks * kLinkBytes, "a sequence's list of blocks"));
    if (!sequence->block_table.reserve(n_blocks))
        return fail(LK_E_NOMEM, "no memory for a list of %llu blocks", ull{n_blocks});
    cache->ledger.table_bytes += (n_blocks - before) * kLinkBytes;
    return LK_OK;
}

void shorten_table(lk_cache *cache, Sequence *sequence) {
    Array<Block *> &table = sequence->block_table;
    const uint64_t n_blocks = table.empty() ? 0 : table_capacity(table.size());
    const uint64_t bytes = n_blocks * kLinkBytes;
    if (n_blocks >= table.capacity() || bytes > cache->ledger.left_bytes() ||
        cache->slots.excess_bytes(bytes))
        return;
    const uint64_t before = table.capacity();
    Array<Block *> shorter(cache->context->allocator);
    if (!shorter.reserve(n_blocks) || !shorter.assign(table.data(), table.size()))
        return;
    table = std::move(shorter);
    cache->ledger.table_bytes -= (before - n_blocks) * kLinkBytes;
}

lk_status add_block(lk_cache *cache, Sequence *sequence, BlockKind kind) {
    CacheBlock *block = nullptr;
    const lk_status status = create_block(cache, sequence->block_table.size(), kind, &block);
    if (!status)
        sequence->block_table.push(block);
    return status;
}

void drop_blocks(lk_cache *cache, Sequence *sequence, uint64_t n_blocks) {
    while (sequence->block_table.size() > n_blocks) {
        release_block(cache, sequence->block(sequence->block_table.size() - 1));
        sequence->block_table.pop();
    }
}

void hold_block(lk_cache *cache, CacheBlock *block) {
    if (block->n_holders == 1)
        cache->statistics.counts.shared_bytes += content_bytes(cache->formats, *block);
    ++block->n_holders;
}

void release_block(lk_cache *cache, CacheBlock *block) {
    if (!--block->n_holders) {
        unlink_packed_copy(block);
        free_block(cache, block, block->n_entries);
        return;
    }
    if (block->n_holders == 1)
        cache->statistics.counts.shared_bytes -= content_bytes(cache->formats, *block);
}

void unlink_packed_copy(CacheBlock *block) {
    if (block->packed_copy)
        block->packed_copy->packed_from = nullptr;
    if (block->packed_from)
        block->packed_from->packed_copy = nullptr;
    block->packed_copy = block->packed_from = nullptr;
}

uint64_t content_bytes(const Formats &formats, const CacheBlock &block) {
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < block.n_entries; ++e) {
        if (block.entries[e].is_absent)
            continue;
        for (const uint16_t page : {block.entries[e].key_format, block.entries[e].value_format}) {
            const PageBytes own = page_bytes(formats[page]);
            bytes += own.payload + own.metadata + own.recent;
        }
    }
    return bytes;
}

bool is_raw_block(const Formats &formats, const CacheBlock &block) {
    for (uint32_t e = 0; e < block.n_entries; ++e)
        if (!formats.is_raw(block.entries[e].key_format) ||
            !formats.is_raw(block.entries[e].value_format))
            return false;
    return true;
}

bool has_absent_pages(const CacheBlock &block) {
    for (uint32_t e = 0; e < block.n_entries; ++e)
        if (block.entries[e].is_absent)
            return true;
    return false;
}

bool may_replace(const CacheBlock &block) {
    return block.n_holders == 1 && !has_absent_pages(block);
}

}  // namespace lk
