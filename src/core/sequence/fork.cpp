// Forks: sequences that begin with the blocks of another.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/chunks/cut.h"
#include "core/sequence/copy_on_write.h"
#include "core/sequence/shared_query_stats.h"
#include "core/sequence/truncate.h"
#include "core/sequence/windows.h"

namespace lk {

namespace {

// What the last of the shared blocks holds already, for whom it was written.
void note_written(const Sequence &parent, CacheBlock *block) {
    if (block->n_holders > 1)
        return;
    const uint64_t n = parent.length - block->first_token;
    block->n_written =
        n < block->capacity_tokens ? static_cast<uint32_t>(n) : block->capacity_tokens;
}

lk_status share_blocks(lk_cache *cache, Sequence *parent, uint64_t n_tokens, Sequence *child) {
    const uint64_t n_blocks = block_count(cache->plan.model, n_tokens);
    LK_TRY(reserve_table(cache, child, table_capacity(n_blocks)));
    LK_TRY(enter_sequence(cache, child));
    for (uint64_t r = 0; r < n_blocks; ++r) {
        CacheBlock *block = parent->block(r);
        note_written(*parent, block);
        hold_block(cache, block);
        child->block_table.push(block);
    }
    return LK_OK;
}

// The budget ended before its last entries were packed: to go on would change what other holders
// attend to.
bool is_partly_packed(const CacheBlock &block) {
    return block.n_packed && block.n_packed < block.n_entries;
}

bool has_partly_packed(Sequence *sequence, uint64_t n_blocks) {
    for (uint64_t r = sequence->first_open; r < n_blocks; ++r)
        if (is_partly_packed(*sequence->block(r)))
            return true;
    return false;
}

// Blocks at 16 bits for those that the parent has packed in part.
lk_status own_partly_packed(lk_cache *cache, Sequence *child) {
    for (uint64_t r = 0; r < child->block_table.size(); ++r) {
        CacheBlock *shared = child->block(r);
        if (!is_partly_packed(*shared))
            continue;
        const uint64_t n = child->length - shared->first_token;
        const uint32_t capacity = shared->capacity_tokens;
        const lk_status status =
            copy_shared_block(cache, child, r, n < capacity ? static_cast<uint32_t>(n) : capacity);
        if (status)
            return status;
        release_block(cache, shared);
    }
    return LK_OK;
}

lk_status fork_sequence(lk_cache *cache, lk_sequence id, uint64_t n_tokens, lk_sequence *out) {
    Sequence *parent = cache->sequences.find(id);
    if (!parent)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (cache->step.is_open)
        return fail(LK_E_BUSY,
                    "a step is open: commit or discard it before sequence %llu is forked", ull{id});
    if (n_tokens == LK_ALL_TOKENS)
        n_tokens = parent->length;
    if (n_tokens > parent->length)
        return fail(LK_E_ARGUMENT, "n_tokens is %llu, sequence %llu has %llu", ull{n_tokens},
                    ull{id}, ull{parent->length});
    LK_TRY(check_pages(cache, *parent, n_tokens));
    LK_TRY(check_version(cache, *parent, n_tokens));
    // Chunks that were reordered have to be laid out anew, from all of them.
    const bool cuts = cuts_chunks(cache, *parent, n_tokens);
    const uint64_t n_kept = n_tokens;
    const bool copies = has_partly_packed(parent, block_count(cache->plan.model, n_tokens));
    if ((cuts || copies) && cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: fork sequence %llu after",
                    ull{id});
    if (cuts)
        n_tokens = parent->length;
    const Allocator &allocator = cache->context->allocator;
    Sequence *child = create<Sequence>(allocator, allocator);
    if (!child)
        return fail(LK_E_NOMEM, "no memory for a sequence");
    lk_status status = copy_chunks(cache, *parent, child);
    if (!status)
        status = list_versions(cache, parent->versions.size(), child);
    if (!status)
        status = share_blocks(cache, parent, n_tokens, child);
    if (status) {
        free_sequence(cache, child);
        return status;
    }
    child->length = n_tokens;
    share_versions(*parent, n_kept, child);
    child->first_open = parent->first_open;
    if (child->first_open > child->block_table.size())
        child->first_open = child->block_table.size();
    child->first_windowed = parent->first_windowed;
    if (child->first_windowed > child->block_table.size())
        child->first_windowed = child->block_table.size();
    child->query_stats = parent->query_stats;
    child->stats_blocks = parent->stats_blocks;
    if (child->query_stats)
        ++child->query_stats->n_holders;
    if (n_tokens < parent->length)
        status = cut_query_stats(cache, child, child->block_table.size());
    if (copies && !status)
        status = leave_recording(cache);
    if (copies && !status)
        status = own_partly_packed(cache, child);
    cache->statistics.counts.n_tokens += n_tokens;
    if (cuts && !status)
        status = cut_sequence(cache, child, n_kept);
    else
        trim_chunks(cache, child, n_tokens);
    cache->slots.trim();
    if (status) {
        leave_sequence(cache, child);
        return status;
    }
    *out = child->id;
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_sequence_fork(lk_cache *cache, lk_sequence parent, uint64_t n_tokens,
                                      lk_sequence *child) {
    if (child)
        *child = 0;
    return lk::on_cache(cache, [&] {
        if (!child)
            return lk::fail(LK_E_ARGUMENT, "child is NULL");
        return lk::fork_sequence(cache, parent, n_tokens, child);
    });
}
