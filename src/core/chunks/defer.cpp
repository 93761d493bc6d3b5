// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/defer.h"

#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/chunks/order.h"
#include "core/chunks/pending.h"
#include "core/pages/pack.h"

namespace lk {

uint64_t first_to_pack(const lk_cache *cache, const Sequence &sequence) {
    const Plan &plan = cache->plan.model;
    const uint64_t sinks = sink_blocks(plan);
    if (sequence.deferral != LK_DEFER_OFF || sequence.pending ||
        (sequence.chunks && plan.chunks.hold))
        return UINT64_MAX;
    if (!sequence.chunks)
        return sinks;
    const uint64_t n_tokens = uint64_t{sequence.chunks->size()} * plan.chunks.tokens;
    return sinks + ceil_div(n_tokens, plan.page_tokens);
}

namespace {

// May the blocks be packed now, which are a block of chunks or a chunk of blocks?
bool may_pack(const lk_cache *cache, Sequence *sequence, uint64_t first, uint32_t n_blocks) {
    for (uint64_t r = first; r < first + n_blocks; ++r) {
        const CacheBlock &block = *sequence->block(r);
        const bool is_open =
            block.n_packed < block.n_entries || is_raw_block(cache->formats, block);
        if (!is_open || !may_replace(block))
            return false;
    }
    return true;
}

}  // namespace

lk_status pack_deferred(lk_cache *cache, uint32_t *n_done) {
    const SpareScope spare(&cache->ledger);
    const Plan &plan = cache->plan.model;
    for (Sequence *sequence : cache->sequences) {
        if (sequence->deferral != LK_DEFER_PACK)
            continue;
        const uint32_t n_blocks = ChunkShape(plan).chunk_blocks;
        uint64_t first = sink_blocks(plan);
        while (is_due(plan, first + n_blocks - 1, sequence->length) &&
               !may_pack(cache, sequence, first, n_blocks))
            first += n_blocks;
        if (!is_due(plan, first + n_blocks - 1, sequence->length))
            continue;
        for (uint64_t r = first; r < first + n_blocks; ++r) {
            LK_TRY(pack_block_as(cache, sequence, r, LK_CHUNK_MIDDLE));
            *n_done += 2 * sequence->block(r)->n_entries;
        }
        return LK_OK;
    }
    return LK_OK;
}

namespace {

lk_status defer(lk_cache *cache, lk_sequence id, lk_defer mode) {
    if (mode > LK_DEFER_PACK)
        return fail(LK_E_ARGUMENT, "mode is %u, not an lk_defer", mode);
    Sequence *sequence;
    LK_TRY(find_chunked(cache, id, &sequence));
    if (cache->step.is_open)
        return fail(LK_E_BUSY,
                    "a step is open: commit or discard it before sequence %llu is deferred",
                    ull{id});
    sequence->deferral = mode;
    if (mode == LK_DEFER_OFF)
        return LK_OK;
    release_pending(cache, sequence->pending);
    sequence->pending = nullptr;
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_sequence_defer(lk_cache *cache, lk_sequence id, lk_defer mode) {
    return lk::on_cache(cache, [&] { return lk::defer(cache, id, mode); });
}
