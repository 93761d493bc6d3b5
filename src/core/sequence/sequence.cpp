// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/sequence.h"

#include "core/cache.h"
#include "core/chunks/attention_scores.h"
#include "core/chunks/chunks.h"
#include "core/chunks/pending.h"
#include "core/chunks/retain.h"
#include "core/sequence/shared_query_stats.h"

namespace lk {

Sequence *Sequences::find(lk_sequence id) const {
    size_t low = 0;
    size_t high = list.size();
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (list[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < list.size() && list[low]->id == id ? list[low] : nullptr;
}

lk_status enter_sequence(lk_cache *cache, Sequence *sequence) {
    if (cache->sequences.size() == cache->desc.max_sequences)
        return fail(LK_E_BUDGET, "the cache has its max_sequences of %u already",
                    cache->desc.max_sequences);
    cache->sequences.list.push(sequence);  // it has space for max_sequences
    sequence->id = cache->sequences.next_id++;
    return LK_OK;
}

void free_sequence(lk_cache *cache, Sequence *sequence) {
    drop_blocks(cache, sequence, 0);
    release_query_stats(cache, sequence->query_stats);
    drop_attention_scores(cache, sequence);
    release_chunks(cache, sequence->chunks);
    release_pending(cache, sequence->pending);
    drop_originals(cache, sequence);
    drop_versions(cache, sequence);
    cache->ledger.table_bytes -= sequence->block_table.capacity() * kLinkBytes;
    destroy(cache->context->allocator, sequence);
}

void leave_sequence(lk_cache *cache, Sequence *sequence) {
    size_t index = 0;
    while (cache->sequences[index] != sequence)
        ++index;
    for (size_t i = index + 1; i < cache->sequences.size(); ++i)
        cache->sequences.list[i - 1] = cache->sequences.list[i];
    cache->sequences.list.pop();
    cache->statistics.counts.n_tokens -= sequence->length;
    free_sequence(cache, sequence);
}

namespace {

lk_status add_sequence(lk_cache *cache, lk_sequence *id) {
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it first");
    const Allocator &allocator = cache->context->allocator;
    Sequence *sequence = create<Sequence>(allocator, allocator);
    if (!sequence)
        return fail(LK_E_NOMEM, "no memory for a sequence");
    lk_status status =
        cache->formats.n_ranked_channels ? make_query_stats(cache, &sequence->query_stats) : LK_OK;
    if (!status && sequence->query_stats)
        status = sequence->query_stats->start(&cache->stat_queue);
    if (!status)
        status = list_versions(cache, 0, sequence);
    if (!status)
        status = enter_sequence(cache, sequence);
    if (status) {
        free_sequence(cache, sequence);
        return status;
    }
    *id = sequence->id;
    return LK_OK;
}

lk_status remove_sequence(lk_cache *cache, lk_sequence id) {
    Sequence *sequence = cache->sequences.find(id);
    if (!sequence)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (cache->step.is_open)
        return fail(LK_E_BUSY,
                    "a step is open: commit or discard it before sequence %llu is removed",
                    ull{id});
    leave_sequence(cache, sequence);
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_sequence_add(lk_cache *cache, lk_sequence *id) {
    if (id)
        *id = 0;
    return lk::on_cache(cache, [&] {
        if (!id)
            return lk::fail(LK_E_ARGUMENT, "id is NULL");
        return lk::add_sequence(cache, id);
    });
}

extern "C" lk_status lk_sequence_remove(lk_cache *cache, lk_sequence id) {
    return lk::on_cache(cache, [&] { return lk::remove_sequence(cache, id); });
}

extern "C" lk_status lk_sequence_length(const lk_cache *cache, lk_sequence id, uint64_t *n_tokens) {
    return lk::read_cache(cache, [&] {
        if (!n_tokens)
            return lk::fail(LK_E_ARGUMENT, "n_tokens is NULL");
        const lk::Sequence *sequence = cache->sequences.find(id);
        if (!sequence)
            return lk::fail(LK_E_NOT_FOUND, "there is no sequence %llu", lk::ull{id});
        *n_tokens = sequence->length;
        return lk_status{LK_OK};
    });
}
