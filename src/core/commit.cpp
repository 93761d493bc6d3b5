// Closing a step: what is kept of its tokens becomes part of their sequences.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/watch.h"

namespace lk {

lk_status flush_moves(lk_cache *cache) {
    lk_status status = LK_OK;
    if (!cache->moves.empty())
        status =
            cache->device->move(cache->moves.data(), static_cast<uint32_t>(cache->moves.size()));
    cache->moves.clear();
    return status;
}

namespace {

// What is kept of a sequence's new tokens: the first n, or those of a path, root first.
struct Kept {
    uint32_t n;
    const uint32_t *path;  // [n] or null

    uint32_t token(uint32_t i) const { return path ? path[i] : i; }
};

struct Choice {
    const uint32_t *n_kept;  // [n_sequences], null = all
    const uint32_t *paths;   // one behind the other, or null

    // In the order of the sequences.
    Kept next(const StepSequence &part, uint32_t index) {
        const Kept kept = {n_kept ? n_kept[index] : part.n_new, paths};
        paths += paths ? kept.n : 0;
        return kept;
    }
};

lk_status check_layers(const lk_cache *cache) {
    for (uint32_t l = 0; l < cache->layers.size(); ++l) {
        const uint8_t state = cache->step.layers[l];
        if (state == kNoKeys)
            return fail(LK_E_STATE, "layer %u has no keys in this step", l);
        if (cache->layers[l].ranks_by_queries && state != kAttended)
            return fail(LK_E_STATE, "layer %u ranks channels by queries and was not attended", l);
    }
    return LK_OK;
}

lk_status check_kept(const StepSequence &part, const Kept &kept) {
    const ull id = part.sequence->id;
    if (kept.n > part.n_new)
        return fail(LK_E_ARGUMENT, "keep is %u for sequence %llu with %u new tokens", kept.n, id,
                    part.n_new);
    if (!part.is_draft() && kept.n && kept.n != part.n_new)
        return fail(LK_E_ARGUMENT,
                    "keep is %u for sequence %llu, whose %u new tokens are kept all or none",
                    kept.n, id, part.n_new);
    int32_t before = -1;
    for (uint32_t i = 0; (part.parent || kept.path) && i < kept.n; ++i) {
        const uint32_t token = kept.token(i);
        if (token >= part.n_new)
            return fail(LK_E_ARGUMENT, "token %u of sequence %llu with %u new tokens is kept",
                        token, id, part.n_new);
        const int32_t parent = part.parent ? part.parent[token] : static_cast<int32_t>(token) - 1;
        if (parent != before)
            return fail(LK_E_ARGUMENT,
                        "keep is %u for sequence %llu, whose token %u has parent %d, not %d: no "
                        "chain",
                        kept.n, id, token, parent, before);
        before = static_cast<int32_t>(token);
    }
    return LK_OK;
}

// Kept tokens of one row that go to one row.
struct Run {
    uint64_t source_row;
    uint64_t target_row;
    uint32_t first_source;
    uint32_t first_target;
    uint64_t mask;
};

// The next one of a sequence; false when all of its tokens are in their places.
bool next_run(const Plan &plan, const Kept &kept, StepSequence *part, Run *run) {
    uint32_t *i = &part->n_moved;
    while (*i < kept.n && kept.token(*i) == *i)
        ++*i;
    if (*i == kept.n)
        return false;
    const uint64_t length = part->sequence->length;
    const uint32_t first = kept.token(*i);
    run->source_row = block_of_token(plan, length + first);
    run->target_row = block_of_token(plan, length + *i);
    run->first_source =
        static_cast<uint32_t>(length + first - block_first_token(plan, run->source_row));
    run->first_target =
        static_cast<uint32_t>(length + *i - block_first_token(plan, run->target_row));
    run->mask = 0;
    for (; *i < kept.n && block_of_token(plan, length + kept.token(*i)) == run->source_row &&
           block_of_token(plan, length + *i) == run->target_row;
         ++*i)
        run->mask |= uint64_t{1} << (kept.token(*i) - first);
    return true;
}

lk_status queue_run(lk_cache *cache, const StepSequence &part, const Run &run) {
    const Row &source = *part.sequence->row(run.source_row);
    const Row &target = *part.sequence->row(run.target_row);
    const PageFormat *classes = cache->classes.data();
    for (uint32_t e = 0; e < source.n_entries; ++e) {
        const PageEntry &from = source.entries[e];
        const PageEntry &to = target.entries[e];
        if (cache->moves.size() + 2 > kBatch) {
            const lk_status status = flush_moves(cache);
            if (status)
                return status;
        }
        cache->moves.push({&classes[from.key_format], from.key_payload, &classes[to.key_format],
                           to.key_payload, run.first_source, run.first_target, run.mask});
        cache->moves.push({&classes[from.value_format], from.value_payload,
                           &classes[to.value_format], to.value_payload, run.first_source,
                           run.first_target, run.mask});
    }
    return LK_OK;
}

// A run may write where the run before it of the same sequence reads, so they go one after the
// other; those of different sequences have rows of their own and go together.
lk_status move_kept(lk_cache *cache, const Choice &choice) {
    Step &step = cache->step;
    for (StepSequence &part : step.sequences)
        part.n_moved = 0;
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
        const lk_status status = flush_moves(cache);
        if (status)
            return status;
    }
    return LK_OK;
}

// There is room for what is queued (place_sums()), so nothing is handed over that could fail.
void keep_sum(lk_cache *cache, const StepSequence &part, uint64_t row, bool is_gap,
              Increment increment) {
    increment.source += cache->device->query_stats();
    increment.serial = cache->next_increment++;
    Scores &scores = *part.sequence->scores;
    if (is_sink_block(cache->plan.model, row))
        (void)scores.add_to_base(increment, &cache->sums);
    else
        (void)scores.add(row, is_gap, increment, &cache->sums);
}

void keep_token_sums(lk_cache *cache, const StepSequence &part, const Kept &kept) {
    const Plan &plan = cache->plan.model;
    const uint64_t length = part.sequence->length;
    const uint64_t stride_bytes = cache->n_ranked_channels * sizeof(uint64_t);
    for (uint32_t t = 0; t < kept.n;) {
        const bool follows = t != 0;
        const uint64_t row = block_of_token(plan, length + t);
        uint64_t mask = 0;
        for (; t < kept.n && block_of_token(plan, length + t) == row; ++t)
            mask |= uint64_t{1} << kept.token(t);
        keep_sum(cache, part, row, false, {part.sums, mask, stride_bytes, 0, follows});
    }
}

void keep_row_sums(lk_cache *cache, const StepSequence &part) {
    const Plan &plan = cache->plan.model;
    const uint64_t length = part.sequence->length;
    uint64_t last = UINT64_MAX;
    for (uint64_t r = block_of_token(plan, length); r < block_count(plan, length + part.n_new);
         ++r) {
        bool is_gap;
        const uint64_t sums = row_sums(cache, part, r, &is_gap);
        if (sums == last)
            continue;
        const bool follows = last != UINT64_MAX;
        last = sums;
        keep_sum(cache, part, r, is_gap, {sums, 1, 0, 0, follows});
    }
}

void keep_tokens(lk_cache *cache, StepSequence *part, const Kept &kept) {
    Sequence *sequence = part->sequence;
    if (!kept.n) {
        drop_tokens(cache, part);
        return;
    }
    if (cache->n_ranked_channels) {
        if (part->is_draft())
            keep_token_sums(cache, *part, kept);
        else
            keep_row_sums(cache, *part);
    }
    drop_rows(cache, sequence, block_count(cache->plan.model, sequence->length + kept.n));
    for (uint64_t r = part->n_rows_before; r < sequence->rows.size(); ++r)
        sequence->row(r)->is_packed_on_append = 0;
    sequence->length += kept.n;
    cache->stats.n_tokens += kept.n;
    keep_tail(cache, part);
    keep_watch(part);
    free_hidden_pages(cache, sequence);
}

lk_status commit_step(lk_cache *cache, const Choice &choice) {
    Step &step = cache->step;
    lk_status status = check_open(cache);
    if (!status)
        status = check_layers(cache);
    Choice each = choice;
    for (uint32_t i = 0; !status && i < step.sequences.size(); ++i)
        status = check_kept(step.sequences[i], each.next(step.sequences[i], i));
    if (!status && choice.paths && cache->device->is_capturing())
        status = fail(LK_E_STATE, "the cache's queue is being captured: commit after");
    if (!status && choice.paths)
        status = move_kept(cache, choice);
    if (status)
        return status;
    each = choice;
    for (uint32_t i = 0; i < step.sequences.size(); ++i)
        keep_tokens(cache, &step.sequences[i], each.next(step.sequences[i], i));
    step.is_open = false;
    return LK_OK;
}

lk_status commit(lk_cache *cache, const Choice &choice) {
    const lk_status status = commit_step(cache, choice);
    publish(cache);
    return logged(cache->context, status);
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_step_commit(lk_cache *cache, const uint32_t *keep) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    return lk::commit(cache, {keep, nullptr});
}

extern "C" lk_status lk_step_commit_tokens(lk_cache *cache, const uint32_t *n_kept,
                                           const uint32_t *kept) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    if (!n_kept || !kept)
        return lk::logged(cache->context,
                          lk::fail(LK_E_ARGUMENT, "%s is NULL", n_kept ? "kept" : "n_kept"));
    return lk::commit(cache, {n_kept, kept});
}
