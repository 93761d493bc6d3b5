// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/truncate.h"

#include "core/cache.h"
#include "core/chunks/attention_scores.h"
#include "core/chunks/cut.h"
#include "core/pages/dequantize.h"
#include "core/sequence/shared_query_stats.h"
#include "core/sequence/windows.h"

namespace lk {

namespace {

// The block that keeps some of its tokens and loses others takes new tokens next, so it must be at
// 16 bits. Blocks before it stay packed, within the recent window too. One with other holders stays
// as it is: new tokens will go into a copy.
lk_status open_cut_block(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    const Plan &plan = cache->plan.model;
    if (!n_tokens)
        return LK_OK;
    const uint64_t index = block_of_token(plan, n_tokens - 1);
    CacheBlock *block = sequence->block(index);
    const uint64_t kept = n_tokens - block->first_token;
    if (is_sink_block(plan, index) || kept == block->capacity_tokens || !block->n_packed ||
        block->n_holders > 1)
        return LK_OK;
    LK_TRY(leave_recording(cache));
    CacheBlock *last = sequence->block(sequence->block_table.size() - 1);
    CacheBlock *donor = last != block && last->n_holders == 1 ? last : nullptr;
    lk_status status = dequantize_block(cache, block, donor, static_cast<uint32_t>(kept));
    if (!status && sequence->first_open > index)
        sequence->first_open = index;
    return status;
}

}  // namespace

lk_status truncate_sequence(lk_cache *cache, lk_sequence id, uint64_t n_tokens) {
    Sequence *sequence = cache->sequences.find(id);
    if (!sequence)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (cache->step.is_open)
        return fail(LK_E_BUSY,
                    "a step is open: commit or discard it before sequence %llu is truncated",
                    ull{id});
    if (cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: truncate sequence %llu after",
                    ull{id});
    if (n_tokens > sequence->length)
        return fail(LK_E_ARGUMENT, "n_tokens is %llu, sequence %llu has %llu", ull{n_tokens},
                    ull{id}, ull{sequence->length});
    LK_TRY(check_version(cache, *sequence, n_tokens));
    return cut_sequence(cache, sequence, n_tokens);
}

lk_status cut_sequence(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    LK_TRY(check_pages(cache, *sequence, n_tokens));
    LK_TRY(cuts_chunks(cache, *sequence, n_tokens) ? cut_chunks(cache, sequence, n_tokens)
                                                   : open_cut_block(cache, sequence, n_tokens));
    const uint64_t n_blocks = block_count(cache->plan.model, n_tokens);
    drop_blocks(cache, sequence, n_blocks);
    shorten_table(cache, sequence);
    if (sequence->first_open > n_blocks)
        sequence->first_open = n_blocks;
    if (sequence->first_windowed > n_blocks)
        sequence->first_windowed = n_blocks;
    lk_status status = cut_query_stats(cache, sequence, n_blocks);
    cut_attention_scores(cache, sequence, n_tokens);
    trim_chunks(cache, sequence, n_tokens);
    cut_versions(cache, sequence, n_tokens);
    cache->statistics.counts.n_tokens -= sequence->length - n_tokens;
    sequence->length = n_tokens;
    return status;
}

}  // namespace lk

extern "C" lk_status lk_sequence_truncate(lk_cache *cache, lk_sequence id, uint64_t n_tokens) {
    return lk::on_cache(cache, [&] { return lk::truncate_sequence(cache, id, n_tokens); });
}
