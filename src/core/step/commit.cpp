// Closing a step: what is kept of its tokens becomes part of their sequences.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/chunks/attention_scores.h"
#include "core/sequence/copy_on_write.h"
#include "core/sequence/windows.h"
#include "core/step/faults.h"
#include "core/step/sum_queries.h"

namespace lk {

namespace {

// What is kept of a sequence's new tokens: the first n, or those of a path, root first.
struct Kept {
    uint32_t n;
    const uint32_t *path;  // [n] or null

    uint32_t token(uint32_t i) const { return path ? path[i] : i; }
};

struct Choice {
    const uint32_t *n_kept;  // [n_sequences], null = all
    const uint32_t *paths;   // one after the other, or null

    // In the order of the sequences.
    Kept next(const StepSequence &member, uint32_t index) {
        const Kept kept = {n_kept ? n_kept[index] : member.n_new, paths};
        paths += paths ? kept.n : 0;
        return kept;
    }
};

lk_status check_layers(const lk_cache *cache) {
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l) {
        const uint8_t state = cache->step.layers[l];
        if (state == kNoKeys && cache->formats.layers[l].owns_kv)
            return fail(LK_E_STATE, "layer %u has no keys in this step", l);
        if (cache->formats.layers[l].ranks_by_queries && state != kAttended)
            return fail(LK_E_STATE, "layer %u ranks channels by queries and was not attended", l);
    }
    return LK_OK;
}

lk_status check_kept(const StepSequence &member, const Kept &kept) {
    const ull id = member.sequence->id;
    if (kept.n > member.n_new)
        return fail(LK_E_ARGUMENT, "keep is %u for sequence %llu with %u new tokens", kept.n, id,
                    member.n_new);
    if (!member.is_draft() && kept.n && kept.n != member.n_new)
        return fail(LK_E_ARGUMENT,
                    "keep is %u for sequence %llu, whose %u new tokens are kept all or none",
                    kept.n, id, member.n_new);
    int32_t before = -1;
    for (uint32_t i = 0; (member.parent || kept.path) && i < kept.n; ++i) {
        const uint32_t token = kept.token(i);
        if (token >= member.n_new)
            return fail(LK_E_ARGUMENT, "token %u of sequence %llu with %u new tokens is kept",
                        token, id, member.n_new);
        const int32_t parent =
            member.parent ? member.parent[token] : static_cast<int32_t>(token) - 1;
        if (parent != before)
            return fail(LK_E_ARGUMENT,
                        "keep is %u for sequence %llu, whose token %u has parent %d, not %d: no "
                        "chain",
                        kept.n, id, token, parent, before);
        before = static_cast<int32_t>(token);
    }
    return LK_OK;
}

// Kept tokens of one block that go to one block.
struct Run {
    uint64_t source_block;
    uint64_t target_block;
    uint32_t first_source;
    uint32_t first_target;
    uint64_t mask;
};

// The next run of a sequence; false when all of its tokens are where they are kept.
bool next_run(const Plan &plan, const Kept &kept, StepSequence *member, Run *run) {
    uint32_t *i = &member->n_moved;
    while (*i < kept.n && kept.token(*i) == *i)
        ++*i;
    if (*i == kept.n)
        return false;
    const uint64_t length = member->sequence->length;
    const uint32_t first = kept.token(*i);
    run->source_block = block_of_token(plan, length + first);
    run->target_block = block_of_token(plan, length + *i);
    run->first_source =
        static_cast<uint32_t>(length + first - block_first_token(plan, run->source_block));
    run->first_target =
        static_cast<uint32_t>(length + *i - block_first_token(plan, run->target_block));
    run->mask = 0;
    for (; *i < kept.n && block_of_token(plan, length + kept.token(*i)) == run->source_block &&
           block_of_token(plan, length + *i) == run->target_block;
         ++*i)
        run->mask |= uint64_t{1} << (kept.token(*i) - first);
    return true;
}

lk_status queue_run(lk_cache *cache, const StepSequence &member, const Run &run) {
    const CacheBlock &source = *member.sequence->block(run.source_block);
    const CacheBlock &target = *member.sequence->block(run.target_block);
    const PageFormat *classes = cache->formats.table.data();
    for (uint32_t e = 0; e < source.n_entries; ++e) {
        const PageEntry &from = source.entries[e];
        const PageEntry &to = target.entries[e];
        if (cache->work.moves.size() + 2 > kBatch)
            LK_TRY(flush_moves(cache));
        cache->work.moves.push({&classes[from.key_format], from.key_payload,
                                &classes[to.key_format], to.key_payload, run.first_source,
                                run.first_target, run.mask});
        if (!classes[to.value_format].layout.is_absent())
            cache->work.moves.push({&classes[from.value_format], from.value_payload,
                                    &classes[to.value_format], to.value_payload, run.first_source,
                                    run.first_target, run.mask});
    }
    return LK_OK;
}

// A run may write where the run before it of the same sequence reads, so they go one after the
// other; those of different sequences have blocks of their own and go together.
lk_status move_kept(lk_cache *cache, const Choice &choice) {
    Step &step = cache->step;
    for (StepSequence &member : step.sequences)
        member.n_moved = 0;
    for (bool is_done = false; !is_done;) {
        is_done = true;
        Choice each = choice;
        for (uint32_t i = 0; i < step.sequences.size(); ++i) {
            const Kept kept = each.next(step.sequences[i], i);
            Run run;
            if (!next_run(cache->plan.model, kept, &step.sequences[i], &run))
                continue;
            lk_status status = is_done ? leave_recording(cache) : LK_OK;
            is_done = false;
            if (!status)
                status = queue_run(cache, step.sequences[i], run);
            if (status)
                return status;
        }
        LK_TRY(flush_moves(cache));
    }
    return LK_OK;
}

// reserve_query_stats() has reserved the queue, so nothing is handed over that could fail.
void keep_sum(lk_cache *cache, const StepSequence &member, uint64_t block, bool is_gap,
              Increment increment) {
    increment.source += cache->device->query_stats();
    increment.serial = cache->stat_queue.next_serial();
    QueryStats &stats = *member.sequence->query_stats;
    if (is_sink_block(cache->plan.model, block))
        (void)stats.add_to_base(increment, &cache->stat_queue);
    else
        (void)stats.add(block, is_gap, increment, &cache->stat_queue);
}

void keep_token_sums(lk_cache *cache, const StepSequence &member, const Kept &kept) {
    const Plan &plan = cache->plan.model;
    const uint64_t length = member.sequence->length;
    const uint64_t stride_bytes = cache->formats.n_ranked_channels * sizeof(uint64_t);
    for (uint32_t t = 0; t < kept.n;) {
        const bool follows = t != 0;
        const uint64_t block = block_of_token(plan, length + t);
        uint64_t mask = 0;
        for (; t < kept.n && block_of_token(plan, length + t) == block; ++t)
            mask |= uint64_t{1} << kept.token(t);
        keep_sum(cache, member, block, false, {member.stats, mask, stride_bytes, 0, follows});
    }
}

void keep_block_sums(lk_cache *cache, const StepSequence &member) {
    const Plan &plan = cache->plan.model;
    const uint64_t length = member.sequence->length;
    uint64_t last = UINT64_MAX;
    for (uint64_t r = block_of_token(plan, length); r < block_count(plan, length + member.n_new);
         ++r) {
        bool is_gap;
        const uint64_t stats = block_stats(cache, member, r, &is_gap);
        if (stats == last)
            continue;
        const bool follows = last != UINT64_MAX;
        last = stats;
        keep_sum(cache, member, r, is_gap, {stats, 1, 0, 0, follows});
    }
}

void keep_tokens(lk_cache *cache, StepSequence *member, const Kept &kept) {
    Sequence *sequence = member->sequence;
    if (!kept.n) {
        drop_tokens(cache, member);
        return;
    }
    if (cache->formats.n_ranked_channels) {
        if (member->is_draft())
            keep_token_sums(cache, *member, kept);
        else
            keep_block_sums(cache, *member);
    }
    drop_blocks(cache, sequence, block_count(cache->plan.model, sequence->length + kept.n));
    for (uint64_t r = member->n_blocks_before; r < sequence->block_table.size(); ++r)
        sequence->block(r)->is_packed_on_append = 0;
    sequence->length += kept.n;
    cache->statistics.counts.n_tokens += kept.n;
    keep_tail(cache, member);
    keep_states(cache, member);
    keep_attention_scores(member);
    free_hidden_pages(cache, sequence);
}

lk_status commit_step(lk_cache *cache, const Choice &choice) {
    Step &step = cache->step;
    LK_TRY(check_open(cache));
    LK_TRY(check_layers(cache));
    Choice each = choice;
    for (uint32_t i = 0; i < step.sequences.size(); ++i)
        LK_TRY(check_kept(step.sequences[i], each.next(step.sequences[i], i)));
    if (choice.paths && cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: commit after");
    if (choice.paths)
        LK_TRY(move_kept(cache, choice));
    each = choice;
    for (uint32_t i = 0; i < step.sequences.size(); ++i)
        keep_tokens(cache, &step.sequences[i], each.next(step.sequences[i], i));
    step.is_open = false;
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_step_commit(lk_cache *cache, const uint32_t *keep) {
    return lk::on_cache(cache, [&] { return lk::commit_step(cache, {keep, nullptr}); });
}

extern "C" lk_status lk_step_commit_tokens(lk_cache *cache, const uint32_t *n_kept,
                                           const uint32_t *kept) {
    return lk::on_cache(cache, [&] {
        if (!n_kept || !kept)
            return lk::fail(LK_E_ARGUMENT, "%s is NULL", n_kept ? "kept" : "n_kept");
        return lk::commit_step(cache, {n_kept, kept});
    });
}
