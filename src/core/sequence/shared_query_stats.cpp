// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/shared_query_stats.h"

#include "core/cache.h"
#include "core/memory/table_space.h"

namespace lk {

void release_query_stats(lk_cache *cache, QueryStats *stats) {
    if (!stats || --stats->n_holders)
        return;
    const SlabMemory &memory = stats->memory();
    cache->stat_queue.forget(memory.address, memory.bytes);
    cache->context->backend->slab_destroy(memory);
    cache->ledger.table_bytes -= sequence_stat_bytes(cache->plan.model);
    destroy(cache->context->allocator, stats);
}

lk_status cut_query_stats(lk_cache *cache, Sequence *sequence, uint64_t n_blocks) {
    QueryStats *stats = sequence->query_stats;
    if (!stats)
        return LK_OK;
    if (n_blocks < sequence->stats_blocks)
        sequence->stats_blocks = n_blocks;
    if (stats->n_holders > 1 || sequence->stats_blocks == UINT64_MAX)
        return LK_OK;
    const bool is_empty = !sequence->stats_blocks;
    stats->truncate(sequence->stats_blocks);
    sequence->stats_blocks = UINT64_MAX;
    return is_empty ? stats->clear(&cache->stat_queue) : LK_OK;
}

lk_status make_query_stats(lk_cache *cache, QueryStats **out) {
    *out = nullptr;
    const uint64_t bytes = sequence_stat_bytes(cache->plan.model);
    LK_TRY(make_table_space(cache, bytes, "a sequence's sums"));
    const uint32_t n_channels = cache->formats.n_ranked_channels;
    const uint64_t n_slots = query_stat_slots(cache->plan.model);
    const Allocator &allocator = cache->context->allocator;
    QueryStats *stats = create<QueryStats>(allocator, allocator);
    lk_status status = LK_OK;
    if (!stats || !stats->open(n_channels, n_slots))
        status = fail(LK_E_NOMEM, "no memory for a sequence's list of sums");
    SlabMemory memory{};
    if (!status)
        status =
            cache->context->backend->slab_create(QueryStats::bytes(n_channels, n_slots), &memory);
    if (status) {
        destroy(allocator, stats);
        return status;
    }
    stats->use(memory);
    cache->ledger.table_bytes += bytes;
    cache->slots.trim();
    *out = stats;
    return LK_OK;
}

lk_status own_query_stats(lk_cache *cache, Sequence *sequence, QueryStats **borrowed) {
    QueryStats *shared = sequence->query_stats;
    if (!shared)
        return LK_OK;
    lk_status status = LK_OK;
    if (shared->n_holders > 1) {
        QueryStats *own;
        status = make_query_stats(cache, &own);
        if (!status)
            status = own->copy(*shared, &cache->stat_queue);
        if (status) {
            release_query_stats(cache, own);
            return status;
        }
        sequence->query_stats = own;
        if (borrowed)
            *borrowed = shared;
    }
    if (!status)
        status = cut_query_stats(cache, sequence, UINT64_MAX);
    if (!status)
        status = cache->stat_queue.flush();
    if (sequence->query_stats != shared && !borrowed)
        release_query_stats(cache, shared);
    return status;
}

}  // namespace lk
