// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/copy_on_write.h"

#include "core/cache.h"
#include "core/pages/dequantize.h"
#include "core/sequence/shared_query_stats.h"

namespace lk {

namespace {

// Tokens of the sequence in its last block.
uint32_t tail_tokens(const Sequence &sequence, const CacheBlock &block) {
    const uint64_t n = sequence.length - block.first_token;
    return n < block.capacity_tokens ? static_cast<uint32_t>(n) : block.capacity_tokens;
}

// One holder may write after the tokens that any holder has. A packed block is one that a
// truncation or a fork cut while it had other holders.
bool may_write(const lk_cache *cache, const Sequence &sequence, const CacheBlock &block) {
    if (block.n_packed)
        return false;
    return block.n_holders == 1 || (block.n_written <= tail_tokens(sequence, block) &&
                                    block.writer != cache->sequences.next_mark);
}

}  // namespace

lk_status copy_shared_block(lk_cache *cache, Sequence *sequence, uint64_t index,
                            uint32_t n_tokens) {
    const BlockKind kind =
        is_sink_block(cache->plan.model, index) ? BlockKind::kSink : BlockKind::kRecent;
    CacheBlock *own = nullptr;
    LK_TRY(create_block(cache, index, kind, &own));
    lk_status status = copy_raw_pages(cache, *sequence->block(index), *own, n_tokens);
    if (status) {
        release_block(cache, own);
        return status;
    }
    cache->statistics.counts.pages_copied += 2u * own->n_entries;
    sequence->block_table[index] = own;
    if (sequence->first_open > index)
        sequence->first_open = index;
    return LK_OK;
}

void choose_tails(lk_cache *cache) {
    for (StepSequence &member : cache->step.sequences) {
        Sequence *sequence = member.sequence;
        CacheBlock *block =
            member.n_blocks_before ? sequence->block(member.n_blocks_before - 1) : nullptr;
        if (!block || tail_tokens(*sequence, *block) == block->capacity_tokens)
            continue;
        member.copies_tail = !may_write(cache, *sequence, *block);
        if (member.copies_tail)
            continue;
        block->writer = cache->sequences.next_mark;
        unlink_packed_copy(block);
    }
}

lk_status own_tail(lk_cache *cache, StepSequence *member) {
    Sequence *sequence = member->sequence;
    lk_status status = own_query_stats(cache, sequence, &member->borrowed_stats);
    if (status || !member->copies_tail)
        return status;
    const uint64_t index = member->n_blocks_before - 1;
    CacheBlock *shared = sequence->block(index);
    status = copy_shared_block(cache, sequence, index, tail_tokens(*sequence, *shared));
    if (!status)
        member->borrowed_block = shared;
    return status;
}

void return_tail(lk_cache *cache, StepSequence *member) {
    Sequence *sequence = member->sequence;
    if (member->borrowed_block) {
        release_block(cache, sequence->block(member->n_blocks_before - 1));
        sequence->block_table[member->n_blocks_before - 1] = member->borrowed_block;
    }
    if (member->borrowed_stats) {
        release_query_stats(cache, sequence->query_stats);
        sequence->query_stats = member->borrowed_stats;
    }
    member->borrowed_block = nullptr;
    member->borrowed_stats = nullptr;
}

void keep_tail(lk_cache *cache, StepSequence *member) {
    Sequence *sequence = member->sequence;
    if (member->borrowed_block)
        release_block(cache, member->borrowed_block);
    release_query_stats(cache, member->borrowed_stats);
    member->borrowed_block = nullptr;
    member->borrowed_stats = nullptr;
    if (!member->n_blocks_before)
        return;
    CacheBlock *block = sequence->block(member->n_blocks_before - 1);
    const uint32_t n_written = tail_tokens(*sequence, *block);
    if (block->n_holders > 1 && block->n_written < n_written)
        block->n_written = n_written;
}

}  // namespace lk
