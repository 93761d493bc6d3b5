// SPDX-License-Identifier: Apache-2.0
#include "core/pages/packed_copy.h"

#include "core/cache.h"
#include "core/memory/compact.h"
#include "core/pages/dequantize.h"
#include "core/pages/pack.h"

namespace lk {

namespace {

lk_status fill_packed_copy(lk_cache *cache, const Sequence &sequence, const CacheBlock &block,
                           CacheBlock *copy) {
    for (uint32_t e = 0; e < block.n_entries; ++e) {
        const EntryInfo &info = cache->formats.entries[e];
        queue_entry(cache, block.entries[e], copy->entries[e], ranking_stats(sequence, info));
        if (cache->work.packs.size() + 2 <= kBatch)
            continue;
        LK_TRY(flush_packs(cache));
    }
    LK_TRY(flush_packs(cache));
    return copy_raw_pages(cache, block, *copy, block.capacity_tokens);
}

lk_status make_packed_copy(lk_cache *cache, const Sequence &sequence, uint64_t index,
                           CacheBlock *block, CacheBlock **out) {
    CacheBlock *copy = nullptr;
    lk_status status = create_block(cache, index, BlockKind::kPackedOnAppend, &copy);
    if (status == LK_E_BUDGET && compact(cache))
        status = create_block(cache, index, BlockKind::kPackedOnAppend, &copy);
    if (status)
        return status;
    copy->is_packed_on_append = 0;
    status = fill_packed_copy(cache, sequence, *block, copy);
    if (status) {
        release_block(cache, copy);
        return status;
    }
    for (const EntryInfo &info : cache->formats.entries)
        cache->statistics.counts.pages_packed += n_packing(info);
    unlink_packed_copy(block);
    block->packed_copy = copy;
    copy->packed_from = block;
    *out = copy;
    return LK_OK;
}

}  // namespace

lk_status take_packed_copy(lk_cache *cache, Sequence *sequence, uint64_t index, bool *is_done) {
    *is_done = true;
    CacheBlock *block = sequence->block(index);
    QueryStats *stats = sequence->query_stats;
    const uint64_t digest = stats ? stats->digest(index) : 0;
    CacheBlock *copy = block->packed_copy;
    const bool is_made = copy && copy->stats_digest == digest;
    if (!is_made && block->n_holders == 1) {
        unlink_packed_copy(block);
        *is_done = false;
        return LK_OK;
    }
    lk_status status =
        stats ? stats->fold(index, 0, cache->formats.n_ranked_channels, &cache->stat_queue) : LK_OK;
    if (!status && !is_made)
        status = make_packed_copy(cache, *sequence, index, block, &copy);
    if (status)
        return status;
    if (is_made)
        hold_block(cache, copy);
    copy->stats_digest = digest;
    sequence->block_table[index] = copy;
    release_block(cache, block);
    return cache->device->entries_changed(copy);
}

}  // namespace lk
